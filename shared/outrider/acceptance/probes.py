"""When a source that does not pay, or did not, gets another try."""

from __future__ import annotations

SHARE = 0.01
"""What the first probe may cost, as a fraction of the tokens committed since the source last proposed."""
SHORTEST, LONGEST = 8, 128
"""Fewest and most committed tokens between two series."""
SERIES = 6
"""Most probes in a row: after as many successes the estimate has had its say."""
RETURN = 3
"""Probes in a row that must stand before a request comes back from a fallback."""
RESTED = 3
"""How many failures a fallback counts for."""


class Probes:
    """Probes of one source in one session. They come in series: one that stood is followed by the next at once.

    A series that brings nothing doubles the wait for the next, up to `LONGEST`. Waits count committed tokens, so they
    are the same on fast and on slow machines.
    """

    def __init__(self) -> None:
        self._idle = 0  # committed tokens since the source last proposed
        self._failures = 0  # series in a row that brought nothing
        self._series = 0  # probes of the series in progress: all but the one under way stood
        self._probing = False  # the round in progress is a probe

    @property
    def stood(self) -> int:
        """Probes in a row that stood, until now."""
        return 0 if self._probing else self._series

    @property
    def under_way(self) -> bool:
        """True while the round in progress is a probe."""
        return self._probing

    def due(self, lost: float, waiting: float = 1.0) -> bool:
        """Whether to probe now; `lost`: tokens that could be committed in the time of a probe, less the one it gets.

        `waiting`: sessions that wait for the probe, this one included; each makes probes of its own.
        """
        wait = max(SHORTEST, lost / SHARE) * 2**self._failures
        return self._series > 0 or self._idle >= min(LONGEST, wait) * waiting

    def begin(self) -> bool:
        """The coming round is a probe. True if it is the first of a series."""
        self._probing = True
        self._series += 1
        return self._series == 1

    def rest(self) -> None:
        """Wait as after several failures."""
        self._idle, self._failures, self._series = 0, max(self._failures, RESTED), 0

    def advance(self, committed: int, accepted: int | None) -> None:
        """A round committed so many tokens; `accepted` is None where the source proposed nothing in it."""
        self._idle = self._idle + committed if accepted is None else 0
        if self._probing:
            self._probing = False
            if not accepted or self._series == SERIES:
                self._failures, self._series = min(self._failures + 1, 16), 0
        elif accepted:
            # Chosen because it pays: it is back.
            self._failures = self._series = 0
