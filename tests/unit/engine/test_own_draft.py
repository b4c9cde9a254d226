"""A verifier that drafts by itself: the same answers, and nothing of the draft outlasts its session."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from outrider.acceptance.accept import accept
from outrider.acceptance.params import Rule, SamplingParams
from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Source
from outrider.acceptance.tally import NO_TALLY, Tally, Tallying
from outrider.acceptance.tree import TokenTree
from outrider.engine.draft import DraftCore
from outrider.engine.drafting_verify import MOST_IN_A_ROW, DraftingVerifyCore
from outrider.engine.engine import Engine
from outrider.engine.model import load_model
from outrider.engine.options import EngineOptions, ModelOptions
from outrider.engine.own_draft import RETRY_S, OwnDraft
from outrider.engine.verify import VerifyCore
from outrider.engine.worker import DeviceWorker
from outrider.protocol.items import (
    Advance,
    Close,
    Drafted,
    DraftFirst,
    Failed,
    FailureCode,
    FollowUp,
    Key,
    Open,
    Opened,
    Propose,
    Step,
    Verified,
    Verify,
)
from tests.conftest import TinyModel
from tests.tiny_models import VOCABULARY_SIZE
from tests.unit.engine.engines import make_engine, random_tokens

LENGTH = 24
OPTIONS: dict[Rule, dict[str, Any]] = {
    Rule.MATCH: {"temperature": 0.8},
    Rule.REJECTION: {"temperature": 0.8, "top_k": 20},
    Rule.BLOCK: {"temperature": 1.0},
}


class Clock:
    """Told what time it is."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Verifier:
    """A core without its thread, and the coordinator's part of its sessions."""

    def __init__(self, core: VerifyCore) -> None:
        self.core = core
        worker: DeviceWorker[Any, Any] = DeviceWorker(core)
        self.peer: Any = worker.connect("test", lambda replies: None, vocabulary_size=VOCABULARY_SIZE)
        self.drafted: dict[int, list[Proposal]] = {}
        self.accepted: dict[int, list[int]] = {}
        self.tallies: dict[int, list[Tally]] = {}

    def run(self, *items: Any) -> list[Any]:
        replies = [reply for item in items if (reply := self.core.handle(self.peer, item))]
        while self.core.busy:
            replies += [reply for _, reply in self.core.step()]
        return replies

    def open(self, number: int, rule: Rule, length: int = 2 * LENGTH, **options: Any) -> tuple[int, ...]:
        prompt = tuple(random_tokens(20 + number, seed=number))
        params = SamplingParams(**(options or OPTIONS[rule]))
        item = Open(Key(number, 1, len(prompt)), prompt, len(prompt), len(prompt) + length, params, rule, seed=number)
        (opened,) = self.run(item)
        assert isinstance(opened, Opened)
        return prompt

    def answers(self, rule: Rule, first: DraftFirst | None, numbers: Sequence[int]) -> dict[int, list[int]]:
        """The answers of sessions side by side; all rounds but the first are begun by the replica itself."""
        histories = {number: list(self.open(number, rule)) for number in numbers}
        prompts = {number: len(history) for number, history in histories.items()}

        def order(number: int) -> FollowUp:
            return FollowUp(Key(number, 1, len(histories[number])), (), plainly=first is None, draft_first=first)

        items: list[Any] = []
        for number, size in prompts.items():
            items += [Verify(Key(number, 1, size), size, (), NO_PROPOSAL, first), order(number)]
        while items or self.core.busy:
            replies = [reply for item in items if (reply := self.core.handle(self.peer, item))]
            if self.core.busy:
                replies += [reply for _, reply in self.core.step()]
            items = []
            for reply in replies:
                assert isinstance(reply, Verified), reply
                number, history = reply.key.session, histories[reply.key.session]
                assert reply.key.base_length == len(history)
                self.drafted.setdefault(number, []).append(reply.drafted)
                self.tallies.setdefault(number, []).append(reply.step.tally)
                outcome = accept(rule, reply.drafted, reply.verdict, seed=number, base_length=len(history))
                self.accepted.setdefault(number, []).append(len(outcome.accepted))
                history.extend(outcome.tokens(reply.drafted.tree))
                if len(history) - prompts[number] < LENGTH:
                    items.append(order(number))
        return {number: history[prompts[number] :][:LENGTH] for number, history in histories.items()}


def draft_engine(directory: Path, kv_tokens: int) -> Engine:
    """The target's first two layers."""
    loaded = load_model(ModelOptions(str(directory), dtype="float32", device="cpu", layers=2))
    return Engine(loaded, EngineOptions(kv_tokens=kv_tokens, block_size=8))


@pytest.fixture(name="engines")
def fixture_engines(tiny_model: TinyModel) -> tuple[Engine, Engine]:
    directory = tiny_model("llama")
    return make_engine(directory, kv_tokens=4096), draft_engine(directory, 2048)


@pytest.fixture(name="clock")
def fixture_clock() -> Clock:
    return Clock()


@pytest.fixture(name="verifier")
def fixture_verifier(engines: tuple[Engine, Engine], clock: Clock) -> Verifier:
    own = OwnDraft(DraftCore(engines[1], max_proposal=15, lease_s=60), clock)
    return Verifier(DraftingVerifyCore(engines[0], own, max_proposal=15, lease_s=60))


def draft_sessions(verifier: Verifier) -> int:
    core = verifier.core
    assert isinstance(core, DraftingVerifyCore)
    return len(core.own_draft.sessions)


def verify(base: int, known: int, append: tuple[int, ...] = (), first: DraftFirst | None = None) -> Verify:
    return Verify(Key(1, 1, base), known, append, NO_PROPOSAL, first)


@pytest.mark.parametrize("siblings", [(), (2, 1)])
def test_answers_are_the_targets_own(engines: tuple[Engine, Engine], verifier: Verifier, siblings: Any) -> None:
    plain = Verifier(VerifyCore(engines[0], max_proposal=15, lease_s=60)).answers(Rule.MATCH, None, range(5))
    assert verifier.answers(Rule.MATCH, DraftFirst(4, siblings), range(5)) == plain
    for drafted in verifier.drafted.values():
        assert all(proposal.tree.depth == 4 for proposal in drafted[:-3])
        assert len(drafted) < LENGTH


@pytest.mark.parametrize("rule", list(Rule))
def test_what_is_drafted_is_what_a_draft_service_would_propose(
    engines: tuple[Engine, Engine], verifier: Verifier, rule: Rule
) -> None:
    prompt = verifier.open(1, rule)
    size = len(prompt)
    (reply,) = verifier.run(verify(size, size, (), DraftFirst(4)))
    draft = DraftCore(engines[1], max_proposal=15, lease_s=60)
    alone = Verifier(draft)  # type: ignore[arg-type]
    alone.open(1, rule)
    (expected,) = alone.run(Propose(Key(1, 1, size), size, (), 4))
    assert isinstance(expected, Drafted)
    assert reply.drafted == expected.proposal
    assert reply.drafted.source is Source.MODEL
    assert reply.step == Step(5, 1, reply.step.draft_microseconds, 4, size)
    assert reply.step.draft_microseconds > 0


def test_a_round_without_the_wish_is_as_ever(verifier: Verifier) -> None:
    size = len(verifier.open(1, Rule.MATCH))
    chain = Proposal(TokenTree.chain((5, 6)), Source.NGRAM)
    (reply,) = verifier.run(Verify(Key(1, 1, size), size, (), chain))
    assert (len(reply.verdict.next_tokens), reply.drafted, reply.step) == (3, NO_PROPOSAL, Step(3, 1))
    assert draft_sessions(verifier) == 0


def test_nothing_is_left_of_a_session_that_ends(engines: tuple[Engine, Engine], verifier: Verifier) -> None:
    free = [engine.available_tokens for engine in engines]
    for end in ("close", "reopen", "peer", "lease"):
        verifier.answers(Rule.MATCH, DraftFirst(3), [1, 2])
        assert draft_sessions(verifier) == 2
        if end == "close":
            verifier.run(Close(Key(1, 1, 1)), Close(Key(2, 1, 1)))
        elif end == "reopen":
            prompt = (1, 2, 3)
            for number in (1, 2):
                verifier.run(Open(Key(number, 2, 3), prompt, 3, 20, SamplingParams(), Rule.MATCH, seed=1))
            assert draft_sessions(verifier) == 0
            verifier.run(Close(Key(1, 2, 3)), Close(Key(2, 2, 3)))
        elif end == "peer":
            verifier.core.drop_peer(verifier.peer)
        else:
            verifier.core.expire(1e12)
        assert draft_sessions(verifier) == len(verifier.core.sessions) == 0
        assert [engine.available_tokens for engine in engines] == free


def test_a_draft_that_is_busy_for_long_lets_others_be_verified(tiny_model: TinyModel) -> None:
    directory = tiny_model("llama")
    loaded = load_model(ModelOptions(str(directory), dtype="float32", device="cpu", layers=2))
    small = Engine(loaded, EngineOptions(kv_tokens=2048, block_size=8, max_batch_tokens=16))
    core = DraftingVerifyCore(
        make_engine(directory, kv_tokens=4096), OwnDraft(DraftCore(small, max_proposal=15, lease_s=60)),
        max_proposal=15, lease_s=60,
    )  # fmt: skip
    verifier = Verifier(core)
    prompt = tuple(random_tokens(16 * (MOST_IN_A_ROW + 3), seed=5))  # so many passes, where 16 tokens make one
    opening = Open(Key(2, 1, len(prompt)), prompt, len(prompt), len(prompt) + 40, SamplingParams(), Rule.MATCH, seed=2)
    size = len(verifier.open(1, Rule.MATCH))
    verifier.run(opening)
    items = [
        Verify(Key(2, 1, len(prompt)), len(prompt), (), NO_PROPOSAL, DraftFirst(4)),
        verify(size, size),
    ]
    assert [core.handle(verifier.peer, item) for item in items] == [None, None]
    passes: list[list[int]] = []
    while core.busy:
        passes.append([reply.key.session for _, reply in core.step()])
    assert passes.index([1]) == MOST_IN_A_ROW
    assert passes[-1] == [2]


def test_a_newer_round_ends_a_guess(verifier: Verifier) -> None:
    size = len(verifier.open(1, Rule.MATCH))
    assert verifier.core.handle(verifier.peer, verify(size, size, (), DraftFirst(4))) is None
    (reply,) = verifier.run(verify(size, size))
    assert (reply.drafted, len(reply.verdict.next_tokens)) == (NO_PROPOSAL, 1)
    assert verifier.core.handle(verifier.peer, verify(size, size, (), DraftFirst(4))) is None
    assert verifier.run(Advance(Key(1, 1, size + 1), size, (7,))) == []
    (reply,) = verifier.run(verify(size + 1, size + 1, (), DraftFirst(4)))
    assert len(reply.drafted) == 4


def test_a_draft_without_room_costs_the_guess_alone(tiny_model: TinyModel, clock: Clock) -> None:
    directory = tiny_model("llama")
    own = OwnDraft(DraftCore(draft_engine(directory, 64), max_proposal=15, lease_s=60), clock)
    verifier = Verifier(DraftingVerifyCore(make_engine(directory, kv_tokens=4096), own, max_proposal=15, lease_s=60))
    sizes = {number: len(verifier.open(number, Rule.MATCH, length=30)) for number in (1, 2)}

    def guess(number: int) -> int:
        size = sizes[number]
        (reply,) = verifier.run(Verify(Key(number, 1, size), size, (), NO_PROPOSAL, DraftFirst(4)))
        return len(reply.drafted)

    assert (guess(1), guess(2)) == (4, 0)
    verifier.run(Close(Key(1, 1, sizes[1])))
    assert guess(2) == 0
    clock.now += RETRY_S
    assert guess(2) == 4


def test_a_draft_that_has_forgotten_a_session_gets_it_again(verifier: Verifier) -> None:
    size = len(verifier.open(1, Rule.MATCH))
    (first,) = verifier.run(verify(size, size, (), DraftFirst(4)))
    verifier.core.own_draft.expire(1e12)  # type: ignore[attr-defined]
    assert draft_sessions(verifier) == 0
    (lost,) = verifier.run(verify(size, size, (), DraftFirst(4)))
    (back,) = verifier.run(verify(size, size, (), DraftFirst(4)))
    assert (len(lost.drafted), back.drafted) == (0, first.drafted)


def test_wishes_that_cannot_be_met_name_what_is_wrong(engines: tuple[Engine, Engine], verifier: Verifier) -> None:
    size = len(verifier.open(1, Rule.REJECTION))
    chain = Proposal(TokenTree.chain((5, 6)), Source.NGRAM)
    bad = [
        (Verify(Key(1, 1, size), size, (), chain, DraftFirst(4)), "draft_first is 4"),
        (verify(size, size, (), DraftFirst(16)), "at most 15"),
        (verify(size, size, (), DraftFirst(4, (1,))), "siblings"),
    ]
    for item, words in bad:
        (reply,) = verifier.run(item)
        assert isinstance(reply, Failed)
        assert reply.code is FailureCode.INVALID_ARGUMENT
        assert words in reply.message
    (reply,) = verifier.run(verify(size, size, (), DraftFirst(4)))
    assert len(reply.drafted) == 4
    plain = Verifier(VerifyCore(engines[0], max_proposal=15, lease_s=60))
    plain.open(1, Rule.MATCH)
    (reply,) = plain.run(verify(size, size, (), DraftFirst(4)))
    assert "there is no draft here" in reply.message


def test_at_the_end_of_a_sessions_room_less_is_drafted(verifier: Verifier) -> None:
    size = len(verifier.open(1, Rule.MATCH, length=3))
    (reply,) = verifier.run(verify(size, size, (), DraftFirst(6, (1,))))
    assert len(reply.drafted) == reply.drafted.tree.depth == 3


def ask_all(verifier: Verifier, wishes: dict[int, DraftFirst], prompts: dict[int, tuple[int, ...]]) -> dict[int, int]:
    """How long the sessions' guesses are if they all ask at once."""
    items = [
        Verify(Key(number, 1, len(prompts[number])), len(prompts[number]), (), NO_PROPOSAL, first)
        for number, first in wishes.items()
    ]
    replies = verifier.run(*items)
    assert all(isinstance(reply, Verified) for reply in replies), replies
    return {reply.key.session: len(reply.drafted) for reply in replies}


@pytest.mark.parametrize(
    ("votes", "lengths"),
    [
        ((2, 2, 4), (2, 2, 2)),
        ((1, 4, 4), (3, 4, 4)),  # the first can have no more than three
        ((0, 0, 4), (0, 0, 0)),
        ((0, 4, 4), (3, 4, 4)),
    ],
)
def test_those_that_vote_are_drafted_for_as_deep_as_most_want(
    verifier: Verifier, votes: tuple[int, ...], lengths: tuple[int, ...]
) -> None:
    prompts = {number: verifier.open(number, Rule.MATCH) for number in (1, 2, 3)}
    wishes = {number: DraftFirst(3 if number == 1 else 6, vote=vote) for number, vote in enumerate(votes, start=1)}
    assert ask_all(verifier, wishes, prompts) == dict(enumerate(lengths, start=1))


def test_who_does_not_vote_gets_what_it_asks_for(verifier: Verifier) -> None:
    prompts = {number: verifier.open(number, Rule.MATCH) for number in (1, 2, 3)}
    wishes = {1: DraftFirst(5), 2: DraftFirst(6, vote=2), 3: DraftFirst(6, vote=0)}
    assert ask_all(verifier, wishes, prompts) == {1: 5, 2: 2, 3: 2}
    assert ask_all(verifier, {1: DraftFirst(5), 3: DraftFirst(6, vote=0)}, prompts) == {1: 5, 3: 0}


def test_answers_of_those_that_vote_are_the_targets_own(engines: tuple[Engine, Engine], verifier: Verifier) -> None:
    plain = Verifier(VerifyCore(engines[0], max_proposal=15, lease_s=60)).answers(Rule.MATCH, None, range(4))
    assert verifier.answers(Rule.MATCH, DraftFirst(5, vote=3), range(4)) == plain
    assert all({len(each) for each in drafted[:-3]} == {3} for drafted in verifier.drafted.values())


def test_a_vote_ends_with_its_round(verifier: Verifier) -> None:
    """Another item of the session, or its end, comes before it is counted."""
    size = len(verifier.open(1, Rule.MATCH))
    first = DraftFirst(4, vote=4)
    for number, ends in enumerate((Advance(Key(1, 1, size + 1), size, (7,)), Close(Key(1, 1, size + 1)))):
        assert verifier.core.handle(verifier.peer, verify(size + number, size + number, (), first)) is None
        assert verifier.core.busy
        assert not any(isinstance(reply, Verified) for reply in verifier.run(ends))
        assert not verifier.core.busy


def test_votes_with_siblings_are_refused(verifier: Verifier) -> None:
    size = len(verifier.open(1, Rule.MATCH))
    (reply,) = verifier.run(verify(size, size, (), DraftFirst(4, (1,), vote=2)))
    assert reply.code is FailureCode.INVALID_ARGUMENT
    assert "siblings is (1,), but must be empty where there is a vote" in reply.message


def test_it_says_where_the_draft_read_prompts_meanwhile(verifier: Verifier) -> None:
    """Also to those whose own the draft has read before."""
    prompts = {number: verifier.open(number, Rule.MATCH) for number in (1, 2)}
    items = [
        Verify(Key(number, 1, len(prompts[number])), len(prompts[number]), (), NO_PROPOSAL, DraftFirst(2))
        for number in (1, 2)
    ]
    (first,) = verifier.run(items[0])
    assert first.step.draft_prompt_rows == len(prompts[1])
    (again,) = verifier.run(items[0])
    assert again.step.draft_prompt_rows == 0
    together = verifier.run(*items)
    assert [reply.step.draft_prompt_rows for reply in together] == [len(prompts[2])] * 2


@pytest.mark.parametrize("rule", Rule)
def test_it_tells_what_came_of_the_guesses_that_it_goes_on_from(verifier: Verifier, rule: Rule) -> None:
    verifier.answers(rule, DraftFirst(3), [1, 2])
    rounds = min(map(len, verifier.drafted.values()))
    assert rounds > 5
    assert verifier.tallies[1][0] == NO_TALLY
    for turn in range(1, rounds):  # what the two rounds of the pass before came to
        expected = Tallying()
        for number in (1, 2):
            expected.add(len(verifier.drafted[number][turn - 1]), verifier.accepted[number][turn - 1])
        assert verifier.tallies[1][turn] == verifier.tallies[2][turn] == expected.take()


def test_siblings_and_guesses_of_others_are_not_told_of(verifier: Verifier) -> None:
    verifier.answers(Rule.MATCH, DraftFirst(3, (2, 1)), [1])
    assert set(verifier.tallies[1]) == {NO_TALLY}
    prompt = verifier.open(2, Rule.MATCH)
    guess, base = Proposal(TokenTree.chain((5, 6)), Source.MODEL), len(prompt)
    order = FollowUp(Key(2, 1, base), (), plainly=True, rounds=3)
    replies = verifier.run(Verify(Key(2, 1, base), base, (), guess), order)
    assert [reply.step.tally for reply in replies] == [NO_TALLY] * 4
