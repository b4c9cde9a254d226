"""A target's answers on disk: JSON lines that only grow, so that whoever writes them can stop anywhere and go on.

`outrider distill` collects them, a coordinator may record its traffic in them, and training reads both.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from outrider.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the target; under `match` the sampling fields and the seed are enough to give it again."""

    key: str  # which prompt, and which of its answers
    category: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    temperature: float
    seed: int


class Corpus:
    """The answers in one file, readable by its owner alone, and what target they are of."""

    def __init__(self, path: Path, fingerprint: str, *, max_bytes: int | None = None) -> None:
        """`fingerprint` is the target's vocabulary's. The file is not written beyond `max_bytes`."""
        self.path = path
        self._fingerprint = fingerprint
        self._max_bytes = max_bytes
        self._file: TextIO | None = None
        self._size = 0

    def __iter__(self) -> Iterator[Answer]:
        return read_answers(self.path, self._fingerprint)

    def __enter__(self) -> Self:
        """Open for `add`; a line that a crash cut short is dropped. Raises OSError if the file cannot be written."""
        if self.path.is_file():
            _drop_torn_line(self.path)
        header = _line({"vocabulary_fingerprint": self._fingerprint})
        is_ours = self.path.is_file() and _first_line(self.path) == header
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._file = os.fdopen(descriptor, "a", encoding="utf-8")
        self._size = os.fstat(descriptor).st_size
        if not is_ours:  # also where another target's answers stand: readers then see that they do not belong together
            self._write(header)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def add(self, answer: Answer) -> bool:
        """Append one answer; False, and nothing is written, where it would make the file too large.

        Raises OSError when the disk is full; what stands before stays good.
        """
        return self._write(_line(asdict(answer)))

    def _write(self, line: str) -> bool:
        assert self._file is not None, "only inside of a with block"
        size = len(line.encode())
        if self._max_bytes is not None and self._size + size > self._max_bytes:
            return False
        self._file.write(line)
        self._file.flush()
        self._size += size
        return True


def read_answers(path: Path, fingerprint: str) -> Iterator[Answer]:
    """The whole lines of a file, none if there is no file. Raises InvalidArgument for another target's or damage."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith("\n"):
                return  # cut short by a crash
            try:
                content = json.loads(line)
                found = content.get("vocabulary_fingerprint")
            except (ValueError, AttributeError) as error:
                raise InvalidArgument(f"{path}:{number}", line[:60], f"a JSON object ({error})") from error
            if found is not None:
                if found != fingerprint:
                    raise InvalidArgument("target", fingerprint, f"that of the answers in {path}, {found}")
                continue
            try:
                yield Answer(
                    content["key"],
                    content["category"],
                    tuple(content["prompt"]),
                    tuple(content["answer"]),
                    content["temperature"],
                    content["seed"],
                )
            except (KeyError, TypeError) as error:
                raise InvalidArgument(f"{path}:{number}", line[:60], f"an answer ({error!r})") from error


def _line(content: dict[str, object]) -> str:
    return json.dumps(content, separators=(",", ":")) + "\n"


def _first_line(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        return lines.readline()


def _drop_torn_line(path: Path) -> None:
    whole = path.read_bytes()
    end = whole.rfind(b"\n") + 1
    if end < len(whole):
        with path.open("r+b") as file:
            file.truncate(end)
