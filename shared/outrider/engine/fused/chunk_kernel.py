"""The kernel of `outrider.engine.fused.chunk_attention`, in Gluon: Triton, with every copy and layout written down.

Gluon is experimental. This module may not be there to be imported, or to be compiled, with another Triton:
`outrider.engine.fused.chunk_trial` finds out.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from outrider.engine.fused.merging import fold


@gluon.jit
def _start_of(split, block: gl.constexpr, short_splits: gl.constexpr, long_split: gl.constexpr):
    """The first position of a split."""
    return gl.where(split < short_splits, split * block, short_splits * block + (split - short_splits) * long_split)


@gluon.jit
def _places_of(position, stop, table, block_size: gl.constexpr, slot_size: gl.constexpr):
    """Where in the cache [slots, slot_size] the keys of a chain's positions are; of those from `stop` on, anywhere."""
    number = gl.load(table + position // block_size, mask=position < stop, other=0)
    return (number.to(gl.int64) * block_size + position % block_size) * slot_size


@gluon.jit
def _ask_for(numbers, to, place, seen):
    """Rows of the cache, whose `numbers` [SIZE] are in its first slot, to shared memory; zeros if not `seen`."""
    async_copy.async_copy_global_to_shared(to, numbers[None, :] + place[:, None], mask=seen[:, None])


@gluon.jit
def _arrived(outstanding: gl.constexpr):
    """All but the last copies have been made, by all threads, and the tensor cores may read what they brought."""
    async_copy.wait_group(outstanding)
    fence_async_shared()
    gl.thread_barrier()


@gluon.jit
def _sum_of_weights(weights, rows: gl.constexpr):
    """The sum [H] of weights [H, 128], in the order in which the kernel for few rows adds them.

    There, a thread of four warps has the keys 32 i + 8 w + 2 l + {0, 1} of each row (i < 4; w the warp, l the lane):
    it adds up its eight; then lanes are added, those furthest apart first, and then warps alike.
    """
    each = weights.reshape([rows, 4, 4, 4, 2]).permute((0, 2, 3, 1, 4)).reshape([rows, 4, 4, 8])
    warps = gl.sum(gl.sum(each, axis=3), axis=2).reshape([rows, 2, 2])
    return gl.sum(gl.sum(warps, axis=1), axis=1)


@gluon.jit
def attend_chunk(
    query,  # [T, KV_HEADS * SHARED_BY, SIZE]
    keys,  # [slots, KV_HEADS, SIZE]
    values,  # [slots, KV_HEADS, SIZE]
    positions,  # [T] int32
    row_tables,  # [T] int32, where in `tables` each row's block table begins
    tables,  # int32
    tile_rows,  # [N] int32, first row of each tile
    tile_counts,  # [N] int32, rows
    tile_ends,  # [N] int32, one after the last split; the first is 0
    output,  # [T, KV_HEADS * SHARED_BY, SIZE]
    scale,  # of scores, to base 2
    kv_heads: gl.constexpr,
    shared_by: gl.constexpr,
    size: gl.constexpr,
    height: gl.constexpr,
    block_size: gl.constexpr,
    block: gl.constexpr,
    short_splits: gl.constexpr,
    long_split: gl.constexpr,
    overlap: gl.constexpr,
):
    """All splits of a tile of rows, merged as they are done: see `outrider.engine.fused.chunk_attention`."""
    heads: gl.constexpr = kv_heads * shared_by
    warps: gl.constexpr = gl.num_warps()
    # Copies of 16 bytes a thread, 128 of a key side by side; then scores [H, BLOCK] and results [H, SIZE] as the tensor
    # cores have them.
    copied: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [warps, 1], [1, 0])
    scored: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, block, 16])
    summed: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, size, 16])
    weighing: gl.constexpr = gl.DotOperandLayout(0, summed, 2)
    tile_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([height, size], query.dtype.element_ty)
    block_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([block, size], query.dtype.element_ty)
    rows = gl.allocate_shared_memory(query.dtype.element_ty, [height, size], tile_layout)
    key = gl.allocate_shared_memory(query.dtype.element_ty, [2, block, size], block_layout)
    value = gl.allocate_shared_memory(query.dtype.element_ty, [2, block, size], block_layout)

    # The last tiles see the most keys: they begin first.
    tile = gl.num_programs(0) - 1 - gl.program_id(0)
    kv_head = gl.program_id(1)
    if overlap:
        gdc_launch_dependents()
    first, count, end = gl.load(tile_rows + tile), gl.load(tile_counts + tile), gl.load(tile_ends + tile)
    table = tables + gl.load(row_tables + first)
    begin = gl.load(positions + first)
    stop = begin + count  # the tile's last row sees all before it

    column = gl.arange(0, size, gl.SliceLayout(0, copied))
    place = gl.arange(0, height, gl.SliceLayout(1, copied))
    row = (first + place // shared_by).to(gl.int64)
    at = (row * heads + kv_head * shared_by + place % shared_by)[:, None] * size + column[None, :]
    within = gl.arange(0, block, gl.SliceLayout(1, copied))
    key_numbers, value_numbers = keys + (kv_head * size + column), values + (kv_head * size + column)
    slot_size: gl.constexpr = kv_heads * size
    cached = _places_of(within, stop, table, block_size, slot_size)
    cached_after = _places_of(block + within, stop, table, block_size, slot_size)
    if overlap:
        gdc_wait()
    async_copy.async_copy_global_to_shared(rows, query + at, mask=(place < count * shared_by)[:, None])
    _ask_for(key_numbers, key.index(0), cached, within < stop)
    async_copy.commit_group()
    _ask_for(key_numbers, key.index(1), cached_after, block + within < stop)
    _ask_for(value_numbers, value.index(0), cached, within < stop)
    async_copy.commit_group()
    _arrived(1)
    scores = gl.zeros([height, block], gl.float32, scored)
    scores = warpgroup_mma(rows, key.index(0).permute((1, 0)), scores, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(0, deps=(scores,))

    last = begin + gl.arange(0, height, gl.SliceLayout(1, scored)) // shared_by
    other = gl.arange(0, block, gl.SliceLayout(0, scored))
    all_most = gl.full([height], float("-inf"), gl.float32, gl.SliceLayout(1, summed))
    all_total = gl.zeros([height], gl.float32, gl.SliceLayout(1, summed))
    all_result = gl.zeros([height, size], gl.float32, summed)
    for split in range(0, end):
        start = _start_of(split, block, short_splits, long_split)
        following = _start_of(split + 1, block, short_splits, long_split)
        most = gl.full([height], float("-inf"), gl.float32, gl.SliceLayout(1, scored))
        total = gl.zeros([height], gl.float32, gl.SliceLayout(1, scored))
        result = gl.zeros([height, size], gl.float32, summed)
        for block_start in range(start, gl.minimum(following, stop), block):
            at_now = block_start // block % 2
            _arrived(0)
            _ask_for(value_numbers, value.index(1 - at_now), cached_after, block_start + block + within < stop)
            further = block_start + 2 * block + within
            cached_after = _places_of(further, stop, table, block_size, slot_size)
            _ask_for(key_numbers, key.index(at_now), cached_after, further < stop)
            async_copy.commit_group()
            scores_after = gl.zeros([height, block], gl.float32, scored)
            scores_after = warpgroup_mma(
                rows, key.index(1 - at_now).permute((1, 0)), scores_after, use_acc=False, is_async=True
            )
            if block_start + block > begin:
                scores = gl.where(other[None, :] <= (last - block_start)[:, None], scores, float("-inf"))
            highest = gl.maximum(most, gl.max(scores, axis=1) * scale)
            base = gl.where(highest == float("-inf"), 0.0, highest)
            weights = gl.exp2(gl.fma(scores, scale, -base[:, None]))
            shrink = gl.exp2(most - base)
            added = gl.convert_layout(_sum_of_weights(weights, height), gl.SliceLayout(1, scored))
            total = gl.fma(total, shrink, added)
            most = highest
            result = result * gl.convert_layout(shrink, gl.SliceLayout(1, summed))[:, None]
            weights = gl.convert_layout(weights.to(value.dtype), weighing)
            result = warpgroup_mma(weights, value.index(at_now), result, is_async=True)
            scores, result = warpgroup_mma_wait(0, deps=(scores_after, result))
        most = gl.convert_layout(most, gl.SliceLayout(1, summed))
        total = gl.convert_layout(total, gl.SliceLayout(1, summed))
        all_most, all_total, all_result = fold(all_most, all_total, all_result, most, total, result)
    async_copy.wait_group(0)
    place = gl.arange(0, height, gl.SliceLayout(1, summed))
    column = gl.arange(0, size, gl.SliceLayout(0, summed))
    row = (first + place // shared_by).to(gl.int64)
    at = (row * heads + kv_head * shared_by + place % shared_by)[:, None] * size + column[None, :]
    result = (all_result / all_total[:, None]).to(output.dtype.element_ty)
    gl.store(output + at, result, mask=(place < count * shared_by)[:, None])
