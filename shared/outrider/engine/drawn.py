"""Tokens that the device draws before the host knows them: the next pass may run them by where they will be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Drawn:
    """Tokens [steps, rows] in a device's memory, now or once what has been launched is done."""

    memory: Tensor  # flat, int32
    step_size: int  # how far apart the steps begin
    first: int = 0  # where the first of them begins
    backs: Tensor | None = None  # [S] int32: how many positions before its furthest place each feed `at` one stands

    def reference(self, step: int, row: int) -> int:
        """What stands for that token in a feed. No token id is negative."""
        return -1 - (self.first + step * self.step_size + row)

    def line(self, row: int, steps: int) -> range:
        """The references of a row's first tokens."""
        first, size = self.reference(0, row), self.step_size
        return range(first, first - steps * size, -size)

    def after(self, other: Drawn) -> Drawn:
        """These tokens in one memory with those of `other`, whose references stay what they are; and its backs."""
        together = torch.cat((other.memory, self.memory))
        return replace(self, memory=together, first=len(other.memory) + self.first, backs=other.backs)


class Guessed(NamedTuple):
    """A round of one session whose outcome the host does not know yet."""

    row: int  # of the first of its draws: that of the next token after `last`
    last: int  # the last committed token
    tokens: tuple[int, ...]  # guessed after it, one after another


NEXT, BEFORE, BACK = range(3)
"""What is known of the outcomes of S rounds on the device, [3, S]: the token that follows what stands; the token before
that; and how many of the guessed tokens do not stand."""


def settled(memory: Tensor) -> Drawn:
    """Of outcomes [3, S]: the tokens are steps `NEXT` and `BEFORE`, with a row for each session."""
    return Drawn(memory.view(-1), memory.shape[1], backs=memory[BACK])
