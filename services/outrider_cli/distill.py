"""`outrider distill`: train a small draft for a target, in a process that has torch."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from outrider.errors import ModelLoadError
from outrider_cli.terminal import errors_reported


class Stage(StrEnum):
    """The stages of `outrider.distill.main`."""

    COLLECT = "collect"
    TRAIN = "train"
    EVALUATE = "evaluate"


@errors_reported()
def distill(
    target: Annotated[
        str, typer.Option(help="The model to draft for: a Hugging Face id, a directory or a .gguf file.")
    ],
    out: Annotated[Path, typer.Option(help="Everything goes here; a run that was interrupted goes on from it.")],
    prompts: Annotated[
        list[Path] | None,
        typer.Option(help="Prompts to answer: .jsonl (prompt, messages or turns) or .txt, one a line."),
    ] = None,
    from_log: Annotated[
        list[Path] | None, typer.Option(help="Answers that a coordinator recorded (--record-to), instead or as well.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file: collect, draft, training and evaluation.")] = None,
    only: Annotated[list[Stage] | None, typer.Option(help="Only this stage; repeatable.")] = None,
    shard: Annotated[
        str | None, typer.Option(help="Collect one part of the prompts, such as 0/4; one process for each part.")
    ] = None,
) -> None:
    """Train a small draft model on the target's own answers.

    Collects the target's answers to the prompts, trains a few of its layers over its most frequent tokens towards its
    distribution, and reports what guesses of the draft would be worth on prompts that were held out. The draft is then
    in OUT/draft, ready for `outrider up --draft-model OUT/draft`.

    ```
    outrider distill --target HuggingFaceTB/SmolLM2-135M-Instruct --prompts prompts.jsonl --out my-draft
    ```
    """
    if importlib.util.find_spec("torch") is None:
        raise ModelLoadError("distillation trains a model on this machine: pip install 'outrider[engine]'")
    if not prompts and not from_log and not out.is_dir():
        raise typer.BadParameter("give --prompts or --from-log, or an --out that has answers", param_hint="--prompts")
    flags = ["--target", target, "--out", str(out)]
    for name, values in (("--prompts", prompts), ("--from-log", from_log), ("--only", only)):
        flags += [part for value in values or [] for part in (name, str(value))]
    for name, value in (("--config", config), ("--shard", shard)):
        flags += [name, str(value)] if value is not None else []
    ended = subprocess.run([sys.executable, "-m", "outrider.distill.main", *flags], check=False)
    if ended.returncode:
        raise typer.Exit(1 if ended.returncode > 0 else 128 - ended.returncode)
