"""What the target is to write: answers to given prompts, and conversations that it begins itself.

A question is gone on from at a high temperature until the target ends the user's turn (Xu et al. 2024, Magpie); a
passage until it is long enough, then a task about it is put behind it. No evaluation prompt is used.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.prompts import read_prompts
from outrider.text.tokenizer import Tokenizer
from scripts.demo_draft.prompts import END, PASSAGES, QUESTIONS, SHORT_QUESTIONS, TURN

TEMPERATURES = (0.0, 0.7, 0.0, 1.0)
ASKING_TEMPERATURES = (0.7, 0.9, 1.0)
QUESTION_TOKENS, PASSAGE_TOKENS = 160, (120, 720)
BEFORE = {
    "summarization": ["Summarize: ", "Summarize: ", "Summarize the following text:\n", ""],
    "rag": [
        "",
        "Answer the question with the help of this text.\n\n",
        "Read this, then answer the question.\n\n",
    ],
}
BEHIND_SUMMARY = ["", "", "\n\nSummarize this.", "\n\nWhat is the main point?"]


@dataclass
class Task:
    """A text in the making: what is known, then, while `asking`, what the target puts behind it, then an answer."""

    text: list[int]
    category: str
    temperature: float  # of the part in the making
    asking: int = 0  # at most so many tokens go on from the text before the answer; 0: answer it as it is
    tail: list[int] | None = None  # ends a prompt that grew to `asking` tokens; None: such a prompt is given up


def given(paths: Sequence[Path], tokenizer: Tokenizer, longest: int, passes: int, order: random.Random) -> list[Task]:
    """Answers to prompts, each `passes` times at the next temperature; the too long are left out."""
    prompts = [prompt for path in paths for prompt in read_prompts(path)]
    encoded = [(prompt.category, list(prompt.token_ids(tokenizer))) for prompt in prompts]
    found: list[Task] = []
    for number in range(passes):
        order.shuffle(encoded)
        for category, tokens in encoded:
            if len(tokens) <= longest:
                temperature = TEMPERATURES[(len(tokens) + number) % len(TEMPERATURES)]
                found.append(Task(list(tokens), category, temperature))
    return found


def questions(tokenizer: Tokenizer, order: random.Random) -> Iterator[Task]:
    """Beginnings of questions, without end."""
    encoded = [
        (category, tokenizer.encode(TURN + beginning))
        for category, beginnings in QUESTIONS.items()
        for beginning in [*beginnings, ""]
    ]
    while True:
        category, tokens = order.choice(encoded)
        yield Task(list(tokens), category, order.choice(ASKING_TEMPERATURES), QUESTION_TOKENS)


def passages(tokenizer: Tokenizer, order: random.Random) -> Iterator[Task]:
    """Beginnings of passages with a task about them, without end."""
    while True:
        category = order.choice([*BEFORE])
        text = TURN + order.choice(BEFORE[category]) + order.choice(PASSAGES)
        behind = order.choice(BEHIND_SUMMARY) if category == "summarization" else "\n\n" + order.choice(SHORT_QUESTIONS)
        tail = list(tokenizer.encode(behind + END))
        length = order.randint(*PASSAGE_TOKENS)
        yield Task(list(tokenizer.encode(text)), category, order.choice(ASKING_TEMPERATURES), length, tail)


def mixed(first: list[Task], then: Iterator[Task], share: float, order: random.Random) -> Iterator[Task]:
    """Tasks of `then`, among them those of `first`, this share of all, as long as there are any."""
    waiting = first[::-1]
    while True:
        yield waiting.pop() if waiting and order.random() < share else next(then)
