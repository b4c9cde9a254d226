"""What a benchmark does: the points of its sweep, the requests, the limits of a good answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from outrider.client import Drafter, RequestOptions
from outrider.errors import InvalidArgument

MAX_CONCURRENCY = 4096
RATE_REQUESTS = 32
RATE_WARM_UP = 4

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class Concurrency:
    """A closed loop: so many requests in flight; the end of one starts the next."""

    sessions: int

    @property
    def value(self) -> float:
        """Where the point is on its axis."""
        return self.sessions

    @property
    def label(self) -> str:
        """As messages name the point."""
        return f"{self.sessions} at once"


@dataclass(frozen=True, slots=True)
class RequestRate:
    """An open loop: requests arrive at random (Poisson), whether or not earlier ones have ended."""

    per_second: float

    @property
    def value(self) -> float:
        """Where the point is on its axis."""
        return self.per_second

    @property
    def label(self) -> str:
        """As messages name the point."""
        return f"{self.per_second:g} per s"


Point = Concurrency | RequestRate


def mode_name(mode: Drafter) -> str:
    """A mode as people read it."""
    return "plain" if mode is Drafter.NONE else str(mode)


@dataclass(frozen=True, slots=True)
class Limits:
    """What an answer must keep to count towards goodput; None: no such limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("slo_ttft_ms", self.ttft_ms), ("slo_tpot_ms", self.tpot_ms)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InvalidArgument(name, value, "a positive number of milliseconds")

    @property
    def given(self) -> bool:
        """True if there is any."""
        return self.ttft_ms is not None or self.tpot_ms is not None


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """A whole benchmark. Raises InvalidArgument for what cannot be measured as it says."""

    points: tuple[Point, ...]
    drafters: tuple[Drafter, ...] = (Drafter.AUTO,)  # each beside plain decoding
    requests: int | None = None  # of each mode at each point; None: `requests_at`
    turns: int = 2  # the modes take turns; even, so that each goes first equally often
    warm_up: int | None = None  # requests of each mode before each point; None: `warm_up_at`
    seed: int = 0  # of arrivals, of the order of prompts and, counting up, of the requests
    request: RequestOptions = field(default_factory=lambda: RequestOptions())  # what all requests have in common
    limits: Limits = field(default_factory=Limits)
    gpus: int | None = None
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if not self.points:
            raise InvalidArgument("points", self.points, "at least one concurrency or request rate")
        if not self.drafters or Drafter.NONE in self.drafters or len({*self.drafters}) < len(self.drafters):
            raise InvalidArgument("drafter", [*map(str, self.drafters)], "different ones of auto, model, ngram")
        if self.turns < 2 or self.turns % 2:
            raise InvalidArgument("turns", self.turns, "an even number, at least 2")
        if self.warm_up is not None and self.warm_up < 0:
            raise InvalidArgument("warm_up", self.warm_up, "at least 0")
        if not 0 <= self.seed < 2**64:
            raise InvalidArgument("seed", self.seed, "a whole number from 0 to 18446744073709551615")
        if self.gpus is not None and self.gpus < 1:
            raise InvalidArgument("gpus", self.gpus, "at least 1")
        for point in self.points:
            self._check_requests(point)

    @property
    def modes(self) -> tuple[Drafter, ...]:
        """Plain decoding first."""
        return (Drafter.NONE, *self.drafters)

    def requests_at(self, point: Point) -> int:
        """Counted requests of each mode."""
        if self.requests is not None:
            return self.requests
        return max(16, 2 * self.turns * point.sessions) if isinstance(point, Concurrency) else RATE_REQUESTS

    def warm_up_at(self, point: Point) -> int:
        """Requests of each mode before the counted ones, all at the same time."""
        if self.warm_up is not None:
            return self.warm_up
        return point.sessions if isinstance(point, Concurrency) else RATE_WARM_UP

    def turn_sizes(self, point: Point) -> tuple[int, ...]:
        """How many requests each turn sends, as equal as can be."""
        whole, rest = divmod(self.requests_at(point), self.turns)
        return tuple(whole + (turn < rest) for turn in range(self.turns))

    def _check_requests(self, point: Point) -> None:
        count = self.requests_at(point)
        at_once = point.sessions if isinstance(point, Concurrency) else 1
        if count < (least := self.turns * at_once):
            why = f"at least {least}: {self.turns} turns that can keep {at_once} in flight"
            raise InvalidArgument("requests", count, why)


def concurrencies(text: str) -> tuple[Concurrency, ...]:
    """`1,4,16` as points. Raises InvalidArgument."""
    limit = f"whole numbers from 1 to {MAX_CONCURRENCY}, such as 1,4,16"
    values = _numbers("concurrency", text, int, limit)
    if any(not 1 <= value <= MAX_CONCURRENCY for value in values):
        raise InvalidArgument("concurrency", text, limit)
    return tuple(Concurrency(value) for value in values)


def request_rates(text: str) -> tuple[RequestRate, ...]:
    """`0.5,2,8` as points, in requests a second. Raises InvalidArgument."""
    limit = "positive numbers of requests a second, such as 0.5,2,8"
    values = _numbers("request_rate", text, float, limit)
    if any(not (math.isfinite(value) and value > 0) for value in values):
        raise InvalidArgument("request_rate", text, limit)
    return tuple(RequestRate(value) for value in values)


def drafters(text: str) -> tuple[Drafter, ...]:
    """`auto,ngram` as drafters. Raises InvalidArgument."""
    try:
        return tuple(Drafter(name.strip()) for name in text.split(","))
    except ValueError:
        raise InvalidArgument("drafter", text, "one or more of auto, model, ngram, with commas between") from None


def _numbers(name: str, text: str, kind: Callable[[str], _Number], limit: str) -> Sequence[_Number]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise InvalidArgument(name, text, limit) from None
