"""The pair's parts, put together. Imports torch, which `main` does not until the settings are known to be right."""

from __future__ import annotations

from outrider.engine.draft import DraftCore
from outrider.engine.engine import Engine
from outrider.engine.model import LoadedModel
from outrider.engine.replica import Replica, load, run_all
from outrider.engine.turns import SharedDevice
from outrider.engine.verify import VerifyCore
from outrider.rpc.codec import DRAFT, VERIFIER
from outrider.rpc.replica_services import register_draft, register_verifier
from outrider.rpc.server import run_event_loop
from outrider_pair.settings import PairSettings

Model = tuple[LoadedModel, Engine]


def run(settings: PairSettings) -> None:
    """Load both models, the draft first because it takes the smaller part of the memory; serve until a signal."""
    draft = load(settings.draft())
    run_event_loop(serve(settings, load(settings), draft))


async def serve(settings: PairSettings, target: Model, draft: Model) -> None:
    """Serve loaded models."""
    await run_all(*assemble(settings, target, draft))


def assemble(settings: PairSettings, target: Model, draft: Model) -> tuple[Replica, Replica]:
    """The verifier and the draft, with a device between them."""
    device = SharedDevice()
    checks = VerifyCore(target[1], max_proposal=settings.max_proposal, lease_s=settings.lease_s)
    guesses = DraftCore(draft[1], max_proposal=settings.max_proposal, lease_s=settings.lease_s)
    return (
        Replica("verifier", settings, target[0], checks, VERIFIER, register_verifier, device.verifying),
        Replica("draft", settings.draft(), draft[0], guesses, DRAFT, register_draft, device.drafting),
    )
