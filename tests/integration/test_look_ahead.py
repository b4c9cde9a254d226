"""Drafting ahead changes the speed alone: hits save the draft's time, misses and stale outcomes change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from outrider.acceptance.proposal import Proposal, Source
from outrider.acceptance.tree import TokenTree
from outrider.client import Completion
from outrider.engine.foresight import Branch
from outrider.protocol.items import Foreseen
from outrider_coordinator.look_ahead import LookAhead
from tests.cluster import Cluster, running_cluster
from tests.conftest import TinyModel
from tests.reference import load_reference
from tests.tiny_models import TEXTS

OPTIONS: dict[str, Any] = {"max_tokens": 48, "ignore_eos": True, "fixed_length": True, "drafter": "model", "seed": 21}
TEMPERATURES = (0.0, 0.8)


async def answers(cluster: Cluster, prompts: Sequence[list[int]], **options: Any) -> list[Completion]:
    return list(await asyncio.gather(*(cluster.generate(p, **(OPTIONS | options)) for p in prompts)))


def prompts_of(target: Any) -> list[list[int]]:
    _, tokenizer = load_reference(target)
    return [tokenizer(text)["input_ids"] for text in ["again and again and again", *TEXTS[:5]]]


@pytest.mark.parametrize("guesser", ["own layers", "noise"])
async def test_it_never_changes_the_answer(tiny_model: TinyModel, guesser: str) -> None:
    target = tiny_model("llama")
    draft = tiny_model("llama", seed=7) if guesser == "noise" else target
    prompts = prompts_of(target)[:4]
    settings = {"layers": 2} if guesser == "own layers" else {}
    async with running_cluster(target, draft, draft=settings, look_ahead="on") as cluster:
        for temperature in TEMPERATURES:
            common = {"temperature": temperature, "max_tokens": 16}
            expected = [a.token_ids for a in await answers(cluster, prompts, drafter="none", **common)]
            for options in ({}, {"fixed_length": False, "drafter": "auto"}, {"max_draft_tokens": 7}):
                found = await answers(cluster, prompts, **(common | options))
                assert [answer.token_ids for answer in found] == expected, options
                if not options:
                    assert all(answer.speculation.look_ups > 0 for answer in found)
        for link in (*cluster.coordinator.replicas.verifiers, *cluster.coordinator.replicas.drafts):
            assert not link.expected


async def test_what_was_foreseen_is_used(tiny_model: TinyModel) -> None:
    """A draft with the target's weights foresees every outcome under match: no later round asks it for a guess."""
    target = tiny_model("llama")
    async with running_cluster(target, target, look_ahead="on") as cluster:
        for temperature in TEMPERATURES:
            for answer in await answers(cluster, prompts_of(target), temperature=temperature):
                told = answer.speculation
                # The first rounds wait for the draft to open, and then one for its first guess.
                assert told.hits == told.look_ups >= told.rounds - told.plain_rounds - 1 > 0
                assert told.accepted_tokens == told.proposed_tokens
                assert told.drafted_ahead_tokens >= told.accepted_tokens - 8


@pytest.mark.parametrize("rule", ["rejection", "block"])
async def test_other_rules_look_ahead_too(tiny_model: TinyModel, rule: str) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, target, draft={"layers": 2}, look_ahead="on") as cluster:
        found = await answers(cluster, prompts_of(target), rule=rule, temperature=0.8)
        assert sum(answer.speculation.hits for answer in found) > 0


async def test_on_shared_hardware_it_is_off_by_itself(tiny_model: TinyModel) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, target) as cluster:
        (answer,) = await answers(cluster, prompts_of(target)[:1])
        assert answer.speculation.look_ups == 0
        cluster.coordinator.replicas.drafts[0].model = _elsewhere(cluster)
        (answer,) = await answers(cluster, prompts_of(target)[:1])
        assert answer.speculation.hits > 0


async def test_a_draft_that_is_lost_while_it_looks_ahead(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny_model("llama")
    prompts = prompts_of(target)
    begun = 0
    original = LookAhead.begin

    async with running_cluster(target, target, look_ahead="on", draft_retry_s=0.05) as cluster:
        expected = [a.token_ids for a in await answers(cluster, prompts, temperature=0.8, drafter="none")]

        def begin_and_lose(self: LookAhead, *arguments: Any) -> None:
            nonlocal begun
            original(self, *arguments)
            begun += 1
            if begun == 20:
                stopping.append(asyncio.create_task(cluster.drafts[0].stop()))

        stopping: list[asyncio.Task[None]] = []
        monkeypatch.setattr(LookAhead, "begin", begin_and_lose)
        found = await answers(cluster, prompts, temperature=0.8)
        assert stopping
        await stopping[0]
        assert [answer.token_ids for answer in found] == expected
        assert any(answer.speculation.fallback_reason for answer in found)


async def test_wrong_proposals_would_be_noticed(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks above can fail: what does not belong to its outcome costs acceptance (but never the answer)."""
    target = tiny_model("llama")

    def wrong(self: Branch) -> Foreseen:
        return Foreseen(self.node, self.next_token, Proposal(TokenTree.chain([9, 9, 9, 9]), Source.MODEL))

    monkeypatch.setattr(Branch, "foreseen", property(wrong))
    async with running_cluster(target, target, look_ahead="on") as cluster:
        expected = [a.token_ids for a in await answers(cluster, prompts_of(target), temperature=0.8, drafter="none")]
        found = await answers(cluster, prompts_of(target), temperature=0.8)
        assert [answer.token_ids for answer in found] == expected
        assert all(a.speculation.accepted_tokens < a.speculation.proposed_tokens for a in found)


def _elsewhere(cluster: Cluster) -> Any:
    model = cluster.coordinator.replicas.drafts[0].model
    assert model is not None
    return replace(model, hardware="GPU of another machine")
