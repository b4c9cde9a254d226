"""Trains drafts of several shapes beside each other, batch by batch on the same answers, or goes on with one.

    python -m scripts.demo_draft.shapes TARGET OUT SHAPES.yaml ANSWERS.jsonl ... --held-out HELD_OUT.jsonl --minutes 5

`--later` names answers that are still being made: they join as soon as the file `--when` is there, in turns with the
others.

Each shape of the file has `draft` (as in distill.yaml), perhaps `training` of its own, and perhaps `from`, a packed
draft of the same shape to go on from. OUT/NAME then holds the packed draft and its report.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

import outrider.engine.engine  # noqa: F401  (before torch: see outrider.engine)
from outrider.corpus import Answer, read_answers
from outrider.distill.batches import Texts, batches
from outrider.distill.checkpoint import pack, save_checkpoint, unpack
from outrider.distill.evaluate import evaluate
from outrider.distill.options import DistillOptions
from outrider.distill.student import choose_vocabulary, make_student, trainable_parameters
from outrider.distill.teacher import Teacher
from outrider.distill.training import Trainer
from outrider.engine.draft_vocabulary import DraftVocabulary
from outrider.engine.model import LoadedModel, load_model
from outrider.engine.options import ModelOptions

LOOK_EVERY_S = 60.0
"""Seconds between two evaluations and saved states."""


class Candidate:
    """One shape in training."""

    def __init__(
        self, name: str, options: DistillOptions, start: Path | None, teacher: Teacher, loaded: LoadedModel, out: Path
    ) -> None:
        self.name, self.options, self._loaded, self._out = name, options, loaded, out / name
        self._out.mkdir(parents=True, exist_ok=True)
        self.vocabulary: DraftVocabulary | None = None
        self.looks: list[dict[str, Any]] = []
        self._teacher, self._start = teacher, start

    def prepare(self, answers: Sequence[Answer], target_files: Path) -> None:
        """Make the draft: from the packed one to go on from, or from the target's layers."""
        target = self._loaded.module
        if self._start is not None:
            unpack(self._start, target_files, self._out / "start")
            begun = load_model(ModelOptions(str(self._out / "start"), dtype="float32", device=str(target.device)))
            begun.module.set_attn_implementation("sdpa")
            self.vocabulary, self.student = begun.draft_vocabulary, begun.module.requires_grad_(True)
        else:
            always = [*self._loaded.info.eos_token_ids]
            size = self._loaded.info.vocabulary_size
            self.vocabulary = choose_vocabulary(answers, size, self.options.draft.vocabulary, always)
            self.student = make_student(target, self.options.draft, self.vocabulary)
        self.trainer = Trainer(self._teacher, self.student, self.vocabulary, self.options.training, self._out)

    def look(self, held_out: Sequence[Answer]) -> None:
        """Acceptance on the held-out answers, and the packed draft."""
        self.student.eval()
        found = evaluate(self.student, self.vocabulary, held_out, self.options.evaluation.draft_tokens)
        lengths = {
            temperature: [rows["all"].length, statistics.mean(row.length or 1.0 for row in rows.values())]
            for temperature, rows in found.items()
        }  # over all answers, and the mean over categories
        self.looks.append({"step": self.trainer.step, "seconds": self.trainer.seconds, "length": lengths})
        print(f"{time.strftime('%T')} {self.name} {json.dumps(self.looks[-1])}", flush=True)
        checkpoint = self._out / "draft"
        save_checkpoint(self.student, self.vocabulary, self._loaded.tokenizer_files, "float32", checkpoint)
        pack(checkpoint, self._out / "packed")
        report = {
            "options": self.options.model_dump(mode="json"),
            "parameters": trainable_parameters(self.student),
            "steps": self.trainer.step,
            "history": self.trainer.history,
            "looks": self.looks,
            "distilled": {
                temperature: {name: asdict(row) | {"length": row.length} for name, row in rows.items()}
                for temperature, rows in found.items()
            },
        }
        (self._out / "report.json").write_text(json.dumps(report, indent=1) + "\n")


def main() -> None:
    """Train until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("shapes", type=Path)
    parser.add_argument("answers", type=Path, nargs="+")
    parser.add_argument("--held-out", type=Path, required=True)
    parser.add_argument("--later", type=Path, nargs="*", default=[])
    parser.add_argument("--when", type=Path)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    arguments = parser.parse_args()
    started = time.monotonic()
    loaded = load_model(ModelOptions(str(arguments.target), dtype=arguments.dtype, device=arguments.device))
    loaded.module.set_attn_implementation("sdpa")
    fingerprint = loaded.info.vocabulary_fingerprint
    held_out = list(read_answers(arguments.held_out, fingerprint))
    apart = {answer.prompt for answer in held_out}

    def answers_in(paths: Sequence[Path]) -> list[Answer]:
        found = [answer for path in paths for answer in read_answers(path, fingerprint)]
        return [answer for answer in found if answer.answer and answer.prompt not in apart]

    answers = answers_in(arguments.answers)
    shapes: dict[str, dict[str, Any]] = yaml.safe_load(arguments.shapes.read_text())
    common = shapes.pop("common", {})
    keep_gb = common.get("training", {}).get("keep_gb", 8.0)

    def teacher_of(answers: Sequence[Answer]) -> Teacher:
        texts = Texts(answers, loaded.module.device)
        teacher = Teacher(loaded.module, texts, keep_gb=keep_gb, tokens_per_batch=65_536)
        print(f"{time.strftime('%T')} {len(texts)} answers of {texts.size} tokens read by the target", flush=True)
        return teacher

    teacher = teacher_of(answers)
    candidates = []
    for name, shape in shapes.items():
        start = Path(shape.pop("from")) if "from" in shape else None
        training = common.get("training", {}) | shape.get("training", {}) | {"minutes": arguments.minutes}
        options = DistillOptions.model_validate(common | shape | {"training": training})
        candidates.append(Candidate(name, options, start, teacher, loaded, arguments.out))
        candidates[-1].prepare(answers, arguments.target)

    def more() -> Teacher | None:
        return teacher_of(answers_in(arguments.later)) if arguments.when and arguments.when.exists() else None

    train(candidates, [teacher], more, held_out, arguments.minutes * 60 - (time.monotonic() - started))


def train(
    candidates: list[Candidate],
    teachers: list[Teacher],
    more: Callable[[], Teacher | None],
    held_out: Sequence[Answer],
    seconds: float,
) -> None:
    """All candidates learn from each batch; `seconds` are shared by all of them, and so is the schedule."""
    options = candidates[0].options.training
    streams = [batches(teacher.texts.lengths, options.tokens_per_step, options.seed) for teacher in teachers]
    begun = time.monotonic()
    next_look = begun + LOOK_EVERY_S
    share = options.minutes * 60 / seconds if options.minutes else 1.0  # the schedule ends when the time does
    for candidate in candidates:
        candidate.look(held_out)
    while (now := time.monotonic()) - begun < seconds:
        turn = candidates[0].trainer.step % len(teachers)
        batch = teachers[turn].texts.batch(next(streams[turn]))
        for candidate in candidates:
            candidate.trainer.teacher = teachers[turn]
            losses = candidate.trainer.learn(batch)
            candidate.trainer.seconds = (now - begun) * share
            if candidate.trainer.step % 10 == 0:
                candidate.trainer.history.append({"step": candidate.trainer.step, "kl": losses.kl, "ce": losses.ce})
        if len(teachers) == 1 and candidates[0].trainer.step % 20 == 0 and (another := more()) is not None:
            teachers = [*teachers, another]
            streams.append(batches(another.texts.lengths, options.tokens_per_step, options.seed))
        if now > next_look:
            next_look += LOOK_EVERY_S
            for candidate in candidates:
                candidate.look(held_out)
    for candidate in candidates:
        candidate.look(held_out)


if __name__ == "__main__":
    main()
