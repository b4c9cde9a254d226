"""Learned times: near the truth, whatever the noise, and following the load."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from outrider.acceptance.curve import TimeCurve, monotone

UNEVEN = {0: 10.0, 1: 17.0, 2: 18.0, 3: 18.5, 4: 19.0}
"""The second row of a batch may cost more than all that follow (transformers on a CPU does this)."""


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.5, 30)), min_size=1, max_size=20))
def test_monotone_is_the_nearest_sequence_that_never_falls(points: list[tuple[float, float]]) -> None:
    values, weights = [value for value, _ in points], [weight for _, weight in points]
    assert monotone(values, weights) == pytest.approx(isotonic_regression(values, weights=weights).x.tolist(), abs=1e-6)


def test_an_uneven_shape_is_learned_through_noise_and_odd_times() -> None:
    draw = random.Random(1)
    curve = TimeCurve()
    for _ in range(400):
        n = draw.choice(list(UNEVEN))
        curve.observe(n, UNEVEN[n] * draw.lognormvariate(0, 0.2) * (10 if draw.random() < 0.05 else 1))
    assert curve.times(4) == pytest.approx(tuple(UNEVEN.values()), rel=0.15)


def test_slow_first_passes_do_no_harm_that_lasts() -> None:
    curve = TimeCurve()
    for n, milliseconds in ((4, 900.0), (4, 300.0), *[(4, 14.0)] * 8, *[(0, 10.0)] * 8):
        curve.observe(n, milliseconds)
    assert curve.times(4) == pytest.approx((10, 11, 12, 13, 14), rel=0.1)


def test_what_was_never_seen_lies_on_the_line_through_the_rest() -> None:
    curve = TimeCurve()
    for _ in range(32):
        for n in (0, 2, 8):
            curve.observe(n, 20.0 + 3.0 * n)
    assert curve.times(16)[16] == pytest.approx(68.0, rel=0.02)
    assert curve.times(5)[5] == pytest.approx(35.0, rel=0.02)


def test_through_the_origin_one_length_tells_of_all() -> None:
    curve = TimeCurve(through_origin=True)
    for _ in range(32):
        curve.observe(4, 40.0)
    assert curve.times(8)[2] == pytest.approx(20.0, rel=0.25)
    assert curve.times(8)[8] == pytest.approx(80.0, rel=0.25)


@pytest.mark.parametrize("factor", [0.25, 3.0])
def test_the_load_moves_every_length_though_one_alone_is_seen(factor: float) -> None:
    """Otherwise what is not chosen would keep the times of an hour ago, and be believed cheap or dear."""
    curve = TimeCurve()
    for _ in range(40):
        curve.observe(0, 10.0)
        curve.observe(4, 14.0)
    for _ in range(12):
        curve.observe(4, 14.0 * factor)
    assert curve.times(4)[0] == pytest.approx(10.0 * factor, rel=0.05)
    assert curve.times(4)[4] == pytest.approx(14.0 * factor, rel=0.05)


def test_one_odd_time_does_not_make_a_length_look_dear() -> None:
    curve = TimeCurve()
    for _ in range(20):
        curve.observe(0, 10.0)
        curve.observe(4, 14.0)
    curve.observe(2, 500.0)
    assert curve.times(4)[2] < 1.3 * 12.0


def test_bursts_of_one_length_and_then_another_never_run_out_of_numbers() -> None:
    """Each change of the burst moves the shape a little the same way, some 1e45 times in as many rounds as these."""
    curve, noise = TimeCurve(), random.Random(1)
    for burst in range(1500):
        n, milliseconds = (0, 100.0) if burst % 2 else (15, 10.0)
        for _ in range(40):
            curve.observe(n, milliseconds * noise.lognormvariate(0, 0.3))
    assert 1e-9 < curve._level < 1e9
    assert curve.times(15)[0] == pytest.approx(100.0, rel=0.5)


@given(st.lists(st.tuples(st.integers(0, 12), st.floats(0, 1e4)), max_size=60), st.integers(0, 20))
def test_times_never_fall_and_are_times(observed: list[tuple[int, float]], longest: int) -> None:
    curve = TimeCurve()
    for n, milliseconds in observed:
        curve.observe(n, milliseconds)
    times = curve.times(longest)
    assert len(times) == longest + 1
    assert list(times) == sorted(times)
    assert all(time > 0 for time in times) or not observed
