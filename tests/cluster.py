"""A whole cluster inside the test's event loop: the real servers and streams on loopback, without process start-up."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from outrider.client import AsyncClient, Completion
from outrider.engine.replica import Replica, load
from outrider_coordinator.main import Coordinator
from outrider_coordinator.settings import CoordinatorSettings
from outrider_draft.process import assemble as assemble_draft
from outrider_draft.settings import DraftSettings
from outrider_verifier.process import assemble as assemble_verifier
from outrider_verifier.process import load_own_draft
from outrider_verifier.settings import VerifierSettings

REPLICA = {
    "dtype": "float32",
    "device": os.environ.get("OUTRIDER_TEST_DEVICE", "cpu"),
    "kv_tokens": 16384,
    "max_batch_tokens": 256,
    "max_proposal": 15,
}


@dataclass
class Cluster:
    """Addresses and parts of a running cluster."""

    address: str
    coordinator: Coordinator
    verifiers: list[Replica]
    drafts: list[Replica]
    client: AsyncClient
    stack: AsyncExitStack = field(repr=False)

    async def generate(self, prompt: str | Sequence[int], **options: Any) -> Completion:
        """One answer; a prompt of ids goes as ids."""
        if isinstance(prompt, str):
            return await self.client.generate(prompt, **options)
        return await self.client.generate(token_ids=list(prompt), **options)


async def start_verifier(model: Path, **settings: Any) -> tuple[Replica, str]:
    """A verifier that serves; its address."""
    options = VerifierSettings(model=str(model), **(REPLICA | settings))
    own = load_own_draft(options)
    replica = assemble_verifier(options, *load(options), own)
    return replica, await replica.start()


async def start_draft(model: Path, **settings: Any) -> tuple[Replica, str]:
    """A draft that serves; its address."""
    options = DraftSettings(model=str(model), **(REPLICA | settings))
    replica = assemble_draft(options, *load(options))
    return replica, await replica.start()


@asynccontextmanager
async def running_cluster(
    target: Path,
    *drafts: Path,
    verifiers: int = 1,
    verifier: dict[str, Any] | None = None,
    draft: dict[str, Any] | None = None,
    wait_for_drafts: bool = True,
    more_verifiers: Sequence[str] = (),
    more_drafts: Sequence[str] = (),
    **coordinator: Any,
) -> AsyncIterator[Cluster]:
    """Verifiers of `target`, one draft for each of `drafts`, a coordinator, a client.

    `more_verifiers` and `more_drafts` are the addresses of replicas that the test has started itself.
    """
    async with AsyncExitStack() as stack:
        targets = [await start_verifier(target, **(verifier or {})) for _ in range(verifiers)]
        helpers = [await start_draft(path, **(draft or {})) for path in drafts]
        for replica, _ in (*targets, *helpers):
            stack.push_async_callback(replica.stop)
        settings = CoordinatorSettings(
            verifiers=[*(address for _, address in targets), *more_verifiers],
            drafts=[*(address for _, address in helpers), *more_drafts],
            **({"listen": "127.0.0.1:0", "default_max_tokens": 32} | coordinator),
        )
        parts = Coordinator(settings)
        stack.push_async_callback(parts.disconnect)
        await parts.connect()
        address = await parts.server.start()
        stack.push_async_callback(parts.server.grpc.stop, 0)
        if wait_for_drafts:
            for link in (*parts.replicas.verifiers, *parts.replicas.drafts):
                await link.wait_ready(30)
        client = await stack.enter_async_context(AsyncClient(address))
        yield Cluster(
            address, parts, [replica for replica, _ in targets], [replica for replica, _ in helpers], client, stack
        )


async def until(condition: Callable[[], bool], timeout_s: float = 20) -> None:
    """Wait for something that the cluster brings about by itself; TimeoutError if it does not."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 (what is waited for has no event that a test could see)
            await asyncio.sleep(0.02)


@contextmanager
def slow_passes(cluster: Cluster, seconds: float = 0.03) -> Iterator[None]:
    """Each pass of the verifiers takes so long: nothing ends while a request is on its way to its queue."""
    with ExitStack() as stack:
        for replica in cluster.verifiers:
            core = replica._worker._core

            def step(meanwhile: Callable[[], None], fast: Callable[..., Any] = core.step) -> Any:
                time.sleep(seconds)
                return fast(meanwhile)

            stack.enter_context(mock.patch.object(core, "step", step))
        yield
