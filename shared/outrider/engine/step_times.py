"""What passes take, measured when a replica starts: coordinators decide by it until rounds teach them better."""

from __future__ import annotations

import time
from statistics import median

from outrider.acceptance.curve import monotone
from outrider.acceptance.step_times import StepTimes
from outrider.acceptance.tree import TokenTree
from outrider.engine.batch import Feed
from outrider.engine.engine import Engine
from outrider.engine.sequence import KvSequence
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

ROWS = (1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256, 512)
"""Numbers of rows that passes are timed with, as far as they fit."""

REPEATS = 3
"""Timed passes for each; the median counts. One before them is not timed."""

TIME_BUDGET_S = 1.0
"""No number of rows is begun after so long: on a slow device the first ones have to do."""

STEM = 4
"""Tokens before the rows."""


def measure_steps(engine: Engine, *, each: int) -> StepTimes:
    """Milliseconds of passes with `each` rows a session at most: a token and a chain proposed after it.

    Takes a second or so; frees what it used. Blocks; nothing else may use the engine meanwhile.
    """
    engine.claim_thread()
    began = time.perf_counter()
    rows, times = [], []
    for count in ROWS:
        if not _fits(engine, count, each) or time.perf_counter() - began > TIME_BUDGET_S:
            break
        rows.append(count)
        times.append(_time(engine, count, each))
    found = StepTimes(tuple(rows), monotone(times, [1.0] * len(times)))
    log.info("%s: %s", engine.info.name, ", ".join(f"{ms:.2f} ms for {n}" for n, ms in zip(rows, times, strict=True)))
    return found


def _fits(engine: Engine, rows: int, each: int) -> bool:
    sessions, length = -(-rows // each), _length(each)
    blocks = -(-length // engine.options.block_size)
    enough = sessions * blocks * engine.options.block_size <= engine.available_tokens
    most = rows + sessions * (STEM - 1)
    return enough and most <= engine.options.max_batch_tokens and length <= engine.info.context_length


def _length(each: int) -> int:
    return STEM + 1 + REPEATS + each


def _time(engine: Engine, rows: int, each: int) -> float:
    stem = _tokens(engine, STEM)
    sequences = [engine.open(stem, _length(each), salt=f"step times {n}") for n in range(-(-rows // each))]
    try:
        samples = [_step(engine, sequences, rows, each) for _ in range(1 + REPEATS)]
    finally:
        for sequence in sequences:
            engine.close(sequence)
    return median(samples[1:]) * 1e3


def _step(engine: Engine, sequences: list[KvSequence], rows: int, each: int) -> float:
    """Seconds of a pass over what the sequences lack and their share of the rows."""
    feeds = []
    for place, sequence in enumerate(sequences):
        share = min(each, rows - place * each)
        committed = _tokens(engine, max(STEM, len(sequence.cached) + 1))
        sequence.align(committed, len(committed))
        tail = _tokens(engine, share - 1)
        feeds.append(Feed(sequence, committed[len(sequence.cached) :], TokenTree.chain(tail)))
    started = time.perf_counter()
    engine.forward(feeds)[-1, 0].item()  # waits for the device
    return time.perf_counter() - started


def _tokens(engine: Engine, count: int) -> list[int]:
    return [(7 + 31 * index) % engine.info.vocabulary_size for index in range(count)]
