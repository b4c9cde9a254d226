"""VerifierService as gRPC sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from outrider.protocol.items import VerifierReply, VerifierRequest
from outrider.rpc.replica_server import ReplicaStreams
from outrider.v1 import verifier_pb2, verifier_pb2_grpc


class VerifierServicer(verifier_pb2_grpc.VerifierServiceServicer):
    """Hands each stream to `ReplicaStreams`, which does the same for verifier and draft."""

    def __init__(self, streams: ReplicaStreams[VerifierRequest, VerifierReply]) -> None:
        self._streams = streams

    async def Verify(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[verifier_pb2.VerifyRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """One coordinator's stream."""
        await self._streams.serve(request_iterator, context)
