"""One outcome of a round in flight, and what is drafted after it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from outrider.acceptance.tree import ROOT, TokenTree
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
    leaf: int  # node in the cache of the newest token whose KV is there
    ranked: list[Ranked] = field(default_factory=list)  # at the places after `next_token`, as far as they were ranked
    after: list[Branch] = field(default_factory=list)  # the outcomes of the round that proposes all its tokens

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


def outcomes(
    in_flight: TokenTree,
    ranked: Sequence[Ranked],
    wanted: Sequence[int],
    siblings: tuple[int, ...],
    stop_ids: Set[int],
    nodes: Sequence[int] = (),
) -> list[Branch]:
    """A branch for each of the likeliest tokens at each place of a round, `wanted` many, that are not in flight there.

    `ranked` and `wanted`: at the root, then at each node. `nodes`: where the cache has these; empty: just there.
    """
    there: dict[int, set[int]] = defaultdict(set)
    for token, parent in zip(in_flight.tokens, in_flight.parents, strict=True):
        there[parent].add(token)
    found: list[Branch] = []
    for node, (tokens, count) in enumerate(zip(ranked, wanted, strict=True), start=ROOT):
        if count:
            path = tuple(in_flight.tokens[each] for each in in_flight.path(node))
            leaf = nodes[node + 1] if nodes else node
            others = [token for token in tokens if token not in there[node] and token not in stop_ids]
            found += [Branch(node, path, token, Growing(siblings), leaf) for token in others[:count]]
    return found


def likeliest(branches: Sequence[Branch]) -> list[Branch]:
    """The likelier before: the first of each place, and of those the one after all that is in flight, as is usual."""
    deepest, seen = max((branch.node for branch in branches), default=ROOT), Counter[int]()
    order: list[tuple[int, bool, int]] = []
    for index, branch in enumerate(branches):
        order.append((seen[branch.node], branch.node != deepest, index))
        seen[branch.node] += 1
    return [branches[index] for _, _, index in sorted(order)]
