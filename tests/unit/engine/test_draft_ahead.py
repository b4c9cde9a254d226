"""Guesses, and the pass that verifies them, are launched before the host knows what the pass before them came to."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.engine.draft import DraftCore
from outrider.engine.drafting_verify import DraftingVerifyCore
from outrider.engine.engine import Engine
from outrider.engine.model import load_model
from outrider.engine.options import EngineOptions, ModelOptions
from outrider.engine.own_draft import OwnDraft
from outrider.engine.verify import VerifyCore
from outrider.protocol.items import DraftFirst, Failed, FailureCode
from outrider.sampling import verify as judging
from tests.conftest import TinyModel
from tests.tiny_models import VOCABULARY_SIZE
from tests.unit.engine.engines import make_engine, random_tokens
from tests.unit.engine.test_drafting_together import DrawnAlready, Stepwise
from tests.unit.engine.test_launch_ahead import LENGTH, Verifier, answers, draw_apart
from tests.unit.engine.test_own_draft import draft_engine
from tests.unit.engine.test_verify_behind import Behind

PLAIN: dict[str, Any] = {"plainly": True}


@pytest.fixture(autouse=True)
def _drawn_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "draw_plain", draw_apart)


class Pair:
    """A verifier with a draft of its own, both of which take what is drawn; and how often something went ahead."""

    def __init__(self, engine: Engine, draft: Engine) -> None:
        self.target: Any = engine._run
        self.draft: Any = draft._run
        self.own = OwnDraft(DraftCore(draft, max_proposal=15, lease_s=60))
        most = min(15, engine.options.max_batch_tokens - 1)
        self.core = DraftingVerifyCore(engine, self.own, max_proposal=most, lease_s=60)
        self.verifier = Verifier(self.core, self.target)
        self.flights = 0
        self.guessed = 0

    def step(self) -> list[Any]:
        replies = self.verifier.step()
        self.flights += self.core._flight is not None
        self.guessed += sum(len(getattr(reply, "drafted", ())) for reply in replies)
        return replies

    def run(self) -> None:
        while self.core.busy:
            self.step()
        assert not self.core._awaited
        assert not self.core._drafted
        for held in self.own._held.values():
            assert held.draft is None or held.draft.work is None

    def live_at_random(self, numbers: Sequence[int], chance: random.Random) -> None:
        """Sessions come and end, guess, vote, are told anew what to do and are opened again."""
        left = list(numbers)
        while left or any(len(self.verifier.answer(number)) < LENGTH for number in self.verifier.texts):
            if left and chance.random() < 0.3:
                self.live(left.pop(0), _wish(chance), rounds=chance.randint(2, 9))
            for session in list(self.core.sessions):
                _interfere(self, session, chance)
            self.step()
        self.run()

    def live(self, number: int, wanted: DraftFirst | None, rounds: int = 8, **options: Any) -> None:
        """Open a session and order rounds."""
        self.verifier.open(number, **options)
        what = PLAIN if wanted is None else {"plainly": False, "draft_first": wanted}
        self.verifier.order(self.verifier.begin(number), rounds, **what)

    def check(self, expected: dict[int, list[int]]) -> None:
        for number, whole in expected.items():
            answer = self.verifier.answer(number)[:LENGTH]
            assert answer == whole[: len(answer)]


def make_pair(directory: Path, *, ahead: bool = True, same: bool = False, **options: int) -> Pair:
    """On the CPU, with doubles for what draws on the device."""
    engine = make_engine(directory, kv_tokens=4096, block_size=8, **options)
    draft = make_engine(directory, kv_tokens=2048, block_size=8) if same else draft_engine(directory, 2048)
    engine._run = Behind(engine._run)
    draft._run = stepwise = Stepwise(Behind(draft._run))  # type: ignore[arg-type]
    stepwise.takes_drawn = ahead
    return Pair(engine, draft)


@pytest.mark.parametrize("wanted", [DraftFirst(1), DraftFirst(3), DraftFirst(5, vote=2), DraftFirst(4, vote=4)])
@pytest.mark.parametrize("same", [True, False])
def test_answers_and_guesses_are_the_same(tiny_model: TinyModel, wanted: DraftFirst, same: bool) -> None:
    """With a draft that is the target, all of whose guesses stand, and with one whose guesses hardly do."""
    directory = tiny_model("llama")
    expected = answers(directory, range(5))
    found = []
    for ahead in (False, True):
        pair = make_pair(directory, ahead=ahead, same=same)
        for number in range(5):
            pair.live(number, wanted)
        pair.run()
        pair.check(expected)
        found.append((pair.guessed, {number: pair.verifier.answer(number) for number in range(5)}))
        assert (pair.flights >= 6) == ahead, "all rounds but the first ones"
    assert found[0] == found[1]
    assert min(map(len, found[1][1].values())) > 8


def test_those_that_guess_and_those_that_do_not_go_on_together(tiny_model: TinyModel) -> None:
    directory = tiny_model("llama")
    pair = make_pair(directory, same=True)
    for number, wanted in enumerate((DraftFirst(2), None, DraftFirst(4), None, DraftFirst(3, vote=1))):
        pair.live(number, wanted)
    pair.run()
    pair.check(answers(directory, range(5)))
    assert pair.flights >= 7


def test_plain_rounds_and_guesses_follow_each_other_without_a_pause(tiny_model: TinyModel) -> None:
    """The draft is told of a session, and reads its text, while the round before its first guess is under way."""
    directory = tiny_model("llama")
    pair = make_pair(directory, same=True)
    for number in range(3):
        pair.verifier.open(number)
        key = pair.verifier.begin(number)
        pair.verifier.order(key, 3)
        wanted = DraftFirst(3) if number < 2 else DraftFirst(0)
        pair.verifier.order(key, 4, plainly=False, draft_first=wanted, extends=True)
    for rounds in range(8):
        assert pair.core.ahead == (rounds > 0)
        pair.step()
    assert not pair.core.busy
    pair.check(answers(directory, range(3)))
    assert [len(pair.verifier.answer(number)) for number in range(3)] == [4 + 4 * 4, 4 + 4 * 4, 4 + 4]


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("guessing", [(), (1,)])
def test_plain_rounds_after_guesses_stand_where_these_end(
    tiny_model: TinyModel, same: bool, guessing: tuple[int, ...]
) -> None:
    """However much of the guess before them stands: here all of it, or hardly any."""
    directory = tiny_model("llama")
    pair = make_pair(directory, same=same)
    for number in range(3):
        pair.verifier.open(number)
        key = pair.verifier.begin(number)
        pair.verifier.order(key, 2, plainly=False, draft_first=DraftFirst(3))
        what = {"plainly": False, "draft_first": DraftFirst(2)} if number in guessing else PLAIN
        pair.verifier.order(key, 3, extends=True, **what)
    for rounds in range(6):
        assert pair.core.ahead == (rounds > 0)
        pair.step()
    assert not pair.core.busy
    pair.check(answers(directory, range(3)))
    assert pair.flights == (5 if guessing else 2)


def test_a_round_after_the_end_is_nobodys(tiny_model: TinyModel) -> None:
    """A stop token is seen only when the next guesses are under way; the memory is somebody else's then."""
    directory = tiny_model("llama")
    expected = answers(directory, range(3))
    stop = expected[1][9]
    end = expected[1].index(stop) + 1
    pair = make_pair(directory, same=True)
    for number in range(3):
        pair.live(number, DraftFirst(3), stop=(stop,) if number == 1 else ())
    while len(pair.verifier.answer(1)) < end:
        pair.step()
    pair.check(expected)
    assert pair.core._flight is not None
    pair.verifier.close(1)
    pair.verifier.texts.pop(1)
    pair.live(1, DraftFirst(2))
    pair.run()
    assert pair.flights > 5
    pair.check(expected)


def test_what_cannot_be_drawn_from_fails_its_own_session(tiny_model: TinyModel) -> None:
    directory = tiny_model("llama")
    expected = answers(directory, range(3))
    for runner in ("target", "draft"):
        pair = make_pair(directory, same=True)
        for number in range(3):
            pair.live(number, DraftFirst(2))
        while pair.flights < 2:
            pair.step()
        spoil(getattr(pair, runner))
        replies = [reply for _ in range(4) for reply in pair.step()]
        failed = [reply for reply in replies if isinstance(reply, Failed)]
        if runner == "target":
            assert [(each.key.session, each.code) for each in failed] == [(0, FailureCode.INTERNAL)]
        else:
            assert not failed, "who has no draft goes on without"
        pair.run()
        pair.check(expected)
        assert len(pair.verifier.answer(2)) > 8


def spoil(runner: Any) -> None:
    """Let the first row of its next pass be no numbers."""
    run = runner.run

    def bad(*arguments: Any) -> Tensor:
        logits: Tensor = run(*arguments)
        logits[0] = float("nan")
        runner.run = run
        return logits

    runner.run = bad


@pytest.mark.parametrize("runner", ["target", "draft"])
def test_a_pass_that_cannot_begin_ahead_is_begun_afterwards(tiny_model: TinyModel, runner: str) -> None:
    directory = tiny_model("llama")
    expected = answers(directory, range(3))
    pair = make_pair(directory, same=True)
    chosen, refused = getattr(pair, runner), 0
    run = chosen.run

    def refuse(feeds: Any, *more: Any) -> Tensor:
        nonlocal refused
        if refused < 6 and any(feed.at is not None for feed in feeds) and pair.flights > 1:
            refused += 1
            raise torch.OutOfMemoryError("there is no room")
        logits: Tensor = run(feeds, *more)
        return logits

    chosen.run = refuse
    for number in range(3):
        pair.live(number, DraftFirst(2), rounds=LENGTH // 3)
    pair.run()
    # What the draft cannot do is tried again in its turn alone: there it costs its sessions their draft.
    assert refused == (6 if runner == "target" else 2)
    pair.check(expected)
    assert min(len(pair.verifier.answer(number)) for number in range(3)) >= LENGTH // 3


@pytest.mark.parametrize("vote", [None, 99])
def test_who_asks_for_too_much_is_told_so_alone(tiny_model: TinyModel, vote: int | None) -> None:
    directory = tiny_model("llama")
    pair = make_pair(directory, same=True)
    for number in range(5):
        pair.live(number, DraftFirst(99, vote=vote) if number == 3 else DraftFirst(2))
    replies = []
    while pair.core.busy:
        replies += pair.step()
    (failed,) = [reply for reply in replies if isinstance(reply, Failed)]
    assert (failed.key.session, failed.code) == (3, FailureCode.INVALID_ARGUMENT)
    assert "draft_first.max_tokens" in failed.message
    assert "99" in failed.message
    assert pair.flights > 5
    pair.check(answers(directory, range(5)))


def test_guesses_that_fail_leave_the_answers_alone(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tiny_model("llama")
    pair = make_pair(directory, same=True)
    for number in range(3):
        pair.live(number, DraftFirst(2))
    while pair.flights < 2:
        pair.step()
    failed: list[int] = []

    def collected(drawing: Any) -> Any:
        if not failed:
            failed.append(len(drawing.chains.tokens))
            raise RuntimeError("something is wrong with these")
        return drawing.chains

    monkeypatch.setattr(DrawnAlready, "collected", collected)
    pair.step()
    assert failed == [2]
    assert not len(pair.own.core.sessions)
    pair.run()
    pair.check(answers(directory, range(3)))
    assert min(len(pair.verifier.answer(number)) for number in range(3)) > 8


def test_who_finds_no_room_in_the_next_pass_goes_on_later(tiny_model: TinyModel) -> None:
    directory, numbers = tiny_model("llama"), range(12)
    expected = answers(directory, numbers)
    pair = make_pair(directory, same=True, max_batch_tokens=16)
    left = list(numbers)
    while left or pair.core.busy:
        if left and pair.target.passes % 2 == 0:
            pair.live(left.pop(0), DraftFirst(2))
        pair.step()
    pair.run()
    pair.check(expected)
    assert pair.flights > 3


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 8))])
@pytest.mark.parametrize("same", [True, False])
def test_whatever_comes_meanwhile_the_answers_are_the_same(tiny_model: TinyModel, seed: int, same: bool) -> None:
    """Sessions come and end, guess, vote, are told anew what to do and are opened again, all at random."""
    directory, numbers = tiny_model("llama"), range(12)
    expected = answers(directory, numbers)
    pair = make_pair(directory, same=same)
    pair.live_at_random(numbers, random.Random(seed))
    for number in numbers:
        assert pair.verifier.answer(number)[:LENGTH] == expected[number]
    assert pair.flights > 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("layers", [None, 1])
def test_on_a_gpu_too(tiny_model: TinyModel, layers: int | None) -> None:
    """The bits are the same alone and together, so all guesses of a draft that is the target stand."""
    directory, numbers = tiny_model("llama"), range(12)

    def engine(layers: int | None = None) -> Engine:
        options = ModelOptions(str(directory), dtype="bfloat16", device="cuda", layers=layers)
        return Engine(load_model(options), EngineOptions(kv_tokens=16_384, block_size=16))

    target, draft = engine(), engine(layers)
    alone = Verifier(VerifyCore(target, max_proposal=15, lease_s=60), None)
    for number in numbers:
        alone.open(number)
        while len(alone.answer(number)) < LENGTH:
            alone.begin(number)
            alone.run()
    for seed in range(4):
        pair = Pair(target, draft)
        pair.live_at_random(numbers, random.Random(seed))
        assert pair.flights > 3
        for number in numbers:
            assert pair.verifier.answer(number)[:LENGTH] == alone.answer(number)[:LENGTH]
    found = []
    for ahead in (False, True):
        draft._run.takes_drawn = ahead
        pair = Pair(target, draft)
        for number in numbers:
            pair.live(number, DraftFirst(3), rounds=9)
        pair.run()
        assert (pair.flights >= 7) == ahead
        found.append((pair.guessed, [pair.verifier.answer(number) for number in numbers]))
        if layers is None:
            assert {len(answer) for answer in found[-1][1]} == {1 + 9 * 4}, "all guesses stood"
    assert found[0] == found[1]


def _wish(chance: random.Random) -> DraftFirst | None:
    return chance.choice([None, DraftFirst(2), DraftFirst(3), DraftFirst(4, vote=3), DraftFirst(4, vote=2)])


def _interfere(pair: Pair, session: Any, chance: random.Random) -> None:
    verifier, number = pair.verifier, session.number
    idle = session.work is None and session not in pair.core._voters and not pair.own._held[session].asked
    room = LENGTH + 3 - len(verifier.answer(number))
    if room <= 3:
        return
    what = chance.random()
    if what < 0.02:
        verifier.open(number)
        verifier.begin(number)
    elif what < 0.04:
        verifier.begin(number, chance.choices(range(VOCABULARY_SIZE), k=2))
    elif idle:
        key = verifier.begin(number)
        for extends in (False, True):
            wanted = _wish(chance)
            each = 1 if wanted is None else 1 + wanted.max_tokens
            if each > room:
                wanted, each = None, 1
            rounds = chance.randint(1, max(1, room // each // 2))
            what_follows = PLAIN if wanted is None else {"plainly": False, "draft_first": wanted}
            if room >= each * rounds:
                verifier.order(key, rounds, **what_follows, extends=extends)
            room -= each * rounds


def prompts_alike(count: int) -> Sequence[tuple[int, ...]]:
    """Of 16 tokens, two full blocks."""
    return [tuple(random_tokens(16, seed=5))] * count


def test_sessions_that_share_memory_leave_each_other_alone(tiny_model: TinyModel) -> None:
    """Prompts that fill whole blocks, in the caches of target and draft; and a text that goes on with a guess."""
    directory = tiny_model("llama")
    found = []
    for ahead in (False, True):
        pair = make_pair(directory, same=True, ahead=ahead)
        pair.verifier.prompts |= dict(enumerate(prompts_alike(4)))
        for number in range(4):
            pair.live(number, DraftFirst(3), temperature=0.0)
            pair.step()
        pair.verifier.prompts[4] = tuple(pair.verifier.texts[0])
        pair.live(4, DraftFirst(3), temperature=0.0)
        pair.run()
        found.append({number: pair.verifier.texts[number][16 : 16 + LENGTH // 2] for number in range(5)})
    assert found[0] == found[1]
    assert len({tuple(text) for text in found[0].values()}) == 1
