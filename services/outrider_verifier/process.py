"""The verifier's parts, put together. Imports torch, which `main` does not until the settings are known to be right."""

from __future__ import annotations

import grpc.aio

from outrider.engine.draft import DraftCore
from outrider.engine.drafting_verify import DraftingVerifyCore
from outrider.engine.engine import Engine
from outrider.engine.model import LoadedModel
from outrider.engine.own_draft import OwnDraft
from outrider.engine.replica import Replica, load
from outrider.engine.verify import VerifyCore
from outrider.errors import ModelLoadError
from outrider.protocol.items import ModelInfo, VerifierReply, VerifierRequest
from outrider.rpc.codec import VERIFIER
from outrider.rpc.replica_server import ReplicaStreams
from outrider.rpc.server import run_event_loop
from outrider.v1.verifier_pb2_grpc import add_VerifierServiceServicer_to_server
from outrider_verifier.servicer import VerifierServicer
from outrider_verifier.settings import VerifierSettings


def run(settings: VerifierSettings) -> None:
    """Load the models, the draft first because it takes the smaller part of the memory; serve until a signal."""
    own = load_own_draft(settings)
    run_event_loop(serve(settings, *load(settings), own))


def load_own_draft(settings: VerifierSettings) -> Engine | None:
    """The draft of this process, if there is to be one. Blocks for seconds to minutes; raises ModelLoadError."""
    wanted = settings.own_draft()
    return None if wanted is None else load(wanted)[1]


async def serve(settings: VerifierSettings, loaded: LoadedModel, engine: Engine, own: Engine | None = None) -> None:
    """Serve a loaded model, with a draft of its own or without."""
    await assemble(settings, loaded, engine, own).run()


def assemble(settings: VerifierSettings, loaded: LoadedModel, engine: Engine, own: Engine | None = None) -> Replica:
    """The verifier's parts, put together. Raise ModelLoadError if target and draft have different vocabularies."""
    core: VerifyCore
    if own is None:
        core = VerifyCore(engine, max_proposal=settings.max_proposal, lease_s=settings.lease_s)
    else:
        _check_pair(engine.info, own.info)
        guesses = DraftCore(own, max_proposal=settings.max_proposal, lease_s=settings.lease_s)
        core = DraftingVerifyCore(
            engine, OwnDraft(guesses), max_proposal=settings.max_proposal, lease_s=settings.lease_s
        )
    return Replica("verifier", settings, loaded, core, VERIFIER, register)


def _check_pair(target: ModelInfo, draft: ModelInfo) -> None:
    if target.vocabulary_fingerprint != draft.vocabulary_fingerprint:
        raise ModelLoadError(
            f"draft_model: the vocabulary of {draft.name} ({draft.vocabulary_size} tokens) is not that of {target.name}"
            f" ({target.vocabulary_size} tokens)"
        )


def register(streams: ReplicaStreams[VerifierRequest, VerifierReply], server: grpc.aio.Server) -> None:
    """Add VerifierService to a server."""
    add_VerifierServiceServicer_to_server(VerifierServicer(streams), server)
