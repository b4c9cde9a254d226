"""When the requests of an open loop arrive."""

from __future__ import annotations

import random
from itertools import accumulate


def poisson_arrivals(count: int, per_second: float, key: str) -> tuple[float, ...]:
    """`count` times in seconds, ascending from 0: a Poisson process of `per_second` arrivals that begins with one.

    A function of its arguments alone: the same key gives the same times, scaled by the rate.
    """
    generator = random.Random(key)
    gaps = (generator.expovariate(1.0) / per_second for _ in range(count - 1))
    return tuple(accumulate(gaps, initial=0.0)) if count else ()
