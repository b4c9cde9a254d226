"""The pair's process."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.rpc.main import run_service
from outrider_pair.settings import PairSettings


def main(argv: Sequence[str]) -> int:
    """Run the pair; its exit status."""
    return run_service("outrider-pair", PairSettings, run, argv)


def run(settings: PairSettings) -> None:
    """Load both models, then serve until a signal."""
    from outrider_pair import process  # late: --help or a wrong flag need not wait for torch

    process.run(settings)
