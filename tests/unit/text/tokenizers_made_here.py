"""Small tokenizers of every kind, built in the test process, so that no test needs a download."""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as FastTokenizer

from outrider.text import Tokenizer, export_chat

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and then it sleeps.",
    "def outrider(x):\n    return x + 1  # naïve café, Zürich",
    "世界您好,今天天气很好。世界是你们的。日本語のテキスト",
    "Hello 👋🏽 world 👨‍👩‍👧 emoji 🎉🎉",
    "e\u0301 o\u0308 combining marks: नमस्ते दुनिया",
] * 4
SPECIAL = ["<s>", "</s>", "<unk>"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}\n"
    "    {%- if message.role not in ['system', 'user', 'assistant'] %}\n"
    "        {{- raise_exception('unknown role ' + message.role) }}\n"
    "    {%- endif %}\n"
    "[{{ message['role'] }}] {{ message['content'] | trim }}{{ eos_token }}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)

KINDS = ("byte_level", "byte_fallback", "metaspace", "word_piece", "suffix_bpe", "no_decoder", "byte_level_sequence")


@cache
def fast_tokenizer(kind: str) -> FastTokenizer:
    """A trained tokenizer of the kind, with `<s>` before every text and one added token that is not special."""
    fast = globals()[f"_{kind}"]()
    fast.add_special_tokens(SPECIAL)
    fast.add_tokens([AddedToken("<tool>", special=False)])
    bos = fast.token_to_id("<s>")
    fast.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    return fast


@cache
def tokenizer(kind: str, chat_template: str | None = CHAT_TEMPLATE) -> Tokenizer:
    """The same as Outrider's."""
    chat = export_chat(chat_template, {"bos_token": "<s>", "eos_token": "</s>"})
    return Tokenizer.from_files({"tokenizer.json": fast_tokenizer(kind).to_str().encode(), "chat.json": chat})


def _byte_level() -> FastTokenizer:
    """GPT-2, Llama 3, Qwen, SmolLM."""
    fast = FastTokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    fast.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    return fast


def _byte_level_sequence() -> FastTokenizer:
    """Byte-level with another decoder around it: no fast path."""
    fast = _byte_level()
    fast.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("fox", "wolf")])
    return fast


def _byte_fallback() -> FastTokenizer:
    """Llama 2, Mistral, Gemma: SentencePiece BPE; what has no token is spelled in bytes."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    characters = sorted({*"".join(CORPUS[:3]), "▁"} - {" ", "世", "é"})
    pieces = [*SPECIAL, *bytes_, *characters, "▁t", "he", "▁the", "▁▁"]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "▁")]
    vocabulary = {piece: token_id for token_id, piece in enumerate(pieces)}
    fast = FastTokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    fast.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    fast.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return fast


def _metaspace() -> FastTokenizer:
    """T5 and other unigram models."""
    fast = FastTokenizer(models.Unigram())
    fast.pre_tokenizer = pre_tokenizers.Metaspace()
    fast.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=200, unk_token="<unk>", special_tokens=SPECIAL, show_progress=False)
    fast.train_from_iterator(CORPUS, trainer)
    return fast


def _word_piece() -> FastTokenizer:
    fast = FastTokenizer(models.WordPiece(unk_token="<unk>"))
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.decoder = decoders.WordPiece()
    fast.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False)
    )
    return fast


def _suffix_bpe() -> FastTokenizer:
    """GPT-1, CLIP: a suffix marks the end of a word."""
    fast = FastTokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIAL, end_of_word_suffix="</w>", show_progress=False
    )
    fast.train_from_iterator(CORPUS, trainer)
    return fast


def _no_decoder() -> FastTokenizer:
    fast = FastTokenizer(models.WordLevel(unk_token="<unk>"))
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    fast.train_from_iterator(CORPUS, trainers.WordLevelTrainer(special_tokens=SPECIAL, show_progress=False))
    return fast
