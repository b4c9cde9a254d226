"""One service in a process of its own: start, ready line, logs, end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO

from outrider.errors import OutriderError

Log = Callable[[str, str], None]
"""Gets a role and one line that the service logged; called from a thread of that service."""

LAST_LINES = 20
SPAWN_TIMEOUT_S = 60.0
KILL_TIMEOUT_S = 10.0


class ServiceFailed(OutriderError):
    """A service did not start, or died; the message ends with the last lines it logged."""


class ServiceProcess:
    """`python -m MODULE FLAGS...` as a child process that dies with this one.

    `changed` is notified when the service becomes ready and when it ends.
    """

    def __init__(
        self, role: str, module: str, flags: Sequence[str], *, changed: threading.Condition, log: Log | None = None
    ) -> None:
        self.role = role
        self._command = [sys.executable, "-m", "outrider_cli.child", str(os.getpid()), module, *flags]
        self._changed = changed
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self._error: OSError | None = None
        self._address = ""
        self._ended = False
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
        # The kernel ties a child to the thread that started it, so this one stays until the child has ended.
        self._keeper = threading.Thread(target=self._keep, name=f"{role}-process", daemon=True)
        self._keeper.start()
        with self._changed:
            self._changed.wait_for(lambda: self._process is not None or self._error is not None, SPAWN_TIMEOUT_S)
        if self._error is not None:
            raise ServiceFailed(f"{role}: cannot start {sys.executable}: {self._error}")

    @property
    def pid(self) -> int:
        """The service's own process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def address(self) -> str:
        """Where it serves; empty until it says that it is ready."""
        return self._address

    @property
    def ended(self) -> bool:
        """True once the process is gone and everything it wrote has been read."""
        return self._ended

    @property
    def returncode(self) -> int | None:
        """The exit status, or minus the signal that killed it; None while it runs."""
        return self._process.returncode if self._process is not None and self._ended else None

    def describe_failure(self, what: str) -> ServiceFailed:
        """An error that says `what` happened, and what the service last logged."""
        logged = "".join(f"\n  {line}" for line in self._last_lines) or " nothing"
        return ServiceFailed(f"{self.role} {what}. It last logged:{logged}")

    def describe_end(self) -> ServiceFailed:
        """The error of a service that ended by itself."""
        code = self.returncode
        if code is not None and code < 0:
            return self.describe_failure(f"was killed by {signal.Signals(-code).name}")
        return self.describe_failure(f"ended with exit code {code}")

    def signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self, grace_s: float) -> None:
        """SIGTERM, then SIGKILL after `grace_s` seconds. Returns when it is gone; harmless if it is already."""
        self.signal(signal.SIGTERM)
        if not self._wait_ended(grace_s):
            self.signal(signal.SIGKILL)
            self._wait_ended(KILL_TIMEOUT_S)
        self._keeper.join(KILL_TIMEOUT_S)

    def _wait_ended(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._ended, timeout_s)

    def _keep(self) -> None:
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                # Ctrl-C in a terminal goes to the whole foreground group; the children are stopped in order instead.
                process_group=0,
            )
        except OSError as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()
            return
        assert process.stdout is not None
        assert process.stderr is not None
        readers = [
            threading.Thread(target=self._read, args=(stream, take), name=f"{self.role}-{name}", daemon=True)
            for name, stream, take in (
                ("stdout", process.stdout, self._take_output),
                ("stderr", process.stderr, self._take_log),
            )
        ]
        with self._changed:
            self._process = process
            self._changed.notify_all()
        for reader in readers:
            reader.start()
        process.wait()
        for reader in readers:
            reader.join(timeout=1)  # a process that the service left behind may hold the pipe open
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _read(self, stream: IO[str], take: Callable[[str], None]) -> None:
        with stream:
            for line in stream:
                take(line.rstrip("\n"))

    def _take_output(self, line: str) -> None:
        match line.split(" "):
            case ["ready", self.role, address]:
                with self._changed:
                    self._address = address
                    self._changed.notify_all()
            case _:
                self._take_log(line)

    def _take_log(self, line: str) -> None:
        self._last_lines.append(line)
        if self._log is not None:
            self._log(self.role, line)
