"""Prompts, configuration and answers: what is refused, and what survives an interruption."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from outrider.corpus import Answer, Corpus, read_answers
from outrider.distill.options import load_options
from outrider.errors import InvalidArgument
from outrider.prompts import read_prompts

ANSWERS = [Answer(f"k{n}", "c", (1, 2, n), (3, n), 0.7, n) for n in range(3)]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_every_form_of_a_prompt(tmp_path: Path) -> None:
    lines = [
        '{"prompt": "a", "category": "x"}',
        '{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "b"}]}',
        "",
        '{"turns": ["c", "later"]}',
        '{"raw": "d"}',
    ]
    path = tmp_path / "p.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    prompts = read_prompts(path)
    assert [[m["content"] for m in p.messages] or p.text for p in prompts] == [["a"], ["s", "b"], ["c"], "d"]
    assert prompts[0].category == "x"
    assert [p.messages[0]["content"] for p in read_prompts(write(tmp_path / "p.txt", "one\n\ntwo\n"))] == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "at least one prompt"),
        ("{not json}\n", ":1"),
        ('{"prompt": "a"}\n[1]\n', ":2"),
        ('{"prompt": ""}\n', "messages, prompt, turns or raw"),
        ('{"messages": [{"role": "user"}]}\n', "messages, prompt, turns or raw"),
    ],
)
def test_a_bad_prompt_file_names_the_line(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        read_prompts(write(tmp_path / "p.jsonl", text))


def test_a_missing_prompt_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="readable"):
        read_prompts(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("training: {stepz: 3}", "training.stepz"),
        ("training: {steps: 0}", "training.steps"),
        ("draft: {layers: []}", "draft.layers"),
        ("collect: [", "config"),
    ],
)
def test_a_bad_configuration_names_the_key(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        load_options(write(tmp_path / "c.yaml", text))


def test_answers_come_back_and_a_torn_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with Corpus(path, "fp") as corpus:
        corpus.add(ANSWERS[0])
        corpus.add(ANSWERS[1])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"key": "k9", "cat')
    assert list(read_answers(path, "fp")) == ANSWERS[:2]
    with Corpus(path, "fp") as corpus:
        corpus.add(ANSWERS[2])
    assert list(Corpus(path, "fp")) == ANSWERS


def test_another_target_s_answers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with Corpus(path, "fp") as corpus:
        corpus.add(ANSWERS[0])
    with pytest.raises(InvalidArgument, match="target"):
        list(read_answers(path, "other"))


def test_a_full_disk_is_said_and_keeps_what_was_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="space"), Corpus(Path("/dev/full"), "fp") as corpus:
        corpus.add(ANSWERS[0])
