"""What rounds take whose guesses the verifier drafts by itself, where they follow each other.

Then the next guesses may be launched before the host knows what came of the last ones (`drafting_verify`), so a round
takes less than the draft's pass and the target's that are timed each by itself. By how much depends on how much the
host has to do for it, and so on the number of sessions, hardly on how long their guesses are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from outrider.acceptance.curve import monotone
from outrider.acceptance.params import Rule, SamplingParams
from outrider.acceptance.proposal import NO_PROPOSAL
from outrider.acceptance.step_times import StepTimes, on_line
from outrider.engine.core import ReplicaCore
from outrider.engine.step_times import STEM, some_tokens
from outrider.engine.worker import DeviceWorker
from outrider.protocol.items import DraftFirst, FollowUp, Key, Open, Opened, Verified, Verify
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

SESSIONS = (1, 4, 16, 64, 128)
"""Numbers of sessions that rounds are timed with, as far as they fit."""

LENGTH = 3
"""Tokens of their guesses."""

ROUNDS, SETTLING = 10, 4
"""Rounds in a row, and how many of them, the first ones, are not timed."""

LEAST = 0.1
"""Part of what was measured of a pass by itself that stays at least."""


def goes_ahead(core: ReplicaCore[Any]) -> bool:
    """Whether guesses begin before it is known what came of the last ones."""
    own = core.own_draft
    return own is not None and core.engine.takes_drawn and own.engine.takes_drawn


def in_a_row(core: ReplicaCore[Any], verify: StepTimes, draft: StepTimes) -> tuple[StepTimes, StepTimes]:
    """The times of a verifier's passes and its draft's as they are where rounds follow each other.

    Takes a second or so, on the thread of the caller, before the device thread is there; frees what it used. Where no
    pass is launched before its turn they are what they are.
    """
    assert core.own_draft is not None
    if not goes_ahead(core):
        return verify, draft
    core.claim_thread()
    verifying: dict[int, float] = {}
    drafting: dict[int, float] = {}
    for sessions in SESSIONS:
        if not all(_fits(each, sessions) for each in (core, core.own_draft)):
            break
        if (found := _timed(core, sessions)) is None:
            break
        verifying[sessions] = found[0] - verify.at((1 + LENGTH) * sessions, sessions)
        drafting[sessions] = found[1] - draft.drafting(LENGTH, sessions)
        log.info("%d sessions' guesses of %d: drafted in %.2f ms, verified in %.2f", sessions, LENGTH, *found[::-1])
    if not verifying:
        return verify, draft
    return _with(verify, verifying), _with(draft, drafting)


def _with(times: StepTimes, more: Mapping[int, float]) -> StepTimes:
    """The times with so much `more`, by the number of sessions, in each pass."""
    apart = None if times.apart is None else _added(times.apart, more)
    return replace(_added(times, more), apart=apart)


def _added(times: StepTimes, more: Mapping[int, float]) -> StepTimes:
    known, values = tuple(more), tuple(more.values())
    sums = []
    for rows, each in zip(times.rows, times.milliseconds, strict=True):
        sessions = min(max(rows / times.each, known[0]), known[-1])
        sums.append(max(LEAST * each, each + on_line(known, values, sessions)))
    return replace(times, milliseconds=monotone(sums, [1.0] * len(sums)))


def _fits(core: ReplicaCore[Any], sessions: int) -> bool:
    size = core.engine.options.block_size
    reserved = -(-_most_tokens() // size) * size
    return (
        sessions * reserved <= core.engine.available_tokens
        and sessions * (STEM + 1 + LENGTH) <= core.engine.options.max_batch_tokens
        and core.max_proposal >= LENGTH
        and _most_tokens() <= core.engine.info.context_length
    )


def _most_tokens() -> int:
    """Of a session."""
    return STEM + (1 + LENGTH) * (ROUNDS + 2)


def _timed(core: ReplicaCore[Any], sessions: int) -> tuple[float, float] | None:
    """Milliseconds in which a round is verified, and drafted for; None if there was no such round."""
    worker: DeviceWorker[Any, Any] = DeviceWorker(core)  # makes the peer; it is never started
    peer: Any = worker.connect("rounds", lambda replies: None, vocabulary_size=core.engine.info.vocabulary_size)
    stem = some_tokens(core, STEM)
    passes: list[tuple[float, float]] = []
    try:
        for number in range(1, sessions + 1):
            key = Key(number, 1, STEM)
            opening = Open(key, stem, STEM, _most_tokens(), SamplingParams(), Rule.MATCH, number, cache_salt="rounds")
            assert isinstance(core.handle(peer, opening), Opened)
            core.handle(peer, Verify(key, STEM, (), NO_PROPOSAL))
            core.handle(peer, FollowUp(key, (), plainly=False, draft_first=DraftFirst(LENGTH), rounds=ROUNDS))
        while core.busy:
            replies = [reply for _, reply in core.step() if isinstance(reply, Verified)]
            if replies and replies[-1].drafted:
                last = replies[-1]
                passes.append((last.verdict.step_microseconds / 1e3, last.step.draft_microseconds / 1e3))
    finally:
        core.drop_peer(peer)
        while core.busy:
            core.step()
    timed = passes[SETTLING:] or passes
    if not timed:
        return None
    return median(verify for verify, _ in timed), median(draft for _, draft in timed)
