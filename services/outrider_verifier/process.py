"""The verifier's parts, put together. Imports torch, which `main` does not until the settings are known to be right."""

from __future__ import annotations

import grpc.aio

from outrider.engine.engine import Engine
from outrider.engine.model import LoadedModel
from outrider.engine.replica import Replica, load
from outrider.engine.verify import VerifyCore
from outrider.protocol.items import VerifierReply, VerifierRequest
from outrider.rpc.codec import VERIFIER
from outrider.rpc.replica_server import ReplicaStreams
from outrider.rpc.server import run_event_loop
from outrider.v1.verifier_pb2_grpc import add_VerifierServiceServicer_to_server
from outrider_verifier.servicer import VerifierServicer
from outrider_verifier.settings import VerifierSettings


def run(settings: VerifierSettings) -> None:
    """Load the model, then serve until a signal."""
    loaded, engine = load(settings)
    run_event_loop(serve(settings, loaded, engine))


async def serve(settings: VerifierSettings, loaded: LoadedModel, engine: Engine) -> None:
    """Serve a loaded model."""
    await assemble(settings, loaded, engine).run()


def assemble(settings: VerifierSettings, loaded: LoadedModel, engine: Engine) -> Replica:
    """The verifier's parts, put together."""
    core = VerifyCore(engine, max_proposal=settings.max_proposal, lease_s=settings.lease_s)
    return Replica("verifier", settings, loaded, core, VERIFIER, register)


def register(streams: ReplicaStreams[VerifierRequest, VerifierReply], server: grpc.aio.Server) -> None:
    """Add VerifierService to a server."""
    add_VerifierServiceServicer_to_server(VerifierServicer(streams), server)
