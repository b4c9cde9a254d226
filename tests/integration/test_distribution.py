"""Chi-squared over the whole gRPC path; tests/benchmarks/distribution.py does the same with many more draws."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.cluster import running_cluster
from tests.conftest import TinyModel
from tests.distribution import choose_prompt, expected_answers, judge, measure

ANSWERS = 1200
"""With the residual left out, or seven tenths of the model's thresholds, half as many have p-values below 1e-6."""


@pytest.mark.parametrize(
    ("rule", "drafter"),
    # Guesses of n-grams are one token long here, for which block is rejection.
    [("match", "ngram"), ("match", "model"), ("rejection", "ngram"), ("rejection", "model"), ("block", "model")],
)
async def test_answers_follow_the_targets_distribution(tiny_model: TinyModel, rule: str, drafter: str) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, target, draft={"layers": 2}, max_sessions=64) as cluster:
        result = await measure(cluster, target, ANSWERS, rule=rule, drafter=drafter, seed=1)
        assert result.answers == ANSWERS
        assert result.impossible == 0
        assert result.p_value > 1e-4, result
        assert result.acceptance_rate is not None
        assert 0 < result.acceptance_rate < 1


def test_the_measure_sees_an_error(tiny_model: TinyModel) -> None:
    """Must fail: a tenth of the mass moved from the likeliest answer to the others is seen with as many answers."""
    target = tiny_model("llama")
    expected = expected_answers(target, choose_prompt(target))
    likeliest = max(expected, key=expected.__getitem__)
    share = expected[likeliest]
    assert share > 0.1
    wrong = {a: (p - 0.1 if a == likeliest else p + 0.1 * p / (1 - share)) for a, p in expected.items()}
    draws = random.Random(5).choices(list(wrong), list(wrong.values()), k=ANSWERS)
    assert judge(Counter(draws), expected, None).p_value < 1e-4
