"""The verifier's parts, put together. Imports torch, which `main` does not until the settings are known to be right."""

from __future__ import annotations

from outrider.engine.engine import Engine
from outrider.engine.model import LoadedModel
from outrider.engine.replica import Replica, load, run_all
from outrider.engine.verify import VerifyCore
from outrider.rpc.codec import VERIFIER
from outrider.rpc.replica_services import register_verifier
from outrider.rpc.server import run_event_loop
from outrider_verifier.settings import VerifierSettings


def run(settings: VerifierSettings) -> None:
    """Load the model, then serve until a signal."""
    loaded, engine = load(settings)
    run_event_loop(serve(settings, loaded, engine))


async def serve(settings: VerifierSettings, loaded: LoadedModel, engine: Engine) -> None:
    """Serve a loaded model."""
    await run_all(assemble(settings, loaded, engine))


def assemble(settings: VerifierSettings, loaded: LoadedModel, engine: Engine) -> Replica:
    """The verifier's parts, put together."""
    core = VerifyCore(engine, max_proposal=settings.max_proposal, lease_s=settings.lease_s)
    return Replica("verifier", settings, loaded, core, VERIFIER, register_verifier)
