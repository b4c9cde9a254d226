"""The fast way to the demo's training data writes what the target would write, and drafts can be trained on it."""

from __future__ import annotations

import argparse
import itertools
import random
from pathlib import Path

import pytest
import torch

from outrider.corpus import Answer, Corpus, read_answers
from outrider.engine.model import load_model
from outrider.engine.options import ModelOptions
from outrider.text.tokenizer import Tokenizer
from scripts.demo_draft import answers as answering
from scripts.demo_draft.decode import Slots
from scripts.demo_draft.tasks import Task, mixed, passages, questions
from tests.conftest import TinyModel
from tests.reference import greedy

TOKENS = 20


@pytest.fixture
def target(tiny_model: TinyModel) -> Path:
    return tiny_model("llama")


def write(target: Path, tasks: list[Task], path: Path, *, slots: int, length: int) -> list[Answer]:
    loaded = load_model(ModelOptions(str(target), dtype="float32", device="cpu"))
    tokenizer = Tokenizer.from_files(loaded.tokenizer_files)
    arguments = argparse.Namespace(answer_tokens=TOKENS, seed=3)
    with Corpus(path, loaded.info.vocabulary_fingerprint) as corpus:
        writer = answering.Writer(
            Slots(loaded.module, slots, length),
            itertools.cycle(tasks),
            corpus,
            tokenizer,
            loaded.info.eos_token_ids,
            arguments,
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(answering.time, "monotonic", itertools.count().__next__)  # a second for every look
            writer.run(seconds=12)
    return list(read_answers(path, loaded.info.vocabulary_fingerprint))


def test_greedy_answers_are_the_target_s_own(target: Path, tmp_path: Path) -> None:
    given = [Task([5 + n, *range(40, 44 + 3 * n)], "a", 0.0) for n in range(5)]
    found = write(target, given, tmp_path / "answers.jsonl", slots=3, length=96)
    assert {answer.prompt for answer in found} == {tuple(task.text) for task in given}
    expected = {tuple(task.text): greedy(target, task.text, TOKENS) for task in given}
    assert all(list(answer.answer) == expected[answer.prompt] for answer in found)


def test_a_begun_passage_gets_its_task_and_an_answer(target: Path, tmp_path: Path) -> None:
    tail = [7, 8, 9]
    made = [Task([20 + n, 30, 31], "b", 0.0, asking=10, tail=tail) for n in range(200)]
    found = write(target, made, tmp_path / "answers.jsonl", slots=2, length=96)
    assert found
    loaded = load_model(ModelOptions(str(target), dtype="float32", device="cpu"))
    header = Tokenizer.from_files(loaded.tokenizer_files).encode(answering.ASSISTANT)
    for answer in found:
        begun, rest = list(answer.prompt[:3]), list(answer.prompt[3:])
        assert rest[-len(header) :] == list(header)
        passage = rest[: -len(header) - len(tail)]
        assert rest[len(passage) : len(passage) + len(tail)] == tail
        assert passage == [t for t in greedy(target, begun, 10) if t not in loaded.info.eos_token_ids]
        if answer.temperature == 0.0:
            assert list(answer.answer) == greedy(target, list(answer.prompt), TOKENS)


def test_tasks_begin_with_a_user_s_turn(target: Path) -> None:
    tokenizer = Tokenizer.from_files(load_model(ModelOptions(str(target))).tokenizer_files)
    order = random.Random(1)
    asked = list(itertools.islice(questions(tokenizer, order), 50))
    told = list(itertools.islice(passages(tokenizer, order), 50))
    assert all(task.tail is None and task.asking for task in asked)
    assert {task.category for task in told} == {"rag", "summarization"}
    assert all(task.tail for task in told)
    both = list(itertools.islice(mixed(asked[:5], iter(told), 0.5, order), 40))
    assert [task for task in both if task in asked] == asked[:5]


def test_sampled_tokens_follow_the_temperature(target: Path) -> None:
    slots = Slots(load_model(ModelOptions(str(target), dtype="float32", device="cpu")).module, 4000, 4)
    logits = torch.tensor([[0.0, 1.0, 2.0]]).expand(4000, 3)
    torch.manual_seed(0)
    for temperature in (0.7, 1.0):
        slots.temperature.fill_(temperature)
        share = torch.bincount(slots._draw(logits), minlength=3) / 4000
        assert torch.allclose(share, (logits[0] / temperature).softmax(dim=0), atol=0.03)
    slots.temperature.zero_()
    assert slots._draw(logits).unique().tolist() == [2]
