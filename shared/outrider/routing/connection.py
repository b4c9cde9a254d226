"""One process's connection to the registry: bounded waits, up or down, and one log line when that changes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.exceptions import RedisError

from outrider.errors import Unavailable
from outrider.routing.redis_url import RedisUrl, connect
from outrider.telemetry import metrics
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

_WAITS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class RegistryConnection:
    """Runs scripts on a Redis. Not tried before the first `run`; nothing here blocks the event loop."""

    def __init__(self, url: RedisUrl, *, prefix: str, timeout_s: float) -> None:
        """`timeout_s` bounds each script, connecting included."""
        self.url = url
        # In braces: a cluster keeps all our keys on one node, so that a script may name several.
        self._prefix = f"{{{prefix}}}"
        self._timeout_s = timeout_s
        self._client = connect(url, timeout_s=timeout_s)
        self._failures = 0
        self._reached = False

    @property
    def up(self) -> bool:
        """True if the last script ran, or none was tried."""
        return self._failures == 0

    def key(self, *parts: str) -> str:
        """The full name of a key."""
        return ":".join([self._prefix, *parts])

    async def run(self, script: str, keys: Sequence[str], *arguments: str | int, probe: bool = False) -> Any:
        """Run a script. Raise Unavailable if the registry cannot be reached or refuses.

        While it is down only a `probe`, which nobody waits for, tries; everything else is told at once.
        """
        if not self.up and not probe:
            raise Unavailable(f"registry {self.url} is away")
        task = asyncio.current_task()
        assert task is not None
        cancellations = task.cancelling()
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._client.eval(script, len(keys), *keys, *arguments)
        except (RedisError, OSError, TimeoutError, RuntimeError) as error:
            # RuntimeError is uvloop's word for a connection that was closed in the very moment of writing to it.
            _pass_on_cancellation(task, cancellations)
            raise self._failed(error) from None
        _pass_on_cancellation(task, cancellations)
        self._succeeded()
        return answer

    def wait_s(self, period_s: float) -> float:
        """Seconds until a task that works in periods should try again: sooner than that at first while down."""
        return period_s if self.up else min(period_s, _WAITS_S[min(self._failures, len(_WAITS_S)) - 1])

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def _succeeded(self) -> None:
        if self._failures or not self._reached:
            log.info("registry %s is %s", self.url, "back" if self._reached else "up")
        self._failures, self._reached = 0, True
        metrics.registry_up.set(1)

    def _failed(self, error: Exception) -> Unavailable:
        reason = str(error) or f"no answer within {self._timeout_s:g} s"
        self._failures += 1
        if self._failures == 1:
            log.warning("registry %s is away, going on without it: %s", self.url, reason)
        metrics.registry_failures.add(1)
        metrics.registry_up.set(0)
        return Unavailable(f"registry {self.url}: {reason}")


def _pass_on_cancellation(task: asyncio.Task[Any], before: int) -> None:
    """Raise CancelledError if the task was cancelled meanwhile.

    The client waits with asyncio.wait_for, which in Python 3.11 loses a cancellation that comes along with an answer:
    the task would go on for ever, and whoever ended it would wait for ever.
    """
    if task.cancelling() > before:
        raise asyncio.CancelledError
