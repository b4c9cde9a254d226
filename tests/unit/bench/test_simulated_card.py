"""The verifier that stands for a measured card: rounds take what it takes, and verdicts say what they held."""

from __future__ import annotations

import time

import pytest

from outrider.acceptance.params import Rule, SamplingParams
from outrider.acceptance.proposal import NO_PROPOSAL
from outrider.engine.worker import DeviceWorker
from outrider.protocol.items import DraftFirst, Key, Open, Verified, Verify
from tests.benchmarks.simulated import card_verifier
from tests.benchmarks.simulated.card_verifier import CardVerifier
from tests.benchmarks.simulated.cores import StepTime
from tests.benchmarks.simulated.text import Text

SLOWER = 2.0


class Clients:
    """Sessions on a card of their own, which go on by a token each round."""

    def __init__(self, count: int) -> None:
        self.core = CardVerifier(Text(0.8), StepTime(0, 0), slower=SLOWER)
        self._peer = DeviceWorker(self.core).connect("test", lambda replies: None, vocabulary_size=1000)
        self._count, self._base = count, 3
        for number in range(count):
            key = Key(number, 1, self._base)
            item = Open(key, (5, 6, 7), 3, 500, SamplingParams(), Rule.MATCH, seed=number, cache_salt="")
            self.core.handle(self._peer, item)

    def round(self, *lengths: int) -> list[Verified]:
        """What comes of one pass in which the sessions have guesses of these lengths."""
        append = (8,) if self._base > 3 else ()
        for number, length in enumerate(lengths):
            key, first = Key(number, 1, self._base), DraftFirst(length) if length else None
            self.core.handle(self._peer, Verify(key, self._base - len(append), append, NO_PROPOSAL, first))
        self._base += 1
        return [reply for _, reply in self.core.step()]


def test_a_pass_takes_what_it_says_and_says_what_it_held(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[tuple[float, float]] = []  # from when on until when
    monkeypatch.setattr(card_verifier, "sleep_until", lambda end: waits.append((time.perf_counter(), end)))
    clients = Clients(3)
    before = time.perf_counter()
    replies = clients.round(2, 0, 1)
    card = clients.core.card
    draft_ms = 2 * card.opening_ms + card.draft_ms(2) + card.draft_ms(1)
    expected_s = SLOWER * (draft_ms + card.verify_ms(6) + card.host_ms(1, 2, 3)) / 1e3
    ((called, end),) = waits
    assert before <= end - expected_s <= called  # when the pass began
    assert [len(reply.drafted) for reply in replies] == [2, 0, 1]
    assert {reply.step[:2] for reply in replies} == {(6, 3)}
    assert {reply.step.draft_microseconds for reply in replies} == {round(SLOWER * draft_ms * 1e3)}
    assert {reply.step.draft_depth for reply in replies} == {2}


def test_the_draft_reads_a_prompt_once() -> None:
    clients = Clients(1)
    told = [clients.round(1)[0].step.draft_microseconds for _ in range(2)]
    assert told[0] - told[1] == round(SLOWER * clients.core.card.opening_ms * 1e3)
