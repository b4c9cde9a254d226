"""Keeps a machine's cores from sleeping while something short is measured."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SPIN = "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"


@contextmanager
def awake_cores() -> Iterator[None]:
    """A process on each core that runs when nothing else wants to (SCHED_IDLE).

    A virtual machine gives a core that has nothing to do back to its host, and must get it again: a delay at every hop
    of a round. Servers that wait for a device by polling, or set idle=poll, do not have it.
    """
    spinners = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
