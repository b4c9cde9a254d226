"""Where a model's files are, by what the setting `model` says: found out before anything slow is imported or loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ModelLoadError


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """A directory, a file in one, or a hub id."""

    name: str
    place: str  # a directory, or the hub id
    file: str | None = None  # of a .gguf file, which one it is
    on_hub: bool = False

    @classmethod
    def of(cls, model: str, setting: str = "model") -> ModelLocation:
        """Raise ModelLoadError, which names the `setting`, if `model` can only be a path and nothing is there."""
        path = Path(model).expanduser()
        if path.suffix == ".gguf":
            if not path.is_file():
                raise ModelLoadError(f"{setting}: there is no file {path}")
            return cls(path.stem, str(path.parent), path.name)
        if path.is_dir():
            if not (path / "config.json").is_file():
                raise ModelLoadError(
                    f"{setting}: the directory {path} holds no config.json, so it is not a Hugging Face model"
                )
            return cls(path.resolve().name, str(path))
        if path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
            raise ModelLoadError(f"{setting}: there is no directory {path}")
        return cls(model, model, on_hub=True)
