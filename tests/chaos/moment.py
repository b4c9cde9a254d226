"""A replica that waits at a chosen point of a session, so that a test can hurt it, or anybody, just there.

A file FOLDER/ROLE holds a position. The first replica of that role that is to run a session's tokens up to there
renames it to ROLE.PID, and runs nothing more until that file is gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.engine.engine import Engine

LONGEST_S = 60.0


def wait_at_moments(folder: Path, role: str) -> None:
    """Have `Engine.forward` of this process look for orders."""
    forward = Engine.forward

    def waiting(self: Engine, feeds: Sequence[Any], *more: Any) -> Any:
        furthest = max(len(feed.sequence.cached) + len(feed.tokens) for feed in feeds)
        if (mine := _claim(folder, role, furthest)) is not None:
            deadline = time.monotonic() + LONGEST_S
            while mine.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        return forward(self, feeds, *more)

    Engine.forward = waiting  # type: ignore[method-assign]


def _claim(folder: Path, role: str, furthest: int) -> Path | None:
    order, mine = folder / role, folder / f"{role}.{os.getpid()}"
    try:
        if int(order.read_text()) > furthest:
            return None
        order.rename(mine)
    except FileNotFoundError:
        return None  # there is no order, or another process was faster
    return mine


class Moments:
    """The test's end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def order(self, role: str, position: int) -> None:
        """Let the next `role` wait that is to run a session's tokens up to `position`."""
        written = self.folder / "new"
        written.write_text(str(position))
        written.rename(self.folder / role)

    def waiting(self, role: str) -> int | None:
        """The process that waits, if one does."""
        return next((int(path.suffix[1:]) for path in self.folder.glob(f"{role}.*")), None)

    def release(self, *roles: str) -> None:
        """Let it go on; nobody waits any more."""
        for role in roles:
            for path in (self.folder / role, *self.folder.glob(f"{role}.*")):
                path.unlink(missing_ok=True)
