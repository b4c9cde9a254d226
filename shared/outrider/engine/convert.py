"""Turns a GGUF file into a Hugging Face directory.

    python -m outrider.engine.convert MODEL.gguf DIRECTORY

The weights are written as float32: a quantized weight is a float16 scale times a small integer plus a float16 offset,
which bfloat16's eight bits cannot hold, so anything narrower would change the model's answers. Reading the directory
also takes a fraction of the time that dequantizing does.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from outrider.engine.model import load_model
from outrider.engine.options import ModelOptions
from outrider.engine.tokenizer_files import save_tokenizer
from outrider.errors import ModelLoadError


def convert(gguf: Path, directory: Path) -> None:
    """Write the model and tokenizer in `gguf` to `directory`. Raises ModelLoadError if the file cannot be loaded."""
    if gguf.suffix != ".gguf":
        raise ModelLoadError(f"{gguf} is no .gguf file")
    loaded = load_model(ModelOptions(str(gguf), dtype="float32", device="cpu"))
    loaded.module.config.__dict__.pop("quantization_config", None)  # it describes the packed weights
    loaded.module.save_pretrained(directory)
    save_tokenizer(loaded.tokenizer_files, directory)


def main() -> None:
    """Entry point of the module."""
    parser = argparse.ArgumentParser(prog="outrider.engine.convert", description="GGUF file to Hugging Face directory.")
    parser.add_argument("gguf", type=Path)
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    try:
        convert(arguments.gguf, arguments.directory)
    except (ModelLoadError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
