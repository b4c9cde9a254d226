"""Verifiers that draft by themselves: the same answers as without, whatever happens to them, and few words for it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from outrider.client import Completion
from outrider.engine.replica import Replica, load
from outrider.errors import ModelLoadError
from outrider.protocol.items import DraftFirst, FollowUp, Verify
from outrider.rpc.codec import VERIFIER
from outrider.v1 import verifier_pb2
from outrider_coordinator.request import TreeMode
from outrider_verifier.process import assemble, load_own_draft, register
from outrider_verifier.settings import VerifierSettings
from tests.cluster import REPLICA, Cluster, running_cluster, start_verifier, until
from tests.conftest import TinyModel
from tests.distribution import measure
from tests.integration.test_draft_control import ErraticControl, FlatCosts, Recorded
from tests.integration.test_look_ahead import prompts_of

PROMPT = "again and again and again"
# A fixed length keeps the draft at work, whatever it is worth on this machine.
OPTIONS: dict[str, Any] = {"temperature": 0.8, "seed": 21, "max_tokens": 60, "ignore_eos": True, "fixed_length": True}
OWN: dict[str, Any] = {"draft_layers": 2, "draft_kv_tokens": 16384}
PERFECT: dict[str, Any] = {"draft_layers": 3, "draft_kv_tokens": 16384}  # all layers of the target


def drafts_of(cluster: Cluster) -> list[Any]:
    """The drafts' cores inside the verifiers."""
    cores = [replica._worker._core for replica in cluster.verifiers]
    return [core.own_draft for core in cores if core.own_draft]  # type: ignore[attr-defined]


async def assert_nothing_is_left(cluster: Cluster) -> None:
    def is_clean() -> bool:
        cores = [*(replica._worker._core for replica in cluster.verifiers), *drafts_of(cluster)]
        links = cluster.coordinator.replicas.verifiers
        return not any(len(core.sessions) for core in cores) and not any(link.expected for link in links)  # type: ignore[attr-defined]

    await until(is_clean)


def said_to(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every item that goes to the first verifier from now on."""
    said: list[Any] = []
    link = cluster.coordinator.replicas.verifiers[0]
    send, tell = link.send, link.tell
    monkeypatch.setattr(link, "send", lambda item: (said.append(item), send(item))[1])
    monkeypatch.setattr(link, "tell", lambda item: (said.append(item), tell(item))[1])
    return said


@pytest.mark.parametrize(("trees", "temperature"), [(TreeMode.OFF, 0.0), (TreeMode.ON, 0.8)])
async def test_they_never_change_the_answer(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch, trees: TreeMode, temperature: float
) -> None:
    """Sessions with it, without it, and with n-grams side by side; any decision."""
    target = tiny_model("llama")
    prompts = [prompts_of(target)[0], PROMPT]
    options = OPTIONS | {"temperature": temperature, "max_tokens": 20, "max_draft_tokens": 7}
    async with running_cluster(target, verifier=OWN, max_siblings=9, trees=trees) as cluster:
        plain = [(await cluster.generate(prompt, drafter="none", **options)).token_ids for prompt in prompts]

        async def answers(*drafters: str, **more: Any) -> list[Completion]:
            asked = [
                cluster.generate(prompt, **(options | {"drafter": drafter} | more))
                for drafter in drafters
                for prompt in prompts
            ]
            found = await asyncio.gather(*asked)
            assert [answer.token_ids for answer in found] == plain * len(drafters)
            return found

        found = await answers("model", "none")
        for answer in found[: len(prompts)]:
            stats = answer.speculation
            assert stats.proposed_tokens > stats.accepted_tokens > 0
            assert bool(stats.sibling_tokens) is (trees is TreeMode.ON)
            assert [source.source for source in stats.sources] == ["model"]
        await answers("auto", fixed_length=False)
        monkeypatch.setattr("outrider_coordinator.generations.DraftControl", ErraticControl)
        await answers("model", "auto")
        await assert_nothing_is_left(cluster)


async def test_rounds_follow_each_other_without_a_word_of_the_coordinator(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft that is the target is always right: 61 tokens are the prompt's round and 12 of 5."""
    target = tiny_model("llama")
    async with running_cluster(target, verifier=PERFECT) as cluster:
        said = said_to(cluster, monkeypatch)
        expected = await cluster.generate(PROMPT, drafter="none", **(OPTIONS | {"max_tokens": 61}))
        said.clear()
        answer = await cluster.generate(PROMPT, drafter="model", **(OPTIONS | {"max_tokens": 61}))
    assert answer.token_ids == expected.token_ids
    stats = answer.speculation
    assert (stats.rounds, stats.plain_rounds, stats.proposed_tokens, stats.accepted_tokens) == (13, 1, 48, 48)
    rounds = [item for item in said if isinstance(item, Verify)]
    assert [(len(item.proposal), item.draft_first) for item in rounds] == [(0, None)]
    orders = [item for item in said if isinstance(item, FollowUp)]
    # As many rounds at once as surely fit into the rest of the answer.
    assert [(item.draft_first, item.rounds) for item in orders] == [(DraftFirst(4), rounds) for rounds in (5, 5, 2)]
    # 61 verified tokens, 48 of them drafted: a few bytes for each, and the prompt.
    assert stats.wire_bytes < 1500


async def test_the_last_rounds_are_as_short_as_the_rest_of_the_answer(tiny_model: TinyModel) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, verifier=PERFECT) as cluster:
        whole = (await cluster.generate(PROMPT, drafter="none", **OPTIONS)).token_ids
        for length in (1, 2, 3, 6, 7, 8):
            answer = await cluster.generate(PROMPT, drafter="model", **(OPTIONS | {"max_tokens": length}))
            assert answer.token_ids == whole[:length]
        await assert_nothing_is_left(cluster)


@pytest.mark.parametrize("rule", ["rejection", "block"])
async def test_other_rules_give_the_same_greedy_answers(tiny_model: TinyModel, rule: str) -> None:
    target, options = tiny_model("llama"), OPTIONS | {"temperature": 0.0, "max_tokens": 30}
    async with running_cluster(target, verifier=OWN) as cluster:
        expected = await cluster.generate(PROMPT, drafter="none", **options)
        answer = await cluster.generate(PROMPT, drafter="model", rule=rule, **options)
        assert answer.token_ids == expected.token_ids
        assert 0 < answer.speculation.accepted_tokens < answer.speculation.proposed_tokens


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["match", "rejection", "block"])
async def test_answers_follow_the_targets_distribution(tiny_model: TinyModel, rule: str) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, verifier=OWN, max_sessions=64) as cluster:
        result = await measure(cluster, target, 1200, rule=rule, drafter="model", seed=5)
        assert result.impossible == 0
        assert result.p_value > 1e-4, result
        assert result.acceptance_rate is not None
        assert 0 < result.acceptance_rate < 1


@pytest.mark.parametrize(("first", "then"), [(OWN, {}), ({}, OWN), (OWN, OWN)], ids=["with", "without", "both with"])
async def test_a_session_goes_on_where_there_is_no_draft_and_where_there_is_one(
    tiny_model: TinyModel, first: dict[str, Any], then: dict[str, Any]
) -> None:
    """The verifier dies in the middle of a round that it drafted for, or of a plain one."""
    target = tiny_model("llama")
    # More rounds than an answer may be ahead of its client.
    options = OPTIONS | {"max_tokens": 150}
    async with running_cluster(target, verifier=first) as cluster:
        expected = await cluster.generate(PROMPT, drafter="none", **options)
        address, chunks = cluster.coordinator.replicas.verifiers[0].address, 0
        async with cluster.client.stream(PROMPT, drafter="model", **options) as stream:
            async for _ in stream:
                chunks += 1
                if chunks == 5:
                    await cluster.verifiers[0].stop()
                    replica, _ = await start_verifier(target, listen=address, **then)
                    cluster.stack.push_async_callback(replica.stop)
    assert stream.result.token_ids == expected.token_ids
    stats = stream.result.speculation
    assert stats.proposed_tokens > 0
    # With a draft before and after, only the rounds that open the session are plain.
    assert (stats.plain_rounds > 2) == (first != then)


async def test_between_two_verifiers_one_of_which_drafts(tiny_model: TinyModel) -> None:
    target = tiny_model("llama")
    drafting, address = await start_verifier(target, **OWN)
    async with running_cluster(target, more_verifiers=[address]) as cluster:
        cluster.stack.push_async_callback(drafting.stop)
        expected = await cluster.generate(PROMPT, drafter="none", **OPTIONS)
        answers = await asyncio.gather(*(cluster.generate(PROMPT, drafter="model", **OPTIONS) for _ in range(4)))
        assert [answer.token_ids for answer in answers] == [expected.token_ids] * 4
        assert {bool(answer.speculation.proposed_tokens) for answer in answers} == {True, False}
        assert not any(answer.speculation.fallback_reason for answer in answers)


async def test_where_the_draft_has_nothing_the_answer_goes_on(
    tiny_model: TinyModel, caplog: pytest.LogCaptureFixture
) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, verifier=OWN | {"draft_kv_tokens": 32}, draft_retry_s=60) as cluster:
        expected = await cluster.generate(PROMPT, drafter="none", **OPTIONS)
        answer = await cluster.generate(PROMPT, drafter="model", **OPTIONS)
        assert answer.token_ids == expected.token_ids
        stats = answer.speculation
        assert stats.proposed_tokens > 0
        assert stats.plain_rounds > 10
        assert re.search("the draft in .* had nothing", stats.fallback_reason)
        # It is not asked again in every round: the tokens after those that it has room for take longer than a pause.
        assert sum("goes on without a draft" in each.message for each in caplog.records) == 1


def too_many(wire: verifier_pb2.Verdict) -> None:
    wire.drafted.tree.tokens.extend([7] * 40)


def unknown_token(wire: verifier_pb2.Verdict) -> None:
    wire.drafted.tree.tokens[0] = 512


def less(wire: verifier_pb2.Verdict) -> None:
    """Than it gives a verdict on."""
    wire.ClearField("drafted")


@dataclass
class Liar:
    """What a verifier does to its third guess from now on."""

    lie: Callable[[verifier_pb2.Verdict], object] = lambda verdict: None
    guesses: int = 0

    def reply(self, reply: Any, wire: Any = None) -> Any:
        """A reply as it leaves."""
        wire = VERIFIER.reply_to_proto(reply, wire)
        if wire.HasField("verdict") and wire.verdict.HasField("drafted"):
            self.guesses += 1
            if self.guesses == 3:
                self.lie(wire.verdict)
        return wire


@asynccontextmanager
async def running_liar(model: Path, liar: Liar) -> AsyncIterator[str]:
    options = VerifierSettings(model=str(model), **(REPLICA | PERFECT))
    own, (loaded, engine) = load_own_draft(options), load(options)
    core = assemble(options, loaded, engine, own)._worker._core
    replica = Replica(
        "verifier",
        options,
        loaded,
        core,
        replace(VERIFIER, reply_to_proto=liar.reply),
        register,  # type: ignore[arg-type]
    )
    try:
        yield await replica.start()
    finally:
        await replica.stop()


async def test_a_verifier_that_drafts_what_it_was_not_asked_for_is_lost(tiny_model: TinyModel) -> None:
    target, liar = tiny_model("llama"), Liar()
    options = OPTIONS | {"max_tokens": 30}
    async with (
        running_liar(target, liar) as address,
        running_cluster(target, verifiers=0, more_verifiers=[address], draft_retry_s=0.01) as cluster,
    ):
        expected = await cluster.generate(PROMPT, drafter="none", **options)
        for lie, words in ((too_many, "tree.tokens is 4"), (unknown_token, "is 512"), (less, "next_tokens is 5")):
            liar.lie, liar.guesses = lie, 0
            answer = await cluster.generate(PROMPT, drafter="model", **options)
            assert liar.guesses >= 3
            assert answer.token_ids == expected.token_ids
            assert f"{address} drafted wrongly: " in answer.speculation.fallback_reason
            assert words in answer.speculation.fallback_reason
            assert answer.speculation.accepted_tokens > 0


async def test_answers_that_end_early_leave_nothing_behind(tiny_model: TinyModel) -> None:
    """Stop tokens and stop strings inside what was drafted, aborts, clients that leave."""
    target = tiny_model("llama")
    async with running_cluster(target, verifier=PERFECT) as cluster:
        options = OPTIONS | {"temperature": 0.0, "drafter": "model"}
        whole = await cluster.generate(PROMPT, **(options | {"drafter": "none"}))
        for place in (7, 8, 9, 10, 11):
            stop = whole.token_ids[place]
            cut = await cluster.generate(PROMPT, stop_token_ids=[stop], **options)
            # It ends with the first of them.
            assert cut.token_ids == whole.token_ids[: whole.token_ids.index(stop) + 1]
        stop_text = whole.text[len(whole.text) // 2 :][:6]
        ended = await cluster.generate(PROMPT, stop=[stop_text], **options)
        assert ended.text == whole.text[: whole.text.index(stop_text)]
        for leave in (False, True):
            long = options | {"max_tokens": 400, "request_id": "r"}
            async with cluster.client.stream(PROMPT, **long) as stream:
                await anext(stream)
                if not leave:
                    await cluster.client.abort("r")
                    await stream.read()
        await assert_nothing_is_left(cluster)


async def test_a_draft_that_guesses_noise_makes_the_request_fall_back(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    causes: list[Mapping[str, str]] = []
    monkeypatch.setattr("outrider.telemetry.metrics.fallbacks.add", lambda count, cause: causes.append(cause))
    target = tiny_model("llama")
    noise = OWN | {"draft_model": str(tiny_model("llama", seed=7)), "draft_layers": None}
    options = OPTIONS | {"max_tokens": 150, "temperature": 0.0, "fixed_length": False}
    async with running_cluster(target, verifier=noise, fallback_window=20) as cluster:
        cluster.coordinator.generations.costs = FlatCosts()
        said = said_to(cluster, monkeypatch)
        expected = await cluster.generate(PROMPT, drafter="none", **options)
        said.clear()
        answer = await cluster.generate(PROMPT, drafter="model", **options)
        assert answer.token_ids == expected.token_ids
        assert "of the last 20 guessed tokens stood" in answer.speculation.fallback_reason
        assert causes == [{"cause": "acceptance"}]
        assert answer.speculation.plain_rounds > 100
        # Nor do the plain rounds after that wait for the coordinator, but for those before and after a probe.
        assert sum(isinstance(item, Verify) for item in said) < 30


async def test_its_times_are_learned_as_those_of_a_draft(tiny_model: TinyModel) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, verifier=OWN) as cluster:
        costs = cluster.coordinator.generations.costs = Recorded()
        answer = await cluster.generate(PROMPT, drafter="model", **OPTIONS)
        # Neither the prefill's nor the last round's; of the draft not its first either, which held its own prefill.
        assert len(costs.verified) == answer.speculation.rounds - 2
        assert costs.drafted == sum(proposed > 0 for proposed in costs.verified) - 1


async def test_a_draft_replica_goes_first(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, target, verifier=OWN) as cluster:
        said = said_to(cluster, monkeypatch)
        answer = await cluster.generate(PROMPT, drafter="model", **OPTIONS)
        assert answer.speculation.accepted_tokens > 0
        assert not any(item.draft_first for item in said if isinstance(item, Verify | FollowUp))


async def test_a_draft_of_another_vocabulary_is_refused_at_start(tiny_model: TinyModel) -> None:
    settings = VerifierSettings(model=str(tiny_model("llama")), **(REPLICA | OWN))
    own, (loaded, engine) = load_own_draft(settings), load(settings)
    assert own is not None
    own.info = replace(own.info, name="stranger", vocabulary_fingerprint="another")
    with pytest.raises(ModelLoadError, match=r"draft_model: the vocabulary of stranger .* is not that of llama"):
        assemble(settings, loaded, engine, own)


async def test_sessions_of_a_step_vote_and_answer_as_ever(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vote for none, or one that is lost, is no trouble of the draft."""
    target = tiny_model("llama")
    async with running_cluster(target, verifier=OWN) as cluster:
        expected = await cluster.generate(PROMPT, drafter="none", **OPTIONS)
        await cluster.generate(PROMPT, drafter="model", **OPTIONS)  # of which the coordinator learns what stands
        said, options = said_to(cluster, monkeypatch), OPTIONS | {"fixed_length": False}
        for _ in range(3):
            answers = await asyncio.gather(*(cluster.generate(PROMPT, drafter="model", **options) for _ in range(6)))
            assert [answer.token_ids for answer in answers] == [expected.token_ids] * 6
            assert not any(answer.speculation.fallback_reason for answer in answers)
        wishes = [item.draft_first for item in said if isinstance(item, Verify | FollowUp) and item.draft_first]
        assert any(wish.vote is not None for wish in wishes)
        await assert_nothing_is_left(cluster)
