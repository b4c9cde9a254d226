"""Every shape in which a pass runs from a graph is recorded at start-up: recording one takes tens of milliseconds."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.acceptance.params import Rule
from outrider.acceptance.tree import TokenTree
from outrider.engine.batch import Feed
from outrider.engine.draft import DraftCore
from outrider.engine.fused import runner as module
from outrider.engine.fused.borders import TALL_FROM
from outrider.engine.fused.layout import Layout, Tiling
from outrider.engine.fused.loop import MOST_SESSIONS
from outrider.engine.fused.plan import Plan, Shape
from outrider.engine.fused.product import FEW_ROWS
from outrider.engine.fused.runner import GRAPH_ROWS, FusedRunner, graph_shape, tall_counts, tile_counts
from outrider.engine.step_times import ROWS
from outrider.protocol.items import DraftAhead, Key, Propose
from tests.conftest import TinyModel
from tests.tiny_models import VOCABULARY_SIZE
from tests.unit.engine.test_foresight import PROMPT, Draft
from tests.unit.engine.test_fused import fused_engine
from tests.unit.engine.test_fused_layout import feeds


def recorded_shapes(tile_rows: int) -> set[Shape]:
    return {Shape(rows, tiles, rows) for rows in GRAPH_ROWS for tiles in tile_counts(rows, tile_rows)}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=50), st.sampled_from([1, 2, 4, 5, 16]))
def test_a_recorded_shape_holds_any_pass_of_tall_tiles(counts: list[int], tile_rows: int) -> None:
    rows, height = sum(counts), 2 * tile_rows
    if not max(TALL_FROM, tile_rows * len(counts) + 1) <= rows <= GRAPH_ROWS[-1]:
        return
    tiles = sum(-(-count // height) for count in counts)
    shape = graph_shape(rows, tiles, height, tall=True)
    assert shape.tall
    assert shape.tiles >= tiles
    assert shape.tiles in tall_counts(shape.rows, height)


@settings(max_examples=150, deadline=None)
@given(st.lists(feeds(), min_size=1, max_size=40), st.sampled_from([1, 2, 3, 4, 16]))
def test_a_recorded_shape_holds_any_pass(passed: list[Feed], tile_rows: int) -> None:
    layout = Layout(passed, Tiling(tile_rows), block_size=8, spare_block=0)
    if len(layout) > GRAPH_ROWS[-1]:
        return
    shape = graph_shape(len(layout), layout.most_tiles, tile_rows)
    assert shape in recorded_shapes(tile_rows)
    assert shape.rows == shape.logit_rows >= len(layout)
    assert shape.tiles >= layout.most_tiles >= len(layout.tile_rows)


def test_there_are_few_of_them() -> None:
    assert len(recorded_shapes(4)) <= 72
    assert {shape.tiles for shape in recorded_shapes(4) if shape.rows == 16} == {4, 8, 16, 32}


class Replayed:
    """In place of a CUDA graph."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self.replay = run

    def pool(self) -> None:
        return None


class Recorder:
    """In place of recording; counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, run: Callable[[], Any], pool: Any) -> tuple[Replayed, Any]:
        self.count += 1
        return Replayed(run), run()


def test_none_is_recorded_while_sessions_look_ahead(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """One to four sessions with proposals in flight, outcomes and guesses of many sizes, in passes of their own and
    together. What the passes compute is left out.
    """

    def drawn(output: Tensor, *_: Any) -> None:
        output.random_(3, VOCABULARY_SIZE)
        output[1] = 0  # the bits of a finite score

    def run(self: FusedRunner, plan: Plan) -> Tensor:
        shapes.add(plan.shape)
        return torch.zeros(plan.shape.logit_rows, VOCABULARY_SIZE, device=plan.ids.device)

    shapes: set[Shape] = set()
    recorder = Recorder()
    engine = fused_engine(tiny_model("llama"), layers=1)
    monkeypatch.setattr(module, "recorded", recorder)
    monkeypatch.setattr(module, "draw_into", drawn)
    monkeypatch.setattr(FusedRunner, "_run", run)
    fused: Any = engine._run
    fused._with_graphs = True
    fused._graphs.clear()  # real ones, on a GPU
    fused.record()
    draft = Draft(DraftCore(engine, max_proposal=31, lease_s=60))
    at_start, numbers = recorder.count, random.Random(3)
    tall = [tiles for rows in GRAPH_ROWS if rows >= TALL_FROM for tiles in tall_counts(rows, fused._plans.tall_rows)]
    loops = [rows for rows in GRAPH_ROWS if rows <= MOST_SESSIONS]
    assert at_start == len(recorded_shapes(fused._plans.tile_rows)) + len(tall) + len(loops)
    shapes.clear()
    base = len(PROMPT)
    for number in range(1, 5):
        draft.open(number, PROMPT, Rule.MATCH, {"temperature": 0.8}, room=120)
    for _ in range(120):
        items: list[DraftAhead | Propose] = []
        for number in numbers.sample(range(1, 5), k=numbers.randint(1, 4)):
            append = tuple(numbers.choices(range(3, 500), k=numbers.randint(0, 6)))
            key = Key(number, 1, base + len(append))
            if numbers.random() < 0.3:
                items.append(Propose(key, base, append, numbers.randint(1, 7)))
                continue
            depth = numbers.randint(0, 5)
            tree = TokenTree.caterpillar(range(10, 10 + depth), [(9,)] * numbers.randint(0, depth))
            branches = tuple(numbers.choices([0, 1, 2], k=len(tree) + 1))
            items.append(DraftAhead(key, base, append, tree, numbers.randint(1, 5), branches))
        assert len(draft.run(*items)) == len(items)
    assert len(shapes) > 12
    assert recorder.count == at_start


def test_coordinators_are_told_of_the_steps_that_recorded_shapes_make() -> None:
    steps = [rows for rows in GRAPH_ROWS if FEW_ROWS <= rows < ROWS[-1]]
    assert set(ROWS) >= {*steps, *(rows + 1 for rows in steps)}
