"""Text and token ids: encoding, chat templates, incremental decoding, vocabularies. No torch, no transformers."""

from outrider.text.chat import Message
from outrider.text.detokenizer import Detokenizer
from outrider.text.files import export_chat
from outrider.text.tokenizer import Tokenizer
from outrider.text.vocabulary import Difference, fingerprint, first_difference, tokens_by_id

__all__ = [
    "Detokenizer",
    "Difference",
    "Message",
    "Tokenizer",
    "export_chat",
    "fingerprint",
    "first_difference",
    "tokens_by_id",
]
