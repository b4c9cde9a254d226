"""Guesses of many sessions that are drawn one token after another without the host between."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from outrider.engine.batch import Feed
from outrider.engine.guess import DraftSession, Guess
from outrider.engine.runner import DrawingChains, Stem

Ahead = Mapping[DraftSession, Feed]
"""Sessions whose guesses begin before it is known after what, with what they have to run before."""

NOBODY: Ahead = MappingProxyType({})


class ChainsUnderWay(NamedTuple):
    """Guesses that are being drawn."""

    sessions: list[DraftSession]
    guesses: list[Guess]
    ahead: Ahead | None  # None: there can be none, as the host waits for them
    steps: int
    drawing: DrawingChains


def stem_of(session: DraftSession, feed: Feed | None) -> Stem:
    """What the session's guess goes on from, once what it has to run has been: `feed`, if it begins ahead."""
    if feed is None:
        return Stem(session.sequence, len(session.sequence.cached))
    return Stem(session.sequence, feed.base + len(feed), feed.back)
