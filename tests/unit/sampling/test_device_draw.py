"""The kernels that draw on a GPU draw what the tensors' mathematics does. Without a GPU, in Triton's interpreter."""

from __future__ import annotations

import math

import pytest
import torch

from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Source
from outrider.acceptance.tree import TokenTree
from outrider.sampling.device_draw import NOTHING, DeviceDrawing, DrawMemory, draw_into, plain_keys
from outrider.sampling.distribution import Row
from outrider.sampling.draft import DraftRow
from outrider.sampling.ranking import rank_rows
from outrider.sampling.verify import VerifyRows, _decide_greedy, _decide_sampled
from tests.interpreter import INTERPRETED
from tests.unit.sampling.sessions import open_state

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
WIDTH = 2600 if INTERPRETED else 128256


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_tokens_as_the_tensors(temperature: float, dtype: torch.dtype) -> None:
    rows = 3 if INTERPRETED else 50
    generator = torch.Generator(DEVICE).manual_seed(1)
    logits = (torch.randn(rows, WIDTH, generator=generator, device=DEVICE) * 3).to(dtype)
    states = [open_state(WIDTH - 5, seed=(7 << 33) + row, temperature=temperature) for row in range(rows)]
    entries = [Row(state, state.length, (1,) * (row % 3)) for row, state in enumerate(states)]
    decide = _decide_greedy if temperature == 0.0 else lambda logits, rows: _decide_sampled(logits, rows, [])
    expected = decide(logits, entries)
    room = torch.full((6, rows + 4), 77, dtype=torch.int32, device=DEVICE)  # rows of keys and output may lie apart
    keys, output = room[:4, :rows], room[4:, :rows]
    keys.copy_(torch.from_numpy(plain_keys(states)))
    positions = torch.tensor([entry.position for entry in entries], dtype=torch.int32, device=DEVICE)
    draw_into(output, logits, keys, positions - 3, 3, DrawMemory(rows, WIDTH, DEVICE))
    assert (room[:, rows:] == 77).all()
    assert output[0].tolist() == expected.tokens.tolist()
    assert output[1].view(torch.float32).tolist() == expected.scores.tolist()


def test_rows_of_sessions_are_drawn_at_their_own_positions() -> None:
    generator = torch.Generator(DEVICE).manual_seed(3)
    trees = [NO_PROPOSAL.tree, TokenTree.chain((1, 2)), TokenTree((1, 2, 3), (-1, 0, -1))]
    work = [
        VerifyRows(state, state.length, Proposal(tree, Source.MODEL))
        for number, tree in enumerate(trees)
        for state in [open_state(WIDTH, prompt=(0,) * (number + 1), seed=number + 5, temperature=0.7)]
    ]
    logits = torch.randn(sum(map(len, work)), WIDTH, generator=generator, device=DEVICE)
    expected = _decide_sampled(logits, [row for entry in work for row in entry.rows()], [])
    tokens, scores = DeviceDrawing(
        logits, [entry.state for entry in work], [entry.positions() for entry in work]
    ).collected()
    assert tokens == expected.tokens.tolist()
    assert scores == expected.scores.tolist()


def test_of_equals_the_least_id_and_beside_it_the_best_of_other_groups() -> None:
    logits = torch.zeros(2, WIDTH, device=DEVICE)
    # 40 and 41 share a lane; one of them is passed over. 44 is the next lane's, 2333 and 2500 are others'.
    logits[0, [2500, 40, 41, 44, 2333]] = torch.tensor([5.0, 9.0, 8.0, 9.0, 6.0], device=DEVICE)
    logits[1] = -math.inf
    logits[1, 7] = 1.0
    states = [open_state(WIDTH, temperature=0.0) for _ in range(2)]
    output = torch.empty(5, 2, dtype=torch.int32, device=DEVICE)
    keys = torch.from_numpy(plain_keys(states)).to(DEVICE)
    draw_into(output, logits, keys, torch.zeros(2, dtype=torch.int32, device=DEVICE), 0, DrawMemory(2, WIDTH, DEVICE))
    assert output[[0, 2, 3, 4], 0].tolist() == [40, 44, 2333, 2500]
    assert output[[0, 2, 3, 4], 1].tolist() == [7, NOTHING, NOTHING, NOTHING]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nearly_all_of_the_next_likeliest_stand_beside(temperature: float) -> None:
    rows = 4 if INTERPRETED else 50
    generator = torch.Generator(DEVICE).manual_seed(2)
    logits = torch.randn(rows, WIDTH, generator=generator, device=DEVICE) * 3
    states = [open_state(WIDTH, seed=row, temperature=temperature) for row in range(rows)]
    entries = [DraftRow(state, state.length, ()) for state in states]
    expected = rank_rows(logits, entries, most=4)
    output = torch.empty(5, rows, dtype=torch.int32, device=DEVICE)
    keys = torch.from_numpy(plain_keys(states)).to(DEVICE)
    positions = torch.tensor([state.length for state in states], dtype=torch.int32, device=DEVICE)
    draw_into(output, logits, keys, positions, 0, DrawMemory(rows, WIDTH, DEVICE))
    found = torch.cat([output[:1], output[2:]]).t().tolist()
    assert [tokens[0] for tokens in found] == [tokens[0] for tokens in expected]
    common = sum(len(set(ours) & set(theirs)) for ours, theirs in zip(found, expected, strict=True))
    assert common >= 0.7 * 4 * rows  # with 16 groups (few ids) two of four are often in the same


def test_logits_that_allow_nothing_are_told() -> None:
    logits = torch.zeros(3, WIDTH, device=DEVICE)
    logits[1, 2500] = math.nan
    logits[2] = -math.inf
    states = [open_state(WIDTH, temperature=1.0) for _ in range(3)]
    output = torch.empty(2, 3, dtype=torch.int32, device=DEVICE)
    positions = torch.zeros(3, dtype=torch.int32, device=DEVICE)
    draw_into(
        output, logits, torch.from_numpy(plain_keys(states)).to(DEVICE), positions, 0, DrawMemory(3, WIDTH, DEVICE)
    )
    assert [math.isfinite(score) for score in output[1].view(torch.float32).tolist()] == [True, False, False]
