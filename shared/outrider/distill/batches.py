"""Answers as padded batches for training: texts of like length together, in an order that a seed decides."""

from __future__ import annotations

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

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return Batch(*(t.to(device, non_blocking=True) for t in (self.tokens, self.attention, self.in_answer)))


def batches(answers: Sequence[Answer], tokens_per_batch: int, seed: int, skip: int = 0) -> Iterator[Batch]:
    """Endless batches, epoch after epoch; `skip` leaves out the first ones, to go on where a run stopped."""
    epoch = 0
    while True:
        order = random.Random(f"{seed}/{epoch}")
        shuffled = list(answers)
        order.shuffle(shuffled)
        for group in _groups(shuffled, tokens_per_batch, order):
            if skip:
                skip -= 1
            else:
                yield make_batch(group)
        epoch += 1


def batches_once(answers: Sequence[Answer], tokens_per_batch: int) -> Iterator[list[Answer]]:
    """Every answer once, shortest first, in groups whose padded size fits."""
    return _cut(sorted(answers, key=lambda a: len(a.prompt) + len(a.answer)), tokens_per_batch)


def make_batch(answers: Sequence[Answer]) -> Batch:
    """Pad texts to the longest of them."""
    texts = [(*answer.prompt, *answer.answer) for answer in answers]
    width = max(map(len, texts))
    tokens = torch.zeros(len(texts), width, dtype=torch.int64)
    attention = torch.zeros(len(texts), width, dtype=torch.bool)
    in_answer = torch.zeros(len(texts), width, dtype=torch.bool)
    for row, (answer, text) in enumerate(zip(answers, texts, strict=True)):
        tokens[row, : len(text)] = torch.tensor(text)
        attention[row, : len(text)] = True
        in_answer[row, len(answer.prompt) : len(text)] = True
    return Batch(tokens, attention, in_answer)


def _groups(answers: Sequence[Answer], tokens_per_batch: int, order: random.Random) -> list[list[Answer]]:
    """Cut into groups whose padded size fits; at least one text each."""
    mean = max(1, sum(len(a.prompt) + len(a.answer) for a in answers) // max(1, len(answers)))
    pool = max(1, POOL * tokens_per_batch // mean)
    groups: list[list[Answer]] = []
    for start in range(0, len(answers), pool):
        by_length = sorted(answers[start : start + pool], key=lambda a: len(a.prompt) + len(a.answer))
        groups.extend(_cut(by_length, tokens_per_batch))
    order.shuffle(groups)
    return groups


def _cut(by_length: Sequence[Answer], tokens_per_batch: int) -> Iterator[list[Answer]]:
    group: list[Answer] = []
    for answer in by_length:  # each is the longest so far
        if group and (len(group) + 1) * (len(answer.prompt) + len(answer.answer)) > tokens_per_batch:
            yield group
            group = []
        group.append(answer)
    if group:
        yield group
