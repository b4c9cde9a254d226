"""A model that cannot be there is refused before anything slow is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from outrider.config.model_location import ModelLocation
from outrider.errors import ModelLoadError
from outrider_verifier.settings import VerifierSettings


def test_what_a_model_may_be(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    (tmp_path / "small.gguf").touch()
    assert ModelLocation.of(str(tmp_path)) == ModelLocation(tmp_path.name, str(tmp_path))
    assert ModelLocation.of(str(tmp_path / "small.gguf")) == ModelLocation("small", str(tmp_path), "small.gguf")
    assert ModelLocation.of("Qwen/Qwen2.5-0.5B") == ModelLocation("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B", on_hub=True)


@pytest.mark.parametrize("path", ["missing.gguf", "missing", "empty"])
def test_what_it_may_not_be(tmp_path: Path, path: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelLoadError, match=f"^model: .*{path}"):
        ModelLocation.of(str(tmp_path / path))


def test_the_setting_that_is_wrong_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    settings = VerifierSettings(model=str(tmp_path), draft_model=str(tmp_path / "missing"))
    with pytest.raises(ModelLoadError, match=r"^draft_model: there is no directory .*missing"):
        settings.check_files()


@pytest.mark.parametrize("service", ["verifier", "draft"])
def test_a_service_refuses_before_it_imports_torch(service: str) -> None:
    program = (
        f"import sys; from outrider_{service}.main import main; "
        "status = main(['--model', '/nowhere/model']); print(status, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["1", "False"]
    assert f"outrider-{service}: model: there is no directory /nowhere/model" in done.stderr
