"""The trained draft on disk: a Hugging Face directory that the engine loads, and a packed form to ship.

python -m outrider.distill.checkpoint pack CHECKPOINT PACKED
python -m outrider.distill.checkpoint unpack PACKED TARGET CHECKPOINT
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from outrider.engine.draft_vocabulary import FILE, DraftVocabulary
from outrider.engine.model import DTYPES
from outrider.engine.tokenizer_files import save_tokenizer
from outrider.errors import ModelLoadError

PACKED = "draft.safetensors"
COPIED = ("config.json", "generation_config.json", FILE, "README.md")
SCALE = ".scale"
HEAD = "lm_head.weight"


def save_checkpoint(
    student: PreTrainedModel,
    vocabulary: DraftVocabulary | None,
    tokenizer_files: Mapping[str, bytes],
    dtype: str,
    directory: Path,
) -> None:
    """Write weights, configuration, vocabulary and tokenizer."""
    directory.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.detach().to(DTYPES[dtype]).cpu() for name, tensor in student.state_dict().items()}
    student.config.dtype = DTYPES[dtype]
    student.save_pretrained(directory, state_dict=state)
    if vocabulary is not None:
        vocabulary.save(directory)
    save_tokenizer(tokenizer_files, directory)


def pack(directory: Path, packed: Path) -> None:
    """A checkpoint directory as small files: matrices as int8 with one float16 scale a row, no tokenizer."""
    packed.mkdir(parents=True, exist_ok=True)
    state = load_file(directory / "model.safetensors")
    state.pop(HEAD, None)  # tied to the embedding
    small: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if tensor.dim() < 2:
            small[name] = tensor.to(torch.float16)
            continue
        scale = (tensor.float().abs().amax(dim=1).clamp(min=1e-8) / 127).to(torch.float16)
        small[name] = (tensor.float() / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8)
        small[name + SCALE] = scale
    save_file(small, packed / PACKED)
    for name in COPIED:
        if (directory / name).is_file():
            shutil.copyfile(directory / name, packed / name)


def unpack(packed: Path, target: Path, directory: Path) -> None:
    """Undo `pack` into float32, with the tokenizer of the target's directory. Raises ModelLoadError for damage."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with safe_open(packed / PACKED, framework="pt") as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        config: dict[str, Any] = json.loads((packed / "config.json").read_text())
    except Exception as error:  # whatever safetensors raises for a damaged file
        raise ModelLoadError(f"the packed draft in {packed} is damaged: {error}") from error
    state = {}
    for name, tensor in stored.items():
        if not name.endswith(SCALE):
            scale = stored.get(name + SCALE)
            state[name] = tensor.float() if scale is None else tensor.float() * scale.float()[:, None]
    save_file(state, directory / "model.safetensors", metadata={"format": "pt"})
    for name in COPIED:
        if (packed / name).is_file():
            shutil.copyfile(packed / name, directory / name)
    (directory / "config.json").write_text(json.dumps(config | {"dtype": "float32"}, indent=2) + "\n")
    for pattern in ("tokenizer*", "chat_template*", "special_tokens_map.json"):
        for found in target.glob(pattern):
            shutil.copyfile(found, directory / found.name)


def main() -> None:
    """Entry point of the module."""
    parser = argparse.ArgumentParser(prog="outrider.distill.checkpoint", description="Pack or unpack a draft.")
    parser.add_argument("what", choices=["pack", "unpack"])
    parser.add_argument("paths", type=Path, nargs="+", help="see the module's docstring")
    arguments = parser.parse_args()
    if len(arguments.paths) != (2 if arguments.what == "pack" else 3):
        parser.error("pack takes CHECKPOINT PACKED, unpack takes PACKED TARGET CHECKPOINT")
    try:
        (pack if arguments.what == "pack" else unpack)(*arguments.paths)
    except (ModelLoadError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
