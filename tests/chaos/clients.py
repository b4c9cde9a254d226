"""Clients that keep to the rule for a coordinator that dies, to ask another one with the same seed; what they check."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from outrider.client import AsyncClient, Chunk, Completion
from outrider.errors import Cancelled, DeadlineExceeded, OutriderError, ResourceExhausted, Unavailable
from tests.chaos.plan import Asked, Manner

PATIENCE_S = 12.0
"""Longest wait for a chunk before a client tries another coordinator."""

LOST_AFTER_S = 300.0
"""A request without an answer by then counts as lost. Processes take half a minute to start on a busy machine."""

PAUSE_S = 0.3
TRY_AGAIN = (Unavailable, DeadlineExceeded, ResourceExhausted)


@dataclass
class Tally:
    """What the clients saw."""

    outcomes: Counter[str] = field(default_factory=Counter)
    attempts: Counter[int] = field(default_factory=Counter)  # requests by how often they were asked
    reasons: Counter[str] = field(default_factory=Counter)  # why they were asked again
    first_token_s: list[float] = field(default_factory=list)
    total_s: list[float] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    begun: int = 0


class _Left(Exception):
    """The client hung up."""


class Clients:
    """All clients of a run: they know the coordinators, and what each answer has to be."""

    def __init__(self, addresses: Sequence[str], expected: Sequence[Completion | None]) -> None:
        """`expected`: the undisturbed answer to each request; None where the rule promises a distribution only."""
        self._clients = [AsyncClient(address, timeout=90) for address in addresses]
        self._expected = expected
        self.tally = Tally()

    async def close(self) -> None:
        for client in self._clients:
            await client.close()

    async def ask(self, number: int, asked: Asked) -> None:
        """One request, asked until it is answered, and its answer checked."""
        tally, began = self.tally, time.monotonic()
        tally.begun += 1
        for attempt in itertools.count():
            client = self._clients[(asked.first + attempt) % len(self._clients)]
            try:
                outcome = await self._attempt(number, attempt, asked, client, began)
            except TRY_AGAIN as error:
                tally.reasons[f"{type(error).__name__}: {_kind(error)}"] += 1
                if time.monotonic() - began > LOST_AFTER_S:
                    outcome = "lost"
                    self._find(number, asked, f"no answer after {attempt + 1} attempts")
                    break
                await asyncio.sleep(error.retry_after_s if isinstance(error, ResourceExhausted) else PAUSE_S)
            except OutriderError as error:
                self._find(number, asked, f"attempt {attempt} ended with {type(error).__name__}: {error}")
                outcome = "failed"
                break
            else:
                break
        tally.outcomes[outcome] += 1
        tally.attempts[attempt + 1] += 1
        tally.total_s.append(time.monotonic() - began)

    async def _attempt(self, number: int, attempt: int, asked: Asked, client: AsyncClient, began: float) -> str:
        name, chunks = f"r{number}-{attempt}", list[Chunk]()
        options = asked.options | asked.speculation
        aborted = False
        async with client.stream(asked.prompt, request_id=name, **options) as stream:
            try:
                while True:
                    try:
                        async with asyncio.timeout(PATIENCE_S):
                            chunk = await anext(stream)
                    except TimeoutError:
                        raise DeadlineExceeded("no chunk came in time") from None
                    except Cancelled:
                        raise Unavailable("the call was cancelled from the other side") from None
                    if not chunks and attempt == 0:
                        self.tally.first_token_s.append(time.monotonic() - began)
                    chunks.append(chunk)
                    if asked.manner is Manner.SLOW:
                        await asyncio.sleep(asked.pause_s)
                    if len(chunks) == asked.after + 1:
                        if asked.manner is Manner.LEAVE:
                            raise _Left
                        if asked.manner is Manner.ABORT:
                            aborted = await _abort(client, name)
            except StopAsyncIteration:
                pass
            except _Left:
                return "left"
            finally:
                self._check_so_far(number, asked, chunks)
            self._check(number, asked, chunks, stream.result, aborted=aborted)
            return "aborted" if stream.result.finish_reason == "abort" else "answered"

    def _check_so_far(self, number: int, asked: Asked, chunks: Sequence[Chunk]) -> None:
        """Whatever a client has seen, also of an answer that broke off, begins the right answer."""
        expected = self._expected[number]
        if expected is None:
            return
        tokens = [token for chunk in chunks for token in chunk.token_ids]
        if tokens != list(expected.token_ids[: len(tokens)]):
            self._find(number, asked, f"got {tokens}, not the beginning of {list(expected.token_ids)}")
        text = "".join(chunk.text for chunk in chunks)
        if asked.manner is Manner.ABORT:
            text = text.rstrip("\ufffd")  # it may have ended within a character
        if not expected.text.startswith(text):
            self._find(number, asked, f"got {text!r}, not the beginning of {expected.text!r}")

    def _check(self, number: int, asked: Asked, chunks: Sequence[Chunk], result: Completion, *, aborted: bool) -> None:
        """A finished answer is the undisturbed one, in every way that a client can see."""
        streamed = tuple(token for chunk in chunks for token in chunk.token_ids)
        if streamed != result.token_ids or len(streamed) != result.usage.completion_tokens:
            self._find(number, asked, f"streamed {streamed}, reported {result.token_ids}, {result.usage}")
        if len(streamed) > asked.options["max_tokens"]:
            self._find(number, asked, f"{len(streamed)} tokens are more than were asked for")
        if result.finish_reason == "abort":
            if not aborted:
                self._find(number, asked, "aborted, but nobody asked for that")
            return
        expected = self._expected[number]
        if expected is None:
            return
        for field_name in ("token_ids", "text", "finish_reason", "stop", "seed"):
            ours, theirs = getattr(expected, field_name), getattr(result, field_name)
            if ours != theirs:
                self._find(number, asked, f"{field_name} is {theirs!r}, undisturbed {ours!r}")
        if expected.usage.prompt_tokens != result.usage.prompt_tokens:
            self._find(number, asked, f"{result.usage.prompt_tokens} prompt tokens, not {expected.usage.prompt_tokens}")

    def _find(self, number: int, asked: Asked, what: str) -> None:
        self.tally.findings.append(f"request {number} ({asked.speculation['drafter']}, {asked.options}): {what}")


async def _abort(client: AsyncClient, name: str) -> bool:
    """Call Abort; the answer may be lost with the coordinator, and the abort done all the same."""
    with suppress(*TRY_AGAIN, Cancelled):
        await client.abort(name, timeout=3)
    return True


def _kind(error: OutriderError) -> str:
    """An error's text without what differs from case to case."""
    text = str(error)
    for known in (
        "Connection refused", "no chunk came", "Socket closed", "Connection reset", "Stream removed", "GOAWAY",
        "no verifier is connected", "was lost", "Deadline Exceeded", "cancelled from the other side", "keepalive",
        "shut", "drain", "recvmsg", "Connection timed out", "Broken pipe", "No route", "failed to connect",
    ):  # fmt: skip
        if known.lower() in text.lower():
            return known
    return text[:160]
