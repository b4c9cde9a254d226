"""Integers that are written on the host and copied to the device at once, pass after pass."""

from __future__ import annotations

import torch


class Staged:
    """So many integers on a device, at one address, and host memory for the copies that are under way."""

    def __init__(self, size: int, device: torch.device, *, copies: int) -> None:
        pinned = device.type == "cuda"
        self.device = torch.zeros(size, dtype=torch.int32, device=device)
        self._hosts = [torch.zeros(size, dtype=torch.int32, pin_memory=pinned) for _ in range(copies)]
        self._views = [host.numpy().data for host in self._hosts]
        self._copied = [torch.cuda.Event() for _ in range(copies)] if pinned else []
        self._turn = 0

    def begin(self) -> memoryview[int]:
        """Memory to write the next copy into; what an earlier one left there is still there."""
        self._turn = (self._turn + 1) % len(self._hosts)
        if self._copied:
            self._copied[self._turn].synchronize()
        return self._views[self._turn]

    def send(self, size: int) -> None:
        """Copy the first `size` of them."""
        self.device[:size].copy_(self._hosts[self._turn][:size], non_blocking=True)
        if self._copied:
            self._copied[self._turn].record()
