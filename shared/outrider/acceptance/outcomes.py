"""The outcome cache: proposals drafted ahead for outcomes of the round in flight."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outrider.acceptance.proposal import Proposal
from outrider.acceptance.tree import ROOT, TokenTree


@dataclass(frozen=True, slots=True)
class Lookup:
    """What the cache says of an outcome."""

    proposal: Proposal | None  # None: it was not foreseen
    rank: int | None  # of the next token among those foreseen at its place
    bonus: bool  # every token of a whole path stood


class OutcomeCache:
    """Proposals by the outcome of one round of one session. An outcome of any other round finds nothing."""

    def __init__(self, base_length: int, in_flight: TokenTree, foreseen: Iterable[tuple[int, int, Proposal]]) -> None:
        """`base_length`: committed tokens of the round; `foreseen`: last accepted node, next token, proposal."""
        self._base_length = base_length
        self._in_flight = in_flight
        self._proposals: dict[int, dict[int, Proposal]] = {}
        for node, next_token, proposal in foreseen:
            self._proposals.setdefault(node, {})[next_token] = proposal

    def find(self, committed: Sequence[int]) -> Lookup | None:
        """What was drafted for the round's outcome; None if `committed` is not an outcome of this round."""
        if len(committed) <= self._base_length:
            return None
        path, tree = committed[self._base_length : -1], self._in_flight
        node, reached = ROOT, 0
        # Children come after their parents: one pass meets each node of the path after the one before it.
        for child, parent in enumerate(tree.parents):
            if reached < len(path) and parent == node and tree.tokens[child] == path[reached]:
                node, reached = child, reached + 1
        if reached < len(path):
            return None
        here = self._proposals.get(node, {})
        next_token = committed[-1]
        rank = list(here).index(next_token) if next_token in here else None
        return Lookup(here.get(next_token), rank, node not in tree.parents)
