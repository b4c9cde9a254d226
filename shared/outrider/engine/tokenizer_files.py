"""A transformers tokenizer as the two files that `outrider.text` reads."""

from __future__ import annotations

from typing import Any

from outrider.errors import ModelLoadError
from outrider.text.files import CHAT_FILE, SPECIAL_TOKENS, TOKENIZER_FILE, export_chat


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
