"""Traffic as training data, if that is asked for: a sample of the answers, for `outrider distill --from-log`."""

from __future__ import annotations

import queue
import threading
import zlib
from pathlib import Path

from outrider.corpus import Answer, Corpus
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
        self._answers: queue.Queue[Answer | None] = queue.Queue(MAX_WAITING)
        try:
            self._corpus = Corpus(path, vocabulary_fingerprint, max_bytes=max_bytes).__enter__()
        except OSError as error:
            raise ConfigError(f"record_to is {str(path)!r}, which cannot be written: {error.strerror}") from error
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def add(self, session: Session) -> None:
        """Record a finished answer, if it is one of the sample."""
        request = session.request
        answer = session.committed[len(request.prompt) :]
        if not answer or zlib.crc32(request.request_id.encode()) / 2**32 >= self._share:
            return
        try:
            self._answers.put_nowait(
                Answer(
                    key=request.request_id,
                    category="traffic",
                    prompt=tuple(request.prompt),
                    answer=tuple(answer),
                    temperature=request.params.temperature,
                    seed=request.seed,
                )
            )
        except queue.Full:
            log.warning("an answer is not recorded: the disk is too slow")

    def stop(self, timeout_s: float = 5.0) -> None:
        """Write what waits and close the file."""
        try:
            self._answers.put(None, timeout=timeout_s)
        except queue.Full:
            log.warning("what waits is not recorded: the disk does not answer")
            return
        self._thread.join(timeout_s)

    def _run(self) -> None:
        trouble = ""
        with self._corpus as corpus:
            while (answer := self._answers.get()) is not None:
                if trouble:
                    continue
                try:
                    trouble = "" if corpus.add(answer) else "the file has reached its limit"
                except OSError as error:
                    trouble = str(error)
                if trouble:
                    log.warning("recording ends: %s", trouble)
