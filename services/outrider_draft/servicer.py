"""DraftService as gRPC sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from outrider.protocol.items import DraftReply, DraftRequest
from outrider.rpc.replica_server import ReplicaStreams
from outrider.v1 import draft_pb2, draft_pb2_grpc


class DraftServicer(draft_pb2_grpc.DraftServiceServicer):
    """Hands each stream to `ReplicaStreams`, which does the same for verifier and draft."""

    def __init__(self, streams: ReplicaStreams[DraftRequest, DraftReply]) -> None:
        self._streams = streams

    async def Draft(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[draft_pb2.DraftRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """One coordinator's stream."""
        await self._streams.serve(request_iterator, context)
