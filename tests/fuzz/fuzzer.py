"""Attacks on the real servers of a cluster in this process, and what must hold meanwhile and afterwards."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from outrider.engine.replica import Replica
from outrider.protocol.items import PROTOCOL_VERSION
from outrider.rpc.channel import open_channel
from outrider.v1 import draft_pb2, generation_pb2, replica_pb2, verifier_pb2
from tests.cluster import Cluster
from tests.fuzz.impostor import try_link
from tests.fuzz.inputs import Hostile
from tests.fuzz.peers import Peer, deep_tree, plausible_request

FAULT_CODES = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
"""Codes that blame the server: no input may cause them."""

ANSWER_S = 30.0
"""Longest wait for what a healthy server answers at once, on a busy machine."""

NEIGHBOUR: dict[str, Any] = {"temperature": 0.8, "seed": 11, "max_tokens": 24, "ignore_eos": True}
NEIGHBOUR_PROMPT = [*range(30, 70)]
PROBE = 2**60
FRAMES_A_STREAM = 24
CALLS_AT_A_TIME = 12


@dataclass
class Report:
    """What was sent and what came of it."""

    inputs: Counter[str] = field(default_factory=Counter)  # by server; "link": the coordinator's end of a stream
    codes: Counter[str] = field(default_factory=Counter)  # how calls and streams ended
    checks: int = 0
    longest_stall_s: float = 0.0  # of the event loop
    findings: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Messages sent."""
        return sum(self.inputs.values())


class _Errors(logging.Handler):
    """Collects what the servers log as errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else None
        if isinstance(cause, grpc.aio.InternalError) and record.name == "grpc._cython.cygrpc":
            return  # gRPC's own word for an answer whose receiver has given up
        self.seen.append(f"{record.name}: {record.getMessage()} {cause!r}")


class Fuzzer:
    """Attacks one cluster. Attack number n of a seed is the same each time, whatever ran before it."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.report = Report()
        self._cluster = cluster
        self._seed = seed
        self._fingerprint = cluster.coordinator.replicas.known_target.model.vocabulary_fingerprint
        self._expected: tuple[int, ...] = ()
        self._whole: list[int] = []
        self._errors = _Errors()

    async def run(self, inputs: int, check_every: int, most_s: float = float("inf")) -> Report:
        """Attack until so many messages were sent or seconds are over, four attacks at a time.

        Check after each `check_every` messages.
        """
        ends_at = time.monotonic() + most_s
        await self._begin()
        watch = asyncio.create_task(self._watch())
        attack = next_check = 0
        try:
            while self.report.total < inputs and time.monotonic() < ends_at:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._neighbour(f"during attacks {attack} to {attack + 3}"))
                    for number in range(attack, attack + 4):
                        tasks.create_task(self._attack(number))
                attack += 4
                if self.report.total >= next_check:
                    await self.check(f"after attack {attack - 1}")
                    next_check = self.report.total + check_every
            await self.check("at the end")
        finally:
            watch.cancel()
            logging.getLogger().removeHandler(self._errors)
        return self.report

    async def check(self, when: str) -> None:
        """The neighbour gets its tokens, nothing is held, no server has logged an error, every thread lives."""
        self.report.checks += 1
        await self._neighbour(when)
        try:
            async with asyncio.timeout(ANSWER_S):
                while self._held() != self._baseline:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        except TimeoutError:
            self._find(f"{when}: held {self._held()}, but before the first attack {self._baseline}")
        for replica in self._replicas:
            if not replica._worker.alive:
                self._find(f"{when}: the device thread of {replica.server.role} has ended")
        for text in self._errors.seen:
            self._find(f"{when}: logged {text}")
        self._errors.seen.clear()

    async def _begin(self) -> None:
        logging.getLogger().addHandler(self._errors)
        self._expected = (await self._cluster.generate(NEIGHBOUR_PROMPT, **NEIGHBOUR)).token_ids
        await asyncio.sleep(0.2)  # the session's Close arrives
        self._baseline = self._held()

    @property
    def _replicas(self) -> list[Replica]:
        return [*self._cluster.verifiers, *self._cluster.drafts]

    def _held(self) -> dict[str, Any]:
        """What sessions hold, everywhere."""
        cores = [replica._worker._core for replica in self._replicas]
        return {
            "free tokens": [core.engine.available_tokens for core in cores],  # type: ignore[attr-defined]
            "sessions": [len(core.sessions) for core in cores],  # type: ignore[attr-defined]
            "streams": [replica._streams._open for replica in self._replicas],
            "generations": len(self._cluster.coordinator.generations._running),
            "running": self._cluster.coordinator.generations.admission.running,
            "waiting": self._cluster.coordinator.generations.admission.waiting,
        }

    def _find(self, text: str) -> None:
        if len(self.report.findings) < 200:
            self.report.findings.append(text)

    async def _watch(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            self.report.longest_stall_s = max(self.report.longest_stall_s, time.monotonic() - before - 0.01)

    async def _neighbour(self, when: str) -> None:
        drafter = random.Random(when).choice(["none", "ngram", "model"])
        try:
            answer = await self._cluster.generate(NEIGHBOUR_PROMPT, drafter=drafter, timeout=ANSWER_S, **NEIGHBOUR)
        except Exception as error:
            self._find(f"{when}: the neighbour ({drafter}) got {error!r}")
            return
        if answer.token_ids != self._expected:
            self._find(f"{when}: the neighbour ({drafter}) got other tokens")

    # Attacks

    async def _attack(self, number: int) -> None:
        source = random.Random(f"{self._seed}/{number}")
        kind = source.choice([*["coordinator", "verifier", "draft"] * 3, "link"])
        if kind == "link":
            info = self._cluster.drafts[0]._info
            for found in await try_link(source, info, self.report.inputs, patience_s=3 * ANSWER_S):
                self._find(f"attack {number}: the link {found}")
            return
        if kind == "coordinator":
            address = self._cluster.address
        else:
            replicas = self._cluster.verifiers if kind == "verifier" else self._cluster.drafts
            address = f"127.0.0.1:{replicas[0].server.port}"
        try:
            async with asyncio.timeout(3 * ANSWER_S), open_channel(address) as channel:
                if kind == "coordinator":
                    await self._calls(number, source, channel)
                else:
                    await self._stream(number, source, channel, draft=kind == "draft")
        except TimeoutError:
            self._find(f"attack {number} on the {kind} hangs")

    async def _calls(self, number: int, source: random.Random, channel: grpc.aio.Channel) -> None:
        """Requests side by side, some given up after a moment."""
        hostile = Hostile(source)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CALLS_AT_A_TIME):
                method, data = self._request(hostile)
                timeout = source.choice([0.02, 0.1, 0.5, 2.0])
                tasks.create_task(self._call(number, channel, method, data, timeout))

    def _request(self, hostile: Hostile) -> tuple[str, bytes]:
        source = hostile.random
        if source.random() < 0.15:
            other: list[tuple[str, Any]] = [
                ("Tokenize", generation_pb2.TokenizeRequest()),
                ("Abort", generation_pb2.AbortRequest()),
                ("GetModelInfo", generation_pb2.GetModelInfoRequest()),
            ]
            name, message = source.choice(other)
            return name, hostile.fill(message).SerializeToString()
        match source.randrange(4):
            case 0:
                return "Generate", hostile.fill(generation_pb2.GenerateRequest()).SerializeToString()
            case 1:
                return "Generate", hostile.bytes_of(plausible_request(source))
            case _:
                request = plausible_request(source)
                for _ in range(source.randint(1, 3)):
                    hostile.change(request)
                return "Generate", request.SerializeToString()

    async def _call(self, number: int, channel: grpc.aio.Channel, method: str, data: bytes, timeout_s: float) -> None:
        path = f"/outrider.v1.GenerationService/{method}"
        self.report.inputs["coordinator"] += 1
        try:
            if method == "Generate":
                async for _ in channel.unary_stream(path)(data, timeout=timeout_s):
                    pass
            else:
                await channel.unary_unary(path)(data, timeout=timeout_s)
            self._ended(number, f"coordinator {method}", grpc.StatusCode.OK, "")
        except grpc.aio.AioRpcError as error:
            self._ended(number, f"coordinator {method}", error.code(), error.details() or "")

    def _ended(self, number: int, what: str, code: grpc.StatusCode, details: str) -> None:
        self.report.codes[f"{what} {code.name}"] += 1
        if code in FAULT_CODES:
            self._find(f"attack {number}: {what} ended with {code.name}: {details}")

    async def _stream(self, number: int, source: random.Random, channel: grpc.aio.Channel, *, draft: bool) -> None:
        """One replica stream: a Hello or not, frames good and bad, then the end or nothing."""
        name = "draft" if draft else "verifier"
        path = "/outrider.v1.DraftService/Draft" if draft else "/outrider.v1.VerifierService/Verify"
        answer = draft_pb2.DraftResponse if draft else verifier_pb2.VerifyResponse
        call = channel.stream_stream(path, response_deserializer=answer.FromString)(timeout=2 * ANSWER_S)
        alive = asyncio.Event()
        reader = asyncio.create_task(self._read(number, name, call, alive))
        try:
            for data in self._frames(source, draft=draft):
                self.report.inputs[name] += 1
                await call.write(data)
                await asyncio.sleep(source.choice([0, 0, 0, 0.01]))  # now and then a round has time to end
            if source.random() < 0.8:  # what came before has been handled when the last item is answered
                await call.write(_probe(draft=draft).SerializeToString())
                await self._await_life(number, name, reader, alive)
                await call.done_writing()
                await reader
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            pass  # the stream has been ended: the reader says how
        finally:
            if call.done() and "Internal error from Core" not in str(await call.details()):
                # (That one is gRPC's own word, at this end, for a write after the server has ended the stream.)
                self._ended(number, name, await call.code(), str(await call.details()))
            call.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    def _frames(self, source: random.Random, *, draft: bool) -> list[bytes]:
        hostile, peer = Hostile(source), Peer(source, draft)
        kind: Any = draft_pb2.DraftRequest if draft else verifier_pb2.VerifyRequest
        hello = kind(
            hello=replica_pb2.Hello(
                protocol_version=PROTOCOL_VERSION,
                vocabulary_fingerprint=self._fingerprint,
                vocabulary_size=512,
                coordinator="fuzz",
            )
        )
        frames: list[bytes] = []
        if source.random() < 0.95:
            frames.append((hostile.change(hello) if source.random() < 0.05 else hello).SerializeToString())
        badness = source.choice([1.0, 1.0, 0.2])  # in some streams most is well, so that sessions live long
        for _ in range(FRAMES_A_STREAM):
            frame = peer.frame()
            chance = source.random() if source.random() < badness else 0.6
            if chance < 0.35:
                for _ in range(source.randint(1, 3)):
                    hostile.change(frame)
            elif chance < 0.5:
                hostile.fill(frame, 0.8)
            elif chance < 0.55:
                deep_tree(hostile, frame)
            elif chance < 0.57:
                frame = hello
            damaged = chance > 0.9
            frames.append(hostile.bytes_of(frame) if damaged else frame.SerializeToString())
        return frames

    async def _await_life(self, number: int, name: str, reader: asyncio.Task[None], alive: asyncio.Event) -> None:
        """A well-formed item on the same stream is answered, unless the stream was refused at its Hello."""
        answered = asyncio.create_task(alive.wait())
        await asyncio.wait([answered, reader], timeout=ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
        if not answered.done() and not reader.done():
            self._find(f"attack {number}: the {name} stopped answering its stream")
        answered.cancel()

    async def _read(self, number: int, name: str, call: Any, alive: asyncio.Event) -> None:
        """Read to the end; no reply may say that the replica itself failed."""
        async for frame in call:
            for reply in frame.replies.replies:
                if reply.session == PROBE:
                    alive.set()
                event = reply.WhichOneof("event")
                if event != "error":
                    self.report.codes[f"{name} item {event}"] += 1
                else:
                    code = replica_pb2.ItemErrorCode.Name(reply.error.code).removeprefix("ITEM_ERROR_CODE_")
                    self.report.codes[f"{name} item {code}"] += 1
                    if reply.error.code == replica_pb2.ITEM_ERROR_CODE_INTERNAL:
                        self._find(f"attack {number}: {name} item failed: {reply.error.message}")


def _probe(*, draft: bool) -> Any:
    """A frame with one good item, of a session that nothing else names."""
    kind: Any = draft_pb2.DraftItem if draft else verifier_pb2.VerifierItem
    item = kind(session=PROBE, epoch=1, base_length=3)
    item.open.CopyFrom(replica_pb2.Open(tokens=[5, 6, 7], prompt_length=3, max_length=16))
    if draft:
        return draft_pb2.DraftRequest(items=draft_pb2.DraftItems(items=[item]))
    return verifier_pb2.VerifyRequest(items=verifier_pb2.VerifierItems(items=[item]))
