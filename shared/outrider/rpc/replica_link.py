"""The coordinator's end of a replica stream: one connection kept up, the calls of many sessions multiplexed on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import grpc.aio

from outrider.acceptance.step_times import StepTimes
from outrider.errors import DeadlineExceeded, FailedPrecondition, InternalError, OutriderError, Unavailable
from outrider.protocol.items import PROTOCOL_VERSION, Failed, Key, ModelInfo
from outrider.rpc import convert
from outrider.rpc.channel import SILENCE_S, open_channel
from outrider.rpc.codec import Codec
from outrider.rpc.deadlines import Deadlines
from outrider.rpc.exchange import ANSWERS, VERDICT, VERDICTS, Exchange, Following, ItemError, Keyed, Pending
from outrider.rpc.step_times import step_times_from_proto
from outrider.rpc.stream_ends import end_of, read_frame, reason, until_one_ends
from outrider.rpc.tls import ClientTls
from outrider.rpc.verdicts import verdicts_from_proto
from outrider.telemetry.logs import get_logger
from outrider.v1 import model_pb2, model_pb2_grpc, replica_pb2

log = get_logger(__name__)


Item = TypeVar("Item", bound=Keyed)
Reply = TypeVar("Reply", bound=Keyed)

CONNECT_TIMEOUT_S = 10.0
BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)
MAX_OUTBOX = 65_536


Pair = Callable[[ModelInfo, "model_pb2_grpc.ModelServiceAsyncStub"], Awaitable[int]]
"""Decides whether a replica's model may be used: the vocabulary size for the pair, or raise FailedPrecondition."""


class ReplicaLink(Generic[Item, Reply]):
    """One replica. `run`, a task its owner holds, keeps the stream up; `call` and `tell` use it meanwhile."""

    def __init__(
        self,
        codec: Codec[Item, Reply],
        address: str,
        *,
        pair: Pair,
        coordinator: str,
        tls: ClientTls | None = None,
        silence_s: float = SILENCE_S,
    ) -> None:
        """`silence_s`: seconds without a sign of life after which the replica counts as lost."""
        self.address = address
        self.model: ModelInfo | None = None
        self.welcome: replica_pb2.Welcome | None = None  # of the current connection, as are the next five
        self.drafts = False  # it is a verifier that can be told to draft first
        self.goes_ahead = False  # and begins guesses before it is known what came of the last, if they have no siblings
        self.max_proposal: int | None = None  # most tokens of a proposal that it takes; None: it is not connected
        self.step_times: StepTimes | None = None  # what its passes take, if it says so
        self.draft_step_times: StepTimes | None = None  # those of its own draft
        self.refusal: str | None = None  # why the replica may not be used, if it may not
        self.hands_over_at: float | None = None  # when half its grace is over (time.monotonic); None: it does not drain
        self.on_drain: Callable[[], None] = lambda: None  # called once it has said so
        self._codec = codec
        self._pair = pair
        self._coordinator = coordinator
        self._tls = tls
        self._silence_s = silence_s
        self._outbox: list[Any] = []
        self._filled = asyncio.Event()
        self._pending: dict[Key, Pending] = {}
        self._following: dict[tuple[int, int], Following] = {}  # by session and epoch
        self._deadlines = Deadlines()
        self._up = asyncio.Event()
        self._takes_new = asyncio.Event()
        self._leave = asyncio.Event()

    @property
    def ready(self) -> bool:
        """True while the stream is up."""
        return self._up.is_set()

    @property
    def takes_new(self) -> bool:
        """True while the stream is up and the replica does not drain."""
        return self._takes_new.is_set()

    def leave(self) -> None:
        """End the stream to a replica that drains: nothing of ours is there any more. It is tried again later."""
        self._leave.set()

    async def wait_ready(self, timeout_s: float) -> None:
        """Return when the replica takes sessions; raise Unavailable after `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._takes_new.wait()
        except TimeoutError:
            raise Unavailable(f"{self.address} is not connected{f': {self.refusal}' if self.refusal else ''}") from None

    async def call(self, item: Item, timeout_s: float) -> Exchange[Reply]:
        """Send an item and wait for the reply with its key.

        Raises Unavailable if the stream is or goes down, DeadlineExceeded after `timeout_s` seconds, ItemError if
        the replica answers with an error.
        """
        self.send(item)
        return await self.receive(item.key, timeout_s)

    def send(self, item: Item) -> None:
        """Send an item whose reply is to be received. Raises Unavailable if the stream is down."""
        if not self.ready:
            raise Unavailable(f"{self.address} is not connected")
        wire = self._codec.item_to_proto(item)
        self._send(wire)
        self.expect(item.key, wire.ByteSize(), ANSWERS[type(item)])

    def expect(self, key: Key, sent_bytes: int = 0, event: str = VERDICT) -> None:
        """Keep the reply of this kind and key, which is to come, until `receive` or `forget`."""
        assert key not in self._pending, "one call at a time for a key"
        self._pending[key] = Pending(sent_bytes, event)

    async def receive(self, key: Key, timeout_s: float) -> Exchange[Reply]:
        """Wait for an expected reply; raises what `call` does."""
        pending = self._pending[key]
        try:
            if pending.result is None:
                await pending.settled(timeout_s, self._deadlines)
        finally:
            self.forget(key)
        if pending.result is None:
            raise DeadlineExceeded(f"{self.address} did not answer within {timeout_s:g} s")
        if isinstance(pending.result, OutriderError):
            raise pending.result
        if isinstance(reply := pending.result.reply, Failed):
            raise ItemError(reply.code, reply.message)
        return pending.result

    def forget(self, key: Key) -> None:
        """Drop the reply with this key, if it ever comes."""
        self._pending.pop(key, None)

    def expect_after(self, key: Key, most: int, rounds: int = 1) -> None:
        """Until `end_after` keep the verdicts of `rounds` after that of `key`, which begin 1 to `most` tokens on."""
        opening = key.session, key.epoch
        assert opening not in self._following, "one order at a time"
        self._following[opening] = Following(key.base_length + 1, key.base_length + most, rounds)

    def extend_after(self, key: Key, most: int, rounds: int) -> None:
        """Keep the verdicts of so many `rounds` more; the last one begins up to `most` tokens after `key`."""
        self._following[key.session, key.epoch].extend(key.base_length + most, rounds)

    def begin_after(self, key: Key, most: int = 0) -> None:
        """One of those rounds is that of `key`: its reply is expected like any other now.

        Those of the rounds after it, which begin 1 to `most` tokens on, are kept on.
        """
        assert key not in self._pending, "one call at a time for a key"
        self._pending[key] = self._following[key.session, key.epoch].begin(key.base_length, most)

    def end_after(self, key: Key) -> None:
        """Drop what `expect_after` kept of this opening."""
        del self._following[key.session, key.epoch]

    @property
    def expected(self) -> int:
        """How many replies are waited for, or kept; of the rounds after one, which nobody can tell yet, one."""
        return len(self._pending) + len(self._following)

    def tell(self, item: Item) -> int:
        """Send an item whose reply, if any, does not matter; its bytes on the wire. Nothing is sent while down."""
        if not self.ready:
            return 0
        wire = self._codec.item_to_proto(item)
        self._send(wire)
        return int(wire.ByteSize())

    async def run(self) -> None:
        """Keep the stream up until cancelled; back off between attempts."""
        failures = 0
        while True:
            try:
                # A channel for each attempt: certificates that were replaced meanwhile are read anew.
                async with open_channel(self.address, self._tls, silence_s=self._silence_s) as channel:
                    await self._connect_and_read(channel)
                failures = 0
            except FailedPrecondition as error:
                self._refuse(str(error))
                failures = len(BACKOFF_S)
            except (OutriderError, grpc.RpcError, asyncio.InvalidStateError) as error:
                was_up = self.ready
                self._go_down(error)
                failures = 0 if was_up else failures + 1
                level = log.warning if was_up or failures == 1 else log.debug
                level("%s: %s", self.address, reason(error))
            except BaseException as error:
                self._go_down(error)
                raise
            await asyncio.sleep(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])

    async def _connect_and_read(self, channel: grpc.aio.Channel) -> None:
        """One connection, from GetModel to its end; always ends by raising why."""
        hello = await self._introduce(channel)
        stream: Any = self._codec.open_stream(channel)
        try:
            self._come_up(await self._shake_hands(stream, hello))
            await until_one_ends(self._read_replies(stream), self._write_items(stream), self._left())
            raise Unavailable("it drains") if self._leave.is_set() else await end_of(stream)
        finally:
            stream.cancel()

    async def _shake_hands(self, stream: Any, hello: replica_pb2.Hello) -> replica_pb2.Welcome:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await stream.write(self._codec.hello_frame(hello))
                first = await read_frame(stream)
        except TimeoutError:
            raise Unavailable(f"no Welcome within {CONNECT_TIMEOUT_S:g} s") from None
        if first is grpc.aio.EOF:
            raise await end_of(stream)
        welcome: replica_pb2.Welcome = first.welcome
        return welcome

    async def _introduce(self, channel: grpc.aio.Channel) -> replica_pb2.Hello:
        """Learn what the replica serves and whether it may be used."""
        stub = model_pb2_grpc.ModelServiceStub(channel)
        answer = await stub.GetModel(model_pb2.GetModelRequest(), timeout=CONNECT_TIMEOUT_S, wait_for_ready=True)
        self.model = convert.model_from_proto(answer.model)
        vocabulary_size = await self._pair(self.model, stub)
        return replica_pb2.Hello(
            protocol_version=PROTOCOL_VERSION,
            vocabulary_fingerprint=self.model.vocabulary_fingerprint,
            vocabulary_size=vocabulary_size,
            coordinator=self._coordinator,
        )

    def _send(self, wire: Any) -> None:
        if len(self._outbox) >= MAX_OUTBOX:
            raise Unavailable(f"{self.address} does not take items: {MAX_OUTBOX} wait")
        self._outbox.append(wire)
        self._filled.set()

    async def _write_items(self, stream: Any) -> None:
        """Whatever has gathered while the last frame was written leaves in the next one."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            waiting, self._outbox = self._outbox, []
            await stream.write(self._codec.items_frame(waiting))

    async def _read_replies(self, stream: Any) -> None:
        while (frame := await read_frame(stream)) is not grpc.aio.EOF:
            for wire in frame.replies.replies:
                self._take(wire)
            if frame.HasField("draining"):
                self._drain(frame.draining.grace_ms / 1000)

    def _drain(self, grace_s: float) -> None:
        log.info("%s drains for at most %g s", self.address, grace_s)
        self.hands_over_at = time.monotonic() + grace_s / 2
        self._takes_new.clear()
        self.on_drain()

    async def _left(self) -> None:
        await self._leave.wait()

    def _take(self, wire: Any) -> None:
        event = wire.WhichOneof("event")
        if event == VERDICTS:
            self._take_verdicts(wire)
            return
        pending = self._waiting(convert.key_of(wire))
        if pending is None:
            return
        if event not in (pending.event, "error", None):
            return  # said once more: the answer to an earlier item with this key
        try:
            reply = self._codec.reply_from_proto(wire)
        except OutriderError as error:  # this session's reply is broken; the stream lives
            pending.settle(InternalError(str(error)))
            return
        pending.settle(Exchange(reply, pending.sent_bytes + wire.ByteSize()))

    def _take_verdicts(self, wire: Any) -> None:
        """Whose verdict is which cannot be known of columns that do not fit each other: the stream ends by raising."""
        share = wire.ByteSize() // max(1, len(wire.verdicts.sessions))
        for reply in verdicts_from_proto(wire.verdicts):
            pending = self._waiting(reply.key)
            if pending is not None and pending.event == VERDICT:
                pending.settle(Exchange(reply, pending.sent_bytes + share))

    def _waiting(self, key: Key) -> Pending | None:
        """Who waits for the reply with this key, or will; None: it is stale (an older round's, or given up)."""
        pending = self._pending.get(key)
        if pending is None and (following := self._following.get((key.session, key.epoch))) is not None:
            pending = following.at(key.base_length)
        return pending if pending is not None and pending.result is None else None

    def _come_up(self, welcome: replica_pb2.Welcome) -> None:
        self.step_times = step_times_from_proto("step_times", welcome.step_times)
        self.draft_step_times = step_times_from_proto("draft_step_times", welcome.draft_step_times)
        self.welcome = welcome
        self.drafts, self.goes_ahead, self.max_proposal = welcome.drafts, welcome.goes_ahead, welcome.max_proposal
        self.refusal = None
        self._outbox.clear()
        self._leave.clear()
        self.hands_over_at = None
        self._up.set()
        self._takes_new.set()
        assert self.model is not None
        log.info("%s is up: %s (%s)", self.address, self.model.name, welcome.incarnation[:8])

    def _refuse(self, why: str) -> None:
        if why != self.refusal:
            log.error("%s is refused: %s", self.address, why)
        self.refusal = why
        self._go_down(FailedPrecondition(why))

    def _go_down(self, error: BaseException) -> None:
        self._up.clear()
        self._takes_new.clear()
        self.welcome = None
        self.drafts, self.goes_ahead, self.max_proposal = False, False, None
        self.step_times = self.draft_step_times = None
        self._outbox.clear()
        why = f"{self.address} was lost: {reason(error)}"
        for pending in self._pending.values():
            pending.settle(Unavailable(why))
        for following in self._following.values():
            following.lost = Unavailable(why)
