"""What a profile is made of, checked before anything takes long: prompts, answers, models that fit together."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import TypeVar

from outrider.corpus import Answer, read_answers
from outrider.distill.collect import Question, make_questions
from outrider.distill.options import CollectOptions
from outrider.engine.engine import Engine
from outrider.engine.model import LoadedModel, load_model
from outrider.engine.options import EngineOptions, ModelOptions
from outrider.errors import InvalidArgument
from outrider.profiling.options import ProfileSettings
from outrider.prompts import Prompt, read_prompts
from outrider.protocol.items import ModelInfo
from outrider.text.tokenizer import Tokenizer
from outrider.text.vocabulary import first_difference

Say = Callable[[str], None]
T = TypeVar("T")

OTHER = "other"
"""The category of what has none."""
BATCH_TOKENS = 8192
TARGET_KV, DRAFT_KV = 0.5, 0.3
"""Shares of the memory left beside all weights."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft model, ready to run."""

    name: str  # short, as tables show it
    model: str
    flags: tuple[str, ...]  # of `outrider up`, to serve it
    engine: Engine
    trained: bool  # by `outrider distill`
    vocabulary_size: int  # that it shares with the target


@dataclass(frozen=True, slots=True)
class Models:
    """Everything loaded."""

    target: Engine
    tokenizer: Tokenizer
    drafts: tuple[Draft, ...]


def chosen_prompts(settings: ProfileSettings) -> list[Prompt]:
    """The prompts of the categories asked for. Raises InvalidArgument for an empty file or an unknown category."""
    prompts = [prompt for path in settings.prompts for prompt in read_prompts(path)]
    for path in settings.answers:
        if not path.is_file():
            raise InvalidArgument("answers", str(path), "a file of answers")
    if not settings.answers:  # else the category may be that of an answer
        check_categories(settings.category, [prompt.category for prompt in prompts])
    return [prompt for prompt in prompts if not settings.category or (prompt.category or OTHER) in settings.category]


def check_categories(wanted: Iterable[str], known: Iterable[str]) -> None:
    """Raise InvalidArgument for a category that nothing has."""
    there = sorted({category or OTHER for category in known})
    for category in wanted:
        if category not in there:
            raise InvalidArgument("category", category, "one of " + ", ".join(there))


def load_models(settings: ProfileSettings, say: Say) -> Models:
    """Load target and drafts, all at once, so that what does not fit is known now.

    Raises ModelLoadError, and InvalidArgument for a draft of another vocabulary.
    """
    loaded = load_model(ModelOptions(settings.target, dtype=settings.dtype, device=settings.device), say)
    tokenizer = Tokenizer.from_files(loaded.tokenizer_files)
    found: list[tuple[str, tuple[str, ...], LoadedModel]] = []  # name, flags, model
    device = settings.draft_device or settings.device
    for number, model in enumerate(settings.draft, 1):
        draft = load_model(ModelOptions(model, dtype=settings.dtype, device=device), say)
        check_vocabulary(loaded, tokenizer, draft)
        name = f"draft {number}" if len(settings.draft) > 1 else "draft"
        found.append((name, ("--draft-model", model), draft))
    for layers in settings.layers:
        options = ModelOptions(settings.target, dtype=settings.dtype, device=device, layers=layers)
        name = "first layer" if layers == 1 else f"first {layers} layers"
        found.append((name, ("--draft-layers", str(layers)), load_model(options, say)))
    target = Engine(loaded, EngineOptions(memory_fraction=TARGET_KV, max_batch_tokens=BATCH_TOKENS))
    drafts = [
        Draft(
            name,
            draft.info.name,
            (*flags, "--drafter", "auto"),
            Engine(draft, EngineOptions(memory_fraction=DRAFT_KV, max_batch_tokens=BATCH_TOKENS)),
            draft.draft_vocabulary is not None,
            min(loaded.info.vocabulary_size, draft.info.vocabulary_size),
        )
        for name, flags, draft in found
    ]
    return Models(target, tokenizer, tuple(drafts))


def check_vocabulary(target: LoadedModel, tokenizer: Tokenizer, draft: LoadedModel) -> None:
    """Raise InvalidArgument unless the coordinator would pair the two."""
    if draft.info.vocabulary_fingerprint == target.info.vocabulary_fingerprint:
        return
    difference = first_difference(tokenizer.tokens, Tokenizer.from_files(draft.tokenizer_files).tokens)
    if difference is not None:
        raise InvalidArgument("draft", draft.info.name, f"of the vocabulary of {target.info.name}: {difference}")


def questions_of(
    prompts: Sequence[Prompt], models: Models, settings: ProfileSettings
) -> tuple[list[Question], CollectOptions]:
    """Every prompt at every temperature, in an order in which any first part has some of each category.

    Raises InvalidArgument if no prompt is short enough.
    """
    options = CollectOptions.model_validate(
        {
            "max_tokens": settings.max_tokens,
            "temperatures": settings.temperatures,
            "answers_per_prompt": len(settings.temperatures),
        }
    )
    questions = make_questions(prompts, models.tokenizer, options, models.target.info.context_length)
    if prompts and not questions:
        raise InvalidArgument(
            "prompts", len(prompts), f"prompts of which one leaves room for an answer of {settings.max_tokens} tokens"
        )
    return in_turns(questions, lambda question: (question.category, question.temperature)), options


def given_answers(settings: ProfileSettings, fingerprint: str) -> list[Answer]:
    """The answers of the files, cut to `max_tokens`, of the temperatures and categories asked for."""
    answers = [answer for path in settings.answers for answer in read_answers(path, fingerprint)]
    if not answers:
        return []
    check_categories(settings.category, [answer.category for answer in answers])
    kept = [
        Answer(a.key, a.category, a.prompt, a.answer[: settings.max_tokens], a.temperature, a.seed)
        for a in answers
        if a.temperature in settings.temperatures
        and (not settings.category or (a.category or OTHER) in settings.category)
    ]
    if not kept:
        there = ", ".join(f"{temperature:g}" for temperature in sorted({a.temperature for a in answers}))
        raise InvalidArgument("temperatures", settings.temperatures, f"some of those of the answers: {there}")
    return kept


def in_turns(items: Iterable[T], group: Callable[[T], Hashable]) -> list[T]:
    """One of each group, then the next of each; within a group the order stays."""
    groups: dict[Hashable, list[T]] = defaultdict(list)
    for item in items:
        groups[group(item)].append(item)
    missing = object()
    rounds = zip_longest(*groups.values(), fillvalue=missing)
    return [item for item in chain.from_iterable(rounds) if item is not missing]  # type: ignore[misc]


def answers_path(directory: Path, settings: ProfileSettings, target: ModelInfo) -> Path:
    """Where the target's answers are kept: what they depend on is in the name, so that no others are taken up."""
    which = f"{target.name.rpartition('/')[2]}-{zlib.crc32(settings.target.encode()):08x}-{target.dtype}"
    at = "_".join(f"{temperature:g}" for temperature in settings.temperatures)
    return directory / f"answers-{which}-{settings.max_tokens}-at-{at}.jsonl"
