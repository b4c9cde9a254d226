"""Attention of the fast path by itself: one result, wherever splits are merged. Without a GPU in the interpreter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from unittest.mock import patch

import pytest
import torch

from outrider.acceptance.tree import TokenTree
from outrider.engine.batch import Feed
from outrider.engine.blocks import BlockPool
from outrider.engine.fused import attend as attention
from outrider.engine.fused import borders, plan
from outrider.engine.fused.attend import Arrangement, arranged, attend
from outrider.engine.fused.merging import Workspace
from outrider.engine.fused.plan import Plan, PlanBuffer, Shape
from outrider.engine.kv import KvStore, LayerKv, LayerShape, SlotMoves
from outrider.engine.sequence import NO_TREE, KvSequence
from tests.interpreter import INTERPRETED

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
DTYPE = torch.float32 if INTERPRETED else torch.bfloat16
HEADS, KV_HEADS, SIZE, BLOCK_SIZE, SLOTS = 4, 1, 16, 8, 512
TREE = TokenTree((1, 2, 3), (-1, -1, 0))
CACHED_AND_ROWS = ((61, TokenTree.chain((1, 2, 3, 4))), (5, NO_TREE), (40, TREE))
"""Of each session. With splits of 16, 16, 32, 32 positions: rows of a tile, and of a tree, in different splits."""


@pytest.fixture(autouse=True)
def _short_splits() -> Iterator[None]:
    with ExitStack() as stack:
        for name, value in (("BLOCK", 16), ("SHORT_SPLITS", 2), ("LONG_SPLIT", 32)):
            for module in (attention, borders):
                stack.enter_context(patch.object(module, name, value))
        stack.enter_context(patch.object(attention, "TOGETHER", 2))
        yield


class Sessions:
    """A cache with some sessions in it, and a pass over them."""

    def __init__(self, cached_and_rows: Sequence[tuple[int, TokenTree]] = CACHED_AND_ROWS) -> None:
        torch.manual_seed(0)
        store = KvStore({0: LayerShape(KV_HEADS, SIZE, SIZE)}, SLOTS + BLOCK_SIZE, dtype=DTYPE, device=DEVICE)
        self.kv: LayerKv = store.layers[0]
        self.kv.keys.normal_()
        self.kv.values.normal_()
        pool = BlockPool(SLOTS // BLOCK_SIZE, BLOCK_SIZE)
        self.feeds = []
        for cached, tree in cached_and_rows:
            sequence = KvSequence(pool, SlotMoves(), [1], cached + 1 + len(tree), str(cached), share=False)
            sequence.cached = [0] * cached
            self.feeds.append(Feed(sequence, [7], tree))
        plans = PlanBuffer(
            DEVICE, rows=32, table_entries=200, split_entries=200, block_size=BLOCK_SIZE,
            spare_block=SLOTS // BLOCK_SIZE, shared_by=HEADS // KV_HEADS,
        )  # fmt: skip
        layout = plans.lay_out(self.feeds)
        self.rows = len(layout)
        self.plan: Plan = plans.fill(layout, Shape(self.rows, layout.most_tiles + 1, self.rows, layout.tall))
        self.query = torch.randn(self.rows, HEADS, SIZE).to(DEVICE, DTYPE)
        self.workspace = Workspace(200, HEADS, SIZE, DEVICE)

    def attended(self, *, by_last: bool, lanes: int, stages: int = 2) -> torch.Tensor:
        """The result, from memory that held something else."""
        output = torch.full_like(self.query, float("nan"))
        with patch.object(attention, "arranged", lambda *_: Arrangement(lanes, stages, by_last)):
            attend(self.query, self.kv, self.plan, self.workspace, SIZE**-0.5, output)
        return output

    def expected(self) -> torch.Tensor:
        """All keys of each row at once."""
        found = []
        for feed in self.feeds:
            table, stem = feed.sequence.table, len(feed.sequence.cached) + 1
            for node in range(-1, len(feed.tree)):
                path = [] if node < 0 else [stem + each for each in feed.tree.path(node)]
                slots = [table[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE for at in (*range(stem), *path)]
                keys, values = self.kv.keys[slots, 0].double(), self.kv.values[slots, 0].double()
                weights = torch.softmax(self.query[len(found)].double() @ keys.T * SIZE**-0.5, dim=-1)
                found.append(weights @ values)
        return torch.stack(found)


def test_bits_do_not_depend_on_who_merges() -> None:
    """A kernel of its own, the last of several programs, or the only one, which has kept all splits.

    Whoever merges a row sets its counter back: the next pass, here the second of those merged by the last, finds zeros.
    """
    sessions = Sessions()
    apart = sessions.attended(by_last=False, lanes=1)
    tolerance = 1e-5 if INTERPRETED else 2e-2
    torch.testing.assert_close(apart.double(), sessions.expected(), atol=tolerance, rtol=tolerance)
    for lanes, stages in ((1, 2), (1, 3), (3, 2), (3, 3)):
        assert torch.equal(sessions.attended(by_last=True, lanes=lanes, stages=stages), apart)
        assert not sessions.workspace.arrived.any()


def test_bits_do_not_depend_on_the_height_of_tiles() -> None:
    chains = [(61, TokenTree.chain((1, 2, 3, 4, 5))), (5, TokenTree.chain((1, 2, 3)))]
    found = []
    for many, lanes in ((1, 3), (1, 1), (1 << 30, 3)):
        with patch.object(plan, "TALL_FROM", many):
            sessions = Sessions(chains)
        assert sessions.plan.shape.tall == (many == 1)
        found.append(sessions.attended(by_last=True, lanes=lanes))
    if INTERPRETED:  # in which NumPy's sums depend on a tile's shape
        for each in found[1:]:
            torch.testing.assert_close(each, found[0], atol=1e-5, rtol=1e-5)
    else:
        assert all(torch.equal(each, found[0]) for each in found[1:])


def test_programs_fill_the_card_once_and_merge_what_they_have_to_themselves() -> None:
    assert arranged(1, 8, 256) == Arrangement(lanes=16, stages=3, by_last=False)
    assert arranged(64, 128, 256) == Arrangement(lanes=1, stages=3, by_last=True)
    assert arranged(17, 136, 256) == Arrangement(lanes=1, stages=2, by_last=True), "two to a multiprocessor"
    assert arranged(64, 60, 256) == Arrangement(lanes=2, stages=3, by_last=True)
    assert arranged(1, 8, 512) == Arrangement(lanes=16, stages=2, by_last=False), "no room for two blocks of such keys"
