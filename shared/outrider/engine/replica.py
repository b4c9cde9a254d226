"""A draft or verifier process: model, engine, device thread, server. The services only say which core they run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio
import torch

from outrider.config.replica import ReplicaSettings
from outrider.engine.core import ReplicaCore
from outrider.engine.engine import Engine
from outrider.engine.model import LoadedModel, load_model
from outrider.engine.options import EngineOptions, ModelOptions
from outrider.engine.worker import DeviceWorker
from outrider.rpc.codec import Codec
from outrider.rpc.replica_server import ModelServicer, ReplicaInfo, ReplicaStreams
from outrider.rpc.server import Server
from outrider.telemetry.logs import get_logger
from outrider.v1 import model_pb2, model_pb2_grpc

log = get_logger(__name__)

Register = Callable[[ReplicaStreams[Any, Any], grpc.aio.Server], None]


def load(settings: ReplicaSettings) -> tuple[LoadedModel, Engine]:
    """Load the model and make room for its KV. Blocks for seconds to minutes; raises ModelLoadError."""
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    options = ModelOptions(
        model=settings.model,
        dtype=settings.dtype,
        device=settings.device,
        layers=settings.layers,
        revision=settings.revision,
        trust_remote_code=settings.trust_remote_code,
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
        ),
    )
    log.info("%s on %s: KV cache of %d tokens", engine.info.name, engine.info.device, engine.capacity_tokens)
    return loaded, engine


async def serve(
    role: str,
    settings: ReplicaSettings,
    loaded: LoadedModel,
    core: ReplicaCore[Any],
    codec: Codec[Any, Any],
    register: Register,
) -> None:
    """Serve until a signal, or until the device thread fails."""
    server = Server(role, settings.listen)
    loop = asyncio.get_running_loop()

    def on_failure() -> None:
        loop.call_soon_threadsafe(server.fail, "the device thread ended")

    worker = DeviceWorker(core, on_failure=on_failure)
    info = ReplicaInfo(
        model=core.engine.info,
        role=model_pb2.ReplicaRole.Value(f"REPLICA_ROLE_{role.upper()}"),
        capacity_tokens=core.engine.capacity_tokens,
        max_proposal=core.max_proposal,
    )
    streams = ReplicaStreams(codec, worker, info)
    server.add(codec.service, lambda grpc_server: register(streams, grpc_server))
    servicer = ModelServicer(info, loaded.tokenizer_files)
    server.add(
        "outrider.v1.ModelService",
        lambda grpc_server: model_pb2_grpc.add_ModelServiceServicer_to_server(servicer, grpc_server),
    )
    worker.start()
    try:
        await server.run(streams.drained, grace_s=settings.grace_s)
    finally:
        await asyncio.to_thread(worker.stop)
