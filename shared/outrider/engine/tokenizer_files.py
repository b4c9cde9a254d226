"""A transformers tokenizer as the two files that `outrider.text` reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from outrider.errors import ModelLoadError
from outrider.text.files import CHAT_FILE, SPECIAL_TOKENS, TOKENIZER_FILE, export_chat, import_chat


def export_tokenizer(tokenizer: Any) -> dict[str, bytes]:
    """The files' contents by name. Raises ModelLoadError if the tokenizer is not one of the `tokenizers` library."""
    if not getattr(tokenizer, "is_fast", False):
        raise ModelLoadError(f"{type(tokenizer).__name__} has no fast version (tokenizer.json), which is needed")
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):
        template = template.get("default")
    return {
        TOKENIZER_FILE: tokenizer.backend_tokenizer.to_str().encode(),
        CHAT_FILE: export_chat(template, {name: getattr(tokenizer, name, None) for name in SPECIAL_TOKENS}),
    }


def save_tokenizer(files: Mapping[str, bytes], directory: Path) -> None:
    """Write the two files as transformers' tokenizers read them."""
    chat = import_chat(files[CHAT_FILE])
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(files[TOKENIZER_FILE].decode()),
        chat_template=chat.template,
        **chat.special_tokens,
    ).save_pretrained(directory)
