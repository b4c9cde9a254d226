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

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from outrider.engine.model import load_model
from outrider.engine.options import ModelOptions
from outrider.errors import ModelLoadError
from outrider.text.files import CHAT_FILE, TOKENIZER_FILE, import_chat


def convert(gguf: Path, directory: Path) -> None:
    """Write the model and tokenizer in `gguf` to `directory`. Raises ModelLoadError if the file cannot be loaded."""
    if gguf.suffix != ".gguf":
        raise ModelLoadError(f"{gguf} is no .gguf file")
    loaded = load_model(ModelOptions(str(gguf), dtype="float32", device="cpu"))
    loaded.module.config.__dict__.pop("quantization_config", None)  # it describes the packed weights
    loaded.module.save_pretrained(directory)
    chat = import_chat(loaded.tokenizer_files[CHAT_FILE])
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(loaded.tokenizer_files[TOKENIZER_FILE].decode()),
        chat_template=chat.template,
        **chat.special_tokens,
    ).save_pretrained(directory)


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
