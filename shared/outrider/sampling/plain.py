"""Where a batch consists of plain rows on a GPU, kernels of our own draw them all at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Protocol

from torch import Tensor

from outrider.sampling.state import SamplingState

MOST_BESIDE = 8
"""Most tokens that those kernels name beside a drawn one."""


class Drawing(Protocol):
    """Draws of R rows, which the device may still be computing."""

    tokens: Tensor
    """[R] int32, on the device: something, where nothing can be drawn."""

    def collected(self) -> tuple[list[int], list[float]]:
        """Wait for the tokens, and for their scores, which are not finite where nothing can be drawn."""
        ...


def draw_plain(logits: Tensor, states: Sequence[SamplingState], positions: Sequence[Sequence[int]]) -> Drawing | None:
    """Begin to draw a token from each row of `logits` [R, W].

    `positions[i]` are those of the rows of `states[i]`, one after the other. None if some session's rows are not plain,
    or where there are no kernels for it.
    """
    if not (logits.is_cuda and _has_kernels() and all(map(is_plain, states))):
        return None
    from outrider.sampling.device_draw import DeviceDrawing

    return DeviceDrawing(logits, states, positions)


def is_plain(state: SamplingState) -> bool:
    """True if nothing but a temperature shapes the session's scores, and its draws are those of the rule match."""
    return state.drawn_plainly


@cache
def _has_kernels() -> bool:
    return find_spec("triton") is not None
