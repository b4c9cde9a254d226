"""Logging to stderr: one line an event, the same form in every service."""

from __future__ import annotations

import logging
import sys

FORMAT = "%(asctime)s %(levelname).1s %(name)s: %(message)s"


def get_logger(name: str) -> logging.Logger:
    """The logger of a module; under `outrider`, so that one level governs all of ours."""
    return logging.getLogger(name)


def configure(level: str) -> None:
    """Set up logging of the process; `level` is a standard name such as "info". Call once, in main."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT, datefmt="%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    # The services' packages are named outrider_*, so each is set beside the library's own.
    for name in ("outrider", "outrider_coordinator", "outrider_draft", "outrider_verifier", "outrider_cli"):
        logging.getLogger(name).setLevel(level.upper())
