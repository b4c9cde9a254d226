"""The text that the simulated target writes, and how often the simulated draft guesses it."""

from __future__ import annotations

from dataclasses import dataclass

MASK = (1 << 64) - 1
FIRST_TOKEN, TOKENS = 3, 400
SECOND_SHARE, THIRD_SHARE = 0.5, 0.2
"""Where the draft's first choice is wrong, how often its second and its third are right (assumed)."""


def _mixed(session: int, position: int, salt: int) -> int:
    """64 bits that look random (splitmix64's finalizer)."""
    word = (session * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + salt) & MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


@dataclass(frozen=True, slots=True)
class Text:
    """Each position has one token, whatever stands before it."""

    acceptance: float  # chance that the draft's first choice is the target's token

    def token(self, session: int, position: int) -> int:
        """The target's token at a position of a session."""
        return FIRST_TOKEN + _mixed(session, position, 1) % TOKENS

    def choices(self, session: int, position: int, count: int) -> list[int]:
        """The draft's `count` likeliest tokens there, best first."""
        right = self.token(session, position)
        luck = _mixed(session, position, 2) / 2**64
        wrong = [FIRST_TOKEN + (right - FIRST_TOKEN + step) % TOKENS for step in range(1, count + 1)]
        if luck < self.acceptance:
            place = 0
        else:
            luck = (luck - self.acceptance) / (1.0 - self.acceptance)
            place = 1 if luck < SECOND_SHARE else 2 if luck < SECOND_SHARE + THIRD_SHARE else count
        return [*wrong[:place], right, *wrong[place:]][:count]
