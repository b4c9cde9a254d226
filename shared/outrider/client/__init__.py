"""The Python client: `Client` for ordinary code, `AsyncClient` for asyncio. Needs grpcio and protobuf only.

with Client("localhost:7400") as client:
    print(client.generate("The capital of France is", max_tokens=8).text)
"""

from outrider.client.aio import AsyncClient, AsyncCompletionStream
from outrider.client.channel import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S
from outrider.client.options import ChatMessage, RequestOptions
from outrider.client.results import (
    Chunk,
    Completion,
    Drafter,
    FinishReason,
    ServiceInfo,
    SourceStats,
    Speculation,
    SpeculationStats,
    Timings,
    TokenLogprobs,
    TopLogprob,
    Usage,
)
from outrider.client.sync import Client, CompletionStream
from outrider.rpc.tls import ClientTls

__all__ = [
    "DEFAULT_ADDRESS",
    "DEFAULT_TIMEOUT_S",
    "AsyncClient",
    "AsyncCompletionStream",
    "ChatMessage",
    "Chunk",
    "Client",
    "ClientTls",
    "Completion",
    "CompletionStream",
    "Drafter",
    "FinishReason",
    "RequestOptions",
    "ServiceInfo",
    "SourceStats",
    "Speculation",
    "SpeculationStats",
    "Timings",
    "TokenLogprobs",
    "TopLogprob",
    "Usage",
]
