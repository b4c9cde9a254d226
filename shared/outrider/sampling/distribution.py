"""From logits to scores: every sampling parameter, in the order that `SamplingParams` documents.

Each step touches only the rows whose parameters ask for it, so rows of any mixture stand in one batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.errors import InternalError
from outrider.sampling.state import SamplingState

LARGEST_SCORE = 1e30
"""Scores are kept finite however extreme a repetition penalty is, also after division by the smallest temperature."""

SHORT_SORT = 1024
"""On a CPU, top_p looks at so many tokens first; a nucleus is seldom larger, and a full sort takes milliseconds."""


class UnusableLogits(InternalError):
    """Some entries' logits allow no token (NaN, or all impossible). The others can be sampled without them."""

    def __init__(self, entries: Sequence[int]) -> None:
        super().__init__(f"the model's logits allow no token for entries {list(entries)} of the batch")
        self.entries = tuple(entries)


@dataclass(frozen=True, slots=True)
class Row:
    """One position: session, committed length, and the in-flight tokens above it.

    The first `ahead` of these are taken to be committed when the row's token is drawn.
    """

    state: SamplingState
    base_length: int
    path: tuple[int, ...]
    ahead: int = 0

    @property
    def drawn_at(self) -> int:
        """Committed length of the round that draws here."""
        return self.base_length + self.ahead

    @property
    def position(self) -> int:
        """Absolute index of the token that this row decides about."""
        return self.base_length + len(self.path)


def scores_of(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """[R, V] float32 scores of `logits` [R, W]; -inf where a token is impossible, padding ids included.

    A greedy row's scores stop before the temperature: they are for its argmax. Where nothing shapes greedy rows, the
    result is a view of `logits` in their own type.
    """
    size = max(row.state.vocabulary_size for row in rows)
    plain_greedy = all(row.state.plain and row.state.params.greedy for row in rows)
    scores = _without_padding(logits, rows, size, copy=not plain_greedy)
    if plain_greedy:
        return scores
    _add_bias(scores, rows)
    _penalize(scores, rows)
    _suppress_stops(scores, rows)
    sampled = [i for i, row in enumerate(rows) if not row.state.params.greedy]
    if sampled:
        temperatures = [row.state.params.temperature or 1.0 for row in rows]
        if any(temperature != 1.0 for temperature in temperatures):
            scores.div_(_column(temperatures, scores))
        _cut_min_p(scores, rows, sampled)
        _cut_top(scores, rows, sampled)
    return scores


def _without_padding(logits: Tensor, rows: Sequence[Row], size: int, *, copy: bool) -> Tensor:
    scores = logits[:, :size]
    if copy:
        scores = scores.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    if scores.shape[1] < size:  # this model's logits are narrower than its vocabulary: the rest cannot be drawn
        scores = torch.nn.functional.pad(scores, (0, size - scores.shape[1]), value=-math.inf)
    sizes = [row.state.vocabulary_size for row in rows]
    if min(sizes) != size:
        beyond = torch.arange(size, device=scores.device) >= torch.tensor(sizes, device=scores.device).unsqueeze(1)
        scores = scores.masked_fill(beyond, -math.inf)
    return scores


def _add_bias(scores: Tensor, rows: Sequence[Row]) -> None:
    where = [(i, *row.state.bias) for i, row in enumerate(rows) if row.state.bias is not None]
    if where:
        index = torch.cat([torch.full_like(tokens, i) for i, tokens, _ in where])
        tokens, values = torch.cat([t for _, t, _ in where]), torch.cat([v for _, _, v in where])
        scores.index_put_((index, tokens), values, accumulate=True)


def _penalize(scores: Tensor, rows: Sequence[Row]) -> None:
    """Repetition penalty (Keskar et al. 2019, CTRL), then OpenAI's frequency and presence penalties."""
    where = [(i, row, row.state.counts) for i, row in enumerate(rows) if row.state.counts is not None]
    if not where:
        return
    output = _stacked([counts.output for _, _, counts in where], scores.shape[1])
    on_path = [(place, token) for place, (_, row, _) in enumerate(where) for token in row.path]
    if on_path:
        index = torch.tensor(on_path, dtype=torch.int64, device=scores.device)
        output.index_put_(index.unbind(1), output.new_ones(len(on_path)), accumulate=True)
    params = [row.state.params for _, row, _ in where]
    repetition = _column([p.repetition_penalty for p in params], scores)
    frequency = _column([p.frequency_penalty for p in params], scores)
    presence = _column([p.presence_penalty for p in params], scores)

    chosen = _index([i for i, _, _ in where], scores)
    part = scores[chosen]
    in_output = output > 0
    seen = in_output | _stacked([counts.seen_in_prompt for _, _, counts in where], scores.shape[1])
    part = torch.where(seen, torch.where(part > 0, part / repetition, part * repetition), part)
    part -= frequency * output + presence * in_output
    scores[chosen] = part.clamp_(max=LARGEST_SCORE)


def _stacked(vectors: Sequence[Tensor], size: int) -> Tensor:
    """[n, size]; sessions that know fewer ids than others of the batch have seen none of the rest."""
    if all(vector.shape[0] == size for vector in vectors):
        return torch.stack(list(vectors))
    stacked = vectors[0].new_zeros((len(vectors), size))
    for place, vector in enumerate(vectors):
        stacked[place, : vector.shape[0]] = vector
    return stacked


def _suppress_stops(scores: Tensor, rows: Sequence[Row]) -> None:
    where = [
        (i, row.state.stop_ids)
        for i, row in enumerate(rows)
        if row.state.stop_ids is not None and row.position - row.state.prompt_length < row.state.params.min_tokens
    ]
    if where:
        index = torch.cat([torch.full_like(ids, i) for i, ids in where])
        scores[index, torch.cat([ids for _, ids in where])] = -math.inf


def _cut_min_p(scores: Tensor, rows: Sequence[Row], sampled: Sequence[int]) -> None:
    where = [(i, rows[i].state.params.min_p) for i in sampled if rows[i].state.params.min_p > 0.0]
    if where:
        chosen = _index([i for i, _ in where], scores)
        part = scores[chosen]
        least = part.amax(dim=1, keepdim=True) + _column([math.log(min_p) for _, min_p in where], scores)
        scores[chosen] = part.masked_fill_(part < least, -math.inf)


def _cut_top(scores: Tensor, rows: Sequence[Row], sampled: Sequence[int]) -> None:
    """Keep the top_k likeliest, then the smallest set of those whose share of their probability reaches top_p.

    Both cut at a value, so tokens exactly as likely as the last one kept are kept too, on every device alike.
    """
    where = [(i, rows[i].state.params) for i in sampled]
    where = [(i, params) for i, params in where if params.top_k > 0 or params.top_p < 1.0]
    if not where:
        return
    size = scores.shape[1]
    top_k = [min(params.top_k or size, size) for _, params in where]
    top_p = [params.top_p for _, params in where]
    chosen = _index([i for i, _ in where], scores)
    part = scores[chosen]
    widest = max(top_k)
    if scores.device.type == "cpu" and widest > SHORT_SORT:
        # Reading back whether that was enough costs nothing here; on a CUDA device a full sort is cheaper.
        cut = _least_kept(part, top_k, top_p, SHORT_SORT)
        if cut is None:
            cut = _least_kept(part, top_k, top_p, widest)
    else:
        cut = _least_kept(part, top_k, top_p, widest)
    assert cut is not None
    scores[chosen] = part.masked_fill_(part < cut, -math.inf)


def _least_kept(part: Tensor, top_k: Sequence[int], top_p: Sequence[float], width: int) -> Tensor | None:
    """[r, 1] the smallest score that stays in each row of `part`, judged by the row's `width` likeliest tokens.

    None if those are too few for some row.
    """
    size = part.shape[1]
    if any(width < k < size for k in top_k):
        return None
    likeliest = part.topk(width, dim=1).values if width < size else part.sort(dim=1, descending=True).values
    cut = likeliest.gather(1, (_index([min(k, width) for k in top_k], part) - 1).unsqueeze(1))
    uncut = [i for i, k in enumerate(top_k) if k == size]
    if uncut:
        cut[_index(uncut, part)] = -math.inf
    if all(p == 1.0 for p in top_p):
        return cut

    # Weights relative to the likeliest; sums in float64, so that the order of summation decides nothing.
    best = likeliest[:, :1]
    total = (part - best).exp_().masked_fill_(part < cut, 0.0).sum(dim=1, keepdim=True, dtype=torch.float64)
    reached = (likeliest - best).exp_().masked_fill_(likeliest < cut, 0.0).cumsum(dim=1, dtype=torch.float64)
    wanted = total * torch.tensor(top_p, dtype=torch.float64, device=part.device).unsqueeze(1)
    short = (reached < wanted).sum(dim=1, keepdim=True)  # tokens before the one that reaches top_p
    if width < max(top_k) and any(top_p[i] < 1.0 and int(short[i]) == width for i in uncut):
        return None
    nucleus = likeliest.gather(1, short.clamp_(max=width - 1))
    whole = torch.tensor([p == 1.0 for p in top_p], device=part.device).unsqueeze(1)
    return torch.maximum(cut, nucleus.masked_fill_(whole, -math.inf))


def _index(numbers: Sequence[int], like: Tensor) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=like.device)


def _column(numbers: Sequence[float], like: Tensor) -> Tensor:
    """[R, 1] float32"""
    return torch.tensor(numbers, dtype=torch.float32, device=like.device).unsqueeze(1)
