"""The rows of several sessions in one tensor of logits, and back: what was found in them, by session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from outrider.sampling.distribution import UnusableLogits
from outrider.sampling.draft import DraftRow

Found = TypeVar("Found")


def of_sessions(logits: torch.Tensor, chosen: Sequence[bool], counts: Sequence[int]) -> torch.Tensor:
    """The rows of the chosen sessions, of which each has `counts` many. Nothing waits for the device."""
    if all(chosen):
        return logits
    return torch.cat([part for part, its in zip(torch.split(logits, list(counts)), chosen, strict=True) if its])


def by_session(
    of: Callable[[torch.Tensor, Sequence[DraftRow]], Sequence[Found]],
    chosen: Sequence[bool],
    rows: Sequence[Sequence[DraftRow]],
    logits: torch.Tensor,
) -> dict[int, list[Found]]:
    """What `of` makes of the rows of the chosen sessions, by session. Raise UnusableLogits naming sessions."""
    owners = [index for index, each in enumerate(rows) if chosen[index] for _ in each]
    if not owners:
        return {}
    logits = of_sessions(logits, chosen, [len(each) for each in rows])
    try:
        found = of(logits, [row for index, each in enumerate(rows) if chosen[index] for row in each])
    except UnusableLogits as error:
        raise UnusableLogits(sorted({owners[entry] for entry in error.entries})) from error
    results: dict[int, list[Found]] = {}
    for index, result in zip(owners, found, strict=True):
        results.setdefault(index, []).append(result)
    return results
