"""Trees as proposals change the speed alone: the same answers with siblings and without, wherever they come from."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from outrider.client import Completion
from outrider.engine.guess import Growing
from outrider_coordinator.request import TreeMode
from tests.cluster import Cluster, running_cluster
from tests.conftest import TinyModel
from tests.integration.test_look_ahead import prompts_of

OPTIONS: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True, "fixed_length": True, "drafter": "model", "seed": 21}
TEMPERATURES = (0.0, 0.8)


async def answers(cluster: Cluster, prompts: Sequence[list[int]], **options: Any) -> list[Completion]:
    return list(await asyncio.gather(*(cluster.generate(p, **(OPTIONS | options)) for p in prompts)))


@pytest.mark.parametrize("look_ahead", ["off", "on"])
async def test_they_never_change_the_answer_and_save_rounds(tiny_model: TinyModel, look_ahead: str) -> None:
    """A draft of two of the target's four layers: what falls is often its second choice."""
    target = tiny_model("llama")
    prompts = prompts_of(target)[:2]
    rounds: dict[str, int] = {}
    async with running_cluster(target, target, draft={"layers": 2}, look_ahead=look_ahead, max_siblings=9) as cluster:
        expected = {
            temperature: [a.token_ids for a in await answers(cluster, prompts, temperature=temperature, drafter="none")]
            for temperature in TEMPERATURES
        }
        for trees in (TreeMode.OFF, TreeMode.ON):
            set_trees(cluster, trees)
            for temperature in TEMPERATURES:
                for more in ({}, {"fixed_length": False, "drafter": "auto"}):
                    found = await answers(cluster, prompts, **({"temperature": temperature} | more))
                    assert [answer.token_ids for answer in found] == expected[temperature], (trees, more)
                    if not more:
                        siblings = [answer.speculation.sibling_tokens for answer in found]
                        assert all(siblings) if trees is TreeMode.ON else not any(siblings)
                        rounds[trees] = rounds.get(trees, 0) + sum(answer.speculation.rounds for answer in found)
                    assert all(a.speculation.accepted_tokens <= a.speculation.proposed_tokens for a in found)
        for link in (*cluster.coordinator.replicas.verifiers, *cluster.coordinator.replicas.drafts):
            assert not link.expected
    assert rounds[TreeMode.ON] < 0.95 * rounds[TreeMode.OFF]


async def test_guesses_of_noise_never_change_it_either(tiny_model: TinyModel) -> None:
    target = tiny_model("llama")
    prompts = prompts_of(target)[:2]
    async with running_cluster(target, tiny_model("llama", seed=7), look_ahead="on", trees="on") as cluster:
        expected = await answers(cluster, prompts, temperature=0.8, drafter="none", max_tokens=16)
        found = await answers(cluster, prompts, temperature=0.8, max_tokens=16)
        assert [answer.token_ids for answer in found] == [answer.token_ids for answer in expected]
        assert all(answer.speculation.sibling_tokens for answer in found)


async def test_what_was_foreseen_of_trees_is_used(tiny_model: TinyModel) -> None:
    """With the target's own weights every outcome is foreseen, also while trees are in flight."""
    target = tiny_model("llama")
    async with running_cluster(target, target, look_ahead="on", trees="on", max_siblings=4) as cluster:
        for temperature in TEMPERATURES:
            for answer in await answers(cluster, prompts_of(target)[:3], temperature=temperature):
                told = answer.speculation
                assert told.hits == told.look_ups >= told.rounds - 4  # the first guesses wait for the draft to open
                assert told.accepted_tokens == told.proposed_tokens
                assert told.sibling_tokens > told.rounds


async def test_outcomes_that_end_at_a_sibling_are_foreseen_too(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft has the target's weights, but its first two choices are swapped: every round ends at a sibling."""
    original = Growing.add_ranked

    def swapped(self: Growing, ranked: tuple[int, ...]) -> None:
        original(self, (ranked[1], ranked[0], *ranked[2:]))

    monkeypatch.setattr(Growing, "add_ranked", swapped)
    target = tiny_model("llama")
    async with running_cluster(target, target, look_ahead="on", trees="on", max_siblings=4) as cluster:
        found = await answers(cluster, prompts_of(target)[:3], temperature=0.8, max_tokens=48)
        for answer in found:
            told = answer.speculation
            assert told.accepted_tokens >= told.rounds - told.plain_rounds - 2
            assert told.hits > 0.7 * told.look_ups


def set_trees(cluster: Cluster, trees: TreeMode) -> None:
    """For the requests from now on."""
    generations = cluster.coordinator.generations
    generations._settings = generations._settings.model_copy(update={"trees": trees})


async def test_other_rules_keep_to_chains(tiny_model: TinyModel) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, target, draft={"layers": 2}, look_ahead="on", trees="on") as cluster:
        for rule in ("rejection", "block"):
            for answer in await answers(cluster, prompts_of(target)[:1], rule=rule, temperature=0.8):
                assert answer.speculation.sibling_tokens == 0
                assert answer.speculation.accepted_tokens > 0


async def test_replicas_that_take_little_get_little(tiny_model: TinyModel) -> None:
    """A verifier that takes 5 proposed tokens a round, a draft that takes 7; and answers of a few tokens."""
    target = tiny_model("llama")
    limits = {"verifier": {"max_proposal": 5}, "draft": {"layers": 2, "max_proposal": 7}}
    async with running_cluster(target, target, trees="on", max_siblings=30, look_ahead="on", **limits) as cluster:
        for length in (1, 2, 4, 12):
            expected = await answers(cluster, prompts_of(target)[:2], drafter="none", max_tokens=length)
            found = await answers(cluster, prompts_of(target)[:2], max_tokens=length)
            assert [answer.token_ids for answer in found] == [answer.token_ids for answer in expected]
            assert not any(answer.speculation.fallback_reason for answer in found)


async def test_by_default_a_draft_whose_siblings_cost_nothing_proposes_them(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The times are set, so that the decision does not depend on this machine."""
    target = tiny_model("llama")
    async with running_cluster(target, target, draft={"layers": 2}) as cluster:
        costs = cluster.coordinator.generations.costs
        table = costs.table

        def flat(longest: int) -> Any:
            return replace(table(longest), verify_ms=(10.0,) * (longest + 1), draft_ms=(0.0,) * (longest + 1))

        monkeypatch.setattr(costs, "table", flat)
        options = {"fixed_length": False, "temperature": 0.8, "max_tokens": 48}
        found = await answers(cluster, prompts_of(target)[:3], **options)
        assert sum(answer.speculation.sibling_tokens for answer in found) > 0
