"""What rounds are told to have cost: all of the device thread's time while it is busy, and each bit of it once."""

from __future__ import annotations

import time
from collections.abc import Callable


class Laps:
    """The time from where the thread was last free; each lap begins where the one before ended."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock`: seconds from any start."""
        self._clock = clock
        self._began = clock()

    def restart(self) -> None:
        """The thread has waited until now: that time is nobody's."""
        self._began = self._clock()

    def lap(self) -> float:
        """Seconds since the last lap ended."""
        began, self._began = self._began, self._clock()
        return self._began - began
