"""Token trees: what a proposal looks like. A chain is a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from outrider.errors import InvalidArgument

ROOT = -1
"""Parent of the nodes that continue the last committed token."""


@lru_cache(maxsize=256)
def chain_parents(length: int) -> tuple[int, ...]:
    """[length] the parents of a chain: every round asks for them several times."""
    return tuple(range(ROOT, length - 1))


@dataclass(frozen=True, slots=True)
class TokenTree:
    """`n` proposed tokens; node i continues node `parents[i]`, or the last committed token where that is `ROOT`.

    Parents come before their children, so one pass over the nodes meets every parent first.
    """

    tokens: tuple[int, ...]  # [n]
    parents: tuple[int, ...]  # [n]

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> TokenTree:
        """The tree in which every token continues the one before it."""
        return cls(tuple(tokens), chain_parents(len(tokens)))

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def caterpillar(cls, chain: Sequence[int], beside: Sequence[Sequence[int]]) -> TokenTree:
        """A chain, and beside its i-th token the leaves `beside[i]`, the likelier first; `beside` may be shorter.

        The chain comes first, so that its KV needs no move where it stands, and then the leaves from the root on.
        """
        leaves = [(token, depth - 1) for depth, tokens in enumerate(beside) for token in tokens]
        tokens = (*chain, *(token for token, _ in leaves))
        return cls(tokens, (*chain_parents(len(chain)), *(parent for _, parent in leaves)))

    @property
    def is_chain(self) -> bool:
        """True if every node continues the node before it."""
        chain = chain_parents(len(self.parents))
        return self.parents is chain or self.parents == chain

    def children(self, node: int) -> tuple[int, ...]:
        """The nodes that continue `node` (or the root), in proposal order."""
        return tuple(child for child, parent in enumerate(self.parents) if parent == node)

    def depths(self) -> tuple[int, ...]:
        """[n] how many tokens after the last committed one each node stands: 1 for the root's children."""
        if self.is_chain:
            return tuple(range(1, len(self) + 1))
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    @property
    def depth(self) -> int:
        """How many nodes the longest path has; 0 for the tree without nodes."""
        return len(self) if self.is_chain else max(self.depths())

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the root's child down to `node`; empty for the root."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))

    def truncated(self, size: int) -> TokenTree:
        """The first `size` nodes; still a tree, because parents come first."""
        return TokenTree(self.tokens[:size], self.parents[:size])

    def clipped(self, depth: int) -> TokenTree:
        """Without the nodes deeper than `depth`; the rest keeps its order."""
        depths = self.depths()
        return self.of([node for node in range(len(self)) if depths[node] <= depth])

    def below(self, node: int) -> list[int]:
        """All nodes that continue `node`, or one that does, in their order."""
        found = {node}
        for each, parent in enumerate(self.parents):
            if parent in found:
                found.add(each)
        return sorted(found)[1:]

    def of(self, kept: Sequence[int], root: int = ROOT) -> TokenTree:
        """The tree of these nodes alone, in their order; `root` stands for the last committed one in it.

        They hold the parent of each, if that is not the root, before it.
        """
        if len(kept) == len(self):
            return self
        place = {node: index for index, node in enumerate(kept)} | {root: ROOT}
        return TokenTree(tuple(self.tokens[n] for n in kept), tuple(place[self.parents[n]] for n in kept))


def validate_tree(tree: TokenTree, *, vocabulary_size: int, max_nodes: int) -> None:
    """Raise InvalidArgument unless `tree`, which came over the wire, is a tree of known tokens and allowed size."""
    if len(tree.tokens) != len(tree.parents):
        raise InvalidArgument("proposal.tree.parents", len(tree.parents), f"as many as tokens, {len(tree.tokens)}")
    if len(tree) > max_nodes:
        raise InvalidArgument("proposal.tree.tokens", len(tree), f"at most {max_nodes} long")
    if not tree.tokens:
        return
    if not (min(tree.tokens) >= 0 and max(tree.tokens) < vocabulary_size):
        node = next(node for node, token in enumerate(tree.tokens) if not 0 <= token < vocabulary_size)
        raise InvalidArgument(f"proposal.tree.tokens[{node}]", tree.tokens[node], f"a token id below {vocabulary_size}")
    if tree.is_chain:  # as nearly all are
        return
    for node, parent in enumerate(tree.parents):
        if not ROOT <= parent < node:
            raise InvalidArgument(f"proposal.tree.parents[{node}]", parent, f"from -1 to {node - 1}")
