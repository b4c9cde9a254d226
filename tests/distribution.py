"""Does what clients receive over gRPC follow the target's distribution? Counts, expectations, chi-squared."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from scipy import stats

from tests.cluster import Cluster
from tests.reference import load_reference

TOP_K = 2
TOKENS = 5
"""The first two rounds have no guess of the model, so those of the third are the first that may be two tokens long."""
CONCURRENCY = 48


@dataclass(frozen=True)
class Measured:
    """One rule and drafter: how often each answer came, and how well that fits."""

    answers: int
    chi_squared: float
    degrees: int
    p_value: float
    total_variation: float  # between observed and expected, sampling noise included
    impossible: int  # answers the target cannot give
    acceptance_rate: float | None


def choose_prompt(target: Path) -> list[int]:
    """A prompt that ends as it began, where the token that followed the beginning is one of the target's likeliest.

    So an n-gram guess is neither always wrong nor always right.
    """
    model, tokenizer = load_reference(target)
    start, middle = tokenizer("again and")["input_ids"], tokenizer(" the lazy dog")["input_ids"]
    candidates = torch.tensor([[*start, token, *middle, *start] for token in range(3, len(tokenizer))])
    with torch.inference_mode():
        logits = model(candidates.to(model.device)).logits[:, -1, : len(tokenizer)]
    second_best = logits.topk(2).indices[:, 1].cpu()
    place = int((second_best == torch.arange(3, len(tokenizer))).nonzero()[0])
    return list(candidates[place].tolist())


def expected_answers(target: Path, prompt: list[int]) -> dict[tuple[int, ...], float]:
    """Probability of every answer of `TOKENS` tokens at temperature 1 and top_k `TOP_K`, from transformers' logits."""
    model, _ = load_reference(target)
    answers: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(TOKENS):
        longer: dict[tuple[int, ...], float] = {}
        for answer, probability in answers.items():
            with torch.inference_mode():
                logits = model(torch.tensor([prompt + list(answer)], device=model.device)).logits[0, -1].double()
            top = logits.topk(TOP_K)
            for token, share in zip(top.indices.tolist(), top.values.softmax(-1).tolist(), strict=True):
                longer[(*answer, token)] = probability * share
        answers = longer
    return answers


async def measure(cluster: Cluster, target: Path, answers: int, *, rule: str, drafter: str, seed: int) -> Measured:
    """Ask `answers` times with seeds of their own, many at once, and compare what came with what is expected."""
    seeds = itertools.count(seed << 32)
    prompt = choose_prompt(target)
    counts: Counter[tuple[int, ...]] = Counter()
    proposed = accepted = 0

    async def ask() -> None:
        nonlocal proposed, accepted
        # Every round guesses as much as it can: what does not pay on this machine must be exact all the same.
        options: dict[str, Any] = {"temperature": 1.0, "top_k": TOP_K, "max_tokens": TOKENS, "ignore_eos": True}
        options |= {"fixed_length": True}
        answer = await cluster.generate(
            prompt, rule=rule, drafter=drafter, max_draft_tokens=TOKENS - 1, seed=next(seeds), **options
        )
        counts[answer.token_ids] += 1
        proposed += answer.speculation.proposed_tokens
        accepted += answer.speculation.accepted_tokens

    async def worker(share: int) -> None:
        for _ in range(share):
            await ask()

    await asyncio.gather(*(worker(answers // CONCURRENCY) for _ in range(CONCURRENCY)))
    return judge(counts, expected_answers(target, prompt), accepted / proposed if proposed else None)


def judge(
    counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float], acceptance_rate: float | None
) -> Measured:
    """Pearson's chi-squared over the answers; those expected fewer than 5 times are taken together."""
    total = counts.total()
    common = [answer for answer, probability in expected.items() if probability * total >= 5]
    observed = [counts[answer] for answer in common]
    wanted = [expected[answer] * total for answer in common]
    rest = total * (1 - sum(expected[answer] for answer in common))
    impossible = sum(count for answer, count in counts.items() if answer not in expected)
    if rest >= 5:
        observed.append(total - sum(observed) - impossible)
        wanted.append(rest)
    scale = sum(observed) / sum(wanted)
    statistic, p_value = stats.chisquare(observed, [value * scale for value in wanted])
    variation = sum(abs(counts[answer] / total - probability) for answer, probability in expected.items()) / 2
    return Measured(
        answers=total,
        chi_squared=float(statistic),
        degrees=len(observed) - 1,
        p_value=float(p_value),
        total_variation=variation,
        impossible=impossible,
        acceptance_rate=acceptance_rate,
    )
