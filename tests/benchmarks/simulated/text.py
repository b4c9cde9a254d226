"""The text that the simulated target writes, and how often the simulated draft guesses it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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


def _mixed_all(session: int, first: int, count: int, salt: int) -> np.ndarray:
    """The same for `count` positions from `first` on, at once."""
    positions = np.arange(first, first + count, dtype=np.uint64)
    word = positions * np.uint64(0xD1B54A32D192ED03) + np.uint64((session * 0x9E3779B97F4A7C15 + salt) & MASK)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


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

    def pages(self, session: int) -> Pages:
        """The text of one session, for reading on and on."""
        return Pages(self, session)


class Pages:
    """What `Text` says of one session, a page at a time: a double must not take the cores from what is measured."""

    SIZE = 1024

    def __init__(self, text: Text, session: int) -> None:
        self._text = text
        self._session = session
        self._first = self._end = 0
        self._tokens: list[int] = []
        self._choices: list[int] = []

    def tokens(self, position: int, count: int) -> list[int]:
        """The target's tokens at `count` positions, each as `Text.token` says it."""
        self._turn_to(position, count)
        return self._tokens[position - self._first : position - self._first + count]

    def first_choices(self, position: int, count: int) -> list[int]:
        """The draft's likeliest token at each, as `Text.choices` says it."""
        self._turn_to(position, count)
        return self._choices[position - self._first : position - self._first + count]

    def _turn_to(self, position: int, count: int) -> None:
        if self._first <= position and position + count <= self._end:
            return
        assert count <= self.SIZE
        self._first, self._end = position, position + self.SIZE
        right = (_mixed_all(self._session, position, self.SIZE, 1) % np.uint64(TOKENS)).astype(np.int64)
        luck = _mixed_all(self._session, position, self.SIZE, 2) / 2**64
        choices = np.where(luck < self._text.acceptance, right, (right + 1) % TOKENS)
        self._tokens, self._choices = (FIRST_TOKEN + right).tolist(), (FIRST_TOKEN + choices).tolist()
