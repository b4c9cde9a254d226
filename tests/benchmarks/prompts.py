"""Prompts of public evaluation sets, from the directory OUTRIDER_EVALUATION_DATA (default ../shared/data)."""

from __future__ import annotations

import gzip
import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

DATA = Path(os.environ.get("OUTRIDER_EVALUATION_DATA", Path(__file__).parents[3] / "shared" / "data"))


def spec_bench(per_category: int) -> dict[str, list[str]]:
    """The first questions of every Spec-Bench category (Xia et al. 2024), first turn only."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in (DATA / "spec_bench_question.jsonl").read_text().splitlines():
        question = json.loads(line)
        if len(found[question["category"]]) < per_category:
            found[question["category"]].append(question["turns"][0])
    return dict(found)


def human_eval(count: int) -> list[str]:
    """The first HumanEval prompts (Chen et al. 2021)."""
    with gzip.open(DATA / "HumanEval.jsonl.gz", "rt") as lines:
        return [json.loads(line)["prompt"] for line, _ in zip(lines, range(count), strict=False)]


def gsm8k(count: int) -> list[str]:
    """The first GSM8K test questions (Cobbe et al. 2021)."""
    lines = (DATA / "gsm8k_test.jsonl").read_text().splitlines()[:count]
    return [json.loads(line)["question"] for line in lines]


def chat_ids(tokenizer: Any, text: str) -> list[int]:
    """The ids of `text` as a user's turn, with transformers' tokenizer."""
    encoded = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)
    return list(encoded["input_ids"])
