"""Traffic as training data: a sample of prompts and answers, for `outrider distill --from-log`. Off unless asked for.

The lines are those of `outrider.distill.corpus`. They hold what clients wrote, so the file is readable by its owner
alone, and it never grows beyond its limit.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import zlib
from pathlib import Path

from outrider.errors import ConfigError
from outrider.telemetry.logs import get_logger
from outrider_coordinator.session import Session

log = get_logger(__name__)

MAX_WAITING = 1024
"""Answers that wait for the disk; more are not recorded."""


class Recorder:
    """Writes answers on a thread of its own, so that a slow disk holds nobody up. `stop` ends it."""

    def __init__(self, path: Path, *, share: float, max_bytes: int, vocabulary_fingerprint: str) -> None:
        """`share` of the answers are recorded, until the file has `max_bytes`. Raises ConfigError for a bad path."""
        self._share = share
        self._max_bytes = max_bytes
        self._header = json.dumps({"vocabulary_fingerprint": vocabulary_fingerprint}) + "\n"
        self._lines: queue.Queue[str | None] = queue.Queue(MAX_WAITING)
        try:
            self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"record_to is {str(path)!r}, which cannot be written: {error.strerror}") from error
        self._size = os.fstat(self._file.fileno()).st_size
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def add(self, session: Session) -> None:
        """Record a finished answer, if it is one of the sample."""
        request = session.request
        answer = session.committed[len(request.prompt) :]
        if not answer or not self._chosen(request.request_id):
            return
        content = {
            "key": request.request_id,
            "category": "traffic",
            "prompt": request.prompt,
            "answer": answer,
            "temperature": request.params.temperature,
            "seed": request.seed,
        }
        try:
            self._lines.put_nowait(json.dumps(content, separators=(",", ":")) + "\n")
        except queue.Full:
            log.warning("an answer is not recorded: the disk is too slow")

    def stop(self, timeout_s: float = 5.0) -> None:
        """Write what waits and close the file."""
        self._lines.put(None, timeout=timeout_s)
        self._thread.join(timeout_s)

    def _chosen(self, request_id: str) -> bool:
        return zlib.crc32(request_id.encode()) / 2**32 < self._share

    def _run(self) -> None:
        try:
            self._write(self._header)  # readers take every one of them, so that a target that changed is noticed
            while (line := self._lines.get()) is not None:
                self._write(line)
        except OSError as error:
            log.warning("recording ends: %s", error)
            while self._lines.get() is not None:
                pass
        finally:
            self._file.close()

    def _write(self, line: str) -> None:
        size = len(line.encode())
        if self._size + size > self._max_bytes:
            if self._max_bytes:
                log.warning("recording ends: the file has reached its limit of %d bytes", self._max_bytes)
            self._max_bytes = 0
            return
        self._file.write(line)
        self._file.flush()
        self._size += size
