"""Which guesses are asked for, and how many, changes the speed alone; what was decided is reported."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Mapping
from typing import Any

import pytest

from outrider.acceptance.choice import PLAIN, Choice
from outrider.acceptance.control import DraftControl
from outrider.acceptance.costs import CostTable, RoundCosts
from outrider.acceptance.proposal import Source
from outrider.client import Completion, SpeculationStats
from tests.cluster import Cluster, running_cluster
from tests.conftest import TinyModel
from tests.reference import load_reference
from tests.tiny_models import TEXTS

PROMPT = "again and again and again"
OPTIONS: dict[str, Any] = {"temperature": 0.8, "seed": 21, "max_tokens": 60, "ignore_eos": True}


class FlatCosts(RoundCosts):
    """Guesses cost next to nothing, whatever the clock says."""

    def known(self, source: Source) -> bool:
        return True

    def table(self, longest: int) -> CostTable:
        return CostTable((10.0,) * (longest + 1), (0.01,) * (longest + 1))


class ErraticControl(DraftControl):
    """Any source, any length, none for a while, and back: as no sensible control would have it."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._random = random.Random(17)
        self._pause = 0

    def _decide(self, longest: int, at_hand: int, steady: bool) -> Choice:
        if self._pause:
            self._pause -= 1
            return PLAIN
        if self._random.random() < 0.2:
            self._pause = self._random.randint(1, 12)
        return Choice(self._random.choice(list(self._levels)), self._random.randint(1, longest))

    def rests(self, levels: Mapping[Source, int], longest: int) -> bool:
        self._pause = max(0, self._pause - 1)
        return self._pause > 0


def erratic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider_coordinator.generations.DraftControl", ErraticControl)


@pytest.mark.parametrize("drafter", ["ngram", "model", "auto"])
async def test_no_decision_changes_the_answer(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch, drafter: str
) -> None:
    erratic(monkeypatch)
    target = tiny_model("llama")
    _, tokenizer = load_reference(target)
    prompts = [tokenizer(text)["input_ids"] for text in [PROMPT, *TEXTS[:4]]]
    async with running_cluster(target, target, draft={"layers": 2}) as cluster:
        for temperature in (0.0, 0.8):
            options = OPTIONS | {"temperature": temperature, "max_draft_tokens": 7}
            plain = await asyncio.gather(*(cluster.generate(p, drafter="none", **options) for p in prompts))
            answers = await asyncio.gather(*(cluster.generate(p, drafter=drafter, **options) for p in prompts))
            assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in plain]
            if drafter != "ngram":
                assert all(of(answer, "model").rounds > 2 for answer in answers)


async def test_case_26_after_a_pause_the_draft_knows_what_was_committed_meanwhile(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft with the target's weights is always right, if its KV is that of the committed tokens."""
    erratic(monkeypatch)
    target = tiny_model("llama")
    async with running_cluster(target, target) as cluster:
        for drafter in ("model", "auto"):
            stats = (await cluster.generate(PROMPT, drafter=drafter, **(OPTIONS | {"max_tokens": 150}))).speculation
            (model,) = (source for source in stats.sources if source.source == "model")
            assert stats.plain_rounds > 10
            assert model.rounds > 10
            assert model.accepted_tokens == model.proposed_tokens


async def test_auto_takes_what_each_source_is_good_for(tiny_model: TinyModel) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, target) as cluster:
        cluster.coordinator.generations.costs = FlatCosts()
        expected = await cluster.generate(PROMPT, drafter="none", **OPTIONS)
        answer = await cluster.generate(PROMPT, drafter="auto", **OPTIONS)
        assert answer.token_ids == expected.token_ids
        stats = answer.speculation
        assert stats.drafter == "auto"
        # The model knows the answer; n-grams have next to nothing to go by in noise.
        assert of(answer, "model").accepted_tokens == of(answer, "model").proposed_tokens > 40
        assert_sums(stats)


async def test_auto_without_a_draft_replica_is_ngram_or_none(tiny_model: TinyModel) -> None:
    target = tiny_model("llama")
    prompt = [5, 6, 7, 8] * 8
    async with running_cluster(target) as cluster:
        cluster.coordinator.generations.costs = FlatCosts()
        expected = await cluster.generate(prompt, drafter="none", **OPTIONS)
        answer = await cluster.generate(prompt, drafter="auto", **OPTIONS)
        assert answer.token_ids == expected.token_ids
        assert [source.source for source in answer.speculation.sources] == ["ngram"]
        assert not answer.speculation.fallback_reason
        assert_sums(answer.speculation)


async def test_auto_goes_on_with_ngrams_when_the_draft_is_gone(tiny_model: TinyModel) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, target, draft_retry_s=0.1) as cluster:
        cluster.coordinator.generations.costs = FlatCosts()
        expected = await cluster.generate([5, 6, 7, 8] * 8, drafter="none", **OPTIONS)
        await cluster.drafts[0].stop()
        answer = await cluster.generate([5, 6, 7, 8] * 8, drafter="auto", **OPTIONS)
        assert answer.token_ids == expected.token_ids
        assert [source.source for source in answer.speculation.sources] == ["ngram"]


async def test_a_draft_that_guesses_noise_makes_the_request_fall_back(
    tiny_model: TinyModel, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    causes: list[Mapping[str, str]] = []
    monkeypatch.setattr("outrider.telemetry.metrics.fallbacks.add", lambda count, cause: causes.append(cause))
    target = tiny_model("llama")
    options = OPTIONS | {"max_tokens": 150, "temperature": 0}
    async with running_cluster(target, tiny_model("llama", seed=7), fallback_window=20) as cluster:
        cluster.coordinator.generations.costs = FlatCosts()
        expected = await cluster.generate(PROMPT, drafter="none", **options)
        answer = await cluster.generate(PROMPT, drafter="model", **options)
    assert answer.token_ids == expected.token_ids
    assert "of the last 20 guessed tokens stood" in answer.speculation.fallback_reason
    assert "falls back to plain decoding" in caplog.text
    assert causes == [{"cause": "acceptance"}]
    assert answer.speculation.plain_rounds > 110


async def test_without_a_limit_no_request_falls_back(tiny_model: TinyModel) -> None:
    target, draft = tiny_model("llama"), tiny_model("llama", seed=7)
    async with running_cluster(target, draft, fallback_window=20, fallback_acceptance=0.0) as cluster:
        cluster.coordinator.generations.costs = FlatCosts()
        answer = await cluster.generate(PROMPT, drafter="model", **(OPTIONS | {"max_tokens": 150}))
        assert not answer.speculation.fallback_reason


async def test_a_fixed_length_is_proposed_in_every_round(tiny_model: TinyModel) -> None:
    """Asked for by the request, or by the service's settings; 61 tokens are 12 rounds of 5 and the prompt's."""
    target = tiny_model("llama")
    options = OPTIONS | {"drafter": "model", "max_tokens": 61}
    async with running_cluster(target, target, fixed_length=True) as cluster:
        for chosen in ({}, {"fixed_length": True}):
            stats = (await cluster.generate(PROMPT, **options, **chosen)).speculation
            # The first rounds may come before the draft is open, and the last has less to propose.
            assert stats.proposed_tokens == stats.accepted_tokens
            assert 4 * (stats.rounds - stats.plain_rounds - 1) <= stats.proposed_tokens
            assert stats.plain_rounds <= 5
        assert (await cluster.client.model_info()).default_speculation.fixed_length


async def test_times_of_prefills_and_of_drafts_that_catch_up_are_not_learned(tiny_model: TinyModel) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, target) as cluster:
        costs = cluster.coordinator.generations.costs = Recorded()
        answer = await cluster.generate(PROMPT, drafter="model", fixed_length=True, **OPTIONS)
        # Nothing is learned of the last round either: the answer ended inside it.
        assert len(costs.verified) == answer.speculation.rounds - 2
        # The draft was opened during the prefill, and its own prefill came with its first guess.
        assert costs.drafted == sum(proposed > 0 for proposed in costs.verified) - 1


class Recorded(RoundCosts):
    """Counts what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.verified: list[int] = []
        self.drafted = 0

    def observe_verify(self, proposed: int, milliseconds: float, rows: int = 0, sessions: int = 0) -> None:
        assert milliseconds > 0
        self.verified.append(proposed)
        super().observe_verify(proposed, milliseconds, rows, sessions)

    def observe_draft(self, drafted: int, milliseconds: float, sessions: int = 0) -> None:
        assert milliseconds > 0
        self.drafted += 1
        super().observe_draft(drafted, milliseconds, sessions)


async def test_sessions_share_what_they_learn_of_costs(tiny_model: TinyModel) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, target, draft={"layers": 2}) as cluster:
        before = cluster.coordinator.generations.costs
        await asyncio.gather(
            *(ask(cluster, drafter) for drafter in itertools.islice(itertools.cycle(("auto", "none")), 4))
        )
        assert cluster.coordinator.generations.costs is before
        assert before.known(Source.NONE)


async def ask(cluster: Cluster, drafter: str) -> Completion:
    return await cluster.generate(PROMPT, drafter=drafter, **OPTIONS)


def of(answer: Completion, source: str) -> Any:
    """The counts of one source."""
    (counts,) = (entry for entry in answer.speculation.sources if entry.source == source)
    return counts


def assert_sums(stats: SpeculationStats) -> None:
    assert stats.plain_rounds + sum(source.rounds for source in stats.sources) == stats.rounds
    assert sum(source.proposed_tokens for source in stats.sources) == stats.proposed_tokens
    assert sum(source.accepted_tokens for source in stats.sources) == stats.accepted_tokens
