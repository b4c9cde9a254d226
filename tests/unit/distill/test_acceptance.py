"""Counting rounds from one pass over an answer equals playing the rounds."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.acceptance.accept import accept
from outrider.acceptance.params import Rule
from outrider.acceptance.proposal import Proposal, Source, Verdict
from outrider.acceptance.tree import TokenTree
from outrider.corpus import Answer
from outrider.distill.batches import Texts, batches
from outrider.distill.evaluate import Acceptance
from outrider.engine.draft_vocabulary import DraftVocabulary, most_frequent


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 6))
def test_rounds_are_those_of_the_match_rule(matches: list[bool], size: int) -> None:
    found = Acceptance()
    found.add(matches, size)
    answer = list(range(100, 100 + len(matches)))
    place = rounds = proposed = accepted = 0
    while place < len(answer):
        count = min(size, len(answer) - place - 1)
        guess = [t if right else 0 for t, right in zip(answer[place:], matches[place:], strict=True)][:count]
        verdict = Verdict(tuple(answer[place : place + count + 1]))
        outcome = accept(Rule.MATCH, Proposal(TokenTree.chain(guess), Source.MODEL), verdict, seed=0, base_length=place)
        rounds, proposed, accepted = rounds + 1, proposed + count, accepted + len(outcome.accepted)
        place += len(outcome.accepted) + 1
    assert (found.rounds, found.proposed, found.accepted) == (rounds, proposed, accepted)


def test_the_vocabulary_keeps_the_frequent_and_the_ends_of_text() -> None:
    vocabulary = most_frequent([5, 0, 9, 9, 1], 3, always=[1])
    assert vocabulary == DraftVocabulary((1, 2, 3), 5)
    assert vocabulary.row_of().tolist() == [3, 0, 1, 2, 3]


def test_a_batch_marks_its_answers_and_a_resumed_run_sees_the_same_batches() -> None:
    answers = [Answer(str(n), "", tuple(range(1, 3 + n % 5)), (7, 8, n), 0.0, n) for n in range(40)]
    texts = Texts(answers, torch.device("cpu"))
    batch = texts.batch([1, 2, 3])
    assert batch.in_answer.sum(dim=1).tolist() == [3, 3, 3]
    assert batch.attention.sum(dim=1).tolist() == [len(a.prompt) + 3 for a in answers[1:4]]
    for answer, row, length in zip(answers[1:4], batch.tokens, batch.attention.sum(dim=1), strict=True):
        assert row[:length].tolist() == [*answer.prompt, *answer.answer]
        assert not row[length:].any()
    assert batch.places[batch.attention].tolist() == list(range(texts.lengths[0], sum(texts.lengths[:4])))
    first = batches(texts.lengths, 60, seed=1)
    expected = [next(first) for _ in range(30)]
    assert all(len(group) * max(texts.lengths[number] for number in group) <= 60 for group in expected)
    resumed = batches(texts.lengths, 60, seed=1, skip=12)
    assert all(next(resumed) == group for group in expected[12:])
