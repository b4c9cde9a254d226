"""Which keys each row of a batch sees, against the definition written out row by row."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.acceptance.tree import TokenTree
from outrider.engine.batch import Batch, Feed, Span, ancestors
from outrider.engine.blocks import BlockPool
from outrider.engine.kv import SlotMoves
from outrider.engine.sequence import KvSequence

CPU = torch.device("cpu")
SIZE = 4


def make_sequence(cached: int, max_length: int = 64, pool: BlockPool | None = None) -> KvSequence:
    sequence = KvSequence(pool or BlockPool(64, SIZE), SlotMoves(), [1], max_length, "")
    sequence.extend([1] * cached, TokenTree((), ()))
    return sequence


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(0, 6))))
    return TokenTree((5,) * len(parents), parents)


def expected_keys(cached: int, chain: int, tree: TokenTree, row: int, window: int | None) -> set[int]:
    """The indices that a row sees: its own path, in a window of positions that ends with its own."""
    root = cached + chain
    if row < chain:
        path, position = set(range(cached + row + 1)), cached + row
        positions = {index: index for index in path}
    else:
        nodes = tree.path(row - chain)
        position = root - 1 + len(nodes)
        positions = {index: index for index in range(root)}
        positions |= {root + node: root + depth for depth, node in enumerate(nodes)}
    return {index for index, at in positions.items() if not window or at > position - window}


@given(
    cached=st.integers(0, 20),
    chain=st.integers(1, 6),
    tree=trees(),
    window=st.sampled_from([None, 1, 2, 5, 9, 100]),
    step=st.sampled_from([1, 3, 16]),
)
def test_every_row_sees_its_own_path(cached: int, chain: int, tree: TokenTree, window: int | None, step: int) -> None:
    sequence = make_sequence(cached)
    feed = Feed(sequence, [1] * chain, tree)
    context = Span(feed, 0, len(feed), cached, CPU).context(window, step)
    assert isinstance(context.slots, slice)
    length = context.slots.stop - context.slots.start
    first = context.slots.start - sequence.blocks[0] * SIZE
    assert first % step == length % step == 0
    mask = torch.ones(len(feed), length, dtype=torch.bool) if context.mask is None else context.mask
    for row in range(len(feed)):
        seen = {first + index for index in mask[row].nonzero().flatten().tolist()}
        assert seen == expected_keys(cached, chain, tree, row, window)


@given(cached=st.integers(0, 3), chain=st.integers(1, 4), tree=trees(), window=st.sampled_from([None, 2, 4, 9]))
def test_a_prefix_needs_no_mask(cached: int, chain: int, tree: TokenTree, window: int | None) -> None:
    feed = Feed(make_sequence(cached), [1] * chain, tree)
    plain = all(expected_keys(cached, chain, tree, row, window) == set(range(row + 1)) for row in range(len(feed)))
    span = Span(feed, 0, len(feed), cached, CPU)
    assert span.is_prefix(window) <= plain
    assert span.is_prefix(window) == plain or len(tree) > 0 or cached > 0
    assert span.context(window, 1, masked=False).mask is None


def test_a_single_row_that_sees_all_needs_no_mask() -> None:
    for cached, window in ((0, None), (9, None), (9, 4), (3, 4), (2, 4)):
        feed = Feed(make_sequence(cached), [1])
        assert Span(feed, 0, 1, cached, CPU).context(window, 1).mask is None


def test_scattered_blocks_become_a_list_of_slots() -> None:
    pool = BlockPool(4, SIZE)
    between = pool.acquire((), 4)
    pool.release([between[0], between[2]])
    sequence = make_sequence(3, max_length=8, pool=pool)
    feed = Feed(sequence, [1, 1])
    slots = Span(feed, 0, 2, 3, CPU).context(None, 3).slots
    assert isinstance(slots, torch.Tensor)
    assert slots.tolist() == [0, 1, 2, 3, 8, 8]  # rounded up to 6 with a slot of its own


def test_feeds_lie_one_after_the_other() -> None:
    pool = BlockPool(16, SIZE)
    first, second = make_sequence(3, 16, pool), make_sequence(5, 16, pool)
    batch = Batch.of(
        [
            Feed(first, [10, 11], want_logits=False),
            Feed(second, [20, 21, 22], TokenTree((30, 31, 32), (-1, -1, 1))),
        ],
        CPU,
    )
    assert batch.input_ids.tolist() == [[10, 11, 20, 21, 22, 30, 31, 32]]
    assert batch.position_ids.tolist() == [[3, 4, 5, 6, 7, 8, 8, 9]]
    assert batch.logit_rows.tolist() == [4, 5, 6, 7]
    start = second.blocks[0] * SIZE
    assert isinstance(batch.slots, torch.Tensor)
    assert batch.slots.tolist() == [3, 4, *range(start + 5, start + 11)]
    assert [(span.start, span.stop, span.base) for span in batch.spans] == [(0, 2, 3), (2, 8, 5)]


@pytest.mark.parametrize(
    ("parents", "expected"),
    [
        ((), []),
        ((-1,), [[1]]),
        ((-1, 0), [[1, 0], [1, 1]]),
        ((-1, -1, 0, 2), [[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]),
    ],
)
def test_ancestors(parents: tuple[int, ...], expected: list[list[int]]) -> None:
    assert ancestors(TokenTree((5,) * len(parents), parents)).int().tolist() == expected
