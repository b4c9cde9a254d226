"""Committing rounds: tokens, text, logprobs and counts end together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from outrider.acceptance.params import Rule, SamplingParams
from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, RowLogprobs, Source, Verdict
from outrider.acceptance.stopping import StopConditions
from outrider.acceptance.tree import TokenTree
from outrider.errors import InternalError
from outrider_coordinator.request import DrafterKind, Request, Speculation
from outrider_coordinator.session import Session, SourceCounts


class Letters:
    """Token 0 is "a", 1 is "b", ..."""

    def push(self, token_id: int) -> str:
        return chr(ord("a") + token_id)

    def push_all(self, token_ids: Sequence[int]) -> str:
        return "".join(map(self.push, token_ids))

    def finish(self) -> str:
        return ""


def session(*, logprobs: int | None = None, budget: int = 5, **conditions: object) -> Session:
    options = {"max_tokens": 10, "max_length": 100} | conditions
    request = Request(
        request_id="r",
        prompt=(20, 21),
        params=SamplingParams(),
        conditions=StopConditions(**options),  # type: ignore[arg-type]
        seed=0,
        logprobs=logprobs,
        speculation=Speculation(DrafterKind.MODEL, budget, Rule.MATCH),
    )
    return Session(1, request, Letters())


def chain(*tokens: int) -> Proposal:
    return Proposal(TokenTree.chain(tokens), Source.MODEL)


def test_a_round_commits_what_stands_and_one_token_more() -> None:
    one = session()
    delta = one.commit(chain(0, 1, 9), Verdict((0, 1, 2, 3)))
    assert (delta.text, delta.token_ids) == ("abc", (0, 1, 2))
    assert one.committed == [20, 21, 0, 1, 2]
    assert (one.counts.rounds, one.counts.proposed, one.counts.accepted) == (1, 3, 2)
    assert delta.accepted == 2


def test_a_round_without_a_proposal_is_plain_decoding() -> None:
    one = session()
    assert one.commit(NO_PROPOSAL, Verdict((7,))).token_ids == (7,)
    assert one.counts.acceptance_rate is None


def test_every_proposed_token_counts_also_those_after_the_first_that_fell() -> None:
    """As in vLLM: of a guess of 4 whose first token falls, 0 of 4 stand, not 0 of 1."""
    one = session()
    one.commit(chain(9, 1, 2, 3), Verdict((0, 1, 2, 3, 4)))
    assert (one.counts.proposed, one.counts.accepted) == (4, 0)
    one.commit(chain(1, 9, 2, 3), Verdict((1, 2, 3, 4, 5)))
    assert (one.counts.proposed, one.counts.accepted) == (8, 1)


def test_rounds_are_counted_by_their_source_and_length() -> None:
    one = session()
    one.commit(chain(0, 9), Verdict((0, 1, 2)))
    one.commit(NO_PROPOSAL, Verdict((7,)))
    one.commit(Proposal(TokenTree.chain((5,)), Source.NGRAM), Verdict((5, 6)))
    counts = one.counts
    assert counts.by_source == {Source.MODEL: SourceCounts(1, 2, 1), Source.NGRAM: SourceCounts(1, 1, 1)}
    assert (counts.rounds, counts.plain_rounds, counts.proposed, counts.accepted) == (3, 1, 3, 2)
    assert counts.lengths == {(Source.MODEL, 2): 1, (Source.NONE, 0): 1, (Source.NGRAM, 1): 1}


def test_case_15_counts_end_with_the_answer() -> None:
    one = session(eos_token_ids=frozenset({1}))
    delta = one.commit(chain(0, 1, 2, 3), Verdict((0, 1, 2, 3, 4)))
    assert delta.token_ids == (0, 1)
    assert one.finish is not None
    assert (one.counts.proposed, one.counts.accepted, one.completion_tokens) == (2, 2, 2)
    assert one.committed == [20, 21, 0, 1]


def test_case_14_the_budget_leaves_room_for_the_token_after_the_proposal() -> None:
    one = session(max_tokens=3)
    assert one.draft_budget == 2
    one.commit(NO_PROPOSAL, Verdict((0,)))
    assert one.draft_budget == 1
    one.commit(NO_PROPOSAL, Verdict((0,)))
    assert one.draft_budget == 0


def test_logprobs_follow_the_path() -> None:
    # Two branches; the second child of the root stands.
    tree = TokenTree((4, 5, 6), (-1, -1, 1))
    rows = tuple(RowLogprobs((token, 9), (-0.5 - row, -9.0)) for row, token in enumerate((5, 7, 6, 8)))
    one = session(logprobs=1)
    delta = one.commit(Proposal(tree, Source.MODEL), Verdict((5, 7, 6, 8), logprobs=rows))
    assert delta.token_ids == (5, 6, 8)
    assert [(entry.token_id, entry.logprob) for entry in delta.logprobs] == [(5, -0.5), (6, -2.5), (8, -3.5)]
    assert delta.logprobs[0].top == ((5, -0.5),)


def test_a_verdict_that_does_not_fit_is_the_verifiers_fault() -> None:
    with pytest.raises(InternalError):
        session().commit(chain(0, 1), Verdict((0,)))
