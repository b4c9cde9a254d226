"""Passes on the fast path: from CUDA graphs recorded for a few numbers of rows, or launched kernel by kernel."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from functools import cache, partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from outrider.engine.batch import Feed
from outrider.engine.draft_vocabulary import DraftVocabulary, widened
from outrider.engine.drawn import BACK, Drawn, Guessed, settled
from outrider.engine.fused.borders import TALL_FROM
from outrider.engine.fused.capture import recorded
from outrider.engine.fused.decoder import FusedDecoder
from outrider.engine.fused.loop import MOST_SESSIONS, Draws, Sent, advance, look_up
from outrider.engine.fused.plan import Plan, PlanBuffer, Shape
from outrider.engine.fused.settle import move_back, settle
from outrider.engine.runner import Chains, DrawingChains, Grown, Growth, Stem
from outrider.sampling.device_draw import KEY_WORDS, DrawMemory, draw_into
from outrider.sampling.state import SamplingState
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

GRAPH_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 640)
"""Numbers of rows that graphs are recorded for. More than the last are launched one kernel after the other."""


class FusedRunner:
    """See `outrider.engine.runner.Runner`."""

    takes_drawn = True

    def __init__(self, decoder: FusedDecoder, plans: PlanBuffer, vocabulary: DraftVocabulary | None = None) -> None:
        self._decoder = decoder
        self._plans = plans
        device = decoder.embedding.device
        self._vocabulary = vocabulary
        self._row_of = None if vocabulary is None else vocabulary.row_of(device)
        self._token_ids = None if vocabulary is None else torch.tensor(vocabulary.token_ids, device=device)
        self._graphs: dict[Shape, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._with_graphs = device.type == "cuda"
        self._logits = torch.empty(GRAPH_ROWS[-1] * decoder.logit_bytes, dtype=torch.uint8, device=device)
        self._pool: Any = None  # of the graphs' memory
        self._loops: dict[int, torch.cuda.CUDAGraph] = {}
        self._draws: Draws | None = None
        self.last_shape: Shape | None = None  # of the last pass from a graph

    def __call__(self, feeds: Sequence[Feed], drawn: Drawn | None = None) -> Tensor:
        """Logits [R, W]; see `Runner`."""
        if not self._plans.fits(feeds):  # two passes give the same as one
            half = len(feeds) // 2
            return torch.cat([self(feeds[:half], drawn), self(feeds[half:], drawn)])
        _, logits = self._launch(feeds, drawn=drawn)
        return logits.clone() if self._vocabulary is None else self._named(logits)  # the memory is the next pass's

    def settle(self, drawn: Tensor, rounds: Sequence[Guessed]) -> Drawn:
        """See `Runner`."""
        return settled(settle(drawn, rounds))

    def chains(
        self,
        stems: Sequence[Stem],
        states: Sequence[SamplingState],
        logits: Tensor,
        steps: int,
        beside: int,
        backs: Tensor | None = None,
    ) -> DrawingChains | None:
        """See `Runner`."""
        count = len(stems)
        if count > MOST_SESSIONS:
            return None
        sessions = _bucket(count)
        if not self._plans.fits_chains(stems, steps, sessions):
            return None
        draws = self._draws or self.prepare_chains()
        draws.set_keys(states, [1] * count)
        plan = self._plans.plan(Shape(sessions, sessions, sessions))
        self._plans.fill_chains(stems, steps, plan.shape)
        if backs is not None:
            move_back(plan, backs)
        found, drawn = draws.room(steps, count), draws.drawn(count)
        draw_into(drawn, logits.contiguous(), draws.keys(count), plan.positions, 1, draws.memory)
        found[0, :, :count] = drawn
        for step in range(1, steps):
            if self._with_graphs:
                self._loops[sessions].replay()
            else:
                self._loop_step(plan, draws)
            found[step, :, :count] = drawn
        return draws.sent(found, count, beside)

    def grow(self, growths: Sequence[Growth], steps: int, *, more: bool = False) -> Grown | None:
        """See `Runner`. The host writes the plan of a pass while the one before runs, and waits once, at the end."""
        counts = [len(growth.newest) for growth in growths]
        count, passes = sum(counts), steps + more
        if count > MOST_SESSIONS or not self._plans.fits([growth.feed(passes - 1) for growth in growths]):
            return None
        draws = self._draws or self.prepare_chains()
        draws.set_keys([growth.state for growth in growths], counts)
        found = draws.room(passes, count)
        sent: list[Sent] = []
        ids: Tensor | None = None  # the first pass's are known
        for step, drawn in enumerate(found[:, :, :count], start=1):
            plan, logits = self._launch([growth.feed(step - 1) for growth in growths], ids)
            draw_into(drawn, self._named(logits), draws.keys(count), plan.positions, 1, draws.memory)
            ids = drawn[0]
            if step >= steps:
                sent.append(draws.sent(found[steps:] if sent else found[:steps], count, way=len(sent)))
        return Grown(sent[0].collected(), *sent[1:])

    def rank(
        self, logits: Tensor, states: Sequence[SamplingState], positions: Sequence[Sequence[int]]
    ) -> Chains | None:
        """See `Runner`."""
        count = len(logits)
        if count > MOST_SESSIONS:
            return None
        draws = self._draws or self.prepare_chains()
        draws.set_keys(states, [len(each) for each in positions], list(chain.from_iterable(positions)))
        found = draws.room(1, count)
        draw_into(found[0, :, :count], logits.contiguous(), draws.keys(count), draws.positions(count), 0, draws.memory)
        return draws.sent(found, count).collected()

    def prepare_chains(self) -> Draws:
        """See `Runner`."""
        draws = self._draws = Draws(MOST_SESSIONS, self._width, self._decoder.embedding.device)
        for sessions in (rows for rows in GRAPH_ROWS if self._with_graphs and rows <= MOST_SESSIONS):
            shape = Shape(sessions, sessions, sessions)
            self._plans.fill_nothing(shape)
            self._loops[sessions], _ = recorded(partial(self._loop_step, self._plans.plan(shape), draws), self._pool)
        return draws

    @property
    def _width(self) -> int:
        """How many ids there are, where tokens are named as the target does."""
        return len(self._decoder.embedding) if self._vocabulary is None else self._vocabulary.target_size

    def _loop_step(self, plan: Plan, draws: Draws) -> None:
        sessions = plan.shape.rows
        drawn = draws.drawn(sessions)
        advance(drawn, plan)
        logits = self._named(self._run(plan))
        draw_into(drawn, logits, draws.keys(sessions), plan.positions, 1, draws.memory)

    def _named(self, logits: Tensor) -> Tensor:
        """Logits by the target's ids."""
        if self._vocabulary is None or self._token_ids is None:
            return logits
        return widened(logits, self._token_ids, self._vocabulary.target_size)

    def record(self) -> None:
        """Record the graphs of all shapes that passes of so many rows are run in."""
        if not self._with_graphs:
            return
        for rows in GRAPH_ROWS:
            shapes = [Shape(rows, tiles, rows) for tiles in tile_counts(rows, self._plans.tile_rows)]
            if rows >= TALL_FROM and self._plans.tall_rows > self._plans.tile_rows:
                shapes += [Shape(rows, tiles, rows, True) for tiles in tall_counts(rows, self._plans.tall_rows)]
            for shape in shapes:
                self._plans.fill_nothing(shape)
                _, logits = self._graph(shape)
        _compile_draws(self._named(logits))
        ids = torch.zeros(1, dtype=torch.int32, device=logits.device)
        # These are compiled for the first passes that run what the host does not know yet.
        look_up(ids, Drawn(ids, 1), 1)
        self._plans.fill_nothing(one := Shape(1, 1, 1))
        move_back(self._plans.plan(one), settle(ids, [Guessed(0, 0, (0,))])[BACK])

    def _launch(
        self, feeds: Sequence[Feed], ids: Tensor | None = None, drawn: Drawn | None = None
    ) -> tuple[Plan, Tensor]:
        """Start a pass; its logits lie where the next one's will.

        `ids` [T]: in place of those that the feeds have. `drawn`: what the negative ones among those refer to.
        """
        layout = self._plans.lay_out(feeds)
        total, tiles, wanted = len(layout), layout.most_tiles, len(layout.logit_rows)
        from_graph = self._with_graphs and total <= GRAPH_ROWS[-1]
        if from_graph:
            height = self._plans.tall_rows if layout.tall else self._plans.tile_rows
            shape = self.last_shape = graph_shape(total, tiles, height, tall=layout.tall)
        else:
            shape = Shape(total, tiles, wanted, layout.tall, layout.chunk_tiles)
        plan = self._plans.fill(layout, shape)
        if ids is not None:
            plan.ids[:total] = ids
        if drawn is not None:
            look_up(plan.ids[:total], drawn, self._width)
            if drawn.backs is not None:
                move_back(plan, drawn.backs)
        logits = self._replay(shape) if from_graph and len(plan.slices) == 1 else self._run(plan)
        return plan, logits[:wanted]

    def _replay(self, shape: Shape) -> Tensor:
        graph, logits = self._graph(shape)
        graph.replay()
        return logits

    def _graph(self, shape: Shape) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        found = self._graphs.get(shape)
        if found is None:
            found = self._graphs[shape] = self._recorded(shape)
        return found

    def _recorded(self, shape: Shape) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """A graph; what it reads is whatever the plan buffer holds when it is replayed."""
        graph, logits = recorded(partial(self._run, self._plans.plan(shape)), self._pool)
        self._pool = graph.pool()
        return graph, logits

    def _run(self, plan: Plan) -> Tensor:
        ids = None if self._row_of is None else self._row_of[plan.ids]
        parts = self._decoder.run(plan, self._room(plan.shape.logit_rows), ids)
        assert len(parts) <= 1
        return parts[0] if len(parts) else self._decoder.embedding.new_empty(0, len(self._decoder.embedding))

    def _room(self, rows: int) -> Tensor:
        """Memory for so many rows of logits; the same for all passes that come from graphs, and never moved."""
        size = rows * self._decoder.logit_bytes
        return self._logits if size <= len(self._logits) else self._logits.new_empty(size)


def _compile_draws(logits: Tensor) -> None:
    """Let the kernels that draw be compiled before the first session needs them."""
    rows, width = logits.shape
    nothing = torch.zeros(KEY_WORDS + 3, rows, dtype=torch.int32, device=logits.device)
    memory = DrawMemory(rows, width, logits.device)
    draw_into(nothing[:2], logits, nothing[2 : 2 + KEY_WORDS], nothing[2 + KEY_WORDS], 0, memory)


def _bucket(rows: int) -> int:
    return GRAPH_ROWS[bisect.bisect_left(GRAPH_ROWS, rows)]


@cache
def tile_counts(rows: int, tile_rows: int) -> tuple[int, ...]:
    """How many tiles graphs for `rows` rows are recorded with, few to many; the last are enough for any pass.

    Full tiles of `tile_rows` rows each, as one session's chain has; tiles with three, two and one; and those of trees,
    where each row has a tile of its own beside those that rows share.
    """
    filled = {share for share in (1, 2, 3, tile_rows) if share <= tile_rows}
    return tuple(sorted({_tile_bucket(-(-rows // share)) for share in filled} | {_tile_bucket(2 * rows)}))


@cache
def tall_counts(rows: int, tall_rows: int) -> tuple[int, ...]:
    """As `tile_counts`, of tall tiles, which on average are a third full at least: see `PlanBuffer.lay_out`."""
    filled = (tall_rows, 3 * tall_rows // 4, tall_rows // 2, tall_rows // 3)
    return tuple(sorted({_tile_bucket(-(-rows // max(share, 1))) for share in filled}))


def graph_shape(rows: int, tiles: int, tile_rows: int, *, tall: bool = False) -> Shape:
    """The least recorded shape that holds a pass of so many rows, GRAPH_ROWS[-1] at most, and tiles."""
    room = _bucket(rows)
    counts = tall_counts(room, tile_rows) if tall else tile_counts(room, tile_rows)
    return Shape(room, counts[bisect.bisect_left(counts, tiles)], room, tall)


def _tile_bucket(tiles: int) -> int:
    """As with rows; trees can have twice as many."""
    return _bucket(tiles) if tiles <= GRAPH_ROWS[-1] else 2 * GRAPH_ROWS[-1]
