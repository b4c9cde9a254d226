"""A verifier that signals itself in the middle of a prompt: nobody outside could meet that moment.

    TEST_HURT=FILE python -m tests.e2e.hurting_verifier [FLAGS...]

As soon as FILE exists and some prompt is half computed, the process takes the file away and sends itself the signal
whose number stands in it. Of several processes with one FILE one does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.engine.engine import Engine
from outrider_verifier.main import main

HALF = 256
"""Tokens of the prompt that are computed by then."""


def hurt_in_prefill(order: Path) -> None:
    """Have `Engine.forward` look for the order whenever it is to go on with a prompt without ending it."""
    forward = Engine.forward

    def looking(self: Engine, feeds: Sequence[Any], *more: Any) -> Any:
        if any(not feed.want_logits and len(feed.sequence.cached) >= HALF for feed in feeds):
            mine = order.with_suffix(f".{os.getpid()}")
            try:
                order.rename(mine)
            except FileNotFoundError:
                pass  # there is none, or another process was faster
            else:
                os.kill(os.getpid(), int(mine.read_text()))
        return forward(self, feeds, *more)

    Engine.forward = looking  # type: ignore[method-assign]


if __name__ == "__main__":
    hurt_in_prefill(Path(os.environ["TEST_HURT"]))
    sys.exit(main(sys.argv[1:]))
