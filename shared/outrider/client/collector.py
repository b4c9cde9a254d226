"""Puts the events of one Generate call together; no I/O."""

from __future__ import annotations

from outrider.client.convert import chunk_from_proto, completion_from_proto
from outrider.client.results import Chunk, Completion
from outrider.errors import InternalError
from outrider.v1 import generation_pb2


class Collector:
    """Feed it every response, then call `end`. A service that breaks the protocol is an InternalError."""

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []
        self._completion: Completion | None = None
        self._ended = False

    def feed(self, response: generation_pb2.GenerateResponse) -> Chunk | None:
        """The chunk that `response` carries, or None if it is the final message."""
        if self._completion is not None:
            raise InternalError("the service sent more after the end of the answer")
        if response.WhichOneof("event") == "finished":
            self._completion = completion_from_proto(self._chunks, response.finished)
            return None
        chunk = chunk_from_proto(response.delta)
        self._chunks.append(chunk)
        return chunk

    def end(self) -> None:
        """The call ended without an error."""
        if self._completion is None:
            raise InternalError("the stream ended before the answer did")
        self._ended = True

    @property
    def ended(self) -> bool:
        """True after `end`: there is nothing more to read."""
        return self._ended

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(chunk.text for chunk in self._chunks)

    @property
    def completion(self) -> Completion:
        """The whole answer. Raises RuntimeError before the stream has been read to its end."""
        if self._completion is None or not self._ended:
            raise RuntimeError("the result is known at the end of the stream: read every chunk first, or call read()")
        return self._completion
