"""A draft or verifier process: model, engine, device thread, server. The services only say which core they run."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc.aio
import torch
from transformers.utils import logging as transformers_logging

from outrider.acceptance.step_times import StepTimes
from outrider.config.replica import ReplicaSettings
from outrider.engine.core import ReplicaCore
from outrider.engine.engine import Engine
from outrider.engine.guessing_times import goes_ahead, in_a_row
from outrider.engine.model import LoadedModel, load_model
from outrider.engine.options import EngineOptions, ModelOptions
from outrider.engine.step_times import time_drafting, time_verifying
from outrider.engine.worker import DeviceWorker
from outrider.routing.records import ReplicaRecord, Role
from outrider.routing.registration import Registration
from outrider.routing.registry import Registry
from outrider.rpc.codec import Codec
from outrider.rpc.garbage import collect_seldom
from outrider.rpc.replica_server import ModelServicer, ReplicaInfo, ReplicaStreams
from outrider.rpc.server import Server
from outrider.telemetry.logs import get_logger
from outrider.v1 import model_pb2, model_pb2_grpc

log = get_logger(__name__)

MODEL_SERVICE = "outrider.v1.ModelService"

Register = Callable[[ReplicaStreams[Any, Any], grpc.aio.Server], None]


def load(settings: ReplicaSettings) -> tuple[LoadedModel, Engine]:
    """Load the model and make room for its KV. Blocks for seconds to minutes; raises ModelLoadError."""
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    _quieten_transformers()
    options = ModelOptions(
        model=settings.model,
        dtype=settings.dtype,
        device=settings.device,
        layers=settings.layers,
        revision=settings.revision,
        trust_remote_code=settings.trust_remote_code,
        quantization=settings.quantization,
    )
    loaded = load_model(options, progress=log.info)
    engine = Engine(
        loaded,
        EngineOptions(
            kv_tokens=settings.kv_tokens,
            memory_fraction=settings.memory_fraction,
            block_size=settings.block_size,
            max_batch_tokens=settings.max_batch_tokens,
            prefix_cache=settings.prefix_cache,
            fused=settings.fused,
            exact=settings.exact,
        ),
    )
    log.info("%s on %s: KV cache of %d tokens", engine.info.name, engine.info.device, engine.capacity_tokens)
    return loaded, engine


def _quieten_transformers() -> None:
    """Progress bars belong on terminals; and an early-exit draft leaves weights unused on purpose."""
    transformers_logging.set_verbosity_error()
    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()


def _times_of(core: ReplicaCore[Any], role: Role) -> tuple[StepTimes | None, StepTimes | None]:
    """Of its passes, and of those of its own draft."""
    times = (time_verifying if role is Role.VERIFIER else time_drafting)(core)
    drafting = time_drafting(core.own_draft) if core.own_draft else None
    return (times, drafting) if times is None or drafting is None else in_a_row(core, times, drafting)


class Replica:
    """A running replica: `start` and `stop` it, or `run` it until a signal. Made inside the event loop."""

    def __init__(
        self,
        role: str,
        settings: ReplicaSettings,
        loaded: LoadedModel,
        core: ReplicaCore[Any],
        codec: Codec[Any, Any],
        register: Register,
    ) -> None:
        """`role` is verifier or draft; `core` runs its rounds, `codec` and `register` are its service."""
        self.server = Server(role, settings.listen, tls=settings.server_tls)
        self.server.on_start = self._register
        self._role = Role(role)
        self._settings = settings
        self._core = core
        self._address = ""  # that coordinators connect to, once it is known
        self._draining = False
        self._registration: Registration | None = None
        self._heartbeats: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._worker = DeviceWorker(core, on_failure=self._device_failed)
        step_times, draft_step_times = _times_of(core, self._role)
        self._info = info = ReplicaInfo(
            model=core.engine.info,
            role=model_pb2.ReplicaRole.Value(f"REPLICA_ROLE_{role.upper()}"),
            capacity_tokens=core.engine.capacity_tokens,
            max_proposal=core.max_proposal,
            drafts=core.own_draft is not None,
            goes_ahead=goes_ahead(core),
            step_times=step_times,
            draft_step_times=draft_step_times,
        )
        self._streams = ReplicaStreams(codec, self._worker, info)
        self.server.add(codec.service, partial(register, self._streams))
        servicer = ModelServicer(info, loaded.tokenizer_files)
        self.server.add(MODEL_SERVICE, partial(model_pb2_grpc.add_ModelServiceServicer_to_server, servicer))

    async def run(self) -> None:
        """Serve until a signal; raise InternalError if the device thread fails."""
        self._worker.start()
        collect_seldom()
        try:
            await self.server.run(self._drain, grace_s=self._settings.grace_s)
        finally:
            if self._registration is not None:
                await self._end_heartbeats()
                await self._registration.leave()
            await asyncio.to_thread(self._worker.stop)

    async def start(self) -> str:
        """Serve; the address."""
        self._worker.start()
        return await self.server.start()

    async def stop(self) -> None:
        """End without waiting for anybody, as a crash would."""
        if self._registration is not None:
            await self._end_heartbeats()
            await self._registration.close()
        await self.server.grpc.stop(0)
        await asyncio.to_thread(self._worker.stop)

    def _register(self, address: str) -> None:
        """Begin the heartbeats, if there is a registry."""
        settings = self._settings
        self._address = settings.advertise or address
        if (connection := settings.connect_registry()) is None:
            return
        self._registration = Registration(
            Registry(connection), self._describe, heartbeat_s=settings.heartbeat_s, ttl_s=settings.registry_ttl_s
        )
        self._heartbeats = asyncio.create_task(self._registration.run(), name="heartbeats")

    def _describe(self) -> ReplicaRecord:
        sessions: Counter[str] = Counter()
        for stream, count in self._core.sessions.count_by_peer().items():
            sessions[stream.rpartition("@")[0]] += count  # a stream's name is its coordinator's @ its address
        return ReplicaRecord(
            role=self._role,
            address=self._address,
            model=self._info.model.name,
            vocabulary_fingerprint=self._info.model.vocabulary_fingerprint,
            incarnation=self._info.incarnation,
            capacity_tokens=self._info.capacity_tokens,
            free_tokens=self._core.engine.available_tokens,
            sessions=sessions,
            draining=self._draining,
        )

    async def _drain(self) -> None:
        """Tell the coordinators to bring nothing new and to take along what lasts, then wait until they have left."""
        self.refuse_new()
        self._streams.drain(self._settings.grace_s)
        await self._streams.drained()

    def refuse_new(self) -> None:
        """Tell the coordinators to bring nothing new, as far as they look at the registry."""
        self._draining = True
        if self._registration is not None:
            self._registration.changed()

    async def _end_heartbeats(self) -> None:
        assert self._heartbeats is not None
        self._heartbeats.cancel()
        await asyncio.gather(self._heartbeats, return_exceptions=True)

    def _device_failed(self) -> None:
        self._loop.call_soon_threadsafe(self.server.fail, "the device thread ended")
