"""Answers of the target to given prompts, and conversations that it begins itself, made on one GPU.

python -m scripts.demo_draft.answers TARGET OUT.jsonl --what questions --prompts P.jsonl --seconds 60
python -m scripts.demo_draft.answers TARGET OUT.jsonl --what passages --slots 1024 --length 1024 --seconds 30
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import outrider.engine.engine  # noqa: F401  (before torch: see outrider.engine)

import torch  # isort: skip

from outrider.corpus import Answer, Corpus
from outrider.engine.model import load_model
from outrider.engine.options import ModelOptions
from outrider.text.tokenizer import Tokenizer
from scripts.demo_draft.decode import Slots
from scripts.demo_draft.tasks import TEMPERATURES, Task, given, mixed, passages, questions

ASSISTANT = "\n<|im_start|>assistant\n"
LOOK_EVERY = 16
"""Steps between two looks of the host; what a slot draws behind an end until then is thrown away."""


def main() -> None:
    """Write a corpus."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("out", type=Path)
    parser.add_argument("--what", choices=["questions", "passages"], required=True)
    parser.add_argument("--prompts", type=Path, action="append", default=[])
    parser.add_argument("--given-share", type=float, default=0.4, help="of the tasks, while there are any")
    parser.add_argument("--passes", type=int, default=2, help="how often a given prompt is answered")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--slots", type=int, default=2048)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--answer-tokens", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    arguments = parser.parse_args()
    loaded = load_model(ModelOptions(arguments.target, dtype=arguments.dtype, device=arguments.device))
    tokenizer = Tokenizer.from_files(loaded.tokenizer_files)
    torch.manual_seed(arguments.seed)
    order = random.Random(arguments.seed)
    longest = arguments.length - arguments.answer_tokens - LOOK_EVERY
    first = given(arguments.prompts, tokenizer, longest, arguments.passes, order)
    then = {"questions": questions, "passages": passages}[arguments.what](tokenizer, order)
    tasks = mixed(first, then, arguments.given_share, order)
    slots = Slots(loaded.module, arguments.slots, arguments.length)
    with Corpus(arguments.out, loaded.info.vocabulary_fingerprint) as corpus:
        writer = Writer(slots, tasks, corpus, tokenizer, loaded.info.eos_token_ids, arguments)
        writer.run(arguments.seconds)


class Writer:
    """Keeps the slots busy."""

    def __init__(
        self,
        slots: Slots,
        tasks: Iterator[Task],
        corpus: Corpus,
        tokenizer: Tokenizer,
        ends: Sequence[int],
        arguments: argparse.Namespace,
    ) -> None:
        self._slots, self._tasks, self._corpus, self._ends = slots, tasks, corpus, ends
        self._answer_tokens, self._seed = arguments.answer_tokens, arguments.seed
        self._order = random.Random(arguments.seed + 1)
        self._header = list(tokenizer.encode(ASSISTANT))
        self._running: list[Task] = []
        self.counts: Counter[str] = Counter()

    def run(self, seconds: float) -> None:
        """Until the time is over; what is half done then is lost."""
        begun = time.monotonic()
        self._running = [next(self._tasks) for _ in range(self._slots.slots)]
        self._begin(list(range(self._slots.slots)), [0] * self._slots.slots)
        while time.monotonic() - begun < seconds:
            for _ in range(LOOK_EVERY):
                self._slots.step()
            self._look()
            self.counts["steps"] += LOOK_EVERY
        print(f"{time.monotonic() - begun:.0f} s: {json.dumps(self.counts)}", flush=True)

    def _begin(self, rows: list[int], places: list[int]) -> None:
        """Put what the rows' tasks know into their slots; it is read from `places` on."""
        if not rows:
            return
        slots, device = self._slots, self._slots.device
        tasks = [self._running[row] for row in rows]
        width = max(len(task.text) for task in tasks)
        padded = [[*task.text, *[0] * (width - len(task.text))] for task in tasks]
        at = torch.tensor(rows, device=device)
        slots.text[at, :width] = torch.tensor(padded, dtype=torch.int32, device=device)
        slots.place[at] = torch.tensor(places, device=device)
        slots.known[at] = torch.tensor([len(task.text) for task in tasks], device=device)
        slots.temperature[at] = torch.tensor([task.temperature for task in tasks], device=device)

    def _look(self) -> None:
        """Take what has ended, turn finished prompts into conversations, and give free slots something new."""
        slots = self._slots
        limits = [task.asking or self._answer_tokens for task in self._running]
        stop = torch.minimum(slots.known + torch.tensor(limits, device=slots.device), slots.place + 1)
        end = slots.first(self._ends, stop)  # the first end that the target said, or L
        is_done = (end < slots.length) | (slots.place + 1 >= slots.known + torch.tensor(limits, device=slots.device))
        rows = is_done.nonzero().flatten()
        done = zip(rows.tolist(), slots.text[rows].tolist(), end[rows].tolist(), strict=True)
        begun, places = [], []
        for row, text, ended_at in done:
            task = self._running[row]
            place = self._ask(task, text, ended_at) if task.asking else self._keep(task, text, ended_at)
            if place == 0:
                self._running[row] = next(self._tasks)
            begun.append(row)
            places.append(place)
        self._begin(begun, places)

    def _ask(self, task: Task, text: list[int], ended_at: int) -> int:
        """The prompt is written: its answer comes next. Where reading goes on; 0 if the prompt is given up."""
        start, is_ended = len(task.text), ended_at < len(text)
        stop = ended_at if is_ended else start + task.asking
        tail = task.tail if task.tail is not None else text[stop : stop + 1] if is_ended else []
        prompt = [*text[:stop], *tail, *self._header]
        if not tail or stop <= start or len(prompt) + self._answer_tokens + LOOK_EVERY >= self._slots.length:
            self.counts["given up"] += 1
            return 0
        task.text, task.asking, task.temperature = prompt, 0, self._order.choice(TEMPERATURES)
        return stop - 1

    def _keep(self, task: Task, text: list[int], ended_at: int) -> int:
        start = len(task.text)
        answer = text[start : min(ended_at + 1, start + self._answer_tokens)]
        self.counts["answers"] += 1
        self.counts["tokens"] += len(answer)
        key = f"{self._seed}-{self.counts['answers']}"
        self._corpus.add(Answer(key, task.category, tuple(task.text), tuple(answer), task.temperature, 0))
        return 0


if __name__ == "__main__":
    main()
