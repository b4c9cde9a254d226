"""Proposals, verdicts and outcomes: the values that one round is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from outrider.acceptance.tree import TokenTree


class Source(StrEnum):
    """Who guessed."""

    NONE = "none"
    MODEL = "model"
    NGRAM = "ngram"


@dataclass(frozen=True, slots=True)
class SparseQ:
    """The draft distribution a token was drawn from: token -> probability, summing to 1 over at most a few dozen."""

    token_ids: tuple[int, ...]
    probabilities: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A token tree with its source and, for `rejection` and `block`, the distribution each node was drawn from.

    Empty `q` says that every token was chosen deterministically: its distribution is one-hot, whatever the drafter's
    softmax was. No proposal at all is `NO_PROPOSAL`, a tree without nodes, never a zero distribution.
    """

    tree: TokenTree
    source: Source
    q: tuple[SparseQ, ...] = ()  # [n] or empty

    def __len__(self) -> int:
        return len(self.tree.tokens)

    def clipped(self, depth: int, nodes: int | None = None) -> Proposal:
        """Without what is deeper than `depth`, and of the rest the first `nodes` where these are given.

        Of a tree with q, which only a chain may have, nothing can be cut out of the middle.
        """
        tree = self.tree.clipped(depth)
        if nodes is not None:
            tree = tree.truncated(nodes)
        assert not self.q or self.tree.is_chain
        return replace(self, tree=tree, q=self.q[: len(tree)])


NO_PROPOSAL = Proposal(TokenTree((), ()), Source.NONE)
"""Plain decoding is a round with this."""


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """Natural logarithms of the target's unprocessed probabilities at one row.

    The `k` likeliest come first, in order; then the row's next token and its proposed children where they are not
    among those.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class Verdict(NamedTuple):
    """What the target says of a proposal of n nodes. Row 0 follows the last committed token; row i + 1 follows node i.

    `next_tokens[row]` is emitted if the walk ends at that row: under `match` the target's own draw, under `rejection`
    and `block` a draw from the residual, or from p where nothing was proposed. `thresholds[node]` is the probability
    with which the coordinator accepts the node, given that its parent stands and its earlier siblings fell
    (`block`: the block threshold h). A tuple, as Outcome.
    """

    next_tokens: tuple[int, ...]  # [n + 1]
    thresholds: tuple[float, ...] = ()  # [n], empty under match
    logprobs: tuple[RowLogprobs, ...] = ()  # [n + 1] or empty
    step_microseconds: int = 0


class Outcome(NamedTuple):
    """How a round ended: the proposed nodes that stand, root's child first, and the one token that follows them.

    A tuple, which is made faster: each round makes one.
    """

    accepted: tuple[int, ...]  # node indices
    next_token: int

    def tokens(self, tree: TokenTree) -> tuple[int, ...]:
        """The tokens this round commits: 1 + len(accepted) of them."""
        return (*map(tree.tokens.__getitem__, self.accepted), self.next_token)
