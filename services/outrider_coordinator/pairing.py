"""Whether a replica may be used: during its link's handshake, by what it serves."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from outrider.errors import FailedPrecondition, Unavailable
from outrider.protocol.items import ModelInfo
from outrider.routing.records import ReplicaRecord, Role
from outrider.text.tokenizer import Tokenizer
from outrider.text.vocabulary import first_difference
from outrider.v1 import model_pb2, model_pb2_grpc

FETCH_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Target:
    """The model this coordinator serves, as its first verifier told it."""

    model: ModelInfo
    tokenizer: Tokenizer


class Pairing:
    """Knows the target, once a verifier is connected, and what fits it."""

    def __init__(self) -> None:
        self._target: asyncio.Future[Target] = asyncio.get_running_loop().create_future()

    async def target(self) -> Target:
        """The served model, once a verifier is known."""
        return await asyncio.shield(self._target)

    @property
    def known_target(self) -> Target:
        """The served model. Raise Unavailable before the first verifier connected."""
        if not self._target.done():
            raise Unavailable("no verifier has connected yet")
        return self._target.result()

    def worth_connecting(self, record: ReplicaRecord) -> bool:
        """False for a verifier of another target. Whether a draft's vocabulary fits shows on connecting."""
        if record.role is Role.DRAFT or not self._target.done():
            return True
        ours = self._target.result().model
        return (record.model, record.vocabulary_fingerprint) == (ours.name, ours.vocabulary_fingerprint)

    async def verifier(self, model: ModelInfo, stub: model_pb2_grpc.ModelServiceAsyncStub) -> int:
        """The vocabulary size for a verifier. Raise FailedPrecondition if it serves another target."""
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

    async def draft(self, model: ModelInfo, stub: model_pb2_grpc.ModelServiceAsyncStub) -> int:
        """The vocabulary size for a draft. Raise FailedPrecondition naming the first id that differs."""
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
