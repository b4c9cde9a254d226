"""One model's tokenizer, out of the files its replica hands over."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from outrider.errors import InvalidArgument, ModelLoadError
from outrider.text.bytelevel import token_bytes
from outrider.text.chat import ChatTemplate, Message
from outrider.text.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from outrider.text.files import CHAT_FILE, TOKENIZER_FILE, Chat, import_chat
from outrider.text.vocabulary import tokens_by_id


class Tokenizer:
    """Text to token ids and back, with the results transformers gives for the same model."""

    def __init__(self, fast: FastTokenizer, chat: Chat, decoder: Mapping[str, Any] | None) -> None:
        """Use `from_files`. `decoder` is the decoder's entry in tokenizer.json."""
        self._fast = fast
        self._chat = chat
        self._decoders = _decoder_kinds(decoder)
        self._bytes: tuple[dict[int, bytes], dict[int, bytes]] = {}, {}  # by id: with special tokens, and without
        self._special_ids = frozenset(
            token_id for token_id, token in fast.get_added_tokens_decoder().items() if token.special
        )

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> Tokenizer:
        """Build from the content of `tokenizer.json` and `chat.json`; raises ModelLoadError if that cannot be."""
        if missing := {TOKENIZER_FILE, CHAT_FILE} - files.keys():
            raise ModelLoadError(f"the model's tokenizer lacks {', '.join(sorted(missing))}")
        try:
            text = files[TOKENIZER_FILE].decode()
            decoder = json.loads(text).get("decoder")
            fast = FastTokenizer.from_str(text)
            chat = import_chat(files[CHAT_FILE])
        except Exception as error:  # the tokenizers library raises bare Exception
            raise ModelLoadError(f"the model's tokenizer files are broken: {error}") from error
        fast.no_truncation()
        fast.no_padding()
        return cls(fast, chat, decoder)

    @cached_property
    def tokens(self) -> Sequence[str]:
        """Every token by id, "" where no token has the id."""
        return tuple(tokens_by_id(self._fast.get_vocab(with_added_tokens=True)))

    @property
    def vocabulary_size(self) -> int:
        """The highest id plus one."""
        return len(self.tokens)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of `text`; special tokens written out in it are taken as such, as transformers does."""
        try:
            return list(self._fast.encode(text, add_special_tokens=add_special_tokens).ids)
        except (TypeError, UnicodeEncodeError) as error:  # which of them depends on the release of `tokenizers`
            raise InvalidArgument("text", text, "valid Unicode, without lone surrogates") from error

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids`; ids that no token has are left out."""
        return self._fast.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """A fresh incremental decoder, whose pieces join to `decode(ids, skip_special_tokens=...)`."""

        def token_of(token_id: int) -> str | None:
            return None if skip_special_tokens and token_id in self._special_ids else self._fast.id_to_token(token_id)

        if self._decoders == {"ByteLevel"}:
            known = self._bytes[skip_special_tokens]

            def bytes_of(token_id: int) -> bytes:
                if (found := known.get(token_id)) is not None:
                    return found
                token = token_of(token_id)
                return b"" if token is None else known.setdefault(token_id, token_bytes(token))

            return ByteDetokenizer(bytes_of)
        return WindowDetokenizer(
            lambda ids: self._fast.decode(ids, skip_special_tokens=False),
            token_of,
            byte_fallback="ByteFallback" in self._decoders,
            may_split="ByteLevel" in self._decoders,
        )

    def render_chat(self, messages: Sequence[Message]) -> str:
        """The prompt for the assistant's next turn, by the model's own template.

        Raises InvalidArgument naming `messages` if the template refuses them or the model has none, and
        FailedPrecondition if the template itself is broken.
        """
        if self._chat.template is None:
            roles = [message["role"] for message in messages]
            raise InvalidArgument("messages", roles, "absent, since this model has no chat template: send text instead")
        return self._chat_template.render(messages)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """The ids of `render_chat(messages)`; the template already wrote the special tokens."""
        return self.encode(self.render_chat(messages), add_special_tokens=False)

    @cached_property
    def _chat_template(self) -> ChatTemplate:
        return ChatTemplate(self._chat.template or "", self._chat.special_tokens)


def _decoder_kinds(decoder: Mapping[str, Any] | None) -> frozenset[str]:
    """The decoders a decoder is made of; Fuse, which only joins, is left out."""
    if decoder is None:
        return frozenset()
    if decoder["type"] == "Sequence":
        return frozenset().union(*map(_decoder_kinds, decoder["decoders"]))
    return frozenset({decoder["type"]} - {"Fuse"})
