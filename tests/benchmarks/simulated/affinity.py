"""Which cores a process may use, all its threads."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress


def keep_on(pid: int, cores: Collection[int]) -> None:
    """Keep a process on these cores: every thread that it has, and so every thread and process that those start."""
    kept = set[int]()
    while new := set(map(int, os.listdir(f"/proc/{pid}/task"))) - kept:  # one may have begun in between
        for thread in new:
            with suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(thread, cores)
        kept |= new
