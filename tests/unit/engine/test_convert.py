"""GGUF to a Hugging Face directory: nothing of the model may change on the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from outrider.engine.convert import convert, main
from outrider.engine.model import load_model
from outrider.engine.options import ModelOptions
from outrider.errors import ModelLoadError
from tests.tiny_gguf import write_gguf


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_the_directory_holds_the_very_same_model(gguf: Path, tmp_path: Path) -> None:
    convert(gguf, tmp_path / "model")
    before = load_model(ModelOptions(str(gguf), dtype="float32", device="cpu"))
    after = load_model(ModelOptions(str(tmp_path / "model"), dtype="float32", device="cpu"))
    assert replace(after.info, name=before.info.name) == before.info
    assert after.tokenizer_files == before.tokenizer_files
    ours, theirs = after.module.state_dict(), before.module.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_bfloat16_would_have_changed_it(gguf: Path) -> None:
    """The reason why the directory is twice as large as it could be."""
    weights = load_model(ModelOptions(str(gguf), dtype="float32", device="cpu")).module.state_dict()
    assert not all(torch.equal(weight, weight.bfloat16().float()) for weight in weights.values())


def test_the_command_says_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here, for a process of its own takes seconds; tests/unit/cli/test_weights.py starts one."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF, but not really")
    monkeypatch.setattr("sys.argv", ["convert", str(broken), str(tmp_path / "out")])
    with pytest.raises(SystemExit, match=r"^cannot load broken: "):
        main()
    assert not (tmp_path / "out").exists()


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"is no \.gguf file"):
        convert(tmp_path / "model.bin", tmp_path / "out")
