"""What a replica's rounds take, measured when it starts: coordinators decide by it until rounds teach them better."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from outrider.acceptance.curve import monotone
from outrider.acceptance.params import Rule, SamplingParams
from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Source
from outrider.acceptance.step_times import StepTimes
from outrider.acceptance.tree import TokenTree
from outrider.engine.core import ReplicaCore
from outrider.engine.verify import VerifyCore
from outrider.engine.worker import DeviceWorker
from outrider.protocol.items import FollowUp, Key, Open, Opened, Propose, Verify
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

ROWS = (1, 2, 4, 8, 16, 32, 64, 65, 96, 97, 128, 129, 192, 193, 256, 257, 384, 385, 512, 513, 640)
"""Numbers of rows that rounds are timed with, as far as they fit.

Recorded graphs (`outrider.engine.fused.runner.GRAPH_ROWS`) make a step of what a pass takes: a row more than one holds
costs what the next one does. Where that is much, both sides of the step are timed.
"""

VERIFIED_EACH = 8
"""Rows of a session in the rounds that a verifier is timed with: about as many as speculation has."""

APART = (4, 16, 64, 256)
"""Numbers of rows that rounds of as many sessions are timed with too: plain decoding."""

FURTHER = 4
"""Tokens of the guesses that tell what those after the first take."""

REPEATS = 3
"""Timed rounds for each; the median counts. One before them, with the prompt, is not timed."""

IN_A_ROW = 8
"""Plain rounds that follow each other by themselves, as they do in service, and are timed together."""

ENOUGH_S = 0.2
"""After so long no number of rows has another round timed."""

FEW = 8
"""Rows that one session may have: what speculation costs it."""

TIME_BUDGET_S, PATIENCE_S = 1.0, 3.0
"""No number of rows above `FEW` is begun after the first, and none at all after the second."""

STEM = 4
"""Tokens of the prompts."""

Ask = Callable[[Key, int, tuple[int, ...], int], Verify | Propose]
"""The item of a round: key, tokens that stay, tokens that follow them, rows."""


def time_verifying(core: ReplicaCore[Any]) -> StepTimes | None:
    """Milliseconds of a verifier's rounds, drawing included, by the rows of all sessions in them, few or many.

    Takes up to a second or so, on the thread of the caller, before the device thread is there; frees what it used.
    None where not even one row fits.
    """

    def ask(key: Key, keep: int, append: tuple[int, ...], rows: int) -> Verify:
        return Verify(key, keep, append, Proposal(TokenTree.chain(some_tokens(core, rows - 1)), Source.NGRAM))

    return _Timing(core, ask, min(VERIFIED_EACH, core.max_proposal + 1)).run(ROWS)


def time_drafting(core: ReplicaCore[Any]) -> StepTimes | None:
    """The same of a draft's guesses of one token, by the sessions that are drafted for; and of each token after it."""

    def of(tokens: int) -> _Timing:
        return _Timing(core, lambda key, keep, append, rows: Propose(key, keep, append, tokens), 1, tokens)

    one = of(1).run(ROWS)
    if one is None or core.max_proposal < FURTHER:
        return one
    several = of(FURTHER).run([rows for rows in APART if rows in one.rows])
    if several is None:
        return one
    timed = zip(several.rows, several.milliseconds, strict=True)
    return replace(one, further=_rising({rows: max(0.0, ms - one.at(rows)) / (FURTHER - 1) for rows, ms in timed}))


class _Timing:
    """Rounds of sessions that are its own."""

    def __init__(self, core: ReplicaCore[Any], ask: Ask, each: int, drafted: int = 1) -> None:
        """`each`: most rows of a session. `drafted`: how many tokens a draft is asked for."""
        self._core = core
        self._ask = ask
        self._each = each
        self._length = STEM + max(REPEATS + each + drafted, IN_A_ROW + 2)
        worker: DeviceWorker[Any, Any] = DeviceWorker(core)  # makes the peer; it is never started
        size = core.engine.info.vocabulary_size
        self._peer: Any = worker.connect("step times", lambda replies: None, vocabulary_size=size)

    def run(self, numbers: Sequence[int]) -> StepTimes | None:
        """`numbers` of rows, as far as they fit and there is time."""
        self._core.claim_thread()
        began = time.perf_counter()
        found: dict[int, float] = {}
        apart: dict[int, float] = {}
        for rows in numbers:
            left = (PATIENCE_S if rows <= FEW else TIME_BUDGET_S) - (time.perf_counter() - began)
            if not self._fits(rows, self._each) or left < 0:
                break
            found[rows] = self._time(rows, self._each)
            if rows in APART and self._each > 1 and self._fits(rows, 1):
                apart[rows] = self._time(rows, 1)
        if not found:
            return None
        log.info("rounds take %s; of as many sessions as rows %s", _said(found), _said(apart) or "no other times")
        times = replace(_rising(found), each=self._each, apart=_rising(apart) if apart else None)
        if not isinstance(self._core, VerifyCore):
            return times
        plain = {rows: self._time(rows, 1, in_a_row=True) for rows in (1, *apart) if self._fits(rows, 1)}
        log.info("plain rounds that follow each other take %s", _said(plain) or "unknown times")
        return replace(times, plain=_rising(plain) if plain else None)

    def _fits(self, rows: int, each: int) -> bool:
        engine, sessions = self._core.engine, -(-rows // each)
        reserved = -(-self._length // engine.options.block_size) * engine.options.block_size
        return (
            sessions * reserved <= engine.available_tokens
            and rows + sessions * (STEM - 1) <= engine.options.max_batch_tokens
            and self._length <= engine.info.context_length
        )

    def _time(self, rows: int, each: int, *, in_a_row: bool = False) -> float:
        """Milliseconds of a round; `each`: most rows of a session. `in_a_row`: of plain ones, one behind the other."""
        shares = [min(each, rows - start) for start in range(0, rows, each)]
        stem = some_tokens(self._core, STEM)
        for number in range(len(shares)):
            key = Key(number + 1, 1, STEM)
            params = SamplingParams()
            item = Open(key, stem, STEM, self._length, params, Rule.MATCH, seed=number, cache_salt="step times")
            opened = self._core.handle(self._peer, item)
            assert isinstance(opened, Opened)
        try:
            self._round(shares, STEM)
            if in_a_row:
                return self._plain_rounds(rows) * 1e3
            samples: list[float] = []
            while len(samples) < REPEATS and sum(samples) < ENOUGH_S:
                samples.append(self._round(shares, STEM + 1 + len(samples)))
            return median(samples) * 1e3
        finally:
            self._core.drop_peer(self._peer)
            while self._core.busy:  # a pass may be under way
                self._core.step()

    def _plain_rounds(self, sessions: int) -> float:
        """Seconds of one of several."""
        keep, append = STEM, some_tokens(self._core, STEM + 1)[STEM:]
        for number in range(1, sessions + 1):
            key = Key(number, 1, STEM + 1)
            self._core.handle(self._peer, Verify(key, keep, append, NO_PROPOSAL))
            self._core.handle(self._peer, FollowUp(key, (), plainly=True, rounds=IN_A_ROW - 1))
        started, rounds = time.perf_counter(), 0
        while self._core.busy and time.perf_counter() - started < ENOUGH_S:
            rounds += len(self._core.step())
        return (time.perf_counter() - started) * sessions / max(rounds, 1)

    def _round(self, shares: list[int], base: int) -> float:
        """Seconds."""
        keep = base - (base > STEM)
        append = some_tokens(self._core, base)[keep:]
        started = time.perf_counter()
        for number, share in enumerate(shares):
            self._core.handle(self._peer, self._ask(Key(number + 1, 1, base), keep, append, share))
        while self._core.busy:
            self._core.step()
        return time.perf_counter() - started


def _rising(found: Mapping[int, float]) -> StepTimes:
    return StepTimes(tuple(found), monotone(list(found.values()), [1.0] * len(found)))


def _said(found: Mapping[int, float]) -> str:
    return ", ".join(f"{ms:.2f} ms for {rows}" for rows, ms in found.items())


def some_tokens(core: ReplicaCore[Any], count: int) -> tuple[int, ...]:
    """The first tokens of a text that does not matter."""
    return tuple((7 + 31 * index) % core.engine.info.vocabulary_size for index in range(count))
