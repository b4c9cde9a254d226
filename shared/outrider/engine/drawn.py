"""Tokens that the device draws before the host knows them: the next pass may run them by where they will be."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Drawn:
    """Tokens [steps, rows] in a device's memory, now or once what has been launched is done."""

    memory: Tensor  # flat, int32
    step_size: int  # how far apart the steps begin

    def reference(self, step: int, row: int) -> int:
        """What stands for that token in a feed. No token id is negative."""
        return -1 - (step * self.step_size + row)
