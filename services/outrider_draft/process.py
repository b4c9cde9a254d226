"""The draft's parts, put together. Imports torch, which `main` does not until the settings are known to be right."""

from __future__ import annotations

import grpc.aio

from outrider.engine.draft import DraftCore
from outrider.engine.engine import Engine
from outrider.engine.model import LoadedModel
from outrider.engine.replica import Replica, load
from outrider.protocol.items import DraftReply, DraftRequest
from outrider.rpc.codec import DRAFT
from outrider.rpc.replica_server import ReplicaStreams
from outrider.rpc.server import run_event_loop
from outrider.v1.draft_pb2_grpc import add_DraftServiceServicer_to_server
from outrider_draft.servicer import DraftServicer
from outrider_draft.settings import DraftSettings


def run(settings: DraftSettings) -> None:
    """Load the model, then serve until a signal."""
    loaded, engine = load(settings)
    run_event_loop(serve(settings, loaded, engine))


async def serve(settings: DraftSettings, loaded: LoadedModel, engine: Engine) -> None:
    """Serve a loaded model."""
    await assemble(settings, loaded, engine).run()


def assemble(settings: DraftSettings, loaded: LoadedModel, engine: Engine) -> Replica:
    """The draft's parts, put together."""
    core = DraftCore(engine, max_proposal=settings.max_proposal, lease_s=settings.lease_s)
    return Replica("draft", settings, loaded, core, DRAFT, register)


def register(streams: ReplicaStreams[DraftRequest, DraftReply], server: grpc.aio.Server) -> None:
    """Add DraftService to a server."""
    add_DraftServiceServicer_to_server(DraftServicer(streams), server)
