"""What rounds come to, decided on the device, so that the next passes need not wait for the host to decide the same.

Under the rule match a guess stands as far as it is what the target drew (`outrider.acceptance.accept`). How far that is
decides where the rows of the next pass stand, and nothing else about it: so it is laid out as if everything stood, and
moved back on the device by what does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.engine.drawn import BACK, BEFORE, NEXT, Guessed
from outrider.engine.fused.borders import ALIGNED, BLOCK, LONG_SPLIT, SHORT_SPLITS
from outrider.engine.fused.merging import splits_of
from outrider.engine.fused.plan import Plan

WIDTH = 128
"""Sessions, rows or tiles that one program looks at."""

ROW, COUNT, LAST = range(3)
"""What the host says of a round, before its guessed tokens."""


@triton.jit(do_not_specialize=["sessions", "most", "stride", "room"])
def _settle(
    drawn,  # [R] int32, the target's draws
    given,  # [LAST + 1 + most, S] int32
    outcomes,  # [3, S or more] int32
    sessions,
    most,  # guessed tokens of the longest guess
    stride,  # of `given`
    room,  # for sessions in `outcomes`
    width: tl.constexpr,
    row_at: tl.constexpr,
    count_at: tl.constexpr,
    last_at: tl.constexpr,
    next_at: tl.constexpr,
    before_at: tl.constexpr,
    back_at: tl.constexpr,
):
    session = tl.program_id(0) * width + tl.arange(0, width)
    inside = session < sessions
    row = tl.load(given + row_at * stride + session, mask=inside, other=0)
    count = tl.load(given + count_at * stride + session, mask=inside, other=0)
    token = tl.load(given + last_at * stride + session, mask=inside, other=0)
    stands = inside
    accepted = tl.zeros((width,), tl.int32)
    for place in range(0, most):
        stands = stands & (place < count)
        guessed = tl.load(given + (last_at + 1 + place) * stride + session, mask=stands, other=-1)
        stands = stands & (guessed == tl.load(drawn + row + place, mask=stands, other=-2))
        accepted += stands.to(tl.int32)
        token = tl.where(stands, guessed, token)
    following = tl.load(drawn + row + accepted, mask=inside, other=0)
    tl.store(outcomes + next_at * room + session, following, mask=inside)
    tl.store(outcomes + before_at * room + session, token, mask=inside)
    tl.store(outcomes + back_at * room + session, count - accepted, mask=inside)


def settle(drawn: Tensor, rounds: Sequence[Guessed]) -> Tensor:
    """The rounds' outcomes [3, S or more] int32 (see `outrider.engine.drawn`) by the target's draws, `drawn` [R]."""
    most, sessions = max(len(each.tokens) for each in rounds), len(rounds)
    given = torch.zeros(LAST + 1 + most, sessions, dtype=torch.int32, pin_memory=drawn.is_cuda)
    words = given.numpy()
    for session, each in enumerate(rounds):
        words[: LAST + 1 + len(each.tokens), session] = (each.row, len(each.tokens), each.last, *each.tokens)
    room = -(-sessions // ALIGNED) * ALIGNED
    outcomes = torch.empty(3, room, dtype=torch.int32, device=drawn.device)
    _settle[(triton.cdiv(sessions, WIDTH),)](
        drawn, given.to(drawn.device, non_blocking=True), outcomes, sessions, most, sessions, room,
        width=WIDTH, row_at=ROW, count_at=COUNT, last_at=LAST, next_at=NEXT, before_at=BEFORE, back_at=BACK,
    )  # fmt: skip
    return outcomes


@triton.jit(do_not_specialize=["tiles"])
def _move_tiles(
    tile_rows,
    tile_counts,
    tile_ends,
    positions,
    row_backs,
    backs,
    tiles,
    width: tl.constexpr,
    block: tl.constexpr,
    short_splits: tl.constexpr,
    long_split: tl.constexpr,
):
    tile = tl.program_id(0) * width + tl.arange(0, width)
    inside = tile < tiles
    first = tl.load(tile_rows + tile, mask=inside, other=0)
    count = tl.load(tile_counts + tile, mask=inside, other=0)
    which = tl.load(row_backs + first, mask=count > 0, other=0)
    moved = which > 0
    last = tl.load(positions + first + count - 1, mask=moved, other=0)
    last -= tl.load(backs + which - 1, mask=moved, other=0)
    tl.store(tile_ends + tile, splits_of(last, block, short_splits, long_split), mask=moved)


@triton.jit(do_not_specialize=["rows"])
def _move_rows(
    positions,
    slots,
    row_tables,
    tables,
    row_backs,
    backs,
    rows,
    width: tl.constexpr,
    block_size: tl.constexpr,
):
    row = tl.program_id(0) * width + tl.arange(0, width)
    which = tl.load(row_backs + row, mask=row < rows, other=0)
    moved = which > 0
    position = tl.load(positions + row, mask=moved, other=0) - tl.load(backs + which - 1, mask=moved, other=0)
    table = tl.load(row_tables + row, mask=moved, other=0)
    number = tl.load(tables + table + position // block_size, mask=moved, other=0)
    tl.store(positions + row, position, mask=moved)
    tl.store(slots + row, number * block_size + position % block_size, mask=moved)


def move_back(plan: Plan, backs: Tensor) -> None:
    """Move the rows that have a place in `backs` [S] back from where they are by so many positions.

    Their tiles are of chains. What is laid out for the furthest place is room enough for any before it.
    """
    rows, tiles = plan.shape.rows, plan.shape.tiles
    _move_tiles[(triton.cdiv(tiles, WIDTH),)](
        plan.tile_rows, plan.tile_counts, plan.tile_ends, plan.positions, plan.backs, backs, tiles,
        width=WIDTH, block=BLOCK, short_splits=SHORT_SPLITS, long_split=LONG_SPLIT,
    )  # fmt: skip
    _move_rows[(triton.cdiv(rows, WIDTH),)](
        plan.positions, plan.slots, plan.row_tables, plan.tables, plan.backs, backs, rows,
        width=WIDTH, block_size=plan.block_size,
    )  # fmt: skip
