"""One outcome of a round in flight, and what is drafted after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.acceptance.tree import ROOT
from outrider.engine.guess import Growing
from outrider.protocol.items import Foreseen
from outrider.sampling.draft import DraftedToken

Ranked = tuple[int, ...]
"""The likeliest tokens of a place, best first."""


@dataclass(slots=True)
class Branch:
    """It grows by a token a pass."""

    node: int  # last accepted node in flight, or ROOT
    path: tuple[int, ...]  # tokens of the accepted nodes
    next_token: int
    growing: Growing  # what is drafted after `next_token`
    leaf: int = ROOT  # node of the newest token whose KV is there
    ranked: list[Ranked] = field(default_factory=list)  # at the places after `next_token`, as far as they were ranked

    @property
    def tokens(self) -> list[int]:
        """The drafted tokens, without their siblings."""
        return self.growing.tokens

    @property
    def newest(self) -> int:
        """The token that the coming pass runs."""
        return self.tokens[-1] if self.tokens else self.next_token

    @property
    def foreseen(self) -> Foreseen:
        """As the coordinator gets it."""
        return Foreseen(self.node, self.next_token, self.growing.proposal)

    def add(self, token: DraftedToken) -> None:
        """One more token, at whose place nothing was ranked."""
        self.growing.add(token)

    def add_ranked(self, ranked: Ranked) -> None:
        """One more token, with its siblings."""
        self.growing.add_ranked(ranked)
        self.ranked.append(ranked)

    def add_until(self, ranked: Sequence[Ranked], most: int, stop_ids: frozenset[int]) -> int:
        """Tokens as `add_ranked` takes them, until there are `most` or one of `stop_ids`; how many it took."""
        taken = self.growing.add_until(ranked, most, stop_ids)
        self.ranked += ranked[:taken]
        return taken

    def ranked_after(self, committed: tuple[int, ...], in_flight: list[int]) -> list[Ranked] | None:
        """What was ranked after this outcome, if it is `committed`, and after each of `in_flight`, if it proposed them.

        None: not all of it is known.
        """
        count = len(in_flight)
        if (*self.path, self.next_token) != committed or self.tokens[:count] != in_flight:
            return None
        return self.ranked[: count + 1] if len(self.ranked) > count else None
