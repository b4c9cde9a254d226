"""Log-probabilities that clients ask for: the target's own, before every sampling parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.acceptance.proposal import RowLogprobs


@dataclass(frozen=True, slots=True)
class LogprobsRequest:
    """One row of a batch's logits whose log-probabilities are wanted."""

    index: int
    top: int  # how many of the likeliest tokens
    vocabulary_size: int
    children: tuple[int, ...]  # proposed tokens after this row


def logprobs_of(logits: Tensor, requests: Sequence[LogprobsRequest], next_tokens: Tensor) -> list[Tensor]:
    """What `assemble` needs of `logits` [R, W] and `next_tokens` [R], for n requests at once.

    Four tensors: ids and log-probabilities of the likeliest tokens [n, k], then of those that must be there besides
    [n, 1 + c]: the row's next token and its children, padded with the next token.
    """
    device = logits.device
    size = min(max(request.vocabulary_size for request in requests), logits.shape[1])
    chosen = torch.tensor([request.index for request in requests], device=device)
    logprobs = logits[chosen, :size].to(torch.float32).log_softmax(dim=1)
    top = logprobs.topk(min(max(request.top for request in requests), size), dim=1)
    drawn = next_tokens[chosen].unsqueeze(1)
    widest = max(len(request.children) for request in requests)
    padded = [[*request.children, *[-1] * (widest - len(request.children))] for request in requests]
    children = torch.tensor(padded, dtype=torch.int64, device=device).reshape(len(requests), widest)
    extra = torch.cat((drawn, torch.where(children < 0, drawn, children)), dim=1)
    return [top.indices, top.values, extra, logprobs.gather(1, extra.clamp(max=size - 1))]


def assemble(requests: Sequence[LogprobsRequest], tables: Sequence[Sequence[float]]) -> dict[int, RowLogprobs]:
    """The requested rows by index, from the flattened tensors of `logprobs_of` on the host."""
    rows: dict[int, RowLogprobs] = {}
    if not requests:
        return rows
    widths = [len(table) // len(requests) for table in tables]
    for place, request in enumerate(requests):
        ids, values, extra_ids, extra_values = (
            table[place * width : (place + 1) * width] for table, width in zip(tables, widths, strict=True)
        )
        found = {int(token): value for token, value in zip(ids[: request.top], values[: request.top], strict=True)}
        for token, value in zip(extra_ids, extra_values, strict=True):
            found.setdefault(int(token), value)
        rows[request.index] = RowLogprobs(tuple(found), tuple(found.values()))
    return rows
