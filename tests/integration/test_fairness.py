"""One client that floods a coordinator, and others who must not notice more than that they share."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc.aio

from outrider.client import AsyncClient
from outrider.client.convert import generate_request
from outrider.errors import ResourceExhausted
from outrider.rpc import api_key
from outrider.v1.generation_pb2_grpc import GenerationServiceStub
from tests.cluster import running_cluster, slow_passes, until
from tests.conftest import TinyModel

PROMPT = [*range(20, 40)]
OPTIONS: dict[str, Any] = {"max_tokens": 8, "ignore_eos": True, "drafter": "none", "seed": 1}


def key_file(folder: Path, *names: str) -> Path:
    path = folder / "keys.json"
    path.write_text(json.dumps([{"name": name, "sha256": api_key.digest(name)} for name in names]))
    return path


async def test_a_flood_of_one_key_does_not_hold_up_another(tiny_model: TinyModel, tmp_path: Path) -> None:
    keys = key_file(tmp_path, "flood", "calm")
    async with (
        running_cluster(tiny_model("llama"), api_keys_file=keys, max_sessions=2, max_waiting_each=12) as cluster,
        AsyncClient(cluster.address, api_key="flood") as flood,
        AsyncClient(cluster.address, api_key="calm") as calm,
    ):
        admission = cluster.coordinator.generations.admission
        await calm.generate(token_ids=PROMPT, **OPTIONS)
        with slow_passes(cluster):
            tasks = [asyncio.create_task(flood.generate(token_ids=PROMPT, **OPTIONS)) for _ in range(20)]
            await until(lambda: admission.waiting == 12 and sum(task.done() for task in tasks) >= 6)
            for _ in range(2):
                asked = asyncio.create_task(calm.generate(token_ids=PROMPT, **OPTIONS))
                await until(lambda: "calm" in admission._queues or asked.done())  # noqa: B023 (awaited in this turn)
                before = sum(task.done() for task in tasks)
                await asked
                # Two of the flood's were running, and two may have begun in between.
                assert sum(task.done() for task in tasks) - before <= 4
        results = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [result for result in results if isinstance(result, BaseException)]
        assert len(refused) == 6
        for error in refused:
            assert isinstance(error, ResourceExhausted)
            assert "12 requests of this client wait" in str(error)
            assert error.retry_after_s >= 1
        assert (admission.running, admission.waiting) == (0, 0)


async def test_a_flood_that_fills_the_kv_cache_gives_way_and_loses_no_token(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    """The cache holds two of the flood's four long answers; one leaves it for the other client and comes back."""
    keys = key_file(tmp_path, "flood", "calm")
    long: dict[str, Any] = OPTIONS | {"max_tokens": 150, "temperature": 0.8}
    async with (
        running_cluster(tiny_model("llama"), verifier={"kv_tokens": 384}, api_keys_file=keys) as cluster,
        AsyncClient(cluster.address, api_key="flood") as flood,
        AsyncClient(cluster.address, api_key="calm") as calm,
    ):
        expected = await calm.generate(token_ids=PROMPT, **long)
        room = cluster.coordinator.generations.room
        with slow_passes(cluster):
            tasks = [asyncio.create_task(flood.generate(token_ids=PROMPT, **long)) for _ in range(4)]
            await until(lambda: room.waiting == 2)
            answer = await calm.generate(token_ids=PROMPT, **(long | {"max_tokens": 8}))
            assert not any(task.done() for task in tasks)  # it did not wait for any to end
        assert answer.token_ids == expected.token_ids[:8]
        assert [(await task).token_ids for task in tasks] == [expected.token_ids] * 4
        assert (room.waiting, room._guests, room._held) == (0, {}, {})


async def test_a_request_goes_where_there_is_room_or_waits_for_it(tiny_model: TinyModel) -> None:
    """Of a conversation too, whose own verifier is full."""
    async with running_cluster(tiny_model("llama"), verifiers=2, verifier={"kv_tokens": 256}) as cluster:
        turn: dict[str, Any] = OPTIONS | {"session_id": "c"}
        first = await cluster.generate(PROMPT, **turn)
        history = [*PROMPT, *first.token_ids, 7]
        async with cluster.client.stream(token_ids=history, **(turn | {"max_tokens": 200})) as stream:
            await anext(stream)
            second = await cluster.generate(history, **(turn | {"max_tokens": 100}))
            assert second.token_ids[:8] == (await cluster.generate(history, **turn)).token_ids
            answers = await asyncio.gather(
                *(cluster.generate(PROMPT, **(OPTIONS | {"max_tokens": 100})) for _ in range(4))
            )
            assert len({answer.token_ids for answer in answers}) == 1
            rest = await stream.read()
        assert rest.token_ids[:100] == second.token_ids


async def test_without_keys_a_connection_from_here_is_a_client(tiny_model: TinyModel) -> None:
    async with (
        running_cluster(tiny_model("llama"), max_sessions=1) as cluster,
        grpc.aio.insecure_channel(cluster.address, [("grpc.use_local_subchannel_pool", 1)]) as own_connection,
    ):
        other = GenerationServiceStub(own_connection)
        admission = cluster.coordinator.generations.admission
        request = generate_request(None, {"token_ids": PROMPT, **OPTIONS})
        with slow_passes(cluster):
            tasks = [asyncio.create_task(cluster.generate(PROMPT, **OPTIONS)) for _ in range(12)]
            await until(lambda: admission.waiting == 11)
            call = other.Generate(request, timeout=20)
            await until(lambda: len(admission._queues) == 2 or call.done())
            before = sum(task.done() for task in tasks)
            responses = [response async for response in call]
            between = sum(task.done() for task in tasks) - before
        assert responses[-1].finished.usage.completion_tokens == 8
        assert between <= 2  # the one that ran, and one whose turn it was
        await asyncio.gather(*tasks)
