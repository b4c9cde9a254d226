"""Sends requests and watches their answers come, in a closed or an open loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from outrider.bench.prompts import Request
from outrider.bench.sample import Answer, Outcome, Sample, Turn
from outrider.client import AsyncClient, Drafter, FinishReason, RequestOptions
from outrider.errors import OutriderError, ResourceExhausted

Ask = Callable[[Request, float], Awaitable[Sample]]
"""Sends a request that is due at so many seconds of the turn; never raises OutriderError."""


class Load:
    """Turns of one mode each, over one client."""

    def __init__(self, client: AsyncClient, common: RequestOptions, timeout_s: float) -> None:
        """`common`: what all requests share. `timeout_s`: the deadline of each request, from when it is sent."""
        self._client = client
        self._common = common
        self._timeout_s = timeout_s

    async def closed_loop(self, mode: Drafter, requests: Sequence[Request], sessions: int) -> Turn:
        """Keep `sessions` requests in flight until all of `requests` have ended."""
        asker = _Asker(self._client, self._options(mode), self._timeout_s)
        waiting = iter(requests)
        samples: list[Sample] = []

        async def session() -> None:
            for request in waiting:  # shared by all sessions: each takes the next one
                samples.append(await asker.ask(request, asker.now_s))

        async with asyncio.TaskGroup() as group:
            for _ in range(min(sessions, len(requests))):
                group.create_task(session())
        return _turn(mode, samples)

    async def open_loop(self, mode: Drafter, requests: Sequence[Request], arrivals: Sequence[float]) -> Turn:
        """Send each request at its time in seconds, ascending, whatever has become of those before it."""
        asker = _Asker(self._client, self._options(mode), self._timeout_s)
        async with asyncio.TaskGroup() as group:
            tasks = []
            for request, due_s in zip(requests, arrivals, strict=True):
                await asyncio.sleep(due_s - asker.now_s)  # returns at once where that is past
                tasks.append(group.create_task(asker.ask(request, due_s)))
        return _turn(mode, [task.result() for task in tasks])

    def _options(self, mode: Drafter) -> RequestOptions:
        return {**self._common, "drafter": mode}


class _Asker:
    """The requests of one turn, on its clock."""

    def __init__(self, client: AsyncClient, options: RequestOptions, timeout_s: float) -> None:
        self._client = client
        self._options = options
        self._timeout_s = timeout_s
        self._begin = time.perf_counter()

    @property
    def now_s(self) -> float:
        """Seconds since the turn began."""
        return time.perf_counter() - self._begin

    async def ask(self, request: Request, scheduled_s: float) -> Sample:
        """Send a request and read its answer to the end."""
        sent_s = self.now_s
        chunks: list[tuple[float, int]] = []
        answer, outcome, error = None, Outcome.COMPLETED, ""
        text, options = request.options(self._options)
        try:
            async with self._client.stream(text, timeout=self._timeout_s, **options) as stream:
                async for chunk in stream:
                    if chunk.token_ids:  # a chunk of text alone was held back: no token came with it
                        chunks.append((self.now_s, len(chunk.token_ids)))
                end_s = self.now_s
                if stream.result.finish_reason is FinishReason.ABORT:
                    outcome, error = Outcome.FAILED, "the answer was aborted"
                else:
                    answer = Answer.of(stream.result)
        except OutriderError as problem:
            end_s = self.now_s
            outcome = Outcome.REFUSED if isinstance(problem, ResourceExhausted) else Outcome.FAILED
            error = f"{_kind(problem)}: {problem}"
        return Sample(
            number=request.number,
            prompt=request.place,
            category=request.prompt.category,
            seed=request.seed,
            scheduled_s=scheduled_s,
            sent_s=sent_s,
            end_s=end_s,
            chunks=tuple(chunks),
            answer=answer,
            outcome=outcome,
            error=error,
        )


def _kind(error: OutriderError) -> str:
    """The name of the error's class in `outrider.errors`; the client may raise a private kind of it."""
    return next(kind.__name__ for kind in type(error).__mro__ if not kind.__name__.startswith("_"))


def _turn(mode: Drafter, samples: Sequence[Sample]) -> Turn:
    ordered = tuple(sorted(samples, key=lambda sample: sample.number))
    return Turn(mode, ordered, max((sample.end_s for sample in ordered), default=0.0))
