"""Conversations: what a turn computed serves the next one, wherever that arrives, and is nobody else's business."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from outrider.client import AsyncClient, Completion
from outrider.errors import InvalidArgument
from outrider.rpc import api_key
from tests.cluster import Cluster, running_cluster, until
from tests.conftest import TinyModel
from tests.integration.test_registry import Fleet
from tests.redis_server import RedisServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPTIONS: dict[str, Any] = {"temperature": 0.8, "seed": 5, "max_tokens": 10, "ignore_eos": True, "fixed_length": True}
BLOCK = 16


async def turn(client: AsyncClient, history: Sequence[int], session_id: str = "c", **options: Any) -> Completion:
    """One turn; `session_id=""` is a request of no conversation."""
    return await client.generate(token_ids=list(history), **(OPTIONS | {"session_id": session_id} | options))


def prompt(number: int) -> list[int]:
    """37 tokens that begin like nobody else's."""
    return [number, *range(20, 56)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def warm(tiny_model: TinyModel) -> AsyncIterator[Cluster]:
    """Two verifiers and a draft. Each test has prompts and session ids of its own."""
    target = tiny_model("llama")
    async with running_cluster(target, target, verifiers=2, draft={"layers": 2}) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cold(tiny_model: TinyModel) -> AsyncIterator[Cluster]:
    """Which remembers nothing."""
    async with running_cluster(tiny_model("llama"), verifier={"prefix_cache": False}) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="module")
async def redis_server(tmp_path: Path) -> AsyncIterator[RedisServer]:
    with RedisServer(tmp_path) as server:
        yield server


@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
async def test_a_turn_computes_what_is_new_and_one_token(warm: Cluster, cold: Cluster, drafter: str) -> None:
    """The answers are those of requests that know of no other turn."""
    history, known = prompt({"none": 1, "ngram": 2, "model": 3}[drafter]), 0
    for number in range(3):
        answer = await turn(warm.client, history, drafter, drafter=drafter)
        assert answer.token_ids == (await turn(cold.client, history, "", drafter="none")).token_ids
        # All of the history but its last token, which nothing has run over yet.
        assert answer.usage.cached_tokens == known
        known = len(history) + len(answer.token_ids) - 1
        history += [*answer.token_ids, 7, 8, 9 + number]


async def test_without_a_session_id_the_last_block_is_computed_again(tiny_model: TinyModel) -> None:
    async with running_cluster(tiny_model("llama")) as cluster:
        first = await turn(cluster.client, prompt(1), "", drafter="none")
        known = len(prompt(1)) + len(first.token_ids) - 1
        again = await turn(cluster.client, [*prompt(1), *first.token_ids, 7], "", drafter="none")
        assert again.usage.cached_tokens == known // BLOCK * BLOCK < known


async def test_a_turn_that_goes_another_way_keeps_what_it_shares(warm: Cluster, cold: Cluster) -> None:
    first = await turn(warm.client, prompt(4), "edited")
    edited = [*prompt(4), *first.token_ids[:4], 9, 9, 9]
    answer = await turn(warm.client, edited, "edited")
    # Its first 32 tokens are whole blocks; of the next one 9 tokens agree.
    assert answer.usage.cached_tokens == len(prompt(4)) + 4
    assert answer.token_ids == (await turn(cold.client, edited, "")).token_ids
    unrelated = await turn(warm.client, prompt(5), "edited")
    assert unrelated.usage.cached_tokens == 0
    again = await turn(warm.client, prompt(4), "edited")  # an answer to be given anew
    assert again.usage.cached_tokens == len(prompt(4)) - 1
    assert again.token_ids == first.token_ids


async def test_a_turn_that_the_client_left_is_kept_too(warm: Cluster) -> None:
    """Case 25: the next turn works, and starts from what was computed."""
    options = OPTIONS | {"session_id": "left", "max_tokens": 400, "drafter": "none"}
    async with warm.client.stream(token_ids=prompt(6), **options) as stream:
        chunks = [await anext(stream) for _ in range(12)]
    seen = [token for chunk in chunks for token in chunk.token_ids]
    await until(lambda: warm.coordinator.generations.admission.running == 0)
    answer = await turn(warm.client, [*prompt(6), *seen, 7, 8], "left", drafter="none")
    assert answer.usage.cached_tokens >= len(prompt(6)) + len(seen) - 1


async def test_two_turns_at_a_time_are_both_served_and_both_right(warm: Cluster, cold: Cluster) -> None:
    first = await turn(warm.client, prompt(7), "twice")
    history = [*prompt(7), *first.token_ids, 7]
    expected = [(await turn(cold.client, history, "", seed=seed)).token_ids for seed in range(3)]
    answers = await asyncio.gather(*(turn(warm.client, history, "twice", seed=seed) for seed in range(3)))
    assert [answer.token_ids for answer in answers] == expected
    # All of them on the replica that has the history.
    assert {answer.usage.cached_tokens for answer in answers} == {len(history) - 2}


async def test_the_next_turn_finds_its_replica_although_that_has_more_to_do(warm: Cluster) -> None:
    for number in range(10, 13):
        first = await turn(warm.client, prompt(number), str(number), drafter="none")
        options = OPTIONS | {"session_id": str(number), "max_tokens": 400, "drafter": "none"}
        async with warm.client.stream(token_ids=prompt(number), **options) as busy:
            await anext(busy)
            second = await turn(warm.client, [*prompt(number), *first.token_ids, 7], str(number), drafter="none")
        assert second.usage.cached_tokens == len(prompt(number)) + len(first.token_ids) - 1


async def test_the_draft_keeps_a_conversation_too(warm: Cluster) -> None:
    answer = await turn(warm.client, prompt(9), "drafted", drafter="model", max_tokens=30)
    assert answer.speculation.proposed_tokens > 0
    draft = warm.drafts[0]._core.engine
    await until(lambda: not warm.drafts[0]._core.sessions._sessions)
    history = [*prompt(9), *answer.token_ids]
    sequence = draft.open([*history, 7], len(history) + 1)
    try:
        # But for what it had not been asked to continue, and the blocks alone would be 48 or 64 tokens.
        assert len(history) - 6 <= len(sequence.cached) < len(history)
    finally:
        draft.close(sequence)


async def test_a_session_id_is_bounded(warm: Cluster) -> None:
    with pytest.raises(InvalidArgument, match=r"session_id is .* at most 128 characters long"):
        await turn(warm.client, prompt(8), "x" * 129)
    assert len((await turn(warm.client, prompt(8), "spaces: and {braces} ü")).token_ids) == 10


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
        for number in range(3):  # on whichever of the two
            history = prompt(number)
            for each in (client, other, client):
                answer = await turn(each, history, f"holiday {number}", drafter="none")
                assert answer.usage.cached_tokens == (0 if len(history) == len(prompt(0)) else len(history) - 2)
                history += [*answer.token_ids, 7]
        keys = await fleet.run("return redis.call('KEYS', '{outrider}:binding:*')")
        assert len(keys) == 3  # no running session is left
        assert not any("holiday" in key for key in keys)


async def test_a_conversation_outlives_its_replica(tiny_model: TinyModel) -> None:
    async with running_cluster(tiny_model("llama"), verifiers=2) as cluster:
        first = await turn(cluster.client, prompt(1), drafter="none")
        pools = [replica._core.engine._pool for replica in cluster.verifiers]  # type: ignore[attr-defined]
        await until(lambda: any(pool.leased > 0 for pool in pools))  # the answer is there before the session is closed
        kept = [pool.leased > 0 for pool in pools]
        assert kept.count(True) == 1
        await cluster.verifiers[kept.index(True)].stop()
        history = [*prompt(1), *first.token_ids, 7]
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
        first = await turn(alice, prompt(1), drafter="none")
        history = [*prompt(1), *first.token_ids, 7]
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
        first = await turn(cluster.client, prompt(1), drafter="none")
        history = [*prompt(1), *first.token_ids, 7]
        await fill(cluster, 384)
        assert (await turn(cluster.client, history, drafter="none")).usage.cached_tokens == len(history) - 2
        whole = await turn(cluster.client, [*range(200, 240)], "", drafter="none", max_tokens=216)
        assert len(whole.token_ids) == 216  # all of the memory
        assert (await turn(cluster.client, history, drafter="none")).usage.cached_tokens == 0


async def test_a_lease_of_0_s_keeps_nothing_apart(tiny_model: TinyModel) -> None:
    async with running_cluster(tiny_model("llama"), verifier={"kv_tokens": 256}, conversation_lease_s=0) as cluster:
        first = await turn(cluster.client, prompt(1), drafter="none")
        await fill(cluster, 384)
        again = await turn(cluster.client, [*prompt(1), *first.token_ids, 7], drafter="none")
        assert again.usage.cached_tokens == 0


async def test_a_text_goes_where_its_beginning_is(warm: Cluster) -> None:
    """Without a conversation too. By chance alone it would be there half of the times."""
    for number in range(8):
        shared = [300 + number, *range(30, 130)]
        cold = await turn(warm.client, [*shared, 200], session_id="")
        assert cold.usage.cached_tokens == 0
        again = await turn(warm.client, [*shared, 201], session_id="")
        assert again.usage.cached_tokens >= 96
