"""The verifier process."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.rpc.main import run_service
from outrider_verifier.settings import VerifierSettings


def main(argv: Sequence[str]) -> int:
    """Run the verifier; its exit status."""
    return run_service("outrider-verifier", VerifierSettings, run, argv)


def run(settings: VerifierSettings) -> None:
    """Load the model, then serve until a signal."""
    from outrider_verifier import process  # late: --help or a wrong flag need not wait for torch

    process.run(settings)
