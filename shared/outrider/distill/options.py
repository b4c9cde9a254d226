"""What a distillation does: a YAML file of these sections; unknown keys are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from outrider.errors import InvalidArgument


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CollectOptions(_Section):
    """The target's answers."""

    max_tokens: int = Field(192, ge=8, description="Most tokens of an answer.")
    temperatures: tuple[float, ...] = Field(
        (0.0, 0.0, 0.7, 1.0), min_length=1, description="Each prompt gets the next of these, in turns."
    )
    answers_per_prompt: int = Field(1, ge=1, description="Sampled with seeds of their own.")
    sessions: int = Field(256, ge=1, description="Answers in the making at one time.")
    max_prompt_tokens: int = Field(1024, ge=1, description="Longer prompts are left out, and counted.")


class DraftOptions(_Section):
    """The draft's shape."""

    layers: tuple[int, ...] | None = Field(
        None, min_length=1, description="The target's layers that it starts from; default: its first and its last."
    )
    intermediate_size: int | None = Field(
        None, ge=8, description="Neurons kept in each gated MLP, those of the largest weights; default: all."
    )
    dtype: Literal["bfloat16", "float16", "float32"] = Field("bfloat16", description="Of the weights on disk.")
    vocabulary: int | None = Field(8192, ge=16, description="Tokens it can propose, the frequent ones; null: all.")


class TrainingOptions(_Section):
    """How it is trained."""

    steps: int = Field(2000, ge=1, description="Optimizer steps.")
    minutes: float | None = Field(None, gt=0, description="End after this time, if that is before the last step.")
    tokens_per_step: int = Field(32_768, ge=1, description="Padded tokens in a batch.")
    learning_rate: float = Field(1e-3, gt=0, description="Peak of a linear warm-up with cosine decay.")
    warmup: int = Field(100, ge=0, description="Steps of the warm-up.")
    weight_decay: float = Field(0.01, ge=0, description="AdamW's, on matrices.")
    kl_weight: float = Field(1.0, ge=0, description="Of KL(target || draft) over the draft's vocabulary.")
    ce_weight: float = Field(0.2, ge=0, description="Of the cross-entropy of the answer's tokens.")
    prompt_weight: float = Field(0.1, ge=0, le=1, description="Weight of a prompt's tokens; an answer's have 1.")
    keep_gb: float = Field(
        8.0,
        ge=0,
        description="Memory for the target's final states (GB, on its device): texts that fit are read only once.",
    )
    checkpoint_every: int = Field(250, ge=1, description="Steps between checkpoints.")
    seed: int = Field(0, ge=0, description="Of the order of the data.")


class EvaluationOptions(_Section):
    """Acceptance on prompts that training never sees."""

    held_out: float = Field(0.02, ge=0, lt=1, description="Share of the prompts kept apart.")
    draft_tokens: int = Field(4, ge=1, description="Length of a guess.")


class DistillOptions(_Section):
    """A whole distillation."""

    device: str = Field("auto", description="cpu, cuda, cuda:1, ...")
    dtype: str = Field("auto", description="Of the target; auto is float32 on a CPU, the checkpoint's own on a GPU.")
    collect: CollectOptions = Field(default_factory=lambda: CollectOptions.model_validate({}))
    draft: DraftOptions = Field(default_factory=lambda: DraftOptions.model_validate({}))
    training: TrainingOptions = Field(default_factory=lambda: TrainingOptions.model_validate({}))
    evaluation: EvaluationOptions = Field(default_factory=lambda: EvaluationOptions.model_validate({}))


def load_options(path: Path | None) -> DistillOptions:
    """Read a YAML file; defaults for what it leaves out. Raises InvalidArgument that names key, value and limit."""
    if path is None:
        return DistillOptions.model_validate({})
    try:
        content: Any = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise InvalidArgument("config", str(path), f"a readable YAML file ({error})") from error
    try:
        return DistillOptions.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "config"
        raise InvalidArgument(key, first["input"], first["msg"]) from error
