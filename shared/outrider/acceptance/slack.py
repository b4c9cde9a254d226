"""Whether drafting ahead has time to spare for what is not needed: siblings."""

from __future__ import annotations

LATE = 0.1
"""Rounds wait for the draft if they take so much longer than the verifier's step, as a fraction of it."""
RECENT = 8.0
"""Rounds that say so."""
AWAY = 256
"""Rounds after that for which there is taken to be no time: what is asked for with every outcome makes them wait."""


class Slack:
    """Of all sessions of a coordinator. There is time until rounds are seen to wait."""

    def __init__(self) -> None:
        self._late = 0.0  # on average, as a fraction of a step
        self._rounds = 0
        self._none_until = 0

    def observe(self, period_ms: float, step_ms: float) -> None:
        """From verdict to verdict a round took so long, of which the verifier's step took its part."""
        if step_ms <= 0.0:
            return  # the verifier does not say
        self._rounds += 1
        self._late += (max(0.0, period_ms / step_ms - 1.0) - self._late) / RECENT
        if self._late > LATE:
            self._none_until = self._rounds + AWAY

    @property
    def is_there(self) -> bool:
        """Whether more may be asked for."""
        return self._rounds >= self._none_until
