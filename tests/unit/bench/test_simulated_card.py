"""The verifier that stands for a measured card: rounds take what it takes, and verdicts say what they held."""

from __future__ import annotations

import time

from outrider.acceptance.params import Rule, SamplingParams
from outrider.acceptance.proposal import NO_PROPOSAL
from outrider.engine.worker import DeviceWorker
from outrider.protocol.items import DraftFirst, Key, Open, Verified, Verify
from tests.benchmarks.simulated.card_verifier import CardVerifier
from tests.benchmarks.simulated.cores import StepTime
from tests.benchmarks.simulated.text import Text

SLOWER = 2.0


def rounds(core: CardVerifier, lengths: list[int], *, base: int = 3) -> tuple[float, list[Verified]]:
    """Milliseconds of one pass in which each session has a guess of such a length, and its replies."""
    peer = DeviceWorker(core).connect("test", lambda replies: None, vocabulary_size=1000)
    for number, length in enumerate(lengths):
        key = Key(number, 1, base)
        core.handle(peer, Open(key, (5, 6, 7), 3, 500, SamplingParams(), Rule.MATCH, seed=number, cache_salt=""))
        core.handle(peer, Verify(key, base, (), NO_PROPOSAL, DraftFirst(length) if length else None))
    started = time.perf_counter()
    replies = [reply for _, reply in core.step()]
    return (time.perf_counter() - started) * 1e3, replies


def test_a_pass_takes_what_it_says_and_says_what_it_held() -> None:
    core = CardVerifier(Text(0.8), StepTime(0, 0), draft_time=StepTime(0, 0), slower=SLOWER)
    card = core.card
    took, replies = rounds(core, [2, 0, 1])
    draft_ms = 2 * card.opening_ms + card.draft_ms(2) + card.draft_ms(1)
    expected = SLOWER * (draft_ms + card.verify_ms(6) + card.host_ms(1, 2, 3))
    assert expected <= took < expected + 50.0
    assert [len(reply.drafted) for reply in replies] == [2, 0, 1]
    assert {reply.step[:2] for reply in replies} == {(6, 3)}
    assert {reply.step.draft_microseconds for reply in replies} == {round(SLOWER * draft_ms * 1e3)}
    assert {reply.step.draft_depth for reply in replies} == {2}


def test_the_draft_reads_a_prompt_once() -> None:
    core = CardVerifier(Text(0.8), StepTime(0, 0), draft_time=StepTime(0, 0))
    peer = DeviceWorker(core).connect("test", lambda replies: None, vocabulary_size=1000)
    core.handle(peer, Open(Key(1, 1, 3), (5, 6, 7), 3, 500, SamplingParams(), Rule.MATCH, seed=1, cache_salt=""))
    told = []
    for base in (3, 4):
        core.handle(peer, Verify(Key(1, 1, base), 3, (8,) * (base - 3), NO_PROPOSAL, DraftFirst(1)))
        ((_, reply),) = core.step()
        told.append(reply.step.draft_microseconds)
    assert told[0] - told[1] == round(core.card.opening_ms * 1e3)
