"""The coordinator's connections: which verifiers and drafts there are, whether they fit, and who gets which."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from outrider.errors import FailedPrecondition, Unavailable
from outrider.protocol.items import DraftReply, DraftRequest, ModelInfo, VerifierReply, VerifierRequest
from outrider.routing.choose import least_loaded
from outrider.routing.store import Store
from outrider.rpc import codec
from outrider.rpc.replica_link import ReplicaLink
from outrider.rpc.tls import ClientTls
from outrider.telemetry.logs import get_logger
from outrider.text.tokenizer import Tokenizer
from outrider.text.vocabulary import first_difference
from outrider.v1 import model_pb2, model_pb2_grpc

log = get_logger(__name__)

VerifierLink = ReplicaLink[VerifierRequest, VerifierReply]
DraftLink = ReplicaLink[DraftRequest, DraftReply]

Link = TypeVar("Link", VerifierLink, DraftLink)

FETCH_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Target:
    """The model this coordinator serves, as its first verifier told it."""

    model: ModelInfo
    tokenizer: Tokenizer


class Replicas:
    """All replicas. `run` (a task) keeps them connected; sessions are bound to them and released."""

    def __init__(
        self,
        verifiers: Sequence[str],
        drafts: Sequence[str],
        store: Store,
        *,
        name: str,
        tls: ClientTls | None = None,
    ) -> None:
        """`verifiers` and `drafts` are addresses, host:port; without `tls` connections to them are unencrypted."""
        self._store = store
        self._target: asyncio.Future[Target] = asyncio.get_running_loop().create_future()
        self.verifiers: list[VerifierLink] = [
            ReplicaLink(codec.VERIFIER, address, pair=self._pair_verifier, coordinator=name, tls=tls)
            for address in verifiers
        ]
        self.drafts: list[DraftLink] = [
            ReplicaLink(codec.DRAFT, address, pair=self._pair_draft, coordinator=name, tls=tls) for address in drafts
        ]

    async def run(self) -> None:
        """Keep every replica connected until cancelled."""
        links: list[ReplicaLink[Any, Any]] = [*self.verifiers, *self.drafts]
        async with asyncio.TaskGroup() as tasks:
            for link in links:
                tasks.create_task(link.run(), name=f"link to {link.address}")

    async def target(self) -> Target:
        """The served model, once a verifier is known."""
        return await asyncio.shield(self._target)

    @property
    def known_target(self) -> Target:
        """The served model. Raise Unavailable before the first verifier connected."""
        if not self._target.done():
            raise Unavailable("no verifier has connected yet")
        return self._target.result()

    # Binding

    async def bind_verifier(self, session: int, timeout_s: float, *, avoid: Collection[str] = ()) -> VerifierLink:
        """Bind a session to a ready verifier; wait for one at most `timeout_s` seconds, then raise Unavailable."""
        if not any(link.ready for link in self.verifiers):
            await _first_ready(self.verifiers, timeout_s)
        return await self._bind(f"verify/{session}", self.verifiers, avoid)

    async def bind_draft(self, session: int) -> DraftLink:
        """Bind a session to a ready draft. Raise Unavailable if there is none now."""
        return await self._bind(f"draft/{session}", self.drafts, ())

    async def release_verifier(self, session: int, link: VerifierLink) -> None:
        """End a binding."""
        await self._store.release(f"verify/{session}", link.address)

    async def release_draft(self, session: int, link: DraftLink) -> None:
        """End a binding."""
        await self._store.release(f"draft/{session}", link.address)

    async def _bind(self, name: str, links: Sequence[Link], avoid: Collection[str]) -> Link:
        by_address = {link.address: link for link in links if link.ready}
        address = least_loaded(list(by_address), await self._store.loads(), avoid=avoid)
        if address is None:
            raise Unavailable("no replica is connected: " + "; ".join(_state(link) for link in links))
        await self._store.bind(name, address)
        return by_address[address]

    # Pairing, during a link's handshake

    async def _pair_verifier(self, model: ModelInfo, stub: model_pb2_grpc.ModelServiceAsyncStub) -> int:
        if not self._target.done():
            tokenizer = await _fetch_tokenizer(stub)
            if not self._target.done():
                self._target.set_result(Target(model, tokenizer))
        target = self._target.result().model
        if (model.name, model.vocabulary_fingerprint) != (target.name, target.vocabulary_fingerprint):
            raise FailedPrecondition(
                f"it serves {model.name} ({model.vocabulary_fingerprint[:12]}), "
                f"but this coordinator's target is {target.name} ({target.vocabulary_fingerprint[:12]})"
            )
        return target.vocabulary_size

    async def _pair_draft(self, model: ModelInfo, stub: model_pb2_grpc.ModelServiceAsyncStub) -> int:
        target = await self.target()
        if model.vocabulary_fingerprint != target.model.vocabulary_fingerprint:
            ours, theirs = target.tokenizer.tokens, (await _fetch_tokenizer(stub)).tokens
            # Lengths may differ: ids that only one side has are padding for this pair.
            if (difference := first_difference(ours, theirs)) is not None:
                raise FailedPrecondition(
                    f"the vocabularies of target {target.model.name} and draft {model.name} differ: {difference}"
                )
        return min(target.model.vocabulary_size, model.vocabulary_size)


async def _fetch_tokenizer(stub: model_pb2_grpc.ModelServiceAsyncStub) -> Tokenizer:
    files: dict[str, bytearray] = {}
    async for piece in stub.GetTokenizer(model_pb2.GetTokenizerRequest(), timeout=FETCH_TIMEOUT_S):
        files.setdefault(piece.file, bytearray()).extend(piece.content)
    return await asyncio.to_thread(Tokenizer.from_files, {name: bytes(content) for name, content in files.items()})


async def _first_ready(links: Sequence[ReplicaLink[Any, Any]], timeout_s: float) -> None:
    """Return when one of the links is up; raise Unavailable after `timeout_s` seconds."""
    waits = [asyncio.create_task(link.wait_ready(timeout_s)) for link in links]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    if not any(link.ready for link in links):
        raise Unavailable("no verifier is connected: " + "; ".join(_state(link) for link in links))


def _state(link: ReplicaLink[Any, Any]) -> str:
    return f"{link.address} {'is up' if link.ready else link.refusal or 'is down'}"
