"""An answer that is ended from outside, in whatever state: what the client has begins the answer, and all is freed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import pytest

from outrider.client import Completion
from outrider.client.convert import generate_request
from outrider.engine.replica import Replica
from outrider.errors import DeadlineExceeded, Unavailable
from outrider.v1 import generation_pb2_grpc
from outrider_coordinator.generations import MAX_AHEAD
from tests.cluster import Cluster, running_cluster, until
from tests.conftest import TinyModel

PROMPT = [*range(20, 30)]
OPTIONS: dict[str, Any] = {"temperature": 0.8, "seed": 21, "max_tokens": 190, "ignore_eos": True, "fixed_length": True}
NAME = "mine"


class Gate:
    """Holds a replica's device thread at its next pass that computes a session up to `position`."""

    def __init__(self, replica: Replica, position: int) -> None:
        self.reached, self._open = threading.Event(), threading.Event()
        engine = replica._core.engine
        forward = engine.forward

        def held(feeds: Sequence[Any], *more: Any) -> Any:
            if max(len(feed.sequence.cached) + len(feed.tokens) for feed in feeds) >= position:
                self.reached.set()
                self._open.wait(60)
            return forward(feeds, *more)

        engine.forward = held  # type: ignore[method-assign]
        self._engine: Any = engine

    def open(self) -> None:
        """Let it go on, and everything after it."""
        del self._engine.forward
        self._open.set()


@dataclass
class Scene:
    """A cluster, and what has to be undone before it is at rest again."""

    cluster: Cluster
    undo: list[Callable[[], Awaitable[object] | None]] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)

    def free(self) -> list[int]:
        replicas = (*self.cluster.verifiers, *self.cluster.drafts)
        return [each._core.engine.available_tokens for each in replicas if each._worker.alive]

    async def at_rest(self) -> None:
        for undo in self.undo:
            if (going_on := undo()) is not None:
                await going_on
        self.undo.clear()
        await until(lambda: self.free() == self.whole[-len(self.free()) :] and not self._held())

    def _held(self) -> bool:
        parts = self.cluster.coordinator
        links = [*parts.replicas.verifiers, *parts.replicas.drafts]
        placed = (parts.replicas._on_verifiers.loads(), parts.replicas._on_drafts.loads())
        generations = parts.generations
        levels = [generations.admission.running, generations.admission.waiting, generations.room.waiting]
        return any([*levels, *placed, generations._running, *(link.expected for link in links)])

    async def occupy(self) -> None:
        """Another answer, which holds a place and KV until it is undone."""
        stream = self.cluster.client.stream(token_ids=PROMPT, **OPTIONS)
        await stream.__aenter__()
        await anext(stream)
        self.undo.append(lambda: stream.__aexit__(None, None, None))


async def waits_for_a_place(scene: Scene) -> Callable[[], bool]:
    await scene.occupy()
    return lambda: scene.cluster.coordinator.generations.admission.waiting == 1


async def waits_for_room(scene: Scene) -> Callable[[], bool]:
    await scene.occupy()
    return lambda: scene.cluster.coordinator.generations.room.waiting == 1


async def computes_its_prompt(scene: Scene) -> Callable[[], bool]:
    return hold(scene, scene.cluster.verifiers[0], 1)


async def is_in_a_round(scene: Scene) -> Callable[[], bool]:
    return hold(scene, scene.cluster.verifiers[0], len(PROMPT) + 20)


async def waits_for_its_draft(scene: Scene) -> Callable[[], bool]:
    return hold(scene, scene.cluster.drafts[0], len(PROMPT) + 20)


async def has_no_verifier(scene: Scene) -> Callable[[], bool]:
    gate = Gate(scene.cluster.verifiers[0], len(PROMPT) + 20)
    link = scene.cluster.coordinator.replicas.verifiers[0]

    async def kill() -> None:
        await asyncio.to_thread(gate.reached.wait, 60)
        await scene.cluster.verifiers[0].server.grpc.stop(0)
        gate.open()

    killing = asyncio.create_task(kill())
    scene.undo.append(lambda: killing)
    return lambda: killing.done() and not link.ready


def hold(scene: Scene, replica: Replica, position: int) -> Callable[[], bool]:
    gate = Gate(replica, position)
    scene.undo.append(gate.open)
    return gate.reached.is_set


@asynccontextmanager
async def running_scene(tiny_model: TinyModel, **settings: Any) -> AsyncIterator[Scene]:
    target = tiny_model("llama")
    kv_tokens = 224 if settings.pop("full", False) else 4096
    drafts = [target] if settings.pop("draft", False) else []
    async with running_cluster(target, *drafts, verifier={"kv_tokens": kv_tokens}, **settings) as cluster:
        scene = Scene(cluster)
        scene.whole = scene.free()
        yield scene


STATES: list[tuple[Callable[[Scene], Awaitable[Callable[[], bool]]], dict[str, Any]]] = [
    (waits_for_a_place, {"max_sessions": 1}),
    (waits_for_room, {"full": True}),
    (computes_its_prompt, {}),
    (is_in_a_round, {}),
    (waits_for_its_draft, {"draft": True, "draft_timeout_s": 60}),
    (has_no_verifier, {"failover_s": 60}),
]


@pytest.mark.parametrize(("state", "settings"), STATES, ids=[state.__name__ for state, _ in STATES])
async def test_whoever_ends_an_answer_in_whatever_state_nothing_is_left(
    tiny_model: TinyModel, state: Callable[[Scene], Awaitable[Callable[[], bool]]], settings: dict[str, Any]
) -> None:
    """By Abort, and by leaving: the latter where the state can be had twice."""
    drafter = "model" if "draft" in settings else "none"
    async with running_scene(tiny_model, **settings) as scene:
        client = scene.cluster.client
        expected = await scene.cluster.generate(PROMPT, drafter="none", **OPTIONS)
        await scene.at_rest()
        for way in ("abort", "leave") if state is not has_no_verifier else ("abort",):
            reached = await state(scene)
            stream = client.stream(token_ids=PROMPT, drafter=drafter, request_id=NAME, **OPTIONS)
            async with stream:
                reading = asyncio.create_task(stream.read())
                await until(reached)
                if way == "abort":
                    assert await client.abort(NAME)
                    check(await reading, expected)
                else:
                    reading.cancel()
                    await asyncio.gather(reading, return_exceptions=True)
            await scene.at_rest()
            assert not await client.abort(NAME)


def check(answer: Completion, expected: Completion) -> None:
    assert answer.finish_reason == "abort"
    assert len(answer.token_ids) < len(expected.token_ids)
    assert answer.token_ids == expected.token_ids[: len(answer.token_ids)]
    assert answer.usage.completion_tokens == len(answer.token_ids)


async def test_a_deadline_ends_the_work_too(tiny_model: TinyModel) -> None:
    async with running_scene(tiny_model) as scene:
        gate = Gate(scene.cluster.verifiers[0], len(PROMPT) + 2)
        with pytest.raises(DeadlineExceeded):
            await scene.cluster.generate(PROMPT, timeout=0.5, **OPTIONS)
        await until(lambda: not scene.cluster.coordinator.generations._running)
        gate.open()
        await scene.at_rest()


@pytest.mark.parametrize("way", ["read", "abort", "leave"])
async def test_a_client_that_does_not_read_holds_up_its_own_answer_alone(tiny_model: TinyModel, way: str) -> None:
    async with running_scene(tiny_model) as scene:
        cluster, options = scene.cluster, OPTIONS | {"drafter": "none"}
        expected = await cluster.generate(PROMPT, **options)
        await scene.at_rest()
        sessions = cluster.verifiers[0]._core.sessions._sessions

        def ahead() -> int:
            return max((len(each.history) - len(PROMPT) for each in list(sessions.values())), default=0)

        # A connection that buffers next to nothing: otherwise the whole answer lies there.
        small = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16)]
        async with grpc.aio.insecure_channel(cluster.address, small) as channel:
            wire = generate_request(None, {"token_ids": PROMPT, "request_id": NAME, **options})  # type: ignore[typeddict-item]
            call = generation_pb2_grpc.GenerationServiceStub(channel).Generate(wire, timeout=60)
            await until(lambda: ahead() >= MAX_AHEAD)
            (held,) = sessions.values()
            assert (await cluster.generate(PROMPT, **(options | {"max_tokens": 80}))).usage.completion_tokens == 80
            assert cluster.coordinator.generations.admission.running == 1
            assert len(held.history) - len(PROMPT) <= MAX_AHEAD + 8
            if way == "leave":
                call.cancel()
            else:
                if way == "abort":
                    assert await cluster.client.abort(NAME)
                responses = [response async for response in call]
                tokens = [token for response in responses for token in response.delta.token_ids]
                assert len(tokens) == (190 if way == "read" else responses[-1].finished.usage.completion_tokens)
                assert tokens == list(expected.token_ids[: len(tokens)])
                assert len(tokens) >= MAX_AHEAD  # what was committed comes, whoever ends it
            await scene.at_rest()


async def test_case_32_a_failure_of_ours_is_not_the_callers_fault(tiny_model: TinyModel) -> None:
    def broken(*arguments: Any) -> Any:
        raise ZeroDivisionError("a bug")

    async with running_scene(tiny_model) as scene:
        engine: Any = scene.cluster.verifiers[0]._core.engine
        engine.forward = broken
        with pytest.raises(Unavailable, match="the session was lost 8 times in a row"):
            await scene.cluster.generate(PROMPT, **OPTIONS)
        del engine.forward
        await scene.at_rest()
        assert (await scene.cluster.generate(PROMPT, **OPTIONS)).usage.completion_tokens == 190
