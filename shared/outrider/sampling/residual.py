"""Thresholds and residuals of the `rejection` and `block` rules; the mathematics is in docs/acceptance.md.

Draft distributions are sparse, so p is only ever needed at a few tokens: a row's residual differs from p in nothing
but the entries of q, and the scores of those are overwritten in place.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.acceptance.params import Rule
from outrider.acceptance.proposal import Proposal, SparseQ

ROUNDING = 1e-6
"""Where p and q differ by less than this part of p, they are equal: float32 scores do not tell them apart."""


@dataclass(frozen=True, slots=True)
class ProposalAt:
    """A proposal and where its root's row stands in the batch's scores; node i has row `root_row + 1 + i`."""

    proposal: Proposal
    root_row: int


@dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes of many proposals, N in all, with the M entries of their draft distributions."""

    own_row: Tensor  # [N] row of the scores that follows the node
    row: Tensor  # [N] its parent's row, where the node itself was to be drawn
    token: Tensor  # [N]
    q: Tensor  # [N] float64 q(token)
    entry_node: Tensor  # [M]
    entry_token: Tensor  # [M]
    entry_q: Tensor  # [M] float64

    @classmethod
    def of(cls, picked: Sequence[tuple[ProposalAt, int]], device: torch.device) -> Nodes:
        """Gather the given nodes of the given proposals."""
        own_rows, rows, tokens, own_q = [], [], [], []
        entry_tokens: list[int] = []
        entry_q: list[float] = []
        widths: list[int] = []
        for at, node in picked:
            tree = at.proposal.tree
            token = tree.tokens[node]
            own_rows.append(at.root_row + 1 + node)
            rows.append(at.root_row + 1 + tree.parents[node])
            tokens.append(token)
            q = at.proposal.q[node] if at.proposal.q else SparseQ((token,), (1.0,))
            own_q.append(q.probabilities[q.token_ids.index(token)])
            entry_tokens.extend(q.token_ids)
            entry_q.extend(q.probabilities)
            widths.append(len(q.token_ids))
        # Two copies to the device for all of it.
        integers = torch.tensor([*own_rows, *rows, *tokens, *widths, *entry_tokens], dtype=torch.int64).to(device)
        numbers = torch.tensor(own_q + entry_q, dtype=torch.float64).to(device)
        own_row, row, token_ids, width = integers[: 4 * len(picked)].view(4, -1)
        owner = torch.repeat_interleave(width, output_size=len(entry_q))
        total = numbers.new_zeros(len(picked)).index_add_(0, owner, numbers[len(picked) :])  # 1, but for rounding
        return cls(
            own_row=own_row,
            row=row,
            token=token_ids,
            q=numbers[: len(picked)] / total,
            entry_node=owner,
            entry_token=integers[4 * len(picked) :],
            entry_q=numbers[len(picked) :] / total[owner],
        )


def judge_rejection(scores: Tensor, proposals: Sequence[ProposalAt]) -> Tensor:
    """[R] float32 thresholds, at the rows that follow the nodes; every parent's `scores` become its residual's.

    Siblings are judged in order, each against what its elder siblings left of p.
    """
    thresholds = scores.new_zeros(len(scores))
    for picked in _by_sibling_rank(proposals):
        nodes = Nodes.of(picked, scores.device)
        log_total = _log_total(scores, nodes.row)
        p = _probability(scores, log_total, nodes.row, nodes.token)
        thresholds[nodes.own_row] = (p / nodes.q).clamp_(max=1.0).to(torch.float32)
        _subtract(scores, nodes, log_total, torch.ones_like(p))
    return thresholds


def _by_sibling_rank(proposals: Sequence[ProposalAt]) -> list[list[tuple[ProposalAt, int]]]:
    """All first children, then all second ones, and so on."""
    ranks: list[list[tuple[ProposalAt, int]]] = []
    for at in proposals:
        elder: Counter[int] = Counter()
        for node, parent in enumerate(at.proposal.tree.parents):
            if elder[parent] == len(ranks):
                ranks.append([])
            ranks[elder[parent]].append((at, node))
            elder[parent] += 1
    return ranks


def judge_block(scores: Tensor, proposals: Sequence[ProposalAt]) -> Tensor:
    """The same for chains under the block rule: a threshold is about the whole prefix that its node ends."""
    device = scores.device
    lengths = [len(at.proposal) for at in proposals]
    nodes = Nodes.of([(at, node) for at in proposals for node in range(len(at.proposal))], device)
    chain = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).to(device)
    depth = torch.cat([torch.arange(length) for length in lengths]).to(device)
    last = torch.cat([torch.arange(length) == length - 1 for length in lengths]).to(device)

    log_total = _log_total(scores, nodes.row)
    ratio = torch.ones(len(lengths), max(lengths), dtype=torch.float64, device=device)
    ratio[chain, depth] = _probability(scores, log_total, nodes.row, nodes.token) / nodes.q
    weights = torch.ones(len(lengths), max(lengths) + 1, dtype=torch.float64, device=device)
    for step in range(max(lengths)):
        product = weights[:, step] * ratio[:, step]
        weights[:, step + 1] = torch.where(product < 1.0 - ROUNDING, product, 1.0)
    before, after = weights[chain, depth], weights[chain, depth + 1]

    left = _mass_left(scores, nodes, log_total, before)
    next_left = torch.where(last, 0.0, left.roll(-1))
    # Where the weight is 1 the whole prefix stands for certain, also if nothing is left of p (0 / 0).
    inner = torch.where(after < 1.0, next_left / (next_left + (1.0 - after)), 1.0)
    _subtract(scores, nodes, log_total, before)
    thresholds = scores.new_zeros(len(scores))
    thresholds[nodes.own_row] = torch.where(last, after, inner).to(torch.float32)
    return thresholds


JUDGES = {Rule.REJECTION: judge_rejection, Rule.BLOCK: judge_block}


def _log_total(scores: Tensor, rows: Tensor) -> Tensor:
    """[N] float64 logarithm of the sum of exp(scores) of each row."""
    part = scores[rows]
    best = part.amax(dim=1)
    return part.sub_(best.unsqueeze(1)).exp_().sum(dim=1, dtype=torch.float64).log_() + best


def _probability(scores: Tensor, log_total: Tensor, rows: Tensor, tokens: Tensor) -> Tensor:
    return (scores[rows, tokens] - log_total).exp()


def _mass_left(scores: Tensor, nodes: Nodes, log_total: Tensor, weight: Tensor) -> Tensor:
    """[N] sum over the vocabulary of max(0, weight * p - q), where q is zero outside its entries."""
    owner = nodes.entry_node
    p = _probability(scores, log_total[owner], nodes.row[owner], nodes.entry_token)
    outside = torch.ones_like(weight).index_add_(0, owner, p, alpha=-1.0)
    outside.masked_fill_(outside <= ROUNDING, 0.0)
    return (weight * outside).index_add_(0, owner, _difference(weight[owner] * p, nodes.entry_q))


def _subtract(scores: Tensor, nodes: Nodes, log_total: Tensor, weight: Tensor) -> None:
    """Turn p of each node's row into the residual max(0, weight * p - q); where that is empty, p stays."""
    owner = nodes.entry_node
    rows = nodes.row[owner]
    before = scores[rows, nodes.entry_token]
    p = (before - log_total[owner]).exp()
    # Divided by the weight, which a draw does not see; so only the entries of q change.
    left = _difference(p, nodes.entry_q / weight[owner])
    scores[rows, nodes.entry_token] = (left.log_() + log_total[owner]).to(scores.dtype)
    empty = scores[nodes.row].amax(dim=1) == -math.inf
    scores[rows, nodes.entry_token] = torch.where(empty[owner], before, scores[rows, nodes.entry_token])


def _difference(p: Tensor, q: Tensor) -> Tensor:
    """max(0, p - q), where equal within rounding is equal."""
    left = p - q
    return left.masked_fill_(left <= ROUNDING * p, 0.0)
