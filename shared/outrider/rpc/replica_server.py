"""The replica's end of a stream: handshake, items in, replies out, and everything freed when the stream ends."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import grpc.aio

from outrider.acceptance.step_times import StepTimes
from outrider.errors import FailedPrecondition, InvalidArgument, ResourceExhausted, Unavailable
from outrider.protocol.items import PROTOCOL_VERSION, Failed, FailureCode, Key, ModelInfo
from outrider.rpc import convert
from outrider.rpc.channel import TOKENIZER_PIECE_BYTES
from outrider.rpc.codec import Codec
from outrider.rpc.status import errors_as_status
from outrider.rpc.step_times import step_times_to_proto
from outrider.telemetry.logs import get_logger
from outrider.v1 import model_pb2, model_pb2_grpc, replica_pb2

log = get_logger(__name__)

Item = TypeVar("Item", bound="Keyed")
Reply = TypeVar("Reply")
ItemIn = TypeVar("ItemIn", contravariant=True)

MAX_ITEMS_PER_FRAME = 65_536

MAX_UNREAD_REPLIES = 262_144
"""A peer that leaves more replies unread than this loses its stream: they would fill the memory."""


class Keyed(Protocol):
    """What every item has."""

    @property
    def key(self) -> Key:
        """Which session it is for."""


class Connection(Protocol[ItemIn]):
    """One stream's place on the device thread."""

    def post(self, items: Sequence[ItemIn]) -> int:
        """Queue items, in their order; how many of them, the first ones, found room."""

    def close(self) -> None:
        """Free the stream's sessions."""


class Backend(Protocol[Item, Reply]):  # type: ignore[misc]  # both are used in and out
    """The device thread, as a stream sees it (`outrider.engine.worker.DeviceWorker`)."""

    @property
    def max_queue(self) -> int:
        """How many items may wait for it."""

    def connect(
        self, name: str, deliver: Callable[[Sequence[Reply]], None], *, vocabulary_size: int
    ) -> Connection[Item]:
        """A place for one stream; `deliver` is called from the device thread."""


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """What this process serves."""

    model: ModelInfo
    role: model_pb2.ReplicaRole.ValueType
    capacity_tokens: int
    max_proposal: int
    drafts: bool = False  # a verifier with a draft of its own
    goes_ahead: bool = False  # which begins guesses before it is known what came of the last ones
    step_times: StepTimes | None = None
    draft_step_times: StepTimes | None = None  # of that draft
    incarnation: str = field(default_factory=lambda: uuid.uuid4().hex)


class ReplicaStreams(Generic[Item, Reply]):
    """Serves the streams of one replica service, each in its own call of `serve`."""

    def __init__(self, codec: Codec[Item, Reply], backend: Backend[Item, Reply], info: ReplicaInfo) -> None:
        self._codec = codec
        self._backend = backend
        self._info = info
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._outboxes: set[_Outbox[Reply]] = set()
        self._ends_at: float | None = None  # when the grace of a drain is over, in time.monotonic seconds

    def drain(self, grace_s: float) -> None:
        """Tell every coordinator that streams are cut in `grace_s` seconds, and let no further one connect."""
        self._ends_at = time.monotonic() + grace_s
        for outbox in self._outboxes:
            outbox.wake()

    async def drained(self) -> None:
        """Return when no coordinator is connected."""
        await self._idle.wait()

    async def serve(self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """One stream, from Hello to its end. A bad item is answered; it never ends the stream."""
        async with errors_as_status(context):
            hello = await self._read_hello(requests)
            self._check_hello(hello)
            if self._ends_at is not None:
                raise Unavailable("this replica drains: it takes no coordinator any more")
            await context.write(self._codec.welcome_frame(self._welcome()))
            await self._exchange(requests, context, hello)

    async def _exchange(
        self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any], hello: replica_pb2.Hello
    ) -> None:
        name = f"{hello.coordinator or 'coordinator'}@{context.peer()}"
        outbox = _Outbox[Reply](asyncio.get_running_loop())
        # Ids both sides know; the rest is padding for this pair.
        known = min(self._info.model.vocabulary_size, hello.vocabulary_size)
        connection = self._backend.connect(name, outbox.deliver, vocabulary_size=known)
        self._outboxes.add(outbox)
        self._opened(name)
        try:
            async with asyncio.TaskGroup() as tasks:  # either half's failure ends the stream
                writer = tasks.create_task(self._write_replies(outbox, context), name=f"replies to {name}")
                async for request in requests:
                    outbox.check_read()
                    self._take_frame(request, connection, outbox)
                writer.cancel()
        finally:
            # A cancelled client looks like a normal end of the stream: this is the one place of cleanup.
            connection.close()
            self._outboxes.discard(outbox)
            self._closed(name)

    def _take_frame(self, request: Any, connection: Connection[Item], outbox: _Outbox[Reply]) -> None:
        if request.WhichOneof("body") != "items":
            log.warning("a frame without items was ignored")
            return
        wires = request.items.items
        from_proto = self._codec.item_from_proto
        items: list[Item] = []
        for index, wire in enumerate(wires):
            try:
                if index >= MAX_ITEMS_PER_FRAME:
                    raise InvalidArgument("items", len(wires), f"at most {MAX_ITEMS_PER_FRAME}")
                items.append(from_proto(wire))
            except InvalidArgument as error:
                outbox.put(Failed(convert.key_of(wire), FailureCode.INVALID_ARGUMENT, str(error)))
        for item in items[connection.post(items) :]:
            message = f"the device queue holds {self._backend.max_queue} items"
            outbox.put(Failed(item.key, FailureCode.RESOURCE_EXHAUSTED, message))

    async def _write_replies(self, outbox: _Outbox[Reply], context: grpc.aio.ServicerContext[Any, Any]) -> None:
        told = False
        while True:
            replies = await outbox.take()
            if replies:
                frame = self._codec.replies_frame(replies, self._codec.reply_to_proto)
                await context.write(frame)
            if self._ends_at is not None and not told:
                told, left_s = True, max(0.0, self._ends_at - time.monotonic())
                await context.write(self._codec.draining_frame(replica_pb2.Draining(grace_ms=round(left_s * 1000))))

    async def _read_hello(self, requests: AsyncIterator[Any]) -> replica_pb2.Hello:
        try:
            async with asyncio.timeout(10):
                first = await anext(requests)
        except (TimeoutError, StopAsyncIteration):
            raise FailedPrecondition("the stream did not begin with a Hello within 10 s") from None
        if first.WhichOneof("body") != "hello":
            raise FailedPrecondition(f"the stream began with {first.WhichOneof('body')}, not with hello")
        hello: replica_pb2.Hello = first.hello
        return hello

    def _check_hello(self, hello: replica_pb2.Hello) -> None:
        if hello.protocol_version != PROTOCOL_VERSION:
            raise FailedPrecondition(
                f"protocol version {hello.protocol_version} is not this replica's, {PROTOCOL_VERSION}"
            )
        ours = self._info.model.vocabulary_fingerprint
        if hello.vocabulary_fingerprint != ours:
            raise FailedPrecondition(
                f"vocabulary {hello.vocabulary_fingerprint[:12]} is not this replica's, {ours[:12]} "
                f"({self._info.model.name}): was it restarted with another model?"
            )
        if hello.vocabulary_size == 0:
            raise InvalidArgument("hello.vocabulary_size", 0, "at least 1")

    def _welcome(self) -> replica_pb2.Welcome:
        return replica_pb2.Welcome(
            protocol_version=PROTOCOL_VERSION,
            incarnation=self._info.incarnation,
            capacity_tokens=self._info.capacity_tokens,
            context_length=self._info.model.context_length,
            max_proposal=self._info.max_proposal,
            drafts=self._info.drafts,
            goes_ahead=self._info.goes_ahead,
            step_times=step_times_to_proto(self._info.step_times),
            draft_step_times=step_times_to_proto(self._info.draft_step_times),
        )

    def _opened(self, name: str) -> None:
        self._open += 1
        self._idle.clear()
        log.info("%s connected", name)

    def _closed(self, name: str) -> None:
        self._open -= 1
        if self._open == 0:
            self._idle.set()
        log.info("%s disconnected", name)


class _Outbox(Generic[Reply]):
    """Replies on their way from the device thread to one stream; whatever is ready leaves in one frame.

    Each item of the peer causes one reply at most, a follow-up `MAX_ROUNDS`; a peer that sends on without reading them
    is cut off.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._replies: list[Reply | Failed] = []
        self._filled = asyncio.Event()

    def deliver(self, replies: Sequence[Reply]) -> None:
        """Hand over replies from the device thread."""
        try:
            self._loop.call_soon_threadsafe(self._extend, replies)
        except RuntimeError:  # the loop has closed: the process is stopping
            log.debug("%d replies had nowhere to go", len(replies))

    def put(self, reply: Failed) -> None:
        """Add a reply from the event loop itself."""
        self._extend([reply])

    def _extend(self, replies: Sequence[Reply | Failed]) -> None:
        self._replies.extend(replies)
        self._filled.set()

    def check_read(self) -> None:
        """Raise ResourceExhausted if the peer leaves too many replies unread."""
        if len(self._replies) > MAX_UNREAD_REPLIES:
            raise ResourceExhausted(f"{len(self._replies)} replies are unread, more than {MAX_UNREAD_REPLIES}")

    def wake(self) -> None:
        """Let `take` return, be it with nothing."""
        self._filled.set()

    async def take(self) -> list[Any]:
        """All replies that wait; none only after `wake`."""
        await self._filled.wait()
        self._filled.clear()
        taken, self._replies = self._replies, []
        return taken


class ModelServicer(model_pb2_grpc.ModelServiceServicer):
    """Tells what the replica serves; hands out its tokenizer, so that a coordinator needs no model files."""

    def __init__(self, info: ReplicaInfo, tokenizer_files: Mapping[str, bytes]) -> None:
        self._info = info
        self._files = tokenizer_files

    async def GetModel(  # noqa: N802
        self, request: model_pb2.GetModelRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> model_pb2.GetModelResponse:
        """What the replica serves."""
        return model_pb2.GetModelResponse(
            model=convert.model_to_proto(self._info.model),
            role=self._info.role,
            incarnation=self._info.incarnation,
            protocol_version=PROTOCOL_VERSION,
        )

    async def GetTokenizer(  # noqa: N802
        self, request: model_pb2.GetTokenizerRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[model_pb2.GetTokenizerResponse]:
        """The tokenizer's files, piece by piece."""
        for name, content in self._files.items():
            for start in range(0, len(content), TOKENIZER_PIECE_BYTES):
                piece = content[start : start + TOKENIZER_PIECE_BYTES]
                yield model_pb2.GetTokenizerResponse(file=name, content=piece)
