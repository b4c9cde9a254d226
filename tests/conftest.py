"""Fixtures that every test directory shares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny_models import save_model

TinyModel = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """Directory of a tiny random model; made once a session for each combination of arguments."""
    home = tmp_path_factory.mktemp("models")

    def directory(name: str, **options: int) -> Path:
        label = "-".join([name, *(f"{key}{value}" for key, value in sorted(options.items()))])
        return save_model(name, home / label, **options)

    return directory
