"""Becomes one service that cannot outlive the process which started it.

    python -m outrider_cli.child PARENT_PID MODULE [FLAGS...]

Asks the kernel for SIGKILL at the parent's death (Linux; elsewhere this is a plain exec), then replaces itself. A step
of its own because the alternative, code between fork and exec in a process with threads, can deadlock.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends; exit at once if that was too late."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        raise SystemExit("the parent process ended before this one began")


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.execv(sys.executable, [sys.executable, "-m", *sys.argv[2:]])  # noqa: S606 (no shell is the point)
