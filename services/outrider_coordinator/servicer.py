"""GenerationService as clients see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, TypeVar

import grpc.aio

import outrider
from outrider.rpc.convert import model_to_proto
from outrider.rpc.status import errors_as_status
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import generation_pb2_grpc
from outrider_coordinator.clients import client_of
from outrider_coordinator.convert import (
    Defaults,
    delta_to_proto,
    finished_to_proto,
    prompt_bytes,
    prompt_from_proto,
    request_from_proto,
    speculation_to_proto,
)
from outrider_coordinator.generations import Generations
from outrider_coordinator.guard import current_caller
from outrider_coordinator.replicas import Replicas

Context = grpc.aio.ServicerContext[Any, Any]

T = TypeVar("T")

LONG_PROMPT_BYTES = 16_384
"""From here on tokenizing takes tens of milliseconds, which other streams should not wait for."""


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """Validates, runs, streams."""

    def __init__(self, replicas: Replicas, generations: Generations, defaults: Defaults) -> None:
        self._replicas = replicas
        self._generations = generations
        self._defaults = defaults

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        """Deltas, then one `finished`."""
        async with errors_as_status(context):
            checked = await _tokenizing(
                request, request_from_proto, request, self._replicas.known_target, self._defaults, current_caller()
            )
            generation = self._generations.start(checked, client_of(current_caller(), context.peer()))
            async with aclosing(self._generations.run(generation)) as deltas:  # type: ignore[type-var]
                async for delta in deltas:
                    if delta.text or delta.token_ids:
                        await context.write(delta_to_proto(delta))
            await context.write(finished_to_proto(generation.session, generation.fallback_reason))

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:  # noqa: N802
        """Idempotent."""
        return pb.AbortResponse(aborted=self._generations.abort(request.request_id, current_caller().owner))

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:  # noqa: N802
        """The ids Generate would use."""
        async with errors_as_status(context):
            target, limits = self._replicas.known_target, self._defaults.limits
            ids = await _tokenizing(request, prompt_from_proto, request, target, limits)
            return pb.TokenizeResponse(token_ids=ids)

    async def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Context) -> pb.GetModelInfoResponse:  # noqa: N802
        """The target, the drafts connected now, and what a request without wishes gets."""
        async with errors_as_status(context):
            drafts = [link.model for link in self._replicas.drafts if link.ready and link.model is not None]
            return pb.GetModelInfoResponse(
                target=model_to_proto(self._replicas.known_target.model),
                drafts=[model_to_proto(model) for model in drafts],
                default_speculation=speculation_to_proto(self._defaults.speculation),
                version=outrider.__version__,
                drafting_verifiers=sum(link.drafts for link in self._replicas.verifiers),
            )


async def _tokenizing(request: pb.GenerateRequest | pb.TokenizeRequest, work: Callable[..., T], *arguments: Any) -> T:
    """Do `work` here, or beside the event loop where the request has a long text to tokenize."""
    if prompt_bytes(request) < LONG_PROMPT_BYTES:
        return work(*arguments)
    return await asyncio.to_thread(work, *arguments)
