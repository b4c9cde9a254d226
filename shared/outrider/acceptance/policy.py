"""What a request decides about its speculation beforehand."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """What is decided for a request beforehand."""

    fixed_length: bool = False  # propose as much as is allowed, whatever comes of it
    fallback_window: int = 200  # drafted tokens
    fallback_acceptance: float = 0.5  # 0 switches the fallback off
    max_siblings: int = 0  # most tokens beside the chain of a round
    always_siblings: bool = False  # so many in every round with a guess, whatever comes of it
