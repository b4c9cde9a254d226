"""From token ids to text, one token at a time, so that the pieces joined are what decoding all ids at once gives."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from typing import Protocol

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class Detokenizer(Protocol):
    """Turns one sequence of ids into text; made fresh for each sequence."""

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; empty while a character is incomplete."""

    def push_all(self, token_ids: Sequence[int]) -> str:
        """The same for several tokens at once."""

    def finish(self) -> str:
        """What was still held back; an incomplete character becomes U+FFFD. Ends the sequence."""


TokenOf = Callable[[int], str | None]
"""The token of an id, or None for one that leaves no trace in the text: an unknown id, a special token."""


class ByteDetokenizer:
    """For tokenizers whose tokens are strings of bytes (GPT-2's byte-level BPE: most models).

    Exact, and constant work per token: bytes join, and only complete UTF-8 comes out.
    """

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        """`bytes_of`: what a token stands for; empty for one that leaves no trace in the text."""
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """See Detokenizer."""
        return self._decoder.decode(self._bytes_of(token_id))

    def push_all(self, token_ids: Sequence[int]) -> str:
        """See Detokenizer."""
        return self._decoder.decode(b"".join(map(self._bytes_of, token_ids)))

    def finish(self) -> str:
        """See Detokenizer."""
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For every other tokenizer (SentencePiece, WordPiece): decodes the last few tokens anew and emits what grew.

    The tokens of the piece emitted last stay in the window as context, because a decoder treats the first token of
    a text in its own way. Under `byte_fallback` text is held back for a whole run of tokens such as <0xE2>, since one
    bad byte spoils the text of its run. `may_split` says that other tokens can end inside a character too.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], token_of: TokenOf, *, byte_fallback: bool, may_split: bool
    ) -> None:
        self._decode = decode
        self._token_of = token_of
        self._byte_fallback = byte_fallback
        self._may_split = may_split
        self._window: list[int] = []
        self._emitted = 0  # tokens of the window whose text is out
        self._context = ""  # their text, decoded alone

    def push(self, token_id: int) -> str:
        """See Detokenizer."""
        token = self._token_of(token_id)
        if token is None:
            return ""
        self._window.append(token_id)
        if self._byte_fallback and _BYTE_TOKEN.fullmatch(token):
            return ""
        text = self._decode(self._window)
        # A decoder may change its mind about the end of a text (or about its context) once more tokens are there.
        unsettled = not text.startswith(self._context) or (self._may_split and text.endswith(REPLACEMENT))
        return "" if unsettled else self._emit(text)

    def push_all(self, token_ids: Sequence[int]) -> str:
        """See Detokenizer."""
        return "".join(map(self.push, token_ids))

    def finish(self) -> str:
        """See Detokenizer."""
        return self._emit(self._decode(self._window))

    def _emit(self, text: str) -> str:
        piece = text[len(self._context) :]
        if piece:
            self._window = self._window[self._emitted :]
            self._emitted = len(self._window)
            self._context = self._decode(self._window)
        return piece
