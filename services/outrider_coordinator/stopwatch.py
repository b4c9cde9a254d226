"""Times the parts of a round."""

from __future__ import annotations

import time


class Stopwatch:
    """Runs from its creation."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap_ms(self) -> float:
        """Milliseconds since the last lap, or since the start."""
        last, self._last = self._last, time.perf_counter()
        return (self._last - last) * 1e3
