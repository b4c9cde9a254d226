"""How a verifier and a draft that share a device take turns.

A device that computes for both at once does neither any faster, and it would verify some sessions while it drafts for
the others: half the batch each time, so twice the passes. So only one computes at a time, drafting goes first, and
verifying waits a moment for the proposals that a guess just ended with. Sessions that come in groups then meet in one
verify pass and stay together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

GATHER_S = 0.0015
"""How long verifying waits for the proposals of a draft's last pass: longer than their way through a coordinator."""

OVERDUE_S = 0.05
"""After so long a wait verifying goes before drafting."""


class Turn(Protocol):
    """A device thread's part: `with turn:` around each pass."""

    def pause(self, *, complete: bool) -> float:
        """Seconds to wait for more work before a pass; 0 where there is no reason to. `complete`: all work is there."""
        ...

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class AloneTurn:
    """Of a thread that has its device for itself."""

    def pause(self, *, complete: bool) -> float:
        """See `Turn`."""
        return 0.0

    def __enter__(self) -> None:
        """Nobody to wait for."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nobody waits."""


class SharedDevice:
    """One device, two threads of this process: `drafting` and `verifying` are their turns."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._taken = False
        self._drafts_wait = False
        self._drafted_at = float("-inf")
        self._overdue_at = float("inf")  # from when on verifying goes first
        self.drafting = DraftTurn(self)
        self.verifying = VerifyTurn(self)

    def pause_for_proposals(self) -> float:
        """Seconds until the proposals of the last guess ought to have come."""
        with self._changed:
            return max(0.0, self._drafted_at + GATHER_S - self._clock())

    def take_to_draft(self) -> None:
        """Wait until the device is free, and not overdue for verifying."""
        with self._changed:
            self._drafts_wait = True
            while self._taken or self._clock() >= self._overdue_at:
                self._changed.wait(OVERDUE_S)
            self._drafts_wait = False
            self._taken = True

    def take_to_verify(self) -> None:
        """Wait until the device is free and nobody waits to draft, or for `OVERDUE_S`."""
        with self._changed:
            self._overdue_at = self._clock() + OVERDUE_S
            while self._taken or (self._drafts_wait and self._clock() < self._overdue_at):
                self._changed.wait(OVERDUE_S)
            self._overdue_at = float("inf")
            self._taken = True

    def give_back(self, *, drafted: bool) -> None:
        """The pass is over."""
        with self._changed:
            self._taken = False
            if drafted:
                self._drafted_at = self._clock()
            self._changed.notify_all()


class DraftTurn:
    """The draft's."""

    def __init__(self, device: SharedDevice) -> None:
        self._device = device

    def pause(self, *, complete: bool) -> float:
        """See `Turn`: guesses begin at once."""
        return 0.0

    def __enter__(self) -> None:
        """Wait for the device."""
        self._device.take_to_draft()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the others go on."""
        self._device.give_back(drafted=True)


class VerifyTurn:
    """The verifier's."""

    def __init__(self, device: SharedDevice) -> None:
        self._device = device

    def pause(self, *, complete: bool) -> float:
        """See `Turn`."""
        return 0.0 if complete else self._device.pause_for_proposals()

    def __enter__(self) -> None:
        """Wait for the device."""
        self._device.take_to_verify()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the others go on."""
        self._device.give_back(drafted=False)
