"""The pass of ordered plain rounds is launched before the host knows what the one before it drew."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.acceptance.accept import accept
from outrider.acceptance.params import Rule, SamplingParams
from outrider.acceptance.philox import Domain
from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Source
from outrider.acceptance.tree import TokenTree
from outrider.engine.batch import Feed
from outrider.engine.draft import DraftCore
from outrider.engine.drafting_verify import DraftingVerifyCore
from outrider.engine.drawn import Drawn
from outrider.engine.engine import Engine
from outrider.engine.model import load_model
from outrider.engine.options import EngineOptions, ModelOptions
from outrider.engine.own_draft import OwnDraft
from outrider.engine.verify import VerifyCore
from outrider.engine.worker import DeviceWorker
from outrider.protocol.items import (
    Close,
    Closed,
    DraftFirst,
    Failed,
    FailureCode,
    FollowUp,
    Key,
    Open,
    Opened,
    Verified,
    Verify,
)
from outrider.sampling import verify as judging
from outrider.sampling.distribution import Row, scores_of
from outrider.sampling.draw import draw
from outrider.sampling.noise import noise_keys
from outrider.sampling.plain import Drawing, draw_plain, is_plain
from outrider.sampling.state import SamplingState
from tests.conftest import TinyModel
from tests.tiny_models import VOCABULARY_SIZE
from tests.unit.engine.engines import make_engine, random_tokens
from tests.unit.engine.test_drafting_together import Stepwise
from tests.unit.engine.test_own_draft import draft_engine
from tests.unit.engine.test_verify_behind import Behind

LENGTH = 40
"""Tokens of a whole answer."""

MOST_STEPS = 5000
"""Of one test."""


class HostDrawing:
    """What the kernels do on a GPU, with the tensors' mathematics."""

    def __init__(self, logits: Tensor, states: Sequence[SamplingState], positions: Sequence[Sequence[int]]) -> None:
        rows = [Row(state, place, ()) for state, own in zip(states, positions, strict=True) for place in own]
        scores = scores_of(logits, rows).float()
        keys = noise_keys(((row.state.seed, row.position, 0, Domain.MATCH) for row in rows), scores.device)
        greedy = torch.tensor([row.state.params.greedy for row in rows])
        drawn = torch.where(greedy, scores.argmax(dim=1), draw(scores, keys))
        self.tokens = drawn.to(torch.int32)
        self._scores = scores.gather(1, drawn.unsqueeze(1)).squeeze(1)

    def collected(self) -> tuple[list[int], list[float]]:
        return self.tokens.tolist(), self._scores.tolist()


def draw_apart(logits: Tensor, states: Sequence[SamplingState], positions: Sequence[Sequence[int]]) -> Drawing | None:
    if logits.is_cuda:
        return draw_plain(logits, states, positions)
    return HostDrawing(logits, states, positions) if all(map(is_plain, states)) else None


@pytest.fixture(autouse=True)
def _drawn_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "draw_plain", draw_apart)


class Verifier:
    """A core step by step, and the coordinator's part of its sessions."""

    def __init__(self, core: VerifyCore, runner: Any) -> None:
        self.core = core
        self.runner = runner
        worker: DeviceWorker[Any, Any] = DeviceWorker(core)
        self.peer: Any = worker.connect("test", lambda replies: None, vocabulary_size=VOCABULARY_SIZE)
        self.prompts: dict[int, tuple[int, ...]] = {}
        self.texts: dict[int, list[int]] = {}  # committed
        self.epochs: dict[int, int] = {}
        self._checked: dict[Key, Proposal] = {}
        self._steps = 0

    def open(self, number: int, stop: tuple[int, ...] = (), **options: Any) -> None:
        """Open the session, or open it again with all that is known."""
        prompt = self.prompts.setdefault(number, tuple(random_tokens(3 + 5 * number, seed=number)))
        text = self.texts.setdefault(number, list(prompt))
        epoch = self.epochs[number] = self.epochs.get(number, 0) + 1
        params = SamplingParams(**(options or {"temperature": 0.8}))
        room = len(prompt) + LENGTH + 4
        key = Key(number, epoch, len(text))
        opening = Open(key, tuple(text), len(prompt), room, params, Rule.MATCH, number, stop_token_ids=stop)
        assert isinstance(self.core.handle(self.peer, opening), Opened)

    def close(self, number: int) -> None:
        assert isinstance(self.core.handle(self.peer, Close(self._key(number))), Closed)

    def begin(self, number: int, guess: Sequence[int] = ()) -> Key:
        """A round after what is committed, whatever the verifier has begun by itself meanwhile."""
        key = self._key(number)
        proposal = Proposal(TokenTree.chain(tuple(guess)), Source.NGRAM) if guess else NO_PROPOSAL
        self._checked[key] = proposal
        known = len(next(each for each in self.core.sessions if each.number == number).history)
        keep = min(known, key.base_length)
        text = self.texts[number]
        assert self.core.handle(self.peer, Verify(key, keep, tuple(text[keep:]), proposal)) is None
        return key

    def order(self, key: Key, rounds: int, **what: Any) -> None:
        order = FollowUp(key, (), **({"plainly": True} | what), rounds=rounds)
        assert self.core.handle(self.peer, order) is None

    def live(self, *numbers: int, stop: tuple[int, ...] = ()) -> None:
        """Open sessions, and order all rounds of their answers at once."""
        for number in numbers:
            self.open(number, stop)
            self.order(self.begin(number), LENGTH - 1)

    def step(self) -> list[Any]:
        """The replies of one step; what they decide is committed."""
        self._steps += 1
        assert self._steps < MOST_STEPS, "rounds go on without an end"
        replies = [reply for _, reply in self.core.step()] if self.core.busy else []
        for reply in replies:
            if isinstance(reply, Verified):
                assert reply.key == self._key(reply.key.session), "nobody is told of a round that was replaced"
                proposal = self._checked.pop(reply.key, reply.drafted)
                text = self.texts[reply.key.session]
                outcome = accept(Rule.MATCH, proposal, reply.verdict, seed=reply.key.session, base_length=len(text))
                text.extend(outcome.tokens(proposal.tree))
        return replies

    def _key(self, number: int) -> Key:
        return Key(number, self.epochs[number], len(self.texts[number]))

    def answer(self, number: int) -> list[int]:
        return self.texts[number][len(self.prompts[number]) :]

    def run(self) -> None:
        while self.core.busy:
            self.step()


def make_verifier(directory: Path, *, takes_drawn: bool = True, **options: int) -> Verifier:
    engine = make_engine(directory, kv_tokens=4096, block_size=8, **options)
    engine._run = runner = Behind(engine._run)
    runner.takes_drawn = takes_drawn
    return Verifier(VerifyCore(engine, max_proposal=min(15, engine.options.max_batch_tokens - 1), lease_s=60), runner)


def answers(directory: Path, numbers: Sequence[int], **options: Any) -> dict[int, list[int]]:
    """As a verifier has them that is told of each round, which waits for the one before."""
    verifier = make_verifier(directory, takes_drawn=False)
    for number in numbers:
        verifier.open(number, **options)
        for _ in range(LENGTH):
            verifier.begin(number)
            verifier.run()
    assert verifier.runner.behind == 0
    return {number: verifier.answer(number) for number in numbers}


@pytest.mark.parametrize("options", [{"temperature": 0.8}, {"temperature": 0.0}])
def test_answers_are_the_same(tiny_model: TinyModel, options: dict[str, Any]) -> None:
    expected = answers(tiny_model("llama"), range(5), **options)
    verifier = make_verifier(tiny_model("llama"))
    for number in range(5):
        verifier.open(number, **options)
        key = verifier.begin(number)
        verifier.order(key, LENGTH // 2)
        verifier.order(key, LENGTH - LENGTH // 2 - 1, extends=True)
    verifier.run()
    assert {number: verifier.answer(number) for number in range(5)} == expected
    assert verifier.runner.behind == LENGTH - 1, "all but the first pass"


def test_whatever_comes_meanwhile_the_answers_are_the_same(tiny_model: TinyModel) -> None:
    """Sessions come, guess, are told anew what to do, are opened again: at random times, in passes with others."""
    directory, numbers = tiny_model("llama"), range(12)
    expected = answers(directory, numbers)
    behind = 0
    for seed in range(6):
        verifier = make_verifier(directory)
        _live(verifier, list(numbers), random.Random(seed))
        for number in numbers:
            assert verifier.answer(number)[:LENGTH] == expected[number]
        behind += verifier.runner.behind
    assert behind > 60


def _live(verifier: Verifier, left: list[int], chance: random.Random) -> None:
    """The lives of all sessions that are `left` to open."""
    while left or any(len(verifier.answer(number)) < LENGTH for number in verifier.texts):
        if left and chance.random() < 0.2:
            verifier.open(number := left.pop(0))
            verifier.order(verifier.begin(number), chance.randint(1, 8))
        for number in verifier.texts:
            _interfere(verifier, number, chance)
        verifier.step()


def _interfere(verifier: Verifier, number: int, chance: random.Random) -> None:
    session = next(each for each in verifier.core.sessions if each.number == number)
    waits = session.work is None
    room = LENGTH + 3 - len(verifier.answer(number))
    if room <= 3:
        return
    what = chance.random()
    if what < 0.03:
        verifier.open(number)
        verifier.begin(number)
    elif what < 0.06 or (waits and what < 0.2):
        verifier.begin(number, chance.choices(range(VOCABULARY_SIZE), k=2))
    elif waits:
        verifier.order(verifier.begin(number), chance.randint(1, min(8, room)))


class Counting:
    """A runner, and how many of its passes ran what was still being drawn."""

    def __init__(self, run: Any) -> None:
        self.run, self.takes_drawn, self.behind = run, run.takes_drawn, 0

    def __call__(self, feeds: Sequence[Feed], drawn: Drawn | None = None) -> Tensor:
        self.behind += drawn is not None
        logits: Tensor = self.run(feeds, drawn)
        return logits


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_too(tiny_model: TinyModel) -> None:
    directory, numbers = tiny_model("llama"), range(12)

    def verifier(*, ahead: bool) -> Verifier:
        loaded = load_model(ModelOptions(str(directory), dtype="bfloat16", device="cuda"))
        engine = Engine(loaded, EngineOptions(kv_tokens=8192, block_size=16))
        counting: Any = Counting(engine._run)
        counting.takes_drawn = ahead
        engine._run = counting
        return Verifier(VerifyCore(engine, max_proposal=15, lease_s=60), counting)

    alone = verifier(ahead=False)
    for number in numbers:
        alone.open(number)
        while len(alone.answer(number)) < LENGTH:
            alone.begin(number)
            alone.run()
    for seed in range(6):
        together, chance = verifier(ahead=True), random.Random(seed)
        _live(together, list(numbers), chance)
        assert together.runner.behind > 20
        for number in numbers:
            assert together.answer(number)[:LENGTH] == alone.answer(number)


def test_a_round_after_the_end_is_nobodys(tiny_model: TinyModel) -> None:
    """The token that ends the answer is seen only after the next pass has begun; the memory is somebody else's then."""
    directory = tiny_model("llama")
    expected = answers(directory, range(3))
    verifier = make_verifier(directory)
    stop = expected[1][5]
    end = expected[1].index(stop) + 1
    verifier.live(0, 2)
    verifier.live(1, stop=(stop,))
    for _ in range(end):
        verifier.step()
    assert verifier.answer(1) == expected[1][:end]
    assert verifier.core._next is not None
    verifier.close(1)
    verifier.texts.pop(1)
    verifier.live(1)
    verifier.run()
    assert {number: verifier.answer(number) for number in range(3)} == expected


def test_what_cannot_be_drawn_from_fails_its_own_session(tiny_model: TinyModel) -> None:
    directory = tiny_model("llama")
    expected = answers(directory, range(3))
    verifier = make_verifier(directory)
    verifier.live(*range(3))
    verifier.step()
    run = verifier.runner.run

    def bad(feeds: Any) -> Tensor:
        logits = run(feeds)
        logits[1] = float("nan")
        verifier.runner.run = run
        return logits

    verifier.runner.run = bad  # type: ignore[assignment]
    replies = [reply for _ in range(3) for reply in verifier.step()]
    (failed,) = [reply for reply in replies if isinstance(reply, Failed)]
    assert failed.key.session == 1
    assert failed.code is FailureCode.INTERNAL
    verifier.run()
    assert verifier.answer(0) == expected[0]
    assert verifier.answer(2) == expected[2]
    assert verifier.answer(1) == expected[1][: len(verifier.answer(1))]


def test_a_pass_that_cannot_begin_ahead_is_begun_afterwards(tiny_model: TinyModel) -> None:
    """And nothing is taken to be in the cache that is not."""
    directory = tiny_model("llama")
    expected = answers(directory, range(3))
    verifier = make_verifier(directory)
    verifier.live(*range(3))
    run, refused = verifier.runner.run, 0

    def refuse(feeds: Any) -> Tensor:
        nonlocal refused
        if verifier.core._going and refused < 10:
            refused += 1
            raise torch.OutOfMemoryError("there is no room")
        return run(feeds)

    verifier.runner.run = refuse  # type: ignore[assignment]
    verifier.step()
    assert refused == 1
    assert verifier.core._next is None
    for session in verifier.core.sessions:
        assert session.sequence.cached == session.history[:-1]
    verifier.run()
    assert refused == 10
    assert {number: verifier.answer(number) for number in range(3)} == expected


def test_who_finds_no_room_in_the_next_pass_goes_on_later(tiny_model: TinyModel) -> None:
    """With room for 16 rows, and a long prompt that takes its share of them."""
    directory, numbers = tiny_model("llama"), range(20)
    expected = answers(directory, numbers)
    verifier = make_verifier(directory, max_batch_tokens=16)
    left = list(numbers)
    while left or any(len(verifier.answer(number)) < LENGTH for number in numbers):
        if verifier.runner.passes % 3 == 0:
            verifier.live(*(left.pop(0) for _ in range(min(4, len(left)))))
        verifier.step()
    assert verifier.runner.behind > LENGTH
    assert {number: verifier.answer(number) for number in numbers} == expected


def test_rounds_with_guesses_are_not_left_behind(tiny_model: TinyModel) -> None:
    """Where too many could not come along, the next pass waits for all."""
    verifier = make_verifier(tiny_model("llama"))
    for number in range(4):
        verifier.open(number)
        verifier.order(verifier.begin(number, guess=(1, 2) if number < 2 else ()), 3)
    verifier.step()
    assert verifier.core._next is None
    verifier.step()
    assert verifier.core._next is not None, "now they are all plain"


@pytest.mark.parametrize(("votes", "ahead"), [((0, 0, 0), True), ((0, 0, 2), True), ((0, 2, 2), False)])
def test_votes_for_nothing_are_plain_rounds(tiny_model: TinyModel, votes: tuple[int, ...], ahead: bool) -> None:
    directory = tiny_model("llama")
    engine = make_engine(directory, kv_tokens=4096, block_size=8)
    engine._run = runner = Behind(engine._run)
    own = OwnDraft(DraftCore(draft_engine(directory, 2048), max_proposal=15, lease_s=60))
    verifier = Verifier(DraftingVerifyCore(engine, own, max_proposal=15, lease_s=60), runner)
    expected = answers(directory, range(len(votes)))
    for number, vote in enumerate(votes):
        verifier.open(number)
        verifier.order(verifier.begin(number), 8, plainly=False, draft_first=DraftFirst(3, vote=vote))
    verifier.step()
    assert (verifier.core._next is not None) == ahead
    for _ in range(6):
        verifier.step()
    for number in range(len(votes)):
        answer = verifier.answer(number)
        assert len(answer) >= 4
        assert answer == expected[number][: len(answer)]
    assert (runner.behind > 3) == ahead


@pytest.mark.parametrize("seed", range(4))
def test_guesses_launched_behind_and_plain_rounds_launched_ahead_take_turns(tiny_model: TinyModel, seed: int) -> None:
    """Sessions on a verifier with a draft of its own, ordered now to be drafted for and now to go on plainly."""
    directory, numbers = tiny_model("llama"), range(8)
    expected = answers(directory, numbers)
    engine, draft = make_engine(directory, kv_tokens=4096, block_size=8), draft_engine(directory, 2048)
    engine._run = runner = Behind(engine._run)
    draft._run = Stepwise(draft._run)
    own = OwnDraft(DraftCore(draft, max_proposal=15, lease_s=60))
    verifier = Verifier(DraftingVerifyCore(engine, own, max_proposal=15, lease_s=60), runner)
    chance, ahead, both = random.Random(seed), 0, 0
    for number in numbers:
        verifier.open(number)
    while any(len(verifier.answer(number)) < LENGTH for number in numbers):
        for session in list(verifier.core.sessions):
            room = LENGTH + 3 - len(verifier.answer(session.number))
            idle = session.work is None and session not in verifier.core._voters and not own._held[session].asked  # type: ignore[attr-defined]
            if idle and room > 3:
                guess = chance.random() < 0.15
                what = {"plainly": False, "draft_first": DraftFirst(2)} if guess else {}
                verifier.order(verifier.begin(session.number), chance.randint(1, max(1, room // 3)), **what)
        behind = runner.behind
        verifier.step()
        ahead += verifier.core._next is not None
        both += verifier.core._next is not None and runner.behind - behind == 2
    assert ahead > 5
    assert both > 0, "a pass that was launched behind guesses had one launched behind itself"
    for number in numbers:
        assert verifier.answer(number)[:LENGTH] == expected[number]
