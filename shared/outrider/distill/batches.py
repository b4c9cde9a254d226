"""Answers as padded batches for training: texts of like length together, in an order that a seed decides."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.corpus import Answer

POOL = 64
"""Batches that are sorted by length at a time: enough for little padding, few enough for a random order."""


@dataclass(frozen=True, slots=True)
class Batch:
    """S texts of at most L tokens."""

    tokens: Tensor  # int64 [S, L], zero-padded
    attention: Tensor  # bool [S, L] what is text
    in_answer: Tensor  # bool [S, L] whether the token belongs to the answer
    places: Tensor  # int64 [S, L] where the token stands among all tokens of all texts; padding: anywhere


class Texts:
    """Prompts with their answers, one after another on the device, from which batches are cut."""

    def __init__(self, answers: Sequence[Answer], device: torch.device) -> None:
        """Texts are numbered as `answers` are."""
        texts = [(*answer.prompt, *answer.answer) for answer in answers]
        self.lengths = [len(text) for text in texts]
        self._tokens = torch.tensor([*itertools.chain.from_iterable(texts)], dtype=torch.int64, device=device)
        self._starts = torch.tensor([0, *itertools.accumulate(self.lengths)], device=device)
        self._prompts = torch.tensor([len(answer.prompt) for answer in answers], device=device)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def size(self) -> int:
        """Tokens of all texts together."""
        return len(self._tokens)

    def batch(self, numbers: Sequence[int]) -> Batch:
        """These texts, padded to the longest of them."""
        device = self._tokens.device
        rows = torch.tensor(numbers, device=device)
        along = torch.arange(max(self.lengths[number] for number in numbers), device=device)
        places = self._starts[rows, None] + along
        attention = places < self._starts[rows + 1, None]
        places = places.clamp(max=self.size - 1)
        tokens = torch.where(attention, self._tokens[places], 0)
        return Batch(tokens, attention, attention & (along >= self._prompts[rows, None]), places)


def batches(lengths: Sequence[int], tokens_per_batch: int, seed: int, skip: int = 0) -> Iterator[list[int]]:
    """Endless batches as numbers of texts, epoch after epoch; `skip` leaves out the first ones, to go on there."""
    epoch = 0
    while True:
        order = random.Random(f"{seed}/{epoch}")
        shuffled = list(range(len(lengths)))
        order.shuffle(shuffled)
        for group in _groups(shuffled, lengths, tokens_per_batch, order):
            if skip:
                skip -= 1
            else:
                yield group
        epoch += 1


def batches_once(lengths: Sequence[int], tokens_per_batch: int) -> Iterator[list[int]]:
    """Every text once, shortest first, in groups whose padded size fits."""
    return _cut(sorted(range(len(lengths)), key=lengths.__getitem__), lengths, tokens_per_batch)


def _groups(
    numbers: Sequence[int], lengths: Sequence[int], tokens_per_batch: int, order: random.Random
) -> list[list[int]]:
    """Cut into groups whose padded size fits; at least one text each."""
    mean = max(1, sum(lengths) // max(1, len(lengths)))
    pool = max(1, POOL * tokens_per_batch // mean)
    groups: list[list[int]] = []
    for start in range(0, len(numbers), pool):
        by_length = sorted(numbers[start : start + pool], key=lengths.__getitem__)
        groups.extend(_cut(by_length, lengths, tokens_per_batch))
    order.shuffle(groups)
    return groups


def _cut(by_length: Sequence[int], lengths: Sequence[int], tokens_per_batch: int) -> Iterator[list[int]]:
    group: list[int] = []
    for number in by_length:  # each is the longest so far
        if group and (len(group) + 1) * lengths[number] > tokens_per_batch:
            yield group
            group = []
        group.append(number)
    if group:
        yield group
