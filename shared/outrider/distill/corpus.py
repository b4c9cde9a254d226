"""The target's answers on disk: JSON lines that only grow, so that a collection can stop anywhere and go on.

A coordinator that records its traffic writes the same lines; see `outrider_coordinator.recorder`.
"""

from __future__ import annotations

import json
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
    """The answers in one file, and what target they are of."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        """`fingerprint` is the target's vocabulary's. Raises InvalidArgument if the file is another target's."""
        self.path = path
        self._fingerprint = fingerprint
        self._file: TextIO | None = None

    def __iter__(self) -> Iterator[Answer]:
        return read_answers(self.path, self._fingerprint)

    def __enter__(self) -> Self:
        """Open for `add`; a line that a crash cut short is dropped."""
        if self.path.is_file():
            whole = self.path.read_bytes()
            end = whole.rfind(b"\n") + 1
            if end < len(whole):
                with self.path.open("r+b") as file:
                    file.truncate(end)
        self._file = self.path.open("a", encoding="utf-8")
        if self._file.tell() == 0:
            self._write({"vocabulary_fingerprint": self._fingerprint})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def add(self, answer: Answer) -> None:
        """Append one answer. Raises OSError when the disk is full; what stands before stays good."""
        self._write(asdict(answer))

    def _write(self, content: dict[str, object]) -> None:
        assert self._file is not None, "only inside of a with block"
        self._file.write(json.dumps(content, separators=(",", ":")) + "\n")
        self._file.flush()


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
