"""Which tokens a drafter expects the target to choose: the outcomes worth drafting ahead for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.acceptance.params import Rule
from outrider.acceptance.philox import Domain
from outrider.sampling.distribution import UnusableLogits, scores_of
from outrider.sampling.draft import DraftRow, rows_of
from outrider.sampling.host import to_host
from outrider.sampling.noise import gumbel_of_all, noise_keys


def rank_rows(logits: Tensor, work: Sequence[DraftRow], most: int) -> list[tuple[int, ...]]:
    """The `most` likeliest next tokens of each row of `logits` [R, W], best first; fewer where fewer are possible.

    Under `match` the noise of the target's own draw is known, so the order is that of log q + G: its first token is
    the one that would be drafted. Under the other rules it is that of q.
    Raises UnusableLogits, naming the entries, if the model's output allows no token at some row.
    """
    rows = rows_of(work)
    scores = scores_of(logits, rows).to(torch.float32)
    known = [i for i, row in enumerate(rows) if row.state.rule is Rule.MATCH and not row.state.params.greedy]
    if known:
        chosen = torch.tensor(known, device=scores.device)
        keys = noise_keys(((rows[i].state.seed, rows[i].position, 0, Domain.MATCH) for i in known), scores.device)
        scores = scores.index_add(0, chosen, gumbel_of_all(keys, scores.shape[1]))
    top = scores.topk(min(most, scores.shape[1]), dim=1)
    values, tokens = to_host([top.values, top.indices])
    width = top.values.shape[1]
    ranked = []
    for start in range(0, len(values), width):
        possible = [i for i in range(start, start + width) if math.isfinite(values[i])]
        ranked.append(tuple(int(tokens[i]) for i in possible))
    bad = [entry for entry, found in enumerate(ranked) if not found]
    if bad:
        raise UnusableLogits(bad)
    return ranked
