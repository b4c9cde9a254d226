"""Is greedy output in bfloat16 the same with speculation as without, bit for bit, whatever runs beside it?

    python -m tests.benchmarks.exact_bf16 MODEL_DIRECTORY [--prompts 10000] [--tokens 64] [--data DIRECTORY]

Every prompt is answered twice on a GPU. The first time token by token, in batches whose size changes from step to step.
The second time by verifying proposals in batches of other sizes: trees and chains of up to 12 nodes, in which the
tokens of the first answer stand with a probability of 0.8 each among wrong ones. Prompts are prefilled in other chunks
and in other company, too. The answers are then compared token by token.

MODEL_DIRECTORY holds SmolLM2-135M or a model like it; DIRECTORY holds gsm8k_train.jsonl.gz, mbpp.jsonl and
spec_bench_question.jsonl, whose questions are the prompts.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider.engine.engine import Engine, Feed  # before torch: see outrider.engine

import torch  # isort: skip
from transformers import AutoTokenizer

from outrider.acceptance.tree import ROOT, TokenTree
from outrider.engine.model import load_model
from outrider.engine.options import EngineOptions, ModelOptions
from outrider.engine.sequence import NO_TREE, KvSequence
from tests.benchmarks.record import RESULTS, save

SEED = 3
LONGEST = 160


@dataclass(slots=True)
class Answer:
    """One prompt on its way."""

    prompt: list[int]
    sequence: KvSequence
    history: list[int] = field(default_factory=list)
    feed: Feed | None = None


class Runner:
    """Answers prompts in batches of changing size."""

    def __init__(self, engine: Engine, seed: int, tokens: int, most: int, known: list[list[int]] | None) -> None:
        self._engine = engine
        self._random = random.Random(seed)
        self._tokens = tokens
        self._most = most
        self._known = known
        self.steps = 0
        self.rows = 0

    def run(self, prompts: list[list[int]], order: list[int]) -> list[list[int]]:
        """The answers, in the order of the prompts."""
        waiting, running, found = list(reversed(order)), {}, [[] for _ in prompts]
        while waiting or running:
            wanted = self._random.randint(1, self._most)
            while waiting and len(running) < wanted:
                index = waiting.pop()
                sequence = self._engine.open(prompts[index], LONGEST + self._tokens + 32, salt=str(index))
                running[index] = Answer(prompts[index], sequence, list(prompts[index]))
            chosen = self._random.sample(sorted(running), min(wanted, len(running)))
            for index in chosen:
                running[index].feed = self._feed(index, running[index])
            feeds = [running[index].feed for index in chosen]
            best = self._engine.forward(feeds).argmax(-1).tolist()
            self.steps += 1
            self.rows += len(best)
            row = 0
            for index in chosen:
                answer, feed = running[index], running[index].feed
                if feed.want_logits:
                    rows = best[row : row + feed.logit_rows]
                    row += feed.logit_rows
                    self._commit(answer, feed, rows)
                if len(answer.history) - len(answer.prompt) >= self._tokens:
                    found[index] = answer.history[len(answer.prompt) : len(answer.prompt) + self._tokens]
                    self._engine.close(answer.sequence)
                    del running[index]
        return found

    def _feed(self, index: int, answer: Answer) -> Feed:
        start = len(answer.sequence.cached)
        left = answer.history[start:]
        if len(left) > 1:
            chunk = self._random.randint(1, 200)
            if chunk < len(left) - 1:
                return Feed(answer.sequence, left[:chunk], want_logits=False)
        return Feed(answer.sequence, left, self._tree(index, answer) if self._known else NO_TREE)

    def _tree(self, index: int, answer: Answer) -> TokenTree:
        """The known answer's next tokens with some replaced, and siblings before or after them."""
        place = len(answer.history) - len(answer.prompt)
        tokens: list[int] = []
        parents: list[int] = []
        last = ROOT
        siblings = self._random.random() < 0.5
        for token in self._known[index][place : place + self._random.randint(0, 5)]:
            right = token if self._random.random() < 0.8 else (token + 17) % 40000
            options = [right, (token + 1) % 40000] if siblings else [right]
            self._random.shuffle(options)
            for option in options:
                tokens.append(option)
                parents.append(last)
            last = len(tokens) - len(options) + options.index(right)
        return TokenTree(tuple(tokens), tuple(parents))

    def _commit(self, answer: Answer, feed: Feed, rows: list[int]) -> None:
        node, tokens = ROOT, []
        while True:
            token = rows[node + 1]
            tokens.append(token)
            following = [child for child in feed.tree.children(node) if feed.tree.tokens[child] == token]
            if not following:
                break
            node = following[0]
        start = len(answer.history)
        answer.history += tokens
        answer.sequence.align(answer.history, start)


def prompts_of(directory: Path, tokenizer: Any, count: int) -> list[list[int]]:
    """`count` different prompts; those that the data does not hold are beginnings of others."""
    texts = list(_texts(directory))
    random.Random(SEED).shuffle(texts)
    found: dict[tuple[int, ...], None] = {}
    for share in (1.0, 0.7, 0.5):
        for text in texts:
            if len(found) >= count:
                return [list(each) for each in found]
            ids = tokenizer(text[: max(8, int(len(text) * share))])["input_ids"][:LONGEST]
            found[tuple(ids)] = None
    raise SystemExit(f"{directory} holds {len(found)} prompts, not {count}")


def _texts(directory: Path) -> Iterator[str]:
    with gzip.open(directory / "gsm8k_train.jsonl.gz", "rt") as lines:
        yield from (json.loads(line)["question"] for line in lines)
    for line in (directory / "mbpp.jsonl").read_text().splitlines():
        yield json.loads(line)["text"]
    for line in (directory / "spec_bench_question.jsonl").read_text().splitlines():
        yield json.loads(line)["turns"][0]


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--general", action="store_true", help="transformers' modules instead of the fused path")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loaded = load_model(ModelOptions(str(arguments.model), dtype="bfloat16", device=device))
    options = EngineOptions(kv_tokens=60_000, max_batch_tokens=8192, fused=not arguments.general, prefix_cache=False)
    engine = Engine(loaded, options)
    prompts = prompts_of(arguments.data, AutoTokenizer.from_pretrained(arguments.model), arguments.prompts)
    order = list(range(len(prompts)))
    started = time.perf_counter()
    plain = Runner(engine, SEED, arguments.tokens, 96, None)
    first = plain.run(prompts, order)
    middle = time.perf_counter()
    print(f"plain: {plain.steps} steps, {plain.rows} rows in {middle - started:.0f} s", flush=True)
    random.Random(SEED).shuffle(order)
    proposed = Runner(engine, SEED + 1, arguments.tokens, 40, first)
    second = proposed.run(prompts, order)
    print(f"proposed: {proposed.steps} steps, {proposed.rows} rows in {time.perf_counter() - middle:.0f} s", flush=True)
    different = [index for index, (one, other) in enumerate(zip(first, second, strict=True)) if one != other]
    print(f"{len(prompts) - len(different)} of {len(prompts)} answers identical", flush=True)
    name = "exact_bf16_general" if arguments.general else "exact_bf16"
    save(name, {
        "seed": SEED, "model": arguments.model.name, "prompts": len(prompts), "tokens": arguments.tokens,
        "identical": len(prompts) - len(different), "different": different[:100], "fused": not arguments.general,
        "plain": {"steps": plain.steps, "rows": plain.rows, "seconds": middle - started},
        "proposed": {"steps": proposed.steps, "rows": proposed.rows, "seconds": time.perf_counter() - middle},
    }, arguments.out)  # fmt: skip


if __name__ == "__main__":
    main()
