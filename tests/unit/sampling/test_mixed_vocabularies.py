"""Coordinators may know different numbers of ids (drafts differ in padding): one batch holds the sessions of all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from outrider.acceptance.params import Rule
from outrider.sampling.distribution import Row, scores_of
from outrider.sampling.draft import DraftRow, draft_rows
from outrider.sampling.verify import VerifyRows, verify_rows
from tests.unit.sampling.sessions import chain, open_state

SIZES = (12, 9, 12, 11)
PARAMS: list[dict[str, Any]] = [
    {"repetition_penalty": 1.4, "frequency_penalty": 0.7, "presence_penalty": -1.0},
    {"top_k": 3, "top_p": 0.8},
    {"min_p": 0.1, "logit_bias": ((2, 4.0),), "repetition_penalty": 0.8},
    {"temperature": 0.0, "frequency_penalty": 1.5},
]


def states(rule: Rule, params: dict[str, Any]) -> list[Any]:
    return [
        open_state(size, prompt=(1, 2), output=(3, 3, place), rule=rule, seed=place, **params)
        for place, size in enumerate(SIZES)
    ]


@pytest.mark.parametrize("params", PARAMS, ids=lambda params: "+".join(params))
@pytest.mark.parametrize("width", [12, 16])
def test_scores_are_those_of_each_session_alone(params: dict[str, Any], width: int) -> None:
    rows = [Row(state, state.length, (4, 3)) for state in states(Rule.MATCH, params)]
    logits = torch.randn(len(rows), width, generator=torch.Generator().manual_seed(3))
    together = scores_of(logits, rows)
    for place, row in enumerate(rows):
        size = row.state.vocabulary_size
        alone = scores_of(logits[place : place + 1], [row])[0]
        assert torch.equal(together[place, :size], alone)
        assert together[place, size:].eq(-torch.inf).all()


@pytest.mark.parametrize("params", PARAMS, ids=lambda params: "+".join(params))
@pytest.mark.parametrize("rule", list(Rule))
def test_verdicts_and_guesses_are_those_of_each_session_alone(params: dict[str, Any], rule: Rule) -> None:
    sessions = states(rule, params)
    proposals = [chain(4, 5, 6), chain(7), chain(), chain(1, 1)]
    work = [VerifyRows(state, state.length, proposal) for state, proposal in zip(sessions, proposals, strict=True)]
    sizes = [1 + len(proposal) for proposal in proposals]
    logits = torch.randn(sum(sizes), 12, generator=torch.Generator().manual_seed(4))
    alone = [verify_rows(part, [one])[0] for part, one in zip(logits.split(sizes), work, strict=True)]
    assert verify_rows(logits, work) == alone
    guesses = [DraftRow(state, state.length, (4,)) for state in sessions]
    one_each = logits[: len(guesses)]
    assert draft_rows(one_each, guesses) == [
        draft_rows(one_each[place : place + 1], [row])[0] for place, row in enumerate(guesses)
    ]
