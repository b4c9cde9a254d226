"""The verifier process."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.engine.replica import load, serve
from outrider.engine.verify import VerifyCore
from outrider.rpc.codec import VERIFIER
from outrider.rpc.main import run_service
from outrider.rpc.server import run_event_loop
from outrider.v1.verifier_pb2_grpc import add_VerifierServiceServicer_to_server
from outrider_verifier.servicer import VerifierServicer
from outrider_verifier.settings import VerifierSettings


def main(argv: Sequence[str]) -> int:
    """Run the verifier; its exit status."""
    return run_service("outrider-verifier", VerifierSettings, run, argv)


def run(settings: VerifierSettings) -> None:
    """Load the model, then serve until a signal."""
    loaded, engine = load(settings)
    core = VerifyCore(engine, max_proposal=settings.max_proposal, lease_s=settings.lease_s)
    run_event_loop(
        serve(
            "verifier",
            settings,
            loaded,
            core,
            VERIFIER,
            lambda streams, server: add_VerifierServiceServicer_to_server(VerifierServicer(streams), server),
        )
    )
