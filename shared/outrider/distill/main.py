"""Distillation from the command line; `outrider distill` runs this in a process of its own.

    python -m outrider.distill.main --target T --prompts FILE --out DIR [--config FILE.yaml]

Everything in DIR is picked up where it stands: answers are not asked for again, training goes on from its checkpoint.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import outrider.engine.engine  # noqa: F401  (before torch: see outrider.engine)

import torch  # isort: skip
from transformers import PreTrainedModel

from outrider.corpus import Answer, Corpus, read_answers
from outrider.distill.batches import Texts
from outrider.distill.checkpoint import save_checkpoint
from outrider.distill.collect import LEASE_S, collect, make_questions
from outrider.distill.evaluate import evaluate
from outrider.distill.options import DistillOptions, load_options
from outrider.distill.plot import plot_report
from outrider.distill.student import choose_vocabulary, make_student, trainable_parameters
from outrider.distill.teacher import Teacher
from outrider.distill.training import Trainer
from outrider.engine.draft_vocabulary import DraftVocabulary
from outrider.engine.engine import Engine
from outrider.engine.model import LoadedModel, load_model
from outrider.engine.options import EngineOptions, ModelOptions
from outrider.engine.verify import VerifyCore
from outrider.errors import InvalidArgument, OutriderError
from outrider.prompts import read_prompts
from outrider.text.tokenizer import Tokenizer

STAGES = ("collect", "train", "evaluate")
KV_FRACTION = 0.4
"""Of the memory left beside the weights: other parts of a collection may run on the same device."""


class Distillation:
    """One output directory and what is done to it."""

    def __init__(self, arguments: argparse.Namespace, options: DistillOptions, console: Console) -> None:
        self._arguments, self._options, self._console = arguments, options, console
        self.out: Path = arguments.out
        self.out.mkdir(parents=True, exist_ok=True)

    def run(self) -> None:
        """The stages asked for, in order."""
        for stage in self._arguments.only or STAGES:
            {"collect": self.collect, "train": self.train, "evaluate": self.evaluate}[stage]()

    def collect(self) -> None:
        """Answers of the target to the prompts that have none yet."""
        if not self._arguments.prompts:
            if "collect" in (self._arguments.only or ()):
                raise InvalidArgument("prompts", [], "at least one file to collect answers to")
            return
        prompts = [prompt for path in self._arguments.prompts for prompt in read_prompts(path)]
        loaded = self._load()
        tokenizer = Tokenizer.from_files(loaded.tokenizer_files)
        options = self._options.collect
        questions = make_questions(prompts, tokenizer, options, loaded.info.context_length)
        part, parts = self._arguments.shard
        questions = questions[part::parts]
        if not questions:
            raise InvalidArgument("prompts", len(prompts), "prompts of which at least one is short enough")
        self._say(f"{len(questions)} answers to {len(prompts)} prompts (the too long and the repeated are left out)")
        engine = Engine(loaded, EngineOptions(memory_fraction=KV_FRACTION / parts, max_batch_tokens=8192))
        core = VerifyCore(engine, max_proposal=1, lease_s=LEASE_S)
        name = "answers.jsonl" if parts == 1 else f"answers-{part}of{parts}.jsonl"
        corpus = Corpus(self.out / name, loaded.info.vocabulary_fingerprint)
        started = time.perf_counter()
        with self._bar("answers of the target") as (bar, task):
            added = collect(
                core,
                questions,
                corpus,
                options,
                lambda done, total, tokens: bar.update(
                    task,
                    completed=done,
                    total=total,
                    description=f"answers of the target, {tokens / (time.perf_counter() - started):,.0f} tokens/s",
                ),
            )
        self._say(f"{added} answers added to {corpus.path} in {time.perf_counter() - started:.0f} s")

    def train(self) -> None:
        """Make the draft and train it; the last checkpoint becomes OUT/draft."""
        loaded = self._load()
        target = loaded.module
        target.set_attn_implementation("sdpa")
        kept, held_out = self._split(loaded)
        vocabulary = self._vocabulary(kept, loaded)
        student = make_student(target, self._options.draft, vocabulary)
        self._say(
            f"draft: {trainable_parameters(student) / 1e6:.1f} M weights, {len(kept)} answers to learn from,"
            f" {len(held_out)} held out"
        )
        untrained = self._measure(student, vocabulary, held_out)
        files, dtype = loaded.tokenizer_files, self._options.draft.dtype
        save_checkpoint(student, vocabulary, files, dtype, self.out / "untrained")
        training = self._options.training
        texts = Texts(kept, target.device)
        teacher = Teacher(target, texts, keep_gb=training.keep_gb, tokens_per_batch=training.tokens_per_step)
        trainer = Trainer(teacher, student, vocabulary, training, self.out)
        with self._bar("training") as (bar, task):
            trainer.run(
                lambda step, steps, loss: bar.update(
                    task, completed=step, total=steps, description=f"training, KL {loss:.3f}"
                ),
            )
        self._say(f"{trainer.step} steps in {trainer.seconds:.0f} s")
        save_checkpoint(student, vocabulary, files, dtype, self.out / "draft")
        report = {
            "target": self._arguments.target,
            "options": self._options.model_dump(mode="json"),
            "answers": len(kept),
            "answer_tokens": sum(len(answer.answer) for answer in kept),
            "parameters": trainable_parameters(student),
            "steps": trainer.step,
            "training_seconds": trainer.seconds,
            "history": trainer.history,
            "untrained": untrained,
        }
        self._write_report(report)

    def evaluate(self) -> None:
        """Acceptance of OUT/draft on the answers held out."""
        directory = self.out / "draft"
        if not (directory / "config.json").is_file():
            raise InvalidArgument("out", str(self.out), "a directory with a trained draft; run the train stage first")
        loaded = load_model(ModelOptions(str(directory), dtype="float32", device=self._options.device))
        loaded.module.set_attn_implementation("sdpa")
        _, held_out = self._split(loaded)
        found = self._measure(loaded.module, loaded.draft_vocabulary, held_out)
        report = self._read_report() | {"distilled": found}
        self._write_report(report)
        for temperature, rows in found.items():
            for category, row in rows.items():
                self._say(
                    f"temperature {temperature} {category:24} acceptance rate {row['rate'] or 0:.2f},"
                    f" accepted length {row['length'] or 1:.2f}"
                )
        if (path := plot_report(report, self.out / "report.png")) is not None:
            self._say(f"plot: {path}")

    def _measure(
        self, student: PreTrainedModel, vocabulary: DraftVocabulary | None, answers: Sequence[Answer]
    ) -> dict[str, Any]:
        found = evaluate(student, vocabulary, answers, self._options.evaluation.draft_tokens)
        return {
            temperature: {name: asdict(row) | {"rate": row.rate, "length": row.length} for name, row in rows.items()}
            for temperature, rows in found.items()
        }

    def _load(self) -> LoadedModel:
        options = ModelOptions(self._arguments.target, dtype=self._options.dtype, device=self._options.device)
        return load_model(options, progress=self._say)

    def _split(self, loaded: LoadedModel) -> tuple[list[Answer], list[Answer]]:
        """The answers to learn from and those held out: a prompt is in one of the two, in every run the same."""
        fingerprint = loaded.info.vocabulary_fingerprint
        paths = [*sorted(self.out.glob("answers*.jsonl")), *self._arguments.from_log]
        for path in self._arguments.from_log:
            if not path.is_file():
                raise InvalidArgument("from_log", str(path), "a file that a coordinator recorded")
        answers = [answer for path in paths for answer in read_answers(path, fingerprint) if answer.answer]
        share = self._options.evaluation.held_out
        kept: list[Answer] = []
        held_out: list[Answer] = []
        for answer in answers:
            place = zlib.crc32(repr(answer.prompt).encode(), 1) / 2**32
            (held_out if place < share else kept).append(answer)
        if not kept:
            raise InvalidArgument("out", str(self.out), "a directory with answers; give --prompts or --from-log")
        return kept, held_out

    def _vocabulary(self, answers: Sequence[Answer], loaded: LoadedModel) -> DraftVocabulary | None:
        always = [*loaded.info.eos_token_ids]
        return choose_vocabulary(answers, loaded.info.vocabulary_size, self._options.draft.vocabulary, always)

    def _read_report(self) -> dict[str, Any]:
        path = self.out / "report.json"
        return json.loads(path.read_text()) if path.is_file() else {}

    def _write_report(self, report: dict[str, Any]) -> None:
        (self.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def _bar(self, what: str) -> _Bar:
        return _Bar(self._console, what)


class _Bar:
    """A progress bar with one task."""

    def __init__(self, console: Console, what: str) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=console)
        self._what = what

    def __enter__(self) -> tuple[Progress, Any]:
        self._progress.start()
        return self._progress, self._progress.add_task(self._what, total=None)

    def __exit__(self, *error: object) -> None:
        self._progress.stop()


def _shard(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and int(part) < int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is no shard such as 0/4")
    return int(part), int(parts)


def main() -> None:
    """Entry point of the module."""
    parser = argparse.ArgumentParser(prog="outrider distill", description=__doc__)
    parser.add_argument("--target", required=True, help="hub id, directory or .gguf file of the target")
    parser.add_argument("--prompts", type=Path, action="append", default=[], help="a .jsonl or .txt file; repeatable")
    parser.add_argument("--from-log", type=Path, action="append", default=[], help="what a coordinator recorded")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=None)
    parser.add_argument("--only", choices=STAGES, action="append", help="only this stage; repeatable")
    parser.add_argument("--shard", type=_shard, default=(0, 1), help="collect one part of the prompts, such as 0/4")
    arguments = parser.parse_args()
    console = Console(stderr=True)
    try:
        Distillation(arguments, load_options(arguments.config), console).run()
    except (OutriderError, OSError) as error:
        sys.exit(f"outrider distill: {error}")
    except torch.OutOfMemoryError as error:
        sys.exit(f"outrider distill: the device has too little memory: {error}; lower training.tokens_per_step")


if __name__ == "__main__":
    main()
