"""Processed scores against the oracle's plain arithmetic, one parameter at a time and all together."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.acceptance.params import SamplingParams
from outrider.sampling.distribution import SHORT_SORT, Row, scores_of
from tests import oracle
from tests.unit.sampling.devices import CPU, on_each_device
from tests.unit.sampling.sessions import open_state

SIZE = 12


def probabilities(logits: torch.Tensor, rows: list[Row]) -> list[list[float]]:
    scores = scores_of(logits, rows)
    assert scores.dtype is torch.float32
    return scores.to(torch.float64).softmax(dim=1).tolist()


def expected(logits: torch.Tensor, row: Row, prompt, output, stop_ids=()) -> list[float]:
    return oracle.target_distribution(
        logits.tolist(),
        row.state.params,
        prompt=prompt,
        output=(*output, *row.path),
        stop_ids=stop_ids,
        vocabulary_size=row.state.vocabulary_size,
    )


some_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 0.7, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 3, 11, 500]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 0.4, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 1.5, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.6, -2.0]),
    logit_bias=st.lists(
        st.tuples(st.integers(0, SIZE - 1), st.sampled_from([-100.0, -1.5, 2.0, 100.0])), max_size=3
    ).map(tuple),
    min_tokens=st.sampled_from([0, 2, 5]),
)
tokens = st.integers(0, SIZE - 1)


@on_each_device
@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(some_params, st.lists(tokens, min_size=1, max_size=5), st.lists(tokens, max_size=5)),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 2**31),
)
def test_any_mixture_of_rows_equals_the_oracle(device, sessions, seed):
    """Rows of sessions with different parameters in one batch, each with a path of its own."""
    generator = random.Random(seed)
    rows, wanted = [], []
    logits = torch.randn(3 * len(sessions), SIZE + 4, generator=torch.Generator().manual_seed(seed)) * 3
    for params, prompt, output in sessions:
        stop_ids = (2, 7)
        state = open_state(
            SIZE, prompt=prompt, output=output, stop_token_ids=stop_ids, device=device, **dataclasses.asdict(params)
        )
        for depth in range(3):
            path = tuple(generator.randrange(SIZE) for _ in range(depth))
            row = Row(state, len(prompt) + len(output), path)
            wanted.append(expected(logits[len(rows)], row, prompt, output, stop_ids))
            rows.append(row)
    for found, right in zip(probabilities(logits.to(device), rows), wanted, strict=True):
        assert found == pytest.approx(right, abs=2e-5)


def one_row(logits: list[float], path=(), **options) -> list[float]:
    state = open_state(len(logits), **options)
    return probabilities(torch.tensor([logits]), [Row(state, state.length, tuple(path))])[0]


def test_case_03_the_nucleus_is_cut_before_anything_is_compared():
    """Temperature .7 and top_p .5 leave one token here; a token outside has probability 0, not its raw 0.4."""
    row = one_row([math.log(0.6), math.log(0.4)], temperature=0.7, top_p=0.5)
    assert row == [1.0, 0.0]


def test_top_p_one_keeps_everything():
    assert min(one_row([10.0, 0.0, -12.0], top_k=3, top_p=1.0)) > 0


def test_ties_at_the_cut_stay_together():
    assert one_row([1.0, 1.0, 1.0, 0.0], top_k=2) == pytest.approx([1 / 3] * 3 + [0.0])
    assert one_row([1.0, 1.0, 1.0, 0.0], top_p=0.1) == pytest.approx([1 / 3] * 3 + [0.0])


def test_penalties_count_what_stands_on_the_path():
    free = one_row([0.0] * 4, path=(3,), output=(2, 2), temperature=1.0, frequency_penalty=1.0)
    logits = [math.log(p / free[0]) for p in free]
    assert logits == pytest.approx([0.0, 0.0, -2.0, -1.0], abs=1e-5)


def test_repetition_penalty_sees_the_prompt_and_the_others_do_not():
    repeated = one_row([1.0, 1.0], prompt=(1,), repetition_penalty=2.0)
    assert math.log(repeated[0] / repeated[1]) == pytest.approx(0.5, abs=1e-5)
    assert one_row([1.0, 1.0], prompt=(1,), presence_penalty=2.0) == pytest.approx([0.5, 0.5])


def test_case_11_min_tokens_counts_output_tokens_on_each_path():
    """With min_tokens 10 an end token is impossible at output positions below 10 and free from there on."""
    state = open_state(3, prompt=(0, 0), output=(1,) * 8, stop_token_ids=(2,), min_tokens=10)
    rows = [Row(state, 10, (1,) * depth) for depth in range(4)]
    ending = [row[2] for row in probabilities(torch.zeros(4, 3), rows)]
    assert ending == pytest.approx([0.0, 0.0, 1 / 3, 1 / 3])


@on_each_device
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 0.6), (0, 0.9999), (3000, 1.0), (2000, 0.99), (50, 0.9)])
def test_large_vocabularies_flat_and_peaked(device, top_k, top_p):
    """A flat row's nucleus is longer than the short sort that is tried first; a peaked one's is not."""
    size = 4 * SHORT_SORT
    generator = torch.Generator().manual_seed(3)
    logits = torch.stack((torch.randn(size, generator=generator) / 10, torch.randn(size, generator=generator) * 6))
    state = open_state(size, top_k=top_k, top_p=top_p, device=device)
    found = probabilities(logits.to(device), [Row(state, 1, ())] * 2)
    for logit_row, row in zip(logits, found, strict=True):
        right = expected(logit_row, Row(state, 1, ()), (0,), ())
        # Sums differ in rounding: the last token of a nucleus may be another, but nothing else.
        assert sum((p > 0) != (q > 0) for p, q in zip(row, right, strict=True)) <= 1
        assert sum(abs(p - q) for p, q in zip(row, right, strict=True)) < 1e-3


@on_each_device
def test_padding_ids_are_impossible_whatever_the_width(device):
    narrow, wide = open_state(3, device=device), open_state(5, device=device)
    logits = torch.tensor([[0.0, 0.0, 0.0, 9.0, 9.0, 99.0]] * 2, device=device)
    rows = [Row(narrow, 1, ()), Row(wide, 1, ())]
    found = probabilities(logits, rows)
    assert found[0] == pytest.approx([1 / 3] * 3 + [0.0, 0.0])
    assert found[1][3] == pytest.approx(0.5, abs=1e-3)
    assert probabilities(logits[:, :2], rows)[1] == pytest.approx([0.5, 0.5, 0.0, 0.0, 0.0])


def test_extreme_penalties_stay_finite():
    state = open_state(2, prompt=(0,), temperature=1e-4, repetition_penalty=1e-38)
    scores = scores_of(torch.tensor([[50.0, 1.0]]), [Row(state, 1, ())])
    assert torch.isfinite(scores).all()


def test_the_models_logits_are_left_alone():
    logits = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    state = open_state(6, output=(1, 2), temperature=0.5, top_k=2, frequency_penalty=1.0, logit_bias=((1, 5.0),))
    scores_of(logits, [Row(state, 3, ())] * 2)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_any_floating_type_is_computed_in_float32(dtype):
    logits = (torch.randn(1, 50, generator=torch.Generator().manual_seed(0)) * 4).to(dtype)
    state = open_state(50, temperature=0.7, device=CPU)
    (found,) = probabilities(logits, [Row(state, 1, ())])
    assert found == pytest.approx(expected(logits[0].double(), Row(state, 1, ()), (0,), ()), abs=1e-6)
