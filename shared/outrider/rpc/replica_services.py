"""VerifierService and DraftService as gRPC sees them: both hand each stream to a `ReplicaStreams`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from outrider.protocol.items import DraftReply, DraftRequest, VerifierReply, VerifierRequest
from outrider.rpc.replica_server import ReplicaStreams
from outrider.v1 import draft_pb2, draft_pb2_grpc, verifier_pb2, verifier_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class VerifierServicer(verifier_pb2_grpc.VerifierServiceServicer):
    """VerifierService."""

    def __init__(self, streams: ReplicaStreams[VerifierRequest, VerifierReply]) -> None:
        self._streams = streams

    async def Verify(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[verifier_pb2.VerifyRequest], context: Context
    ) -> None:
        """One coordinator's stream."""
        await self._streams.serve(request_iterator, context)


class DraftServicer(draft_pb2_grpc.DraftServiceServicer):
    """DraftService."""

    def __init__(self, streams: ReplicaStreams[DraftRequest, DraftReply]) -> None:
        self._streams = streams

    async def Draft(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[draft_pb2.DraftRequest], context: Context
    ) -> None:
        """One coordinator's stream."""
        await self._streams.serve(request_iterator, context)


def register_verifier(streams: ReplicaStreams[VerifierRequest, VerifierReply], server: grpc.aio.Server) -> None:
    """Add VerifierService to a server."""
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(VerifierServicer(streams), server)


def register_draft(streams: ReplicaStreams[DraftRequest, DraftReply], server: grpc.aio.Server) -> None:
    """Add DraftService to a server."""
    draft_pb2_grpc.add_DraftServiceServicer_to_server(DraftServicer(streams), server)
