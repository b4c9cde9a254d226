"""How deep the sessions of a step are drafted for, where each says how deep it should be."""

from __future__ import annotations

from collections.abc import Sequence


def agreed_depth(votes: Sequence[int]) -> int:
    """The most tokens that at least half of the voters want; 0 without any.

    All of them wait for the deepest guess. So neither a few that would go deeper than the others decide, nor a few that
    would not guess at all; and what voters think of differs by chance only, so the middle is the best guess.
    """
    return sorted(votes)[len(votes) // 2] if votes else 0
