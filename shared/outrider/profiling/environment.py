"""Where and with what a profile was made."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("outrider", "torch", "transformers", "tokenizers", "numpy")
BUSY = 0.5
"""Load a core from which a machine is called busy."""


def environment(arguments: list[str], device: torch.device) -> dict[str, Any]:
    """Hardware, versions, command and load, for the report."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["outrider", "profile", *arguments]),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "torch_threads": torch.get_num_threads(),
        "load_before": os.getloadavg()[0],
        "python": sys.version.split()[0],
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
    }


def busy_note() -> list[str]:
    """A note where other work shares the cores now: times measured then say little."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < BUSY * cores:
        return []
    return [f"other processes keep this machine busy (load {load:.1f} on {cores} cores): the times are noisy"]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
