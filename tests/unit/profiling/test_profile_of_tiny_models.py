"""A whole profile of tiny models, and what it refuses before it starts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from outrider.corpus import Answer, Corpus, read_answers
from outrider.distill import collect as collecting
from outrider.distill.collect import Question
from outrider.distill.evaluate import matching
from outrider.distill.options import CollectOptions
from outrider.engine.draft import DraftCore
from outrider.engine.engine import Engine, Feed
from outrider.engine.model import load_model
from outrider.engine.options import EngineOptions, ModelOptions
from outrider.engine.verify import VerifyCore
from outrider.errors import ResourceExhausted
from outrider.profiling import main as program
from outrider.profiling.acceptance import MOST_RANK, ranks
from outrider.profiling.options import parse_lengths
from outrider.profiling.steps import Grid, StepTimer, measure
from tests.conftest import TinyModel
from tests.unit.engine.engines import random_tokens

FLAGS = ["--max-tokens", "12", "--draft-tokens", "1..3", "--sessions", "2", "--repeats", "2", "--budget-s", "20"]


def run(monkeypatch: pytest.MonkeyPatch, *flags: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", ["main", *map(str, flags)])
    monkeypatch.setattr(program, "configure", lambda level: None)  # it would replace pytest's own handlers
    program.main()


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"the quick brown fox {n}", "category": "ab"[n % 2]} for n in range(4)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_whole_profile(
    tiny_model: TinyModel, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    target, out = tiny_model("llama"), tmp_path / "out"
    flags = ["--target", target, "--draft", target, "--layers", "1", "--prompts", prompts, "--out", out, *FLAGS]
    run(monkeypatch, *flags, "--json")
    report = json.loads(capsys.readouterr().out)
    assert json.loads((out / "profile.json").read_text()) == report
    assert report["answers"] == 8
    assert report["environment"]["command"].startswith("outrider profile --target")
    # The target as its own draft is always right, at both temperatures; its first layer alone is not.
    for rows in report["acceptance"]["draft"]["by_temperature"].values():
        assert rows["all"]["3"]["rate"] == 1.0
        assert set(rows) == {"all", "a", "b"}
    early = report["acceptance"]["first layer"]
    assert early["by_temperature"]["0"]["all"]["3"]["rate"] < 1.0
    assert set(report["acceptance"]) == {"n-gram", "draft", "first layer"}
    timed = {times["model"]: times["cells"] for times in report["step_times"]}
    assert {(cell["sessions"], cell["tokens"]) for cell in timed["target"]} == {
        (s, n) for s in (1, 2) for n in range(4)
    }
    assert all(len(cell["samples_ms"]) >= 1 and min(cell["samples_ms"]) > 0 for cell in timed["first layer"])
    drafted = [each for each in report["forecasts"] if each["draft"] == "draft" and each["placement"] == "sequence"]
    assert len([each for each in drafted if not each["siblings"]]) == 2 * 2 * 3

    # Again, as tables: the answers are taken up.
    (answers,) = out.glob("answers-llama-*-float32-12-at-0_0.7.jsonl")
    before = answers.read_text()
    run(monkeypatch, *flags)
    text = capsys.readouterr().out
    assert answers.read_text() == before
    for expected in (
        "Step times in ms",
        "Acceptance, guesses of 3",
        "By category",
        "draft and target in turns",
    ):
        assert expected in text

    # The same answers from the file, at one of their temperatures.
    run(monkeypatch, "--target", target, "--answers", answers, "--temperatures", "0", *FLAGS, "--json")
    again = json.loads(capsys.readouterr().out)
    assert again["answers"] == 4
    expected = report["acceptance"]["n-gram"]["by_temperature"]["0"]
    assert again["acceptance"]["n-gram"]["by_temperature"] == {"0": expected}
    assert "No draft model was given: distill one instead" in "".join(again["advice"]["lines"])


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_ranks_are_those_that_distillation_evaluates(tiny_model: TinyModel, temperature: float) -> None:
    """The early exit agrees with the whole model now and then: hits and misses are both compared."""
    whole, text = load_model(ModelOptions(str(tiny_model("llama")))), random_tokens(20, seed=3)
    engine = Engine(whole, EngineOptions(kv_tokens=512))
    core = VerifyCore(engine, max_proposal=1, lease_s=60.0)
    question = Question("k", "", tuple(text), temperature, 11)
    options = CollectOptions.model_validate({"max_tokens": 200})
    (answer,) = collecting._answers(core, [question], options)
    early = ModelOptions(str(tiny_model("llama")), layers=2)
    expected = matching(load_model(early).module.eval(), None, [answer])[0]
    found = ranks(Engine(load_model(early), EngineOptions(kv_tokens=512)), answer, 512)
    assert [rank == 0 for rank in found] == expected
    assert {True, False} == set(expected)
    assert ranks(engine, answer, 512) == [0] * 199  # what the model said itself


def test_ranks_by_hand(tiny_model: TinyModel) -> None:
    """The second-likeliest token has rank 1, and one that target and draft do not share the last rank."""
    engine = Engine(load_model(ModelOptions(str(tiny_model("llama")))), EngineOptions(kv_tokens=256))
    prompt = random_tokens(10)
    sequence = engine.open(prompt, 16)
    order = engine.forward([Feed(sequence, prompt[len(sequence.cached) :])])[0, :512].argsort(descending=True).tolist()
    engine.close(sequence)
    for rank in (0, 1, 2, 30):
        answer = Answer("k", "", tuple(prompt[:-1]), (prompt[-1], order[rank]), 0.0, 0)
        assert ranks(engine, answer, 512) == [min(rank, MOST_RANK)]
    highest = Answer("k", "", tuple(prompt[:-1]), (prompt[-1], 511), 0.0, 0)
    assert ranks(engine, highest, 511) == [MOST_RANK]
    assert ranks(engine, Answer("k", "", tuple(prompt), (5,), 0.0, 0), 512) == []


@pytest.mark.parametrize("core", [VerifyCore, DraftCore])
def test_what_does_not_fit_is_left_out_and_named(tiny_model: TinyModel, core: type[VerifyCore]) -> None:
    engine = Engine(load_model(ModelOptions(str(tiny_model("llama")))), EngineOptions(kv_tokens=192))
    timer = StepTimer(core(engine, max_proposal=4, lease_s=60.0), random_tokens(20), 40)
    assert timer.room == 4  # of 48 tokens each, in blocks of 16
    times = measure("m", timer, Grid((0.0,), (1, 2, 4, 8), (1, 4), 2), 40, 30.0, lambda done, total: None)
    assert {(cell.sessions, cell.tokens) for cell in times.cells} == {(s, n) for s in (1, 2, 4) for n in (1, 4)}
    assert times.notes == ("m: memory for 4 sessions of 40 tokens, so not more were timed",)
    assert engine.available_tokens == 192  # nothing is held afterwards
    short = measure("m", timer, Grid((0.0,), (1, 2, 4), (1, 2, 3, 4), 2), 40, 0.0, lambda done, total: None)
    assert {(cell.sessions, cell.tokens) for cell in short.cells} == {(1, 1), (1, 4)}
    assert short.notes[-1] == "m: no time for 2 and more sessions at once (--budget-s)"
    with pytest.raises(ResourceExhausted, match="no room"):
        measure("m", StepTimer(core(engine, max_proposal=4, lease_s=60.0), [1], 200), Grid((0.0,), (1,), (1,), 1), 200,
                1.0, lambda done, total: None)  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--category", "c"], "category is 'c', but must be one of a, b"),
        (["--draft-tokens", "8..1"], "must be at most 16 lengths"),
        (["--draft-tokens", "some"], "must be a range such as 1..8"),
        (["--temperatures", "0,-1"], "-1 is no temperature"),
        (["--context", "250", "--draft-tokens", "8"], "context is 250, but must be at most 248"),
        (["--max-tokens", "256"], "leaves room for an answer of 256 tokens"),
        (["--draft", "gpt2-other"], "draft is 'other'"),
        (["--answers", "missing.jsonl"], "answers is 'missing.jsonl'"),
        (["--promts", "x"], "did you mean --prompts"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_measured(
    tiny_model: TinyModel,
    prompts: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    flags: list[str],
    message: str,
) -> None:
    def started(*arguments: object) -> None:
        raise AssertionError("measured something")

    monkeypatch.setattr("outrider.profiling.stages.measure", started)
    if "gpt2-other" in flags:
        flags = ["--draft", str(_other_vocabulary(tiny_model("llama"), tmp_path / "other"))]
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "--target", tiny_model("llama"), "--prompts", prompts, *flags)
    assert message in str(ended.value)


def _other_vocabulary(model: Path, directory: Path) -> Path:
    """The same model with two tokens' ids exchanged."""
    directory.mkdir()
    for path in model.iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    content = json.loads((directory / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    one, other = sorted(vocabulary, key=vocabulary.__getitem__)[300:302]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    (directory / "tokenizer.json").write_text(json.dumps(content))
    return directory


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_prompt_file(
    tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text(content)
    with pytest.raises(SystemExit, match="a file with at least one prompt"):
        run(monkeypatch, "--target", tiny_model("llama"), "--prompts", path)


def test_answers_without_a_round(tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_model("llama")
    with Corpus(tmp_path / "a.jsonl", load_model(ModelOptions(str(target))).info.vocabulary_fingerprint) as corpus:
        corpus.add(Answer("k", "", (5, 6, 7), (8,), 0.0, 0))
    with pytest.raises(SystemExit, match="at least one has two tokens"):
        run(monkeypatch, "--target", target, "--answers", tmp_path / "a.jsonl", *FLAGS)


def test_neither_prompts_nor_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="set --prompts or --answers"):
        run(monkeypatch, "--target", "x")


def test_no_memory_is_said_before_anything_is_measured(
    tiny_model: TinyModel, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.engine.model.free_bytes", lambda device: 1000)
    with pytest.raises(SystemExit, match="the weights need"):
        run(monkeypatch, "--target", tiny_model("llama"), "--prompts", prompts)


def test_an_interrupted_collection_keeps_its_answers(
    tiny_model: TinyModel, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, out = tiny_model("llama"), tmp_path / "out"
    flags = ["--target", target, "--prompts", prompts, "--out", out, *FLAGS]
    monkeypatch.setattr("outrider.profiling.stages.Profiling._ngrams", _interrupt)
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, *flags)
    assert ended.value.code == 130
    fingerprint = load_model(ModelOptions(str(target))).info.vocabulary_fingerprint
    assert len(list(read_answers(next(out.glob("answers*.jsonl")), fingerprint))) == 8


def _interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_lengths() -> None:
    assert parse_lengths("1..3") == (1, 2, 3)
    assert parse_lengths("4,1,4") == (1, 4)
    for text in ("0", "33", "1..17", "", "1.."):
        with pytest.raises(ValueError, match="must be"):
            parse_lengths(text)


def test_help_needs_no_torch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "--help")
    assert ended.value.code == 0
    assert "--network-ms" in capsys.readouterr().out
    assert torch.get_num_threads() == 1
