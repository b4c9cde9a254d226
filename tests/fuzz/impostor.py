"""A replica that shakes hands and then sends what no replica would, and a coordinator's link that has to bear it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio

from outrider.errors import OutriderError
from outrider.protocol.items import PROTOCOL_VERSION, Close, Closed, Key
from outrider.rpc import codec
from outrider.rpc.codec import Codec
from outrider.rpc.replica_link import ReplicaLink
from outrider.rpc.replica_server import ModelServicer, ReplicaInfo
from outrider.v1 import draft_pb2, model_pb2_grpc, replica_pb2, verifier_pb2
from tests.fuzz.inputs import Hostile

FRAMES = 24
CALLS_AT_A_TIME = 3
ENDS = [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN]

SERVICES: list[tuple[Codec[Any, Any], str, type[Any], type[Any]]] = [
    (codec.VERIFIER, "Verify", verifier_pb2.VerifyRequest, verifier_pb2.VerifyResponse),
    (codec.DRAFT, "Draft", draft_pb2.DraftRequest, draft_pb2.DraftResponse),
]


class Impostor:
    """Answers the first items with hostile frames, later ones as a replica does."""

    def __init__(self, source: random.Random, info: ReplicaInfo, sent: Counter[str]) -> None:
        """`info`: of the replica that it seems to be. `sent` counts its frames, as "link"."""
        self.codec, method, request, self._response = source.choice(SERVICES)
        self.left = FRAMES  # hostile frames yet to send
        self._source = source
        self._hostile = Hostile(source)
        self._sent = sent
        self._info = replace(info, incarnation="impostor")
        self._server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(self._serve, request.FromString, None)
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(self.codec.service, {method: handler})]
        )
        model_pb2_grpc.add_ModelServiceServicer_to_server(ModelServicer(self._info, {}), self._server)

    async def start(self) -> str:
        """Listen; the address."""
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return f"127.0.0.1:{port}"

    async def stop(self) -> None:
        """End at once."""
        await self._server.stop(0)

    async def _serve(self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await anext(requests)
        welcome = replica_pb2.Welcome(
            protocol_version=PROTOCOL_VERSION,
            incarnation="impostor",
            capacity_tokens=64,
            context_length=64,
            max_proposal=8,
        )
        await context.write(self.codec.welcome_frame(welcome).SerializeToString())
        async for request in requests:
            for item in request.items.items:
                key = Key(item.session, item.epoch, item.base_length)
                good = self.codec.replies_frame([Closed(key)], self.codec.reply_to_proto)
                if not self.left:
                    await context.write(good.SerializeToString())
                    continue
                self.left -= 1
                self._sent["link"] += 1
                chance = self._source.random()
                if chance < 0.05:
                    await context.abort(self._source.choice(ENDS), "so it goes")
                if chance < 0.08:
                    return
                await context.write(self._frame(chance, good, item))

    def _frame(self, chance: float, good: Any, item: Any) -> bytes:
        if chance < 0.3:
            return self._hostile.bytes_of(good)
        if chance < 0.5:
            draining = self._hostile.fill(replica_pb2.Draining(), 0.9)
            return self.codec.draining_frame(draining).SerializeToString()  # type: ignore[no-any-return, arg-type]
        if chance < 0.7:
            return self._hostile.change(good).SerializeToString()
        frame = self._hostile.fill(self._response(), 0.8)
        for reply in frame.replies.replies:  # type: ignore[attr-defined]
            if self._source.random() < 0.7:  # otherwise it is dropped unread
                reply.session, reply.epoch, reply.base_length = item.session, item.epoch, item.base_length
        return frame.SerializeToString()


async def try_link(source: random.Random, info: ReplicaInfo, sent: Counter[str], *, patience_s: float) -> list[str]:
    """Let one link bear an impostor; what went wrong. A link must neither end nor fail otherwise than by a typed error.

    Once the impostor behaves, the link has to work again within `patience_s` seconds.
    """
    impostor = Impostor(source, info, sent)
    link: ReplicaLink[Any, Any] = ReplicaLink(
        impostor.codec, await impostor.start(), pair=_any_model, coordinator="fuzz"
    )
    if source.random() < 0.5:
        link.on_drain = link.leave
    running = asyncio.create_task(link.run())
    found: list[str] = []
    try:
        async with asyncio.timeout(patience_s):
            for number in range(1, 1_000_000):
                calls = [link.call(Close(Key(number, 1, each)), 0.05) for each in range(1, CALLS_AT_A_TIME + 1)]
                results = await asyncio.gather(*calls, return_exceptions=True)
                found += _unexpected(results)
                if running.done() or (not impostor.left and all(_is_closed(result) for result in results)):
                    break
                await asyncio.sleep(0 if link.ready else 0.02)
    except TimeoutError:
        found.append(f"does not work again: ready {link.ready}, refused {link.refusal}")
    if running.done():
        found.append(f"ended: {running.exception()!r}")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await impostor.stop()
    return found


async def _any_model(model: object, stub: object) -> int:
    return 512


def _unexpected(results: Iterable[Any]) -> list[str]:
    errors = [result for result in results if isinstance(result, BaseException)]
    return [repr(error) for error in errors if not isinstance(error, OutriderError)]


def _is_closed(result: Any) -> bool:
    return isinstance(getattr(result, "reply", None), Closed)
