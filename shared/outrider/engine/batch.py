"""What one forward pass computes: the rows of several sessions side by side, and what each row may attend to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from outrider.acceptance.tree import ROOT, TokenTree
from outrider.engine.sequence import NO_TREE, KvSequence

Slots = slice | Tensor
"""Cache slots: a slice where they lie side by side, else an int64 tensor."""


@dataclass(slots=True)
class Feed:
    """Tokens of one session to compute: a chain that continues `sequence.cached`, then a tree that continues the chain.

    A tree in flight may grow instead: then there is no chain, and the first `grown` nodes of `tree` are those there.
    With `want_logits`, the pass returns one row for the last chain token and one for each new node. Never changed; not
    frozen, as each session makes one for each pass and frozen ones take three times as long.

    With `at`, the chain does not continue the cache but stands there, or some positions before: how many is known on
    the device, see `outrider.engine.drawn.Drawn.backs`. Its tree does not branch, and the pass changes no sequence:
    that is for whoever gets to know where it stood.
    """

    sequence: KvSequence
    tokens: Sequence[int]
    tree: TokenTree = NO_TREE
    want_logits: bool = True
    grown: int = 0
    at: int | None = None  # the furthest index in the cache that its first token may have
    back: int = -1  # which of the pass's `backs` says how much less it is; -1: it is that one

    size: int = field(init=False)  # how many rows it has

    def __post_init__(self) -> None:
        self.size = len(self.tokens) + len(self.tree.tokens) - self.grown

    def __len__(self) -> int:
        return self.size

    def ids(self) -> tuple[int, ...]:
        """The token ids of its rows."""
        return (*self.tokens, *self.tree.tokens[self.grown :])

    @property
    def base(self) -> int:
        """Index in the cache of its first token, the furthest there may be."""
        return len(self.sequence.cached) + self.grown if self.at is None else self.at

    @property
    def continues(self) -> bool:
        """True if what it takes to be in flight is what is in flight."""
        if self.at is not None:
            return not self.grown
        if not self.grown:
            return not self.sequence.tree.tokens
        return not self.tokens and self.sequence.tree == self.tree.truncated(self.grown)

    @property
    def logit_rows(self) -> int:
        """Rows of logits that the pass returns for it."""
        return bool(self.tokens) + len(self.tree.tokens) - self.grown if self.want_logits else 0


@dataclass(frozen=True, slots=True)
class Context:
    """The keys that one session's rows may see: their slots [L], and which row sees which (None: each sees all).

    L may be rounded up; what stands in the slots beyond the session's own is masked.
    """

    slots: Slots
    mask: Tensor | None  # bool [rows, L]


@dataclass(slots=True)
class Span:
    """One session's rows in the batch, `start` to before `stop`, which stand at index `base` on in its cache."""

    feed: Feed
    start: int
    stop: int
    base: int
    device: torch.device

    @property
    def tree_base(self) -> int:
        """Index in the cache of the tree's first node: one after the position of its root."""
        return self.base + len(self.feed.tokens) - self.feed.grown

    def positions(self) -> list[int]:
        """Of each row, in the session's text."""
        chain = range(self.base, self.base + len(self.feed.tokens))
        return [*chain, *self._node_positions()[self.feed.grown :]]

    def _node_positions(self) -> list[int]:
        """Of each node, those of earlier passes included."""
        return [self.tree_base - 1 + depth for depth in self.feed.tree.depths()]

    def is_prefix(self, window: int | None) -> bool:
        """True if the rows are the session's first ones, and row i sees exactly the keys up to i."""
        return self.base == 0 and self.feed.tree.is_chain and (not window or len(self.feed) <= window)

    def context(self, window: int | None, step: int, *, masked: bool = True) -> Context:
        """What the rows see: everything before them on their own path, the last `window` positions of it if given.

        The keys begin at an index that is a multiple of `step`, and there is a multiple of `step` of them. The mask is
        left out if not `masked`.
        """
        length = self.base + len(self.feed)
        # In the chain index and position are the same; all of a tree is kept.
        oldest = min(self.base, self.tree_base)
        first = max(0, oldest - window + 1) // step * step if window else 0
        padding = -(length - first) % step
        slots = _padded(self.feed.sequence.slots(first, length), padding, self.device)
        no_siblings = len(self.feed) == 1 and self.feed.tree.is_chain
        sees_all = no_siblings and not padding and (not window or length - first <= window)
        if sees_all or not masked:
            return Context(slots, None)
        return Context(slots, self._mask(window, first, length + padding))

    def _mask(self, window: int | None, first: int, stop: int) -> Tensor:
        """Bool [rows, stop - first]: which keys, of those at index `first` to before `stop`, each row sees."""
        keys = torch.arange(first, stop, device=self.device)
        rows = torch.arange(self.base, self.base + len(self.feed), device=self.device)
        mask = keys <= rows[:, None]
        nodes = slice(self.tree_base - first, self.base + len(self.feed) - first)
        if not self.feed.tree.is_chain:
            mask[len(self.feed.tokens) :, nodes] = self.ancestors()
        if window:
            keys[nodes] = torch.tensor(self._node_positions(), device=self.device)
            mask &= keys > torch.tensor(self.positions(), device=self.device)[:, None] - window
        return mask

    def ancestors(self) -> Tensor:
        """Bool [new nodes, nodes]: which nodes each row of the tree sees."""
        return ancestors(self.feed.tree)[self.feed.grown :].to(self.device)


@dataclass(frozen=True, slots=True)
class Batch:
    """The spans of one forward pass, flattened into T rows."""

    spans: tuple[Span, ...]
    slots: Slots  # [T] where each row's key and value go
    input_ids: Tensor  # [1, T]
    position_ids: Tensor  # [1, T]
    logit_rows: Tensor  # [R] the rows whose logits are wanted

    @classmethod
    def of(cls, feeds: Sequence[Feed], device: torch.device) -> Batch:
        """Lay the feeds out one after the other."""
        spans: list[Span] = []
        start = 0
        for feed in feeds:
            spans.append(Span(feed, start, start + len(feed), feed.base, device))
            start += len(feed)
        wanted = [row for span in spans for row in range(span.stop - span.feed.logit_rows, span.stop)]
        return cls(
            spans=tuple(spans),
            slots=_written_slots(spans, device),
            input_ids=torch.tensor([[token for feed in feeds for token in feed.ids()]], device=device),
            position_ids=torch.tensor([[p for span in spans for p in span.positions()]], device=device),
            logit_rows=torch.tensor(wanted, dtype=torch.int64, device=device),
        )

    def with_input_ids(self, input_ids: Tensor) -> Batch:
        """The same rows with other ids [1, T]."""
        return replace(self, input_ids=input_ids)


def ancestors(tree: TokenTree) -> Tensor:
    """Bool [n, n]: entry (i, j) tells whether node j is node i or stands above it."""
    matrix = torch.eye(len(tree), dtype=torch.bool)
    for node, parent in enumerate(tree.parents):
        if parent != ROOT:
            matrix[node] |= matrix[parent]
    return matrix


def _padded(slots: slice | list[int], padding: int, device: torch.device) -> Slots:
    """The slots as something to index tensors with, and `padding` more, whatever they hold."""
    if isinstance(slots, slice):
        return slice(slots.start, slots.stop + padding)
    return torch.tensor(slots + slots[-1:] * padding, device=device)


def _written_slots(spans: Sequence[Span], device: torch.device) -> Slots:
    parts = [span.feed.sequence.slots(span.base, span.base + len(span.feed)) for span in spans]
    if len(parts) == 1:
        return _padded(parts[0], 0, device)
    lists = [list(range(part.start, part.stop)) if isinstance(part, slice) else part for part in parts]
    return torch.tensor([slot for part in lists for slot in part], device=device)
