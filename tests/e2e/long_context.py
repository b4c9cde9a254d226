"""A tiny model that takes prompts of several passes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path


def with_long_context(model: Path, folder: Path) -> Path:
    """A copy of a tiny model with a context of 1,024 tokens."""
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1024}))
    return folder
