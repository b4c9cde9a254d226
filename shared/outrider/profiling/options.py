"""What a profile measures, and for how long."""

from __future__ import annotations

import math
import re
import warnings
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from outrider.config import Settings

LONGEST_GUESS = 32
"""Most tokens of a guess that are profiled."""
MOST_LENGTHS = 16
"""Most lengths that are compared: each is a column of the forward passes that are timed."""


# Every command has --json; the old method of that name, which pydantic warns about, is not used.
warnings.filterwarnings("ignore", message='Field name "json" in "ProfileSettings"')


class ProfileSettings(Settings, env_prefix="OUTRIDER_PROFILE_"):
    """Measure step times and acceptance, and predict which draft and guess length pay, and up to which concurrency."""

    target: str = Field(description="The model to serve: Hugging Face hub id, directory, or .gguf file.")
    draft: tuple[str, ...] = Field((), description="Draft models to compare; repeatable. N-grams always take part.")
    layers: tuple[int, ...] = Field(
        (), description="Compare early-exit drafts too: the target's first N layers; repeatable."
    )
    prompts: tuple[Path, ...] = Field(
        (), description="Files of prompts to answer: .jsonl (prompt, messages, turns or raw; category) or .txt."
    )
    answers: tuple[Path, ...] = Field(
        (), description="Answers of the target that exist already, by `outrider distill` or recorded (--record-to)."
    )
    category: tuple[str, ...] = Field((), description="Only the prompts and answers of these categories; repeatable.")
    max_tokens: int = Field(128, ge=8, description="Most tokens of an answer.")
    temperatures: tuple[float, ...] = Field((0.0, 0.7), min_length=1, description="Each prompt is answered at each.")
    draft_tokens: str = Field("1..8", description="Lengths of guesses to compare, such as 1..8 or 1,2,4.")
    sessions: int = Field(64, ge=1, le=1024, description="Largest concurrency to time: 1, 2, 4, ... up to it.")
    context: int | None = Field(
        None, ge=16, description="Tokens before the timed ones; default: the median prompt and half of its answer."
    )
    network_ms: float = Field(0.5, ge=0, description="Round trip between the coordinator and a replica.")
    repeats: int = Field(7, ge=1, description="Samples of each time, of which the median counts.")
    budget_s: float = Field(
        600.0, gt=0, description="Time for measuring, without loading; what does not fit is left out, and named."
    )
    device: str = Field("auto", description="cpu, cuda, cuda:1, ...; auto is cuda if there is one.")
    draft_device: str | None = Field(None, description="The same for the drafts; default: where the target is.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Number format of the weights; auto is float32 on a CPU, the checkpoint's own on a GPU."
    )
    threads: int | None = Field(None, ge=1, description="CPU threads for tensor work; default: as many as cores.")
    out: Path | None = Field(None, description="Directory for profile.json, profile.png and the answers.")
    json: bool = Field(False, description="Print one JSON object on stdout and nothing else.")  # type: ignore[assignment]

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of guesses, ascending."""
        return parse_lengths(self.draft_tokens)

    @property
    def concurrencies(self) -> tuple[int, ...]:
        """1, 2, 4, ... and the largest."""
        powers = [1 << n for n in range(int(math.log2(self.sessions)) + 1)]
        return tuple(sorted({*powers, self.sessions}))

    @field_validator("temperatures")
    @classmethod
    def _are_temperatures(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        for value in values:
            if not (value == 0.0 or 1e-4 <= value <= 100.0):
                raise ValueError(f"{value:g} is no temperature: 0, or from 0.0001 to 100")
        return tuple(dict.fromkeys(values))

    @field_validator("draft", "layers")
    @classmethod
    def _are_different(cls, values: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(dict.fromkeys(values))

    @field_validator("draft_tokens")
    @classmethod
    def _are_lengths(cls, text: str) -> str:
        parse_lengths(text)
        return text

    @model_validator(mode="after")
    def _has_answers(self) -> ProfileSettings:
        if not self.prompts and not self.answers:
            raise ValueError("prompts are required: set --prompts or --answers")
        return self


def parse_lengths(text: str) -> tuple[int, ...]:
    """`1..8` or `1,2,4` as ascending numbers. Raises ValueError that says what is wrong."""
    if match := re.fullmatch(r"(\d{1,4})\.\.(\d{1,4})", text):
        found = [*range(int(match[1]), int(match[2]) + 1)]
    elif re.fullmatch(r"\d{1,4}(,\d{1,4})*", text):
        found = [int(part) for part in text.split(",")]
    else:
        raise ValueError("must be a range such as 1..8 or a list such as 1,2,4")
    if not found or min(found) < 1 or max(found) > LONGEST_GUESS or len(set(found)) > MOST_LENGTHS:
        raise ValueError(f"must be at most {MOST_LENGTHS} lengths from 1 to {LONGEST_GUESS}")
    return tuple(sorted(set(found)))
