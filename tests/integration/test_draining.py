"""A replica or a coordinator that is told to end: what runs there ends or moves on, and nothing new comes."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.errors import Unavailable
from outrider.rpc import server
from tests.cluster import Cluster, running_cluster, slow_passes, start_verifier, until
from tests.conftest import TinyModel

PROMPT = "again and again and again"
# An answer takes so many rounds, slow ones, that it is not over before what happens to it has happened.
OPTIONS: dict[str, Any] = {"temperature": 0.8, "seed": 21, "max_tokens": 160, "ignore_eos": True, "fixed_length": True}
OPTIONS["max_draft_tokens"] = 1


def the_busy_one(cluster: Cluster) -> int:
    """The place of the verifier that the first session is on."""
    address = next(iter(cluster.coordinator.replicas._on_verifiers.loads()))
    return [link.address for link in cluster.coordinator.replicas.verifiers].index(address)


def drain(cluster: Cluster, place: int, grace_s: float) -> asyncio.Task[None]:
    """What SIGTERM does to a verifier."""
    replica = cluster.verifiers[place]
    replica._settings = replica._settings.model_copy(update={"grace_s": grace_s})
    return asyncio.create_task(replica.server.stop(replica._drain, grace_s=grace_s))


async def told(cluster: Cluster, place: int) -> None:
    """Until the coordinator knows that a verifier drains."""
    link = cluster.coordinator.replicas.verifiers[place]
    await until(lambda: not link.takes_new)


@pytest.mark.parametrize("drafter", ["none", "model"])
async def test_what_outlasts_half_the_grace_goes_on_elsewhere(
    tiny_model: TinyModel, drafter: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "outrider_coordinator")
    target = tiny_model("llama")
    async with running_cluster(target, target, verifiers=2, draft={"layers": 2}, look_ahead="on") as cluster:
        expected = await cluster.generate(PROMPT, drafter="none", **OPTIONS)
        text, chunks, began, left = "", 0, 0.0, ""
        stopping: asyncio.Task[None] | None = None
        with slow_passes(cluster, 0.01):
            async with cluster.client.stream(PROMPT, drafter=drafter, **OPTIONS) as stream:
                async for chunk in stream:
                    text, chunks = text + chunk.text, chunks + 1
                    if chunks == 3:
                        place, began = the_busy_one(cluster), time.monotonic()
                        stopping = drain(cluster, place, 60.0)
                        await told(cluster, place)
                        assert the_busy_one(cluster) == place  # it may still end where it is
                        link = cluster.coordinator.replicas.verifiers[place]
                        link.hands_over_at, left = began, link.address  # half of the grace is over
        assert stream.result.token_ids == expected.token_ids
        assert text == expected.text
        assert re.findall(r"leaves (\S+), which drains", caplog.text) == [left]
        assert stopping is not None
        await stopping
        assert time.monotonic() - began < 30, "a replica without sessions need not wait for the end of its grace"


async def test_an_answer_that_ends_in_time_ends_where_it_is(tiny_model: TinyModel) -> None:
    async with running_cluster(tiny_model("llama"), verifiers=2) as cluster:
        expected = await cluster.generate(PROMPT, drafter="none", **OPTIONS)
        with slow_passes(cluster, 0.01):
            async with cluster.client.stream(PROMPT, drafter="none", **OPTIONS) as stream:
                await anext(stream)
                place = the_busy_one(cluster)
                stopping = drain(cluster, place, 60.0)
                await told(cluster, place)
                # New ones go to the other verifier, although the coordinator knows both by fixed addresses.
                assert (await cluster.generate(PROMPT, drafter="none", **OPTIONS)).token_ids == expected.token_ids
                async for _ in stream:
                    if cluster.coordinator.replicas._on_verifiers.loads():
                        assert the_busy_one(cluster) == place
        assert stream.result.token_ids == expected.token_ids
        await asyncio.wait_for(stopping, 30)


async def test_what_nobody_takes_is_cut_off_and_comes_back(tiny_model: TinyModel) -> None:
    """The only verifier drains: the session stays to the end of the grace, and waits for the next process."""
    target = tiny_model("llama")
    async with running_cluster(target) as cluster:
        expected = await cluster.generate(PROMPT, drafter="none", **OPTIONS)
        address = cluster.coordinator.replicas.verifiers[0].address
        with slow_passes(cluster, 0.01):
            async with cluster.client.stream(PROMPT, drafter="none", **OPTIONS) as stream:
                await anext(stream)
                await drain(cluster, 0, 0.05)
                replica, _ = await start_verifier(target, listen=address)
                cluster.stack.push_async_callback(replica.stop)
                await stream.read()
        assert stream.result.token_ids == expected.token_ids


async def test_health_says_so_first(tiny_model: TinyModel) -> None:
    async with running_cluster(tiny_model("llama")) as cluster:
        address = cluster.coordinator.replicas.verifiers[0].address
        with slow_passes(cluster, 0.01):
            async with (
                grpc.aio.insecure_channel(address) as channel,
                cluster.client.stream(PROMPT, drafter="none", **OPTIONS) as stream,
            ):
                await anext(stream)
                stopping = drain(cluster, 0, 60.0)
                await told(cluster, 0)
                answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
                assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
                await stream.read()
        await asyncio.wait_for(stopping, 30)


async def test_a_session_that_lost_its_place_waits_for_room(tiny_model: TinyModel) -> None:
    """An answer that has begun is not refused because the verifier that is left is full."""
    target = tiny_model("llama")
    async with running_cluster(target, verifiers=2, verifier={"kv_tokens": 224}, failover_s=30.0) as cluster:
        options = OPTIONS | {"drafter": "none"}
        expected = await cluster.generate(PROMPT, **options)
        with slow_passes(cluster, 0.01):
            async with (
                cluster.client.stream(PROMPT, **options) as first,
                cluster.client.stream(PROMPT, **options) as second,
            ):
                await anext(first)
                place = the_busy_one(cluster)
                await anext(second)
                await cluster.verifiers[place].stop()
                answers = await asyncio.gather(first.read(), second.read())
        assert [answer.token_ids for answer in answers] == [expected.token_ids] * 2


async def test_a_coordinator_that_ends_takes_nothing_new(tiny_model: TinyModel) -> None:
    async with running_cluster(tiny_model("llama")) as cluster:
        with slow_passes(cluster, 0.01):
            async with cluster.client.stream(PROMPT, drafter="none", **OPTIONS) as stream:
                await anext(stream)
                parts = cluster.coordinator
                stopping = asyncio.create_task(parts.server.stop(parts.drain, grace_s=60.0))
                await asyncio.sleep(0)
                with pytest.raises(Unavailable):
                    await cluster.generate(PROMPT, **OPTIONS)
                assert (await stream.read()).usage.completion_tokens == 160
        await asyncio.wait_for(stopping, 30)


async def test_who_is_left_when_a_coordinators_grace_ends_hears_unavailable(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those whose answer runs, those who wait for a place, and those who read too slowly; and all of it is freed."""
    monkeypatch.setattr(server, "FLUSH_S", 60.0)
    options = OPTIONS | {"drafter": "none", "max_tokens": 2000}
    async with running_cluster(tiny_model("llama"), max_sessions=4) as cluster:
        replica = cluster.verifiers[0]
        whole = replica._worker._core.engine.available_tokens  # type: ignore[attr-defined]
        slow = cluster.client.stream(PROMPT, **options)
        async with slow:
            await anext(slow)
            asked = [asyncio.create_task(cluster.generate(PROMPT, **options)) for _ in range(12)]
            await until(lambda: cluster.coordinator.generations.admission.waiting == 9)
            began = time.monotonic()
            await cluster.coordinator.server.stop(cluster.coordinator.drain, grace_s=0.1)
            took = time.monotonic() - began
            answers = await asyncio.gather(*asked, return_exceptions=True)
            with pytest.raises(Unavailable, match="has ended before the call did"):
                await slow.read()
        assert [type(answer) for answer in answers] == [Unavailable] * 12, answers
        assert all("this coordinator has ended before the call did" in str(answer) for answer in answers)
        assert took < 30, "nobody's leaving was waited for in vain"
        admission = cluster.coordinator.generations.admission
        assert (admission.running, admission.waiting) == (0, 0)
        await until(lambda: replica._worker._core.engine.available_tokens == whole)  # type: ignore[attr-defined]
