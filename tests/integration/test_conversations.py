"""Conversations: what a turn computed serves the next one, wherever that arrives, and is nobody else's business."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from outrider.client import AsyncClient, Completion
from outrider.errors import InvalidArgument
from outrider.rpc import api_key
from tests.cluster import Cluster, running_cluster, until
from tests.conftest import TinyModel
from tests.integration.test_registry import Fleet
from tests.redis_server import RedisServer

PROMPT = [*range(20, 57)]
OPTIONS: dict[str, Any] = {"temperature": 0.8, "seed": 5, "max_tokens": 10, "ignore_eos": True, "fixed_length": True}
BLOCK = 16


async def turn(client: AsyncClient, history: Sequence[int], session_id: str = "c", **options: Any) -> Completion:
    """One turn; `session_id=""` is a request of no conversation."""
    return await client.generate(token_ids=list(history), **(OPTIONS | {"session_id": session_id} | options))


@pytest.fixture
async def redis_server(tmp_path: Path) -> AsyncIterator[RedisServer]:
    with RedisServer(tmp_path) as server:
        yield server


@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
async def test_a_turn_computes_what_is_new_and_one_token(tiny_model: TinyModel, drafter: str) -> None:
    """The answers are those of requests that know of no other turn."""
    target = tiny_model("llama")
    async with running_cluster(target, target, draft={"layers": 2}) as warm, running_cluster(target) as cold:
        history, known = list(PROMPT), 0
        for number in range(4):
            answer = await turn(warm.client, history, drafter=drafter)
            assert answer.token_ids == (await turn(cold.client, history, "", drafter="none")).token_ids
            # All of the history but its last token, which nothing has run over yet.
            assert answer.usage.cached_tokens == known
            known = len(history) + len(answer.token_ids) - 1
            history += [*answer.token_ids, 7, 8, 9 + number]


async def test_without_a_session_id_the_last_block_is_computed_again(tiny_model: TinyModel) -> None:
    async with running_cluster(tiny_model("llama")) as cluster:
        first = await turn(cluster.client, PROMPT, "", drafter="none")
        known = len(PROMPT) + len(first.token_ids) - 1
        again = await turn(cluster.client, [*PROMPT, *first.token_ids, 7], "", drafter="none")
        assert again.usage.cached_tokens == known // BLOCK * BLOCK < known


async def test_a_turn_that_goes_another_way_keeps_what_it_shares(tiny_model: TinyModel) -> None:
    async with running_cluster(tiny_model("llama")) as cluster:
        first = await turn(cluster.client, PROMPT, drafter="none")
        edited = [*PROMPT, *first.token_ids[:4], 9, 9, 9]
        answer = await turn(cluster.client, edited, drafter="none")
        # Its first 32 tokens are whole blocks; of the last one 9 tokens agree.
        assert answer.usage.cached_tokens == len(PROMPT) + 4
        assert answer.token_ids == (await turn(cluster.client, edited, "", drafter="none")).token_ids
        unrelated = await turn(cluster.client, [*range(200, 240)], drafter="none")
        assert unrelated.usage.cached_tokens == 0
        assert (await turn(cluster.client, PROMPT, drafter="none")).token_ids == first.token_ids


async def test_a_turn_that_the_client_left_is_kept_too(tiny_model: TinyModel) -> None:
    """Case 25: the next turn works, and starts from what was computed."""
    async with running_cluster(tiny_model("llama")) as cluster:
        options = OPTIONS | {"session_id": "c", "max_tokens": 400, "drafter": "none"}
        async with cluster.client.stream(token_ids=PROMPT, **options) as stream:
            chunks = [await anext(stream) for _ in range(12)]
        seen = [token for chunk in chunks for token in chunk.token_ids]
        await until(lambda: cluster.coordinator.generations.admission.running == 0)
        answer = await turn(cluster.client, [*PROMPT, *seen, 7, 8], drafter="none")
        assert answer.usage.cached_tokens >= len(PROMPT) + len(seen) - 1


async def test_two_turns_at_a_time_are_both_served_and_both_right(tiny_model: TinyModel) -> None:
    async with running_cluster(tiny_model("llama"), verifiers=2) as cluster:
        first = await turn(cluster.client, PROMPT, drafter="none")
        history = [*PROMPT, *first.token_ids, 7]
        expected = [(await turn(cluster.client, history, "", seed=seed)).token_ids for seed in range(4)]
        answers = await asyncio.gather(*(turn(cluster.client, history, seed=seed) for seed in range(4)))
        assert [answer.token_ids for answer in answers] == expected
        # All of them on the replica that has the history.
        assert {answer.usage.cached_tokens for answer in answers} == {len(history) - 2}


async def test_the_next_turn_finds_its_replica_among_many(tiny_model: TinyModel) -> None:
    async with running_cluster(tiny_model("llama"), verifiers=3) as cluster:
        for number in range(6):
            prompt = [number, *PROMPT]
            first = await turn(cluster.client, prompt, str(number), drafter="none")
            async with AsyncExitStack() as stack:  # which now has the most to do
                busy = cluster.client.stream(
                    token_ids=prompt, **(OPTIONS | {"session_id": str(number), "max_tokens": 400, "drafter": "none"})
                )
                await anext(await stack.enter_async_context(busy))
                second = await turn(cluster.client, [*prompt, *first.token_ids, 7], str(number), drafter="none")
            assert second.usage.cached_tokens == len(prompt) + len(first.token_ids) - 1


async def test_another_coordinator_finds_the_conversation(redis_server: RedisServer, tiny_model: TinyModel) -> None:
    async with AsyncExitStack() as stack:
        fleet = Fleet(redis_server, tiny_model("llama"), stack)
        addresses = {(await fleet.verifier())[1] for _ in range(2)}
        one, client = await fleet.coordinator()
        two, other = await fleet.coordinator()
        for parts in (one, two):
            await until(
                lambda parts=parts: {link.address for link in parts.replicas.verifiers if link.ready} == addresses
            )  # type: ignore[misc]
        for number in range(4):  # on whichever of the two
            history = [number, *PROMPT]
            for each in (client, other, client):
                answer = await turn(each, history, f"holiday {number}", drafter="none")
                assert answer.usage.cached_tokens == (0 if len(history) == len(PROMPT) + 1 else len(history) - 2)
                history += [*answer.token_ids, 7]
        keys = await fleet.run("return redis.call('KEYS', '{outrider}:binding:*')")
        assert len(keys) == 4  # no running session is left
        assert not any("holiday" in key for key in keys)


async def test_a_conversation_outlives_its_replica(tiny_model: TinyModel) -> None:
    async with running_cluster(tiny_model("llama"), verifiers=2) as cluster:
        first = await turn(cluster.client, PROMPT, drafter="none")
        kept = [replica._core.engine._pool.leased > 0 for replica in cluster.verifiers]  # type: ignore[attr-defined]
        assert kept.count(True) == 1
        await cluster.verifiers[kept.index(True)].stop()
        history = [*PROMPT, *first.token_ids, 7]
        cold = await turn(cluster.client, history, drafter="none")
        assert cold.usage.cached_tokens == 0
        warm = await turn(cluster.client, [*history, *cold.token_ids, 7], drafter="none")
        assert warm.usage.cached_tokens == len(history) + len(cold.token_ids) - 1


async def test_tenants_have_conversations_of_their_own(tiny_model: TinyModel, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps([{"name": name, "sha256": api_key.digest(name)} for name in ("alice", "bob")]))
    async with (
        running_cluster(tiny_model("llama"), api_keys_file=keys) as cluster,
        AsyncClient(cluster.address, api_key="alice") as alice,
        AsyncClient(cluster.address, api_key="bob") as bob,
    ):
        first = await turn(alice, PROMPT, drafter="none")
        history = [*PROMPT, *first.token_ids, 7]
        theirs = await turn(bob, history, drafter="none")  # the same id and the same words
        assert theirs.usage.cached_tokens == 0
        assert (await turn(alice, history, drafter="none")).usage.cached_tokens == len(history) - 2
        assert (await turn(bob, history, drafter="none")).usage.cached_tokens == len(history) - 1


async def fill(cluster: Cluster, tokens: int) -> None:
    """Make requests of no conversation use so much of the KV cache, one after another."""
    for start in range(0, tokens, 64):
        await turn(cluster.client, [100 + start // 64, *range(150, 197)], "", drafter="none", max_tokens=16)


async def test_idle_conversations_give_way_before_anybody_is_refused_and_after_other_idle_kv(
    tiny_model: TinyModel,
) -> None:
    async with running_cluster(tiny_model("llama"), verifier={"kv_tokens": 256}) as cluster:
        first = await turn(cluster.client, PROMPT, drafter="none")
        history = [*PROMPT, *first.token_ids, 7]
        await fill(cluster, 512)
        assert (await turn(cluster.client, history, drafter="none")).usage.cached_tokens == len(history) - 2
        whole = await turn(cluster.client, [*range(200, 240)], "", drafter="none", max_tokens=216)
        assert len(whole.token_ids) == 216  # all of the memory
        assert (await turn(cluster.client, history, drafter="none")).usage.cached_tokens == 0


async def test_a_lease_of_0_s_keeps_nothing_apart(tiny_model: TinyModel) -> None:
    async with running_cluster(tiny_model("llama"), verifier={"kv_tokens": 256}, conversation_lease_s=0) as cluster:
        first = await turn(cluster.client, PROMPT, drafter="none")
        await fill(cluster, 512)
        again = await turn(cluster.client, [*PROMPT, *first.token_ids, 7], drafter="none")
        assert again.usage.cached_tokens == 0


async def test_a_session_id_is_bounded(tiny_model: TinyModel) -> None:
    async with running_cluster(tiny_model("llama")) as cluster:
        with pytest.raises(InvalidArgument, match=r"session_id is .* at most 128 characters long"):
            await turn(cluster.client, PROMPT, "x" * 129)
        assert len((await turn(cluster.client, PROMPT, "spaces: and {braces} ü")).token_ids) == 10
