"""What a draft's guesses would be worth on answers of the target that it was not trained on.

Under `match`, a guess stands exactly where the draft, after the same tokens, draws the answer's token with the answer's
noise. Up to its first wrong guess in a round the draft has read the answer's own tokens, so one pass over the answer
tells every round, without running the target.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from outrider.acceptance.philox import Domain
from outrider.corpus import Answer
from outrider.distill.batches import Texts, batches_once
from outrider.distill.teacher import final_states
from outrider.engine.draft_vocabulary import DraftVocabulary, widened
from outrider.sampling.draw import draw
from outrider.sampling.noise import noise_keys

TOKENS_PER_BATCH = 16_384


@dataclass(slots=True)
class Acceptance:
    """Counts of rounds; the first token of an answer, which the prompt's own pass gives, is in none of them."""

    rounds: int = 0
    proposed: int = 0
    accepted: int = 0

    def add(self, matches: Sequence[bool], draft_tokens: int) -> None:
        """Play one answer's rounds: `matches` tells for each token whether the draft would have said it."""
        place = 0
        while place < len(matches):
            size = min(draft_tokens, len(matches) - place - 1)
            window = matches[place : place + size]
            accepted = window.index(False) if False in window else size
            self.rounds, self.proposed, self.accepted = (
                self.rounds + 1,
                self.proposed + size,
                self.accepted + accepted,
            )
            place += accepted + 1

    @property
    def rate(self) -> float | None:
        """accepted / proposed."""
        return self.accepted / self.proposed if self.proposed else None

    @property
    def length(self) -> float | None:
        """1 + accepted tokens, per round."""
        return 1 + self.accepted / self.rounds if self.rounds else None


def evaluate(
    student: PreTrainedModel, vocabulary: DraftVocabulary | None, answers: Sequence[Answer], draft_tokens: int
) -> dict[str, dict[str, Acceptance]]:
    """Acceptance by temperature and category; the category "all" sums them up."""
    found: dict[str, dict[str, Acceptance]] = defaultdict(lambda: defaultdict(Acceptance))
    lengths = [len(answer.prompt) + len(answer.answer) for answer in answers]
    for numbers in batches_once(lengths, TOKENS_PER_BATCH):
        group = [answers[number] for number in numbers]
        for answer, matches in zip(group, matching(student, vocabulary, group), strict=True):
            for category in ("all", answer.category or "other"):
                found[f"{answer.temperature:g}"][category].add(matches, draft_tokens)
    return {temperature: dict(rows) for temperature, rows in found.items()}


@torch.inference_mode()
def matching(
    student: PreTrainedModel, vocabulary: DraftVocabulary | None, answers: Sequence[Answer]
) -> list[list[bool]]:
    """For each answer's tokens but the first: whether the draft draws that token too."""
    device = student.device
    tokens = Texts(answers, device).batch(range(len(answers))).tokens
    hidden = final_states(student, tokens if vocabulary is None else vocabulary.row_of(device)[tokens])
    head = student.get_output_embeddings().weight.float()
    results = []
    for row, answer in enumerate(answers):
        first, stop = len(answer.prompt) + 1, len(answer.prompt) + len(answer.answer)
        logits = hidden[row, first - 1 : stop - 1].float() @ head.T
        if vocabulary is not None:
            logits = widened(logits, torch.tensor(vocabulary.token_ids, device=device), vocabulary.target_size)
        results.append((_draw(logits, answer, first) == tokens[row, first:stop]).tolist())
    return results


def _draw(logits: Tensor, answer: Answer, first: int) -> Tensor:
    """The draft's tokens for the positions from `first` on."""
    if answer.temperature == 0.0 or not len(logits):
        return logits.argmax(dim=-1)
    positions = range(first, first + len(logits))
    keys = noise_keys(((answer.seed, position, 0, Domain.MATCH) for position in positions), logits.device)
    return draw(logits / answer.temperature, keys)
