"""Verifiers that launch a round before the one in front of it has ended: doubles draw, all else is real."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outrider.engine.drafting_verify import DraftingVerifyCore
from outrider.protocol.items import FollowUp
from outrider_coordinator.request import TreeMode
from tests.cluster import Cluster, running_cluster
from tests.conftest import TinyModel
from tests.doubles import drawing_apart
from tests.integration.test_draft_control import ErraticControl
from tests.integration.test_look_ahead import prompts_of
from tests.integration.test_own_draft import OPTIONS, OWN, PERFECT, PROMPT, assert_nothing_is_left, said_to


@pytest.fixture(autouse=True)
def flights(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sessions in each pass that was launched with its guesses before its turn."""
    found: list[int] = []
    land = DraftingVerifyCore._land

    def counted(core: Any, flight: Any, meanwhile: Any) -> Any:
        found.append(len(flight.launched.finishing))
        return land(core, flight, meanwhile)

    for place, name, double in drawing_apart():
        monkeypatch.setattr(place, name, double)
    monkeypatch.setattr(DraftingVerifyCore, "_land", counted)
    return found


async def answers(cluster: Cluster, prompts: list[Any], drafter: str, **options: Any) -> list[Any]:
    asked = [cluster.generate(prompt, drafter=drafter, **(OPTIONS | options)) for prompt in prompts]
    return [answer.token_ids for answer in await asyncio.gather(*asked)]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_they_never_change_the_answer(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch, flights: list[int], temperature: float
) -> None:
    target = tiny_model("llama")
    prompts: list[Any] = [prompts_of(target)[0], PROMPT, PROMPT + " and again"]
    options: dict[str, Any] = {"temperature": temperature, "max_tokens": 40, "max_draft_tokens": 5}
    async with running_cluster(target, verifier=OWN, max_siblings=9, trees=TreeMode.AUTO) as cluster:
        assert cluster.coordinator.replicas.verifiers[0].goes_ahead
        plain = await answers(cluster, prompts, "none", **options)
        flights.clear()
        assert await answers(cluster, prompts, "model", **options) == plain
        assert len(flights) >= 8
        assert max(flights) > 1
        assert await answers(cluster, prompts, "auto", fixed_length=False, **options) == plain
        monkeypatch.setattr("outrider_coordinator.generations.DraftControl", ErraticControl)
        for drafter in ("model", "auto"):
            assert await answers(cluster, prompts, drafter, fixed_length=False, **options) == plain
        await assert_nothing_is_left(cluster)


async def test_orders_reach_to_the_end_of_the_answer(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch, flights: list[int]
) -> None:
    """And not beyond: the verifier knows where that is. No round waits for the coordinator but the first guess."""
    target = tiny_model("llama")
    async with running_cluster(target, verifier=PERFECT) as cluster:
        whole = await cluster.generate(PROMPT, drafter="none", **(OPTIONS | {"max_tokens": 61}))
        for length in (1, 2, 3, 6, 7, 8, 61):
            said = said_to(cluster, monkeypatch)
            flights.clear()
            answer = await cluster.generate(PROMPT, drafter="model", **(OPTIONS | {"max_tokens": length}))
            assert answer.token_ids == whole.token_ids[:length]
        assert answer.speculation.rounds == 13
        assert len(flights) >= 11
        orders = [item for item in said if isinstance(item, FollowUp)]
        assert [order.extends for order in orders] == [False, *[True] * (len(orders) - 1)]
        await assert_nothing_is_left(cluster)


async def test_a_stop_string_ends_what_runs_ahead(tiny_model: TinyModel, flights: list[int]) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, verifier=PERFECT) as cluster:
        whole = await cluster.generate(PROMPT, drafter="none", **OPTIONS)
        stop = whole.text[len(whole.text) // 2 :][:4]
        options = OPTIONS | {"stop": [stop]}
        expected = await cluster.generate(PROMPT, drafter="none", **options)
        flights.clear()
        answer = await cluster.generate(PROMPT, drafter="model", **options)
        assert flights
        assert answer.text == expected.text != whole.text
        await assert_nothing_is_left(cluster)
