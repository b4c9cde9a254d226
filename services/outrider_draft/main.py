"""The draft process."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.rpc.main import run_service
from outrider_draft.settings import DraftSettings


def main(argv: Sequence[str]) -> int:
    """Run the draft; its exit status."""
    return run_service("outrider-draft", DraftSettings, run, argv)


def run(settings: DraftSettings) -> None:
    """Load the model, then serve until a signal."""
    from outrider_draft import process  # late: --help or a wrong flag need not wait for torch

    process.run(settings)
