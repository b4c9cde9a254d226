"""A draft's trimmed vocabulary: the target's frequent tokens, and one row that stands for all the others.

On a small model the head over the whole vocabulary costs more than the layers. Ids keep the target's numbering
outside of the model: sessions, samplers and messages never see the trimmed ones (FR-Spec, Zhao et al. 2025, trims the
head alone; here the embedding shares its rows).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from outrider.engine.attention import Attention
from outrider.engine.batch import Batch
from outrider.engine.decoder import Decoder
from outrider.errors import ModelLoadError

FILE = "draft_vocabulary.json"


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """Row i of the model is the target's token `token_ids[i]`; the row after the last is every other token."""

    token_ids: tuple[int, ...]  # ascending
    target_size: int  # tokens of the target's vocabulary

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def rows(self) -> int:
        """Rows of the embedding and of the head."""
        return len(self.token_ids) + 1

    @classmethod
    def load(cls, directory: Path) -> DraftVocabulary | None:
        """What a checkpoint's directory holds, if anything. Raises ModelLoadError for a damaged file."""
        path = directory / FILE
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_text())
            found = cls(tuple(content["token_ids"]), content["target_size"])
        except (ValueError, KeyError, TypeError) as error:
            raise ModelLoadError(f"{path} is damaged: {error!r}") from error
        ascending = all(a < b for a, b in zip(found.token_ids, found.token_ids[1:], strict=False))
        if not (found.token_ids and ascending and found.token_ids[0] >= 0 and found.token_ids[-1] < found.target_size):
            raise ModelLoadError(f"{path}: token_ids must be ascending ids below target_size, {found.target_size}")
        return found

    def named(self, rows: Sequence[int]) -> tuple[int, ...]:
        """The target's tokens that the model's `rows` stand for."""
        return tuple(self.token_ids[row] for row in rows)

    def save(self, directory: Path) -> None:
        """Write the file that `load` reads."""
        content = {"target_size": self.target_size, "token_ids": self.token_ids}
        (directory / FILE).write_text(json.dumps(content) + "\n")

    def row_of(self, device: torch.device | str = "cpu") -> Tensor:
        """Int64 [target_size]: the model's row of every token of the target."""
        table = torch.full((self.target_size,), len(self.token_ids), dtype=torch.int64)
        table[torch.tensor(self.token_ids)] = torch.arange(len(self.token_ids))
        return table.to(device)


class TrimmedDecoder:
    """A decoder of trimmed ids, seen from outside as one of the target's ids; see `outrider.engine.decoder.Decoder`."""

    def __init__(self, decoder: Decoder, vocabulary: DraftVocabulary, device: torch.device) -> None:
        self._decoder = decoder
        self._size = vocabulary.target_size
        self._row_of = vocabulary.row_of(device)
        self._token_ids = torch.tensor(vocabulary.token_ids, device=device)

    def __call__(self, batch: Batch, attention: Attention) -> Tensor:
        """Logits [R, target_size]; -inf for tokens that the draft does not know, so that it never proposes them."""
        logits = self._decoder(batch.with_input_ids(self._row_of[batch.input_ids]), attention)
        return widened(logits, self._token_ids, self._size)


def widened(logits: Tensor, token_ids: Tensor, size: int) -> Tensor:
    """Logits [R, n or more] of the tokens `token_ids` [n], as [R, size] with -inf elsewhere."""
    full = logits.new_full((len(logits), size), -math.inf)
    return full.index_copy_(1, token_ids, logits[:, : len(token_ids)])


def most_frequent(counts: Sequence[int], size: int, always: Sequence[int]) -> DraftVocabulary:
    """The `size` most frequent of the target's tokens, those of `always` (such as the ends of text) among them."""
    kept = set(always)
    by_count = sorted(range(len(counts)), key=lambda token: (-counts[token], token))
    for token in by_count:
        if len(kept) >= min(size, len(counts)):
            break
        kept.add(token)
    return DraftVocabulary(tuple(sorted(kept)), len(counts))
