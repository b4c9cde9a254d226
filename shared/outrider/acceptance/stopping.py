"""Which committed tokens are emitted, what text they are, and why a generation ends.

Committed tokens arrive in chunks of a round; every check runs token by token, so where chunks begin and end never
shows in the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from outrider.errors import InvalidArgument


class Detokenizer(Protocol):
    """Turns token ids into text piece by piece; the pieces together are the text of all ids."""

    def push(self, token_id: int) -> str:
        """The text that is complete with this token; empty while a character is unfinished."""
        ...

    def push_all(self, token_ids: Sequence[int]) -> str:
        """The same for several tokens at once."""
        ...

    def finish(self) -> str:
        """The text still held back, at the end."""
        ...


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"  # an end-of-sequence token, a stop id or a stop string
    LENGTH = "length"  # max_tokens or the context length
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class StopConditions:
    """What ends one request."""

    max_tokens: int  # most output tokens, at least 1
    max_length: int  # most tokens of prompt and output together: the context length
    eos_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    include_stop: bool = False  # keep the stop string, or the text of the stop token
    min_tokens: int = 0  # stop strings completed by the first `min_tokens` output tokens do not count

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise InvalidArgument("max_tokens", self.max_tokens, "at least 1")
        if "" in self.stop_strings:
            raise InvalidArgument("stop", "", "a string that is not empty")

    @property
    def final_token_ids(self) -> frozenset[int]:
        """The ids that end the answer, which is also what min_tokens suppresses."""
        return self.stop_token_ids if self.ignore_eos else self.stop_token_ids | self.eos_token_ids


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a generation, with the stop string or the id that caused it, if one did."""

    reason: FinishReason
    stop_text: str | None = None
    stop_token_id: int | None = None


class Emission(NamedTuple):
    """What a chunk of committed tokens gives the client. A tuple, which is made faster: each round makes one.

    `token_ids` is the part of the chunk that belongs to the answer: logprobs, usage and every counter end with it. The
    text may lag behind the ids while a character or a possible stop string is incomplete; it is all there at the end.
    """

    token_ids: tuple[int, ...]
    text: str
    finish: Finish | None = None


@dataclass(slots=True)
class Stopper:
    """Watches one generation. After an emission with a `finish` it takes no more tokens."""

    conditions: StopConditions
    detokenizer: Detokenizer
    prompt_length: int
    emitted: int = 0  # output tokens so far
    finish: Finish | None = None
    _held: str = field(default="", init=False)  # text that could be the beginning of a stop string
    _final: frozenset[int] = field(init=False)
    _most: int = field(init=False)  # output tokens

    def __post_init__(self) -> None:
        self._final = self.conditions.final_token_ids
        room = self.conditions.max_length - self.prompt_length
        self._most = max(0, min(self.conditions.max_tokens, room))

    @property
    def remaining(self) -> int:
        """How many more tokens can be emitted; a proposal longer than this minus one is wasted."""
        return self._most - self.emitted

    def push(self, tokens: Sequence[int]) -> Emission:
        """Take the tokens one round committed."""
        assert self.finish is None, "the generation has ended"
        if self._cannot_end_with(tokens):  # as nearly all chunks: no token needs a look of its own
            self.emitted += len(tokens)
            return Emission(tuple(tokens), self.detokenizer.push_all(tokens))
        text: list[str] = []
        taken = 0
        if self.remaining == 0:
            text.append(self._end(Finish(FinishReason.LENGTH)))
        while self.finish is None and taken < len(tokens):
            text.append(self._take(tokens[taken]))
            taken += 1
        return Emission(tuple(tokens[:taken]), "".join(text), self.finish)

    def abort(self) -> Emission:
        """End now, with the text held back so far."""
        assert self.finish is None, "the generation has ended"
        text = self._end(Finish(FinishReason.ABORT))
        return Emission((), text, self.finish)

    def _cannot_end_with(self, tokens: Sequence[int]) -> bool:
        return len(tokens) < self.remaining and not self.conditions.stop_strings and self._final.isdisjoint(tokens)

    def _take(self, token: int) -> str:
        self.emitted += 1
        if token in self._final:
            own_text = self.detokenizer.push(token) if self.conditions.include_stop else ""
            return self._end(Finish(FinishReason.STOP, stop_token_id=token), own_text)
        text = self._scan(self.detokenizer.push(token))
        if self.finish is None and self.remaining == 0:
            text += self._end(Finish(FinishReason.LENGTH))
        return text

    def _end(self, finish: Finish, last_text: str = "") -> str:
        """Flush everything; a stop string completed by the flushed text still counts."""
        text = self._scan(last_text + self.detokenizer.finish())
        if self.finish is None:
            self.finish = finish
            text += self._held
            self._held = ""
        return text

    def _scan(self, new: str) -> str:
        """Add `new` to the held text; return what is safe to emit, ending the generation at a stop string."""
        if not self.conditions.stop_strings or not new:
            return new
        text, self._held = self._held + new, ""
        if self.emitted > self.conditions.min_tokens and (match := self._first_stop(text, len(text) - len(new))):
            start, stop = match
            self.finish = Finish(FinishReason.STOP, stop_text=stop)
            return text[: start + len(stop)] if self.conditions.include_stop else text[:start]
        safe = len(text) - self._longest_beginning(text)
        self._held = text[safe:]
        return text[:safe]

    def _first_stop(self, text: str, old: int) -> tuple[int, str] | None:
        """Start of the stop string that completes first in `text[old:]`; of several that end together, the longest.

        Deciding by the end keeps the result independent of how tokens cut the text.
        """
        found: list[tuple[int, int, str]] = []
        for stop in self.conditions.stop_strings:
            start = text.find(stop, max(0, old - len(stop) + 1))
            if start >= 0:
                found.append((start + len(stop), start, stop))
        if not found:
            return None
        _, start, stop = min(found)
        return start, stop

    def _longest_beginning(self, text: str) -> int:
        """Length of the longest end of `text` that is a proper beginning of a stop string."""
        longest = max(len(stop) for stop in self.conditions.stop_strings) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self.conditions.stop_strings if len(stop) > size):
                return size
        return 0
