"""What the device makes of guesses, and where it moves the rows that follow, is what the host would."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
import torch

from outrider.acceptance.tree import TokenTree
from outrider.engine.batch import Feed
from outrider.engine.drawn import BACK, BEFORE, NEXT, Drawn, Guessed, settled
from outrider.engine.fused.borders import split_of
from outrider.engine.fused.many import MANY, ManyChains
from outrider.engine.fused.plan import PlanBuffer, Shape
from outrider.engine.fused.settle import move_back, settle
from outrider.engine.kv import SlotMoves
from outrider.engine.runner import Stem
from outrider.engine.sequence import KvSequence
from tests.interpreter import INTERPRETED
from tests.unit.engine.test_drafting_together import settle_on_host
from tests.unit.engine.test_fused_layout import POOL
from tests.unit.engine.test_fused_plan import BLOCK_SIZE, SPARE

DEVICE = "cpu" if INTERPRETED else "cuda"
PLACES = (1, 5, 16, 120, 127, 128, 131, 1020, 1024, 1030, 1536, 1540, 2100)


def make_plans() -> PlanBuffer:
    return PlanBuffer(
        torch.device(DEVICE), rows=400, table_entries=20_000, split_entries=9_000, block_size=BLOCK_SIZE,
        spare_block=SPARE, shared_by=4,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sessions", [1, 5, 200])
def test_outcomes(seed: int, sessions: int) -> None:
    chance = random.Random(seed)
    rounds, drawn = [], []
    for _ in range(sessions):
        tokens = tuple(chance.choices(range(3), k=chance.choice([0, 1, 3, 5])))
        rounds.append(Guessed(len(drawn), chance.randrange(900), tokens))
        drawn += [token if chance.random() < 0.7 else 3 for token in tokens] + [chance.randrange(900)]
    expected = settle_on_host(torch.tensor(drawn, dtype=torch.int32), rounds)
    found = settled(settle(torch.tensor(drawn, dtype=torch.int32, device=DEVICE), rounds))
    for name in (NEXT, BEFORE):
        places = [found.reference(name, session) for session in range(sessions)]
        tokens = [int(found.memory[-1 - place]) for place in places]
        assert tokens == [int(expected.memory[-1 - expected.reference(name, each)]) for each in range(sessions)]
    assert found.backs is not None
    assert expected.backs is not None
    assert found.backs[:sessions].tolist() == expected.backs.tolist()


def test_references_stay_what_they_are_in_one_memory_with_others() -> None:
    outcomes = settled(torch.tensor([[7, 8], [5, 6], [1, 0]], dtype=torch.int32))
    chains = Drawn(torch.arange(100, 112, dtype=torch.int32), 4)
    both = chains.after(outcomes)

    def token(reference: int) -> int:
        return int(both.memory[-1 - reference])

    assert [token(outcomes.reference(NEXT, row)) for row in range(2)] == [7, 8]
    assert [token(each) for each in both.line(3, 3)] == [103, 107, 111]
    assert both.backs is outcomes.backs
    assert both.backs is not None
    assert both.backs.tolist() == outcomes.memory.view(3, 2)[BACK].tolist()


@pytest.mark.parametrize("count", [3, MANY + 6])
def test_rows_are_moved_to_where_they_would_have_been_laid_out(count: int) -> None:
    """Beside feeds whose place is known; each with splits of its own, which none of the others' may reach into."""
    chance = random.Random(count)
    plans, backs, far, real = make_plans(), [], [], []
    for number in range(count):
        place, nodes, back = chance.choice(PLACES), chance.choice([0, 1, 3, 6]), chance.choice([0, 1, 4])
        sequence = KvSequence(POOL, SlotMoves(), [1], place + 40, "", share=False)
        tokens, tree = list(range(chance.choice([1, 2]))), TokenTree.chain(range(500, 500 + nodes))
        if number % 5 == 2:
            sequence.cached = [0] * place
            far.append(Feed(sequence, tokens, tree))
            real.append(far[-1])
        else:
            far.append(Feed(sequence, tokens, tree, at=place + back, back=len(backs)))
            real.append(Feed(sequence, tokens, tree, at=place))
            backs.append(back)
        POOL.release(sequence.blocks)
    layout = plans.lay_out(far)
    assert isinstance(layout, ManyChains) == (count > MANY)
    shape = Shape(len(layout) + 2, layout.most_tiles + 2, len(layout.logit_rows) + 2, layout.tall)
    plan = plans.fill(layout, shape)
    move_back(plan, torch.tensor(backs, dtype=torch.int32, device=DEVICE))
    sections = ("ids", "positions", "slots", "tile_rows", "tile_counts", "tile_begins", "tile_ends", "logit_rows")
    moved = {name: getattr(plan, name).tolist() for name in sections}
    starts = plan.split_starts.tolist()
    expected = make_plans()
    there = expected.fill(expected.lay_out(real), shape)
    for name in sections:
        assert moved[name] == getattr(there, name).tolist(), name
    splits = split_of(np.array(plan.positions.tolist())) + 1
    taken = sorted(zip(starts, (starts + splits).tolist(), strict=True))[2:]  # all but the rows of nothing
    assert all(stop <= start for (_, stop), (start, _) in pairwise(taken))


def test_chains_begin_where_their_stems_end() -> None:
    plans, backs = make_plans(), [2, 0, 1]
    stems, lengths = [], []
    for place, back in zip((130, 16, 1025), (0, -1, 2), strict=True):
        sequence = KvSequence(POOL, SlotMoves(), [1], place + 40, "", share=False)
        stems.append(Stem(sequence, place, back))
        lengths.append(place - (backs[back] if back >= 0 else 0))
    shape = Shape(4, 4, 4)
    plans.fill_chains(stems, 3, shape)
    plan = plans.plan(shape)
    move_back(plan, torch.tensor(backs, dtype=torch.int32, device=DEVICE))
    assert plan.positions.tolist() == [length - 1 for length in lengths] + [0]
    assert np.all(plan.backs.cpu().numpy() == [1, 0, 3, 0])
