"""The copy of a batch's results to the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def to_host(tensors: Sequence[Tensor]) -> list[list[float]]:
    """The flattened values of `tensors`, in one copy, so that the device is waited for once.

    They travel as float64, which holds token ids and float32 exactly.
    """
    flat = [tensor.flatten().to(torch.float64) for tensor in tensors]
    values: list[float] = torch.cat(flat).tolist()
    lists: list[list[float]] = []
    start = 0
    for tensor in flat:
        lists.append(values[start : start + len(tensor)])
        start += len(tensor)
    return lists
