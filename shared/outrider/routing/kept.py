"""What is remembered for a while, and no more of it than fits."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")

MAX_KEPT = 65_536


class Kept(Generic[Value]):
    """Values by name, each for the seconds it was given; beyond `most` those put first go first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, most: int = MAX_KEPT) -> None:
        self._clock = clock
        self._most = most
        self._entries: OrderedDict[str, tuple[Value, float]] = OrderedDict()  # with its end, in the order of `put`

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, name: str, value: Value, seconds: float) -> None:
        """Remember a value in the place of any other of this name."""
        self._entries.pop(name, None)
        self._entries[name] = value, self._clock() + seconds
        while self._entries and (len(self._entries) > self._most or self._is_over(next(iter(self._entries)))):
            self._entries.popitem(last=False)

    def get(self, name: str) -> Value | None:
        """The value, if its time is not up."""
        return None if name not in self._entries or self._is_over(name) else self._entries[name][0]

    def left_s(self, name: str, value: Value) -> float:
        """Seconds for which exactly this value is still kept; 0 if it is not."""
        return self._entries[name][1] - self._clock() if self.get(name) == value else 0.0

    def drop(self, name: str) -> None:
        """Forget it."""
        self._entries.pop(name, None)

    def _is_over(self, name: str) -> bool:
        return self._entries[name][1] <= self._clock()
