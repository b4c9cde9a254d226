"""A whole distillation of a tiny target: answers, training, what the engine makes of the draft, and going on."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from outrider.corpus import read_answers
from outrider.distill import collect as collecting
from outrider.distill.checkpoint import pack, unpack
from outrider.distill.evaluate import matching
from outrider.distill.main import Distillation
from outrider.distill.options import DistillOptions
from outrider.distill.student import make_student
from outrider.distill.training import CHECKPOINT, Trainer
from outrider.engine.draft_vocabulary import FILE
from outrider.engine.engine import Engine, Feed
from outrider.engine.model import load_model
from outrider.engine.options import EngineOptions, ModelOptions
from outrider.errors import InvalidArgument, ModelLoadError
from tests.conftest import TinyModel
from tests.reference import greedy

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "bands", "play", "on"]
OPTIONS = {
    "collect": {"max_tokens": 24, "sessions": 8, "temperatures": [0.0, 0.8], "max_prompt_tokens": 100},
    "draft": {"layers": [0, 2], "vocabulary": 256, "dtype": "float32"},
    "training": {"steps": 40, "tokens_per_step": 512, "warmup": 4, "checkpoint_every": 10},
    "evaluation": {"held_out": 0.3},
}


def distillation(target: Path, out: Path, prompts: Path | None, only: list[str], **options: object) -> Distillation:
    arguments = argparse.Namespace(
        target=str(target), out=out, prompts=[prompts] if prompts else [], from_log=[], only=only, shard=(0, 1)
    )
    return Distillation(arguments, DistillOptions.model_validate(OPTIONS | options), Console(quiet=True))


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": " ".join(WORDS[(n * k) % 13] for k in range(1, 6)), "category": "ab"[n % 2]} for n in range(30)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def distilled(tiny_model: TinyModel, prompts: Path, tmp_path: Path) -> tuple[Path, Path]:
    target, out = tiny_model("llama"), tmp_path / "out"
    distillation(target, out, prompts, []).run()
    return target, out


def test_answers_are_the_target_s_own(distilled: tuple[Path, Path]) -> None:
    target, out = distilled
    fingerprint = load_model(ModelOptions(str(target))).info.vocabulary_fingerprint
    answers = list(read_answers(out / "answers.jsonl", fingerprint))
    assert {a.temperature for a in answers} == {0.0, 0.8}
    for answer in [a for a in answers if a.temperature == 0.0][:5]:
        assert list(answer.answer) == greedy(target, list(answer.prompt), 24)


def test_the_engine_runs_the_draft_as_training_saw_it(distilled: tuple[Path, Path]) -> None:
    target, out = distilled
    loaded = load_model(ModelOptions(str(out / "draft"), dtype="float32"))
    assert loaded.info.vocabulary_size == 512
    assert loaded.info.vocabulary_fingerprint == load_model(ModelOptions(str(target))).info.vocabulary_fingerprint
    trimmed = loaded.draft_vocabulary
    assert trimmed is not None
    answer = next(
        a for a in read_answers(out / "answers.jsonl", loaded.info.vocabulary_fingerprint) if not a.temperature
    )
    expected = matching(loaded.module, trimmed, [answer])[0]
    engine = Engine(loaded, EngineOptions(kv_tokens=512))
    text = [*answer.prompt, *answer.answer]
    sequence = engine.open(text, len(text))
    said = [int(engine.forward([Feed(sequence, [token])])[0].argmax()) for token in text]
    first = len(answer.prompt) + 1
    assert [said[i - 1] == text[i] for i in range(first, len(text))] == expected
    assert set(said) <= set(trimmed.token_ids)


def test_training_makes_the_draft_better_and_reports_it(distilled: tuple[Path, Path]) -> None:
    report = json.loads((distilled[1] / "report.json").read_text())
    assert report["history"][-1]["kl"] < report["history"][0]["kl"]
    assert set(report["distilled"]["0"]) <= {"all", "a", "b"}
    assert report["distilled"]["0"]["all"]["rounds"] > 0
    assert report["untrained"].keys() == report["distilled"].keys()


def test_an_interrupted_collection_goes_on(
    tiny_model: TinyModel, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny_model("llama")
    distillation(target, tmp_path / "whole", prompts, ["collect"]).run()
    answered = 0

    def interrupt(*arguments: object) -> None:
        nonlocal answered
        answered += 1
        if answered == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr("outrider.distill.main._Bar.__enter__", lambda bar: (_Updates(interrupt), None))
    with pytest.raises(KeyboardInterrupt):
        distillation(target, tmp_path / "parts", prompts, ["collect"]).run()
    monkeypatch.undo()
    asked: list[int] = []
    original = collecting._answers
    monkeypatch.setattr(collecting, "_answers", lambda c, q, o: asked.append(len(q)) or original(c, q, o))
    distillation(target, tmp_path / "parts", prompts, ["collect"]).run()
    total = len((tmp_path / "whole" / "answers.jsonl").read_text().splitlines()) - 1
    assert asked == [total - 7]
    assert _sorted_lines(tmp_path / "parts") == _sorted_lines(tmp_path / "whole")


class _Updates:
    """A progress bar that only calls back."""

    def __init__(self, called: object) -> None:
        self.update = lambda task, **values: called()  # type: ignore[operator]


def _sorted_lines(out: Path) -> list[str]:
    return sorted((out / "answers.jsonl").read_text().splitlines())


def test_interrupted_training_ends_with_the_same_weights(
    distilled: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, out = distilled
    expected = torch.load(out / CHECKPOINT, weights_only=True)["student"]
    (out / CHECKPOINT).unlink()
    original = Trainer.losses

    def interrupt(trainer: Trainer, batch: object) -> object:
        if trainer.step == 25:
            raise KeyboardInterrupt
        return original(trainer, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(Trainer, "losses", interrupt)
    with pytest.raises(KeyboardInterrupt):
        distillation(target, out, None, ["train"]).run()
    monkeypatch.undo()
    assert torch.load(out / CHECKPOINT, weights_only=True)["step"] == 20
    distillation(target, out, None, ["train"]).run()
    found = torch.load(out / CHECKPOINT, weights_only=True)["student"]
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_reading_the_texts_once_or_every_time_ends_alike(distilled: tuple[Path, Path]) -> None:
    target, out = distilled
    expected = torch.load(out / CHECKPOINT, weights_only=True)["student"]
    (out / CHECKPOINT).unlink()
    distillation(target, out, None, ["train"], training=OPTIONS["training"] | {"keep_gb": 0.0}).run()
    found = torch.load(out / CHECKPOINT, weights_only=True)["student"]
    assert all(torch.allclose(found[name], expected[name], atol=1e-3) for name in expected)


def test_other_training_options_over_a_checkpoint_are_refused(distilled: tuple[Path, Path]) -> None:
    with pytest.raises(InvalidArgument, match="checkpoint"):
        distillation(*distilled, None, ["train"], training=OPTIONS["training"] | {"steps": 50}).run()


def test_by_default_a_draft_has_the_first_and_the_last_layer(tiny_model: TinyModel) -> None:
    options = DistillOptions.model_validate({}).draft
    module = load_model(ModelOptions(str(tiny_model("llama")))).module
    student = make_student(module, options, None)
    assert len(student.model.layers) == 2
    for layer, origin in zip(student.model.layers, (module.model.layers[0], module.model.layers[-1]), strict=True):
        assert torch.equal(layer.mlp.up_proj.weight, origin.mlp.up_proj.weight)


def test_collecting_without_prompts_is_refused(tiny_model: TinyModel, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="prompts"):
        distillation(tiny_model("llama"), tmp_path / "out", None, ["collect"]).run()


@pytest.mark.parametrize("layers", [[5], [-1]])
def test_layers_that_the_target_lacks(distilled: tuple[Path, Path], layers: list[int]) -> None:
    target, out = distilled
    (out / CHECKPOINT).unlink()
    with pytest.raises(InvalidArgument, match=r"draft\.layers"):
        distillation(target, out, None, ["train"], draft=OPTIONS["draft"] | {"layers": layers}).run()


def test_a_narrow_draft(distilled: tuple[Path, Path]) -> None:
    target, out = distilled
    (out / CHECKPOINT).unlink()
    distillation(target, out, None, ["train"], draft=OPTIONS["draft"] | {"intermediate_size": 48}).run()
    assert json.loads((out / "draft" / "config.json").read_text())["intermediate_size"] == 48
    Engine(load_model(ModelOptions(str(out / "draft"))), EngineOptions(kv_tokens=256))


def test_without_answers_training_says_what_is_missing(tiny_model: TinyModel, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="--prompts or --from-log"):
        distillation(tiny_model("llama"), tmp_path / "empty", None, ["train"]).run()


def test_packing_keeps_the_draft_to_8_bits(distilled: tuple[Path, Path], tmp_path: Path) -> None:
    target, out = distilled
    pack(out / "draft", tmp_path / "packed")
    unpack(tmp_path / "packed", target, tmp_path / "again")
    before, after = (load_model(ModelOptions(str(d), dtype="float32")) for d in (out / "draft", tmp_path / "again"))
    assert after.draft_vocabulary == before.draft_vocabulary
    assert after.info.vocabulary_fingerprint == before.info.vocabulary_fingerprint
    for one, other in zip(before.module.parameters(), after.module.parameters(), strict=True):
        largest = one.abs().amax(dim=-1, keepdim=True)
        assert ((one - other).abs() <= largest / 254 * 1.02 + 1e-3 * largest).all()
    size = (tmp_path / "packed" / "draft.safetensors").stat().st_size
    assert size < 0.3 * (out / "draft" / "model.safetensors").stat().st_size
    (tmp_path / "packed" / "draft.safetensors").write_bytes(b"damaged")
    with pytest.raises(ModelLoadError, match="damaged"):
        unpack(tmp_path / "packed", target, tmp_path / "third")


@pytest.mark.parametrize(
    "content", ["{", '{"token_ids": [3, 2], "target_size": 9}', '{"token_ids": [1], "target_size": 1}']
)
def test_a_damaged_draft_vocabulary_is_refused(distilled: tuple[Path, Path], content: str) -> None:
    (distilled[1] / "draft" / FILE).write_text(content)
    with pytest.raises(ModelLoadError, match=FILE):
        load_model(ModelOptions(str(distilled[1] / "draft")))
