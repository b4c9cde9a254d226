"""The target's own answers to many prompts, with continuous batching, by the very engine that serves them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from outrider.acceptance.params import Rule, SamplingParams
from outrider.acceptance.proposal import NO_PROPOSAL
from outrider.corpus import Answer, Corpus
from outrider.distill.options import CollectOptions
from outrider.engine.sessions import ReplicaPeer, Reply
from outrider.engine.verify import VerifyCore
from outrider.engine.worker import DeviceWorker
from outrider.errors import InternalError
from outrider.prompts import Prompt
from outrider.protocol.items import Close, Failed, Key, Open, Verified, Verify
from outrider.text.tokenizer import Tokenizer

LEASE_S = 3600.0
"""Nobody goes away here; the lease only has to outlast a step."""

Progress = Callable[[int, int, int], None]
"""Told after each answer: how many there are, how many there will be, tokens in all answers of this run."""


@dataclass(frozen=True, slots=True)
class Question:
    """One answer to be made."""

    key: str
    category: str
    prompt: tuple[int, ...]
    temperature: float
    seed: int


def make_questions(
    prompts: Sequence[Prompt], tokenizer: Tokenizer, options: CollectOptions, context_length: int
) -> list[Question]:
    """Every prompt as often as it is to be answered; those that are too long, or twice there, are left out.

    A question's seed depends on its prompt alone, so that a prompt file may grow between two runs.
    """
    found: dict[str, Question] = {}
    for prompt in prompts:
        tokens = prompt.token_ids(tokenizer)
        if not 0 < len(tokens) <= min(options.max_prompt_tokens, context_length - options.max_tokens):
            continue
        digest = zlib.crc32(repr(tokens).encode())
        for number in range(options.answers_per_prompt):
            key = f"{digest:08x}-{len(tokens)}-{number}"
            temperature = options.temperatures[(digest + number) % len(options.temperatures)]
            found.setdefault(key, Question(key, prompt.category, tokens, temperature, digest + (number << 32)))
    # In an order that has nothing to do with the file's: a collection that is stopped has some of everything.
    return sorted(found.values(), key=lambda question: question.key)


def collect(
    core: VerifyCore, questions: Sequence[Question], corpus: Corpus, options: CollectOptions, progress: Progress
) -> int:
    """Answer what the corpus lacks and add it there, each answer as it ends; how many were added.

    Raises OSError when the disk is full and InternalError when the engine fails; what was added stays.
    """
    known = {answer.key for answer in corpus}
    waiting = [question for question in questions if question.key not in known]
    done, tokens = len(questions) - len(waiting), 0
    with corpus:
        for answer in _answers(core, waiting, options):
            corpus.add(answer)
            done, tokens = done + 1, tokens + len(answer.answer)
            progress(done, len(questions), tokens)
    return len(waiting)


@dataclass(slots=True)
class _Running:
    question: Question
    answer: list[int]

    @property
    def length(self) -> int:
        return len(self.question.prompt) + len(self.answer)


def _answers(core: VerifyCore, questions: Sequence[Question], options: CollectOptions) -> Iterator[Answer]:
    """Keep `options.sessions` answers in the making, one token a step each."""
    info = core.engine.info
    peer: ReplicaPeer = DeviceWorker(core).connect(
        "distill", lambda replies: None, vocabulary_size=info.vocabulary_size
    )
    waiting = iter(enumerate(questions, 1))
    running: dict[int, _Running] = {}
    try:
        while True:
            _fill(core, peer, waiting, running, options)
            if not running:
                return
            for _, reply in core.step():
                state = _take(running, reply)
                if state.answer[-1] in info.eos_token_ids or len(state.answer) >= options.max_tokens:
                    core.handle(peer, Close(Key(reply.key.session, 1, state.length)))
                    del running[reply.key.session]
                    question = state.question
                    yield Answer(
                        question.key,
                        question.category,
                        question.prompt,
                        tuple(state.answer),
                        question.temperature,
                        question.seed,
                    )
                else:
                    _ask(core, peer, reply.key.session, state)
    finally:
        core.drop_peer(peer)


def _fill(
    core: VerifyCore,
    peer: ReplicaPeer,
    waiting: Iterator[tuple[int, Question]],
    running: dict[int, _Running],
    options: CollectOptions,
) -> None:
    """Open sessions while there is room for them."""
    context = core.engine.info.context_length
    need = min(context, options.max_prompt_tokens + options.max_tokens)
    while len(running) < options.sessions and (not running or core.engine.available_tokens >= need):
        entry = next(waiting, None)
        if entry is None:
            return
        number, question = entry
        key = Key(number, 1, len(question.prompt))
        length = min(context, len(question.prompt) + options.max_tokens)
        params = SamplingParams(temperature=question.temperature)
        _check(
            core.handle(
                peer, Open(key, question.prompt, len(question.prompt), length, params, Rule.MATCH, question.seed)
            )
        )
        running[number] = _Running(question, [])
        core.handle(peer, Verify(key, len(question.prompt), (), NO_PROPOSAL))


def _ask(core: VerifyCore, peer: ReplicaPeer, number: int, state: _Running) -> None:
    _check(core.handle(peer, Verify(Key(number, 1, state.length), state.length - 1, (state.answer[-1],), NO_PROPOSAL)))


def _take(running: dict[int, _Running], reply: Reply) -> _Running:
    _check(reply)
    assert isinstance(reply, Verified)
    state = running[reply.key.session]
    state.answer.append(reply.verdict.next_tokens[0])
    return state


def _check(reply: Reply | None) -> None:
    if isinstance(reply, Failed):
        raise InternalError(f"the target failed on question {reply.key.session}: {reply.message}")
