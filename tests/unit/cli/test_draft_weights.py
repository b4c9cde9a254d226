"""The draft that comes with the package: small enough, and unpacked once for its target."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.errors import ModelLoadError
from outrider_cli import weights
from outrider_cli.weights import PACKED_DRAFT, demo_draft_directory


def test_the_packed_draft_is_small_and_has_a_card() -> None:
    assert sum(path.stat().st_size for path in PACKED_DRAFT.iterdir()) <= 15_000_000
    assert "No Spec-Bench" in (PACKED_DRAFT / "README.md").read_text()


def test_it_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    target = tmp_path / "SmolLM2-135M-Instruct"
    target.mkdir()
    (target / "tokenizer.json").write_text("{}")
    reports: list[str] = []
    first = demo_draft_directory(target, reports.append)
    assert {"model.safetensors", "config.json", "draft_vocabulary.json", "tokenizer.json"} <= {
        path.name for path in first.iterdir()
    }
    assert demo_draft_directory(target, reports.append) == first
    assert len(reports) == 1


def test_a_damaged_draft_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "packed"
    packed.mkdir()
    (packed / "draft.safetensors").write_bytes(b"damaged")
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(weights, "PACKED_DRAFT", packed)
    with pytest.raises(ModelLoadError, match="damaged"):
        demo_draft_directory(tmp_path, lambda text: None)
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
