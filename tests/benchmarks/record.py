"""What every recorded measurement says about itself: hardware, versions, command, time."""

from __future__ import annotations

import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = [
    "outrider",
    "torch",
    "transformers",
    "grpcio",
    "protobuf",
    "tokenizers",
    "numpy",
    "xllamacpp",
    "triton",
    "torchao",
]


def environment() -> dict[str, Any]:
    """Where and how this process runs."""
    import torch

    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join([Path(sys.executable).name, *sys.orig_argv[1:]]).replace(str(Path.home()), "~"),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        "torch_threads": torch.get_num_threads(),
    }


def save(name: str, result: dict[str, Any], directory: Path = RESULTS) -> Path:
    """Write `name`.json with the environment first; return its path."""
    path = directory / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"environment": environment(), **result}, indent=1) + "\n")
    return path


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()
