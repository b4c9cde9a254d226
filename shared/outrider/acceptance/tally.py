"""What came of many guesses, place by place: what a verifier tells all its coordinators, each of which sees a part."""

from __future__ import annotations

from typing import NamedTuple

PLACES = 16
"""Tokens further down a guess are not counted."""


class Tally(NamedTuple):
    """Of the tokens at places 1, 2, ... of several guesses so many were tried, and so many of these stood.

    A token is tried if all before it in its guess stood.
    """

    tried: tuple[int, ...] = ()
    stood: tuple[int, ...] = ()


NO_TALLY = Tally()


class Tallying:
    """Counts guesses as it is learned what came of them."""

    def __init__(self) -> None:
        self._tried: list[int] = []
        self._stood: list[int] = []

    def add(self, length: int, accepted: int) -> None:
        """A chain of `length` tokens, of which the first `accepted` stood."""
        for place in range(min(length, accepted + 1, PLACES)):
            if place == len(self._tried):
                self._tried.append(0)
                self._stood.append(0)
            self._tried[place] += 1
            self._stood[place] += place < accepted

    def take(self) -> Tally:
        """Those since the last call."""
        if not self._tried:
            return NO_TALLY
        taken = Tally(tuple(self._tried), tuple(self._stood))
        self._tried, self._stood = [], []
        return taken
