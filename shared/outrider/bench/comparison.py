"""A speculative mode against plain decoding at one point: pure functions of their turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.bench.options import Limits
from outrider.bench.sample import Turn
from outrider.bench.summary import Distribution, summarize


@dataclass(frozen=True, slots=True)
class Identity:
    """Whether two modes said the same, text and token ids, where both answered."""

    compared: int
    differing: tuple[int, ...]  # numbers of the requests whose answers differ


@dataclass(frozen=True, slots=True)
class Ratio:
    """A figure of the mode over that of plain decoding; None where either was not measurable."""

    overall: float | None
    turns: tuple[float | None, ...]  # each turn alone: how far the overall figure can be trusted


@dataclass(frozen=True, slots=True)
class Comparison:
    """The mode over plain decoding."""

    output_tokens_per_s: Ratio  # of all sessions together; above 1: faster
    session_tokens_per_s: Ratio  # of one session, once its first chunk has come; above 1: faster
    latency_mean: Ratio  # below 1: answers end sooner
    identity: Identity | None  # None: not promised by the rule


def compare(plain: Sequence[Turn], mode: Sequence[Turn], *, promised: bool) -> Comparison:
    """The n-th turns of both sent the same requests. `promised`: the rule says that both give the same answers."""
    turns = [_figures([a], [b]) for a, b in zip(plain, mode, strict=True)]
    throughput, session, latency = (
        Ratio(overall, tuple(each))
        for overall, each in zip(_figures(plain, mode), zip(*turns, strict=True), strict=True)
    )
    return Comparison(throughput, session, latency, identity(plain, mode) if promised else None)


def identity(plain: Sequence[Turn], mode: Sequence[Turn]) -> Identity:
    """Compare the answers of the same requests."""
    expected, found = _digests(plain), _digests(mode)
    both = sorted(expected.keys() & found.keys())
    return Identity(len(both), tuple(number for number in both if expected[number] != found[number]))


def _digests(turns: Sequence[Turn]) -> dict[int, str]:
    return {sample.number: answer.digest for turn in turns for sample, answer in turn.completed}


def _figures(plain: Sequence[Turn], mode: Sequence[Turn]) -> tuple[float | None, float | None, float | None]:
    a, b = (summarize(turns, Limits(), None) for turns in (plain, mode))
    return (
        _divide(b.output_tokens_per_s, a.output_tokens_per_s),
        _divide(b.session_tokens_per_s, a.session_tokens_per_s),
        _divide(_mean(b.latency), _mean(a.latency)),
    )


def _mean(times: Distribution | None) -> float | None:
    return times.mean if times is not None else None


def _divide(value: float | None, base: float | None) -> float | None:
    """None where nothing completed: a mode that gave no token at all has no speed, not one of 0."""
    return value / base if value and base else None
