"""What a drafter makes of its logits: the next drafted token of many sessions at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.acceptance.params import Rule
from outrider.acceptance.philox import Domain
from outrider.acceptance.proposal import SparseQ
from outrider.sampling.distribution import Row, UnusableLogits, scores_of
from outrider.sampling.draw import draw
from outrider.sampling.host import to_host
from outrider.sampling.noise import gumbel_of, noise_keys
from outrider.sampling.plain import draw_plain
from outrider.sampling.state import SamplingState

Q_ENTRIES = 32
"""Tokens of a draft distribution that travel; the rest of its mass is given up."""


@dataclass(frozen=True, slots=True)
class DraftRow:
    """One row of a drafting step, after `drafted` tokens of this round.

    Drafting ahead, the first `ahead` of them are taken to be committed by then: draws are those of that later round.
    """

    state: SamplingState
    base_length: int
    drafted: tuple[int, ...]
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class DraftedToken:
    """A drafted token and the distribution it was drawn from; None if it was chosen deterministically."""

    token: int
    q: SparseQ | None


def draft_rows(logits: Tensor, work: Sequence[DraftRow]) -> list[DraftedToken]:
    """The next token of each row of `logits` [S, W] of any floating type.

    Raises UnusableLogits, naming the entries, if the model's output allows no token at some row.
    """
    if not work:
        return []
    assert len(work) == len(logits), f"{len(work)} rows of work, but {len(logits)} of logits"
    rows = rows_of(work)
    if (drawn := draw_plain(logits, [row.state for row in rows], [(row.position,) for row in rows])) is not None:
        return _usable(*drawn.collected())
    groups: dict[Step, list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(_step_for(row.state), []).append(index)
    results = [step(_pick(logits, chosen), [rows[i] for i in chosen]) for step, chosen in groups.items()]
    lists = to_host([tensor for result in results for tensor in result])
    found: dict[int, DraftedToken] = {}
    bad: list[int] = []
    for group, chosen in enumerate(groups.values()):
        tokens, scores, ids, probabilities = lists[4 * group : 4 * group + 4]
        width = len(ids) // len(chosen)
        for place, index in enumerate(chosen):
            own = slice(place * width, (place + 1) * width)
            found[index] = DraftedToken(int(tokens[place]), _sparse(ids[own], probabilities[own]))
            if not math.isfinite(scores[place]):
                bad.append(index)
    if bad:
        raise UnusableLogits(sorted(bad))
    return [found[index] for index in range(len(rows))]


def _usable(tokens: Sequence[int], scores: Sequence[float]) -> list[DraftedToken]:
    bad = [entry for entry, score in enumerate(scores) if not math.isfinite(score)]
    if bad:
        raise UnusableLogits(bad)
    return [DraftedToken(token, None) for token in tokens]


def rows_of(work: Sequence[DraftRow]) -> list[Row]:
    """As `scores_of` takes them."""
    return [Row(entry.state, entry.base_length, entry.drafted, entry.ahead) for entry in work]


Result = tuple[Tensor, Tensor, Tensor, Tensor]
"""Tokens [s], their scores [s], and ids and float32 probabilities of q [s, k] (k = 0: no q)."""

Step = Callable[[Tensor, Sequence[Row]], Result]


def _step_for(state: SamplingState) -> Step:
    if state.params.greedy:
        return _likeliest
    return _coupled if state.rule is Rule.MATCH else _drawn


def _likeliest(logits: Tensor, rows: Sequence[Row]) -> Result:
    scores, tokens = scores_of(logits, rows).max(dim=1)
    nothing = tokens.new_empty(len(rows), 0)
    return tokens, scores, nothing, nothing


def _coupled(logits: Tensor, rows: Sequence[Row]) -> Result:
    """The target's own noise on q: the two draws differ only where the distributions do (Daliri et al. 2024)."""
    scores = scores_of(logits, rows)
    keys = noise_keys(((row.state.seed, row.position, 0, Domain.MATCH) for row in rows), scores.device)
    tokens = draw(scores, keys)
    nothing = tokens.new_empty(len(rows), 0)
    return tokens, scores.gather(1, tokens.unsqueeze(1)), nothing, nothing


def _drawn(logits: Tensor, rows: Sequence[Row]) -> Result:
    """A draw from q cut to its likeliest tokens, with noise of the drafter's own; that very q is what travels."""
    scores = scores_of(logits, rows)
    top = scores.topk(min(Q_ENTRIES, scores.shape[1]), dim=1)
    q = top.values.to(torch.float64).softmax(dim=1).to(torch.float32)
    keys = noise_keys(((row.state.seed, row.position, row.drawn_at, Domain.DRAFT) for row in rows), scores.device)
    place = (q.log() + gumbel_of(keys, top.indices)).argmax(dim=1, keepdim=True)
    return top.indices.gather(1, place), top.values.gather(1, place), top.indices, q


def _pick(logits: Tensor, chosen: Sequence[int]) -> Tensor:
    return logits if len(chosen) == len(logits) else logits[torch.tensor(chosen, device=logits.device)]


def _sparse(ids: Sequence[float], probabilities: Sequence[float]) -> SparseQ | None:
    """The entries that are possible; they come in descending order."""
    possible = next((i for i, q in enumerate(probabilities) if q == 0.0), len(probabilities))
    return SparseQ(tuple(map(int, ids[:possible])), tuple(probabilities[:possible])) if possible else None
