"""Replies to rounds: what a verifier drafted by itself is believed no more than a draft is."""

from __future__ import annotations

import pytest

from outrider.acceptance.params import Rule
from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Source, SparseQ, Verdict
from outrider.acceptance.tree import TokenTree
from outrider.errors import InvalidArgument
from outrider.protocol.items import DraftFirst, Key, Step, Verified
from outrider_coordinator.judged import Judged, judged

KEY = Key(1, 2, 3)
WANTED = DraftFirst(3, (1,))
STEP = Step(rows=9, sessions=3, draft_microseconds=4000, draft_depth=3)


def chain(*tokens: int, source: Source = Source.MODEL) -> Proposal:
    return Proposal(TokenTree.chain(tokens), source)


def verified(drafted: Proposal, rows: int | None = None) -> Verified:
    return Verified(KEY, Verdict((5,) * (len(drafted) + 1 if rows is None else rows)), drafted, STEP)


def test_a_proposal_of_ours_is_what_was_verified() -> None:
    reply = Verified(KEY, Verdict((1, 2), step_microseconds=2500), chain(9))
    found = judged(reply, chain(7), Rule.MATCH, vocabulary_size=100)
    assert found == Judged(chain(7), reply.verdict)
    assert (found.step_ms, found.draft_ms) == (2.5, 0.0)


@pytest.mark.parametrize(
    "drafted", [chain(1, 2, 3), Proposal(TokenTree((1, 2, 3, 4), (-1, 0, 1, -1)), Source.MODEL), chain(1), NO_PROPOSAL]
)
def test_what_was_asked_for_or_less_is_taken(drafted: Proposal) -> None:
    reply = verified(drafted)
    assert judged(reply, WANTED, Rule.MATCH, vocabulary_size=100) == Judged(drafted, reply.verdict, STEP)


@pytest.mark.parametrize(
    ("reply", "field"),
    [
        (verified(chain(1, 2, 3, 4)), "proposal.tree.depth"),
        (verified(chain(*range(9))), "proposal.tree.tokens"),
        (verified(chain(1, 100)), "proposal.tree.tokens[1]"),
        (verified(Proposal(TokenTree((1, 2, 3), (-1, -1, -1)), Source.MODEL)), "proposal.tree.parents"),
        (verified(chain(1, source=Source.NGRAM)), "proposal.source"),
        (verified(Proposal(TokenTree.chain([1]), Source.MODEL, (SparseQ((1,), (1.0,)),))), "proposal.q"),
        (verified(chain(1, 2), rows=2), "verdict.next_tokens"),
        (verified(NO_PROPOSAL, rows=0), "verdict.next_tokens"),
    ],
)
def test_anything_else_is_refused(reply: Verified, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        judged(reply, WANTED, Rule.MATCH, vocabulary_size=100)
    assert caught.value.field == field
