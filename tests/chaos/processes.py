"""Processes of machines: started from a command, or forked by a nursery. Both are children of this one."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


class Process:
    """A child of this process, by its id."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        """Its exit status, or minus the signal that ended it; None while it runs."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, timeout_s: float) -> None:
        """Return when it has ended; raise TimeoutError if it has not in time."""
        deadline = time.monotonic() + timeout_s
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {self.pid} has not ended")
            time.sleep(0.01)


def start(command: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path) -> Process:
    """A process that runs `command`."""
    with log.open("ab") as output:
        started = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder, env=environment
        )
    started.returncode = 0  # `Process` waits for it, not this object
    return Process(started.pid)


class Nursery:
    """Context manager: starts services without their imports (`tests.chaos.nursery`)."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.nursery", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env=environment,
            text=True,
        )

    def __enter__(self) -> Self:
        if self._answer() != "ready":
            raise ChildProcessError("the nursery did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def fork(self, space: str, log: Path, arguments: Sequence[str]) -> Process:
        """A service in a network namespace; `arguments` are those of tests.chaos.service."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"space": space, "log": str(log), "arguments": list(arguments)}) + "\n")
        self._process.stdin.flush()
        return Process(int(self._answer()))

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()
