"""The draft process."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.engine.draft import DraftCore
from outrider.engine.replica import load, serve
from outrider.rpc.codec import DRAFT
from outrider.rpc.main import run_service
from outrider.rpc.server import run_event_loop
from outrider.v1.draft_pb2_grpc import add_DraftServiceServicer_to_server
from outrider_draft.servicer import DraftServicer
from outrider_draft.settings import DraftSettings


def main(argv: Sequence[str]) -> int:
    """Run the draft; its exit status."""
    return run_service("outrider-draft", DraftSettings, run, argv)


def run(settings: DraftSettings) -> None:
    """Load the model, then serve until a signal."""
    loaded, engine = load(settings)
    core = DraftCore(engine, max_proposal=settings.max_proposal, lease_s=settings.lease_s)
    run_event_loop(
        serve(
            "draft",
            settings,
            loaded,
            core,
            DRAFT,
            lambda streams, server: add_DraftServiceServicer_to_server(DraftServicer(streams), server),
        )
    )
