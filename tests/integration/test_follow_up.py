"""Rounds that the verifier begins by itself: the same answer, and none that the coordinator does not know of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from outrider.acceptance.params import Rule, SamplingParams
from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Source
from outrider.acceptance.tree import ROOT, TokenTree
from outrider.engine.verify import VerifyCore
from outrider.engine.worker import DeviceWorker
from outrider.protocol.items import (
    MAX_ROUNDS,
    Advance,
    Close,
    Failed,
    FailureCode,
    FollowUp,
    Foreseen,
    Key,
    Open,
    Verified,
    Verify,
)
from tests.cluster import Cluster, running_cluster, until
from tests.conftest import TinyModel
from tests.tiny_models import VOCABULARY_SIZE
from tests.unit.engine.engines import make_engine, random_tokens

PROMPT = tuple(random_tokens(20, seed=9))
GREEDY = SamplingParams(temperature=0.0)


class Verifier:
    """A verifier's core without its thread."""

    def __init__(self, core: VerifyCore) -> None:
        self.core = core
        worker: DeviceWorker[Any, Any] = DeviceWorker(core)
        self.peer: Any = worker.connect("test", lambda replies: None, vocabulary_size=VOCABULARY_SIZE)

    def run(self, *items: Any, steps: int = 99) -> list[Any]:
        """The replies to items that arrive together, and what comes of so many steps."""
        replies = [reply for item in items if (reply := self.core.handle(self.peer, item))]
        while self.core.busy and steps:
            replies += [reply for _, reply in self.core.step()]
            steps -= 1
        return replies


@pytest.fixture
def verifier(tiny_model: TinyModel) -> Verifier:
    one = Verifier(VerifyCore(make_engine(tiny_model("llama"), kv_tokens=4096), max_proposal=15, lease_s=60))
    key = Key(1, 1, len(PROMPT))
    one.run(Open(key, PROMPT, len(PROMPT), 80, GREEDY, Rule.MATCH, 0, stop_token_ids=(0,)))
    return one


def key(length: int) -> Key:
    return Key(1, 1, len(PROMPT) + length)


def greedy_tokens(verifier: Verifier, count: int) -> list[int]:
    """The plain answer, the session being at its prompt again afterwards."""
    found: list[int] = []
    for _ in range(count):
        (reply,) = verifier.run(Verify(key(len(found)), len(PROMPT), tuple(found), NO_PROPOSAL))
        found.append(reply.verdict.next_tokens[0])
    return found


def guess(*tokens: int) -> Proposal:
    return Proposal(TokenTree.chain(tokens), Source.MODEL)


def lengths(replies: Sequence[Any]) -> list[int]:
    return [reply.key.base_length - len(PROMPT) for reply in replies]


def test_a_foreseen_outcome_is_followed_by_its_proposal(verifier: Verifier) -> None:
    a, b, c, d, e, f = greedy_tokens(verifier, 6)
    foreseen = (Foreseen(ROOT, b, guess(9)), Foreseen(0, b, guess(c, d, 9)), Foreseen(0, 9, guess(9)))
    replies = verifier.run(Verify(key(0), len(PROMPT), (), guess(a)), FollowUp(key(0), foreseen, plainly=False))
    assert lengths(replies) == [0, 2]
    assert replies[1].verdict.next_tokens[:3] == (c, d, e)
    assert not verifier.core.busy
    # What comes next is told, from what the coordinator knows to be committed by now.
    (reply,) = verifier.run(Verify(key(5), len(PROMPT) + 2, (c, d, e), NO_PROPOSAL))
    assert reply.verdict.next_tokens == (f,)


def test_an_order_that_comes_after_the_round_still_counts(verifier: Verifier) -> None:
    a, b, c = greedy_tokens(verifier, 3)
    (reply,) = verifier.run(Verify(key(0), len(PROMPT), (), NO_PROPOSAL))
    assert reply.verdict.next_tokens == (a,)
    (reply,) = verifier.run(FollowUp(key(0), (Foreseen(ROOT, a, guess(b)),), plainly=False))
    assert lengths([reply]) == [1]
    assert reply.verdict.next_tokens == (b, c)


def test_another_outcome_is_followed_plainly_or_not_at_all(verifier: Verifier) -> None:
    a, b = greedy_tokens(verifier, 2)
    wrong = (Foreseen(ROOT, a + 1, guess(9)),)
    for plainly in (False, True):
        replies = verifier.run(Verify(key(0), len(PROMPT), (), NO_PROPOSAL), FollowUp(key(0), wrong, plainly=plainly))
        assert lengths(replies) == ([0, 1] if plainly else [0])
    assert replies[1].verdict.next_tokens == (b,)


def test_nothing_follows_a_stop_token(verifier: Verifier) -> None:
    a, *_ = greedy_tokens(verifier, 1)
    (session,) = verifier.core.sessions
    session.stop_token_ids = frozenset({a})
    replies = verifier.run(Verify(key(0), len(PROMPT), (), NO_PROPOSAL), FollowUp(key(0), (), plainly=True))
    assert lengths(replies) == [0]


def test_an_order_for_another_round_is_refused(verifier: Verifier) -> None:
    for length in (1, -1):
        (failed,) = verifier.run(FollowUp(key(length), (), plainly=True))
        assert isinstance(failed, Failed)
        assert "follow-up" in failed.message


def test_a_new_item_ends_an_order(verifier: Verifier) -> None:
    (a,) = greedy_tokens(verifier, 1)
    verifier.core.handle(verifier.peer, Verify(key(0), len(PROMPT), (), NO_PROPOSAL))
    verifier.core.handle(verifier.peer, FollowUp(key(0), (), plainly=True))
    replies = verifier.run(Verify(key(1), len(PROMPT), (a,), NO_PROPOSAL))
    assert lengths(replies) == [1]


def test_an_order_may_stand_for_several_rounds(verifier: Verifier) -> None:
    tokens = greedy_tokens(verifier, 6)
    replies = verifier.run(Verify(key(0), len(PROMPT), (), guess(tokens[0])), FollowUp(key(0), (), True, rounds=3))
    assert lengths(replies) == [0, 2, 3, 4]  # one guessed token stands, then three plain rounds
    assert [reply.verdict.next_tokens[-1] for reply in replies] == tokens[1:5]
    (reply,) = verifier.run(FollowUp(key(4), (), plainly=True))  # of the last of them, as of any round
    assert (lengths([reply]), reply.verdict.next_tokens) == ([5], (tokens[5],))


@pytest.mark.parametrize("ends", [Close(key(1)), Advance(key(1), len(PROMPT) + 1, ()), FollowUp(key(2), (), False)])
def test_any_item_ends_a_standing_order(verifier: Verifier, ends: Any) -> None:
    """It may come when the replica is ahead of what the coordinator knows."""
    greedy_tokens(verifier, 1)
    items = Verify(key(0), len(PROMPT), (), NO_PROPOSAL), FollowUp(key(0), (), plainly=True, rounds=9)
    assert lengths(verifier.run(*items, steps=2)) == [0, 1]  # and the third round has begun
    left = verifier.run(ends)
    assert not any(isinstance(reply, Failed) for reply in left)
    assert sum(isinstance(reply, Verified) for reply in left) == isinstance(ends, FollowUp)
    assert not verifier.core.busy


def test_a_standing_order_ends_with_a_stop_token(verifier: Verifier) -> None:
    tokens = greedy_tokens(verifier, 3)
    (session,) = verifier.core.sessions
    session.stop_token_ids = frozenset({tokens[2]}) - set(tokens[:2])
    replies = verifier.run(Verify(key(0), len(PROMPT), (), NO_PROPOSAL), FollowUp(key(0), (), True, rounds=9))
    assert lengths(replies) == [0, 1, 2]


def test_a_standing_order_ends_where_there_is_no_room(verifier: Verifier) -> None:
    """There are 60 tokens left: with them the answer ends, and nothing is said of rounds that were ordered beyond."""
    order = FollowUp(key(0), (), plainly=True, rounds=MAX_ROUNDS)
    rounds = verifier.run(Verify(key(0), len(PROMPT), (), NO_PROPOSAL), order)
    assert lengths(rounds) == [*range(60)]


def test_how_many_rounds_an_order_stands_for_is_limited(verifier: Verifier) -> None:
    greedy_tokens(verifier, 1)
    foreseen = (Foreseen(ROOT, 1, NO_PROPOSAL),)
    for order, limit in (
        (FollowUp(key(0), (), plainly=True, rounds=MAX_ROUNDS + 1), MAX_ROUNDS),
        (FollowUp(key(0), foreseen, plainly=True, rounds=2), 1),
    ):
        verifier.run(Verify(key(0), len(PROMPT), (), NO_PROPOSAL))
        (failed,) = verifier.run(order)
        assert failed.message == f"follow_up.rounds is {order.rounds}, but must be at most {limit}"
        assert failed.code is FailureCode.INVALID_ARGUMENT


def test_an_extension_goes_on_where_an_order_ends(verifier: Verifier) -> None:
    """It may come while rounds of the order remain, or when all of them have begun, or have ended."""
    tokens = greedy_tokens(verifier, 6)
    for steps in (1, 2, 9):
        items = Verify(key(0), len(PROMPT), (), NO_PROPOSAL), FollowUp(key(0), (), plainly=True, rounds=2)
        replies = verifier.run(*items, steps=steps)
        replies += verifier.run(FollowUp(key(0), (), plainly=True, rounds=3, extends=True))
        assert lengths(replies) == [0, 1, 2, 3, 4, 5]
        assert [reply.verdict.next_tokens[0] for reply in replies] == tokens
        (reply,) = verifier.run(FollowUp(key(0), (), plainly=True, extends=True))  # they keep the name of the first
        assert lengths([reply]) == [6]


def test_an_extension_of_another_order_is_refused(verifier: Verifier) -> None:
    (a,) = greedy_tokens(verifier, 1)
    more = FollowUp(key(0), (), plainly=True, extends=True)
    (failed,) = verifier.run(more)  # there was no order
    assert (failed.key, failed.code) == (key(0), FailureCode.BASE_LENGTH)
    assert "there is no order to extend" in failed.message
    verifier.run(Verify(key(0), len(PROMPT), (), NO_PROPOSAL), FollowUp(key(0), (), plainly=True))
    failed, _ = verifier.run(Verify(key(1), len(PROMPT), (a,), NO_PROPOSAL), more)  # it ended with the item
    assert failed.code is FailureCode.BASE_LENGTH
    assert not verifier.core.busy


def test_one_extension_may_wait_and_foresees_nothing(verifier: Verifier) -> None:
    greedy_tokens(verifier, 1)
    items = Verify(key(0), len(PROMPT), (), NO_PROPOSAL), FollowUp(key(0), (), plainly=True)
    more = FollowUp(key(0), (), plainly=True, extends=True)
    foreseen = more._replace(foreseen=(Foreseen(ROOT, 1, NO_PROPOSAL),))
    failed, *replies = sorted(verifier.run(*items, foreseen), key=lambda reply: not isinstance(reply, Failed))
    assert failed.message == "follow_up.foreseen is 1, but must be empty where it extends an order"
    assert lengths(replies) == [0, 1]  # the order before stands
    failed, *replies = sorted(verifier.run(*items, more, more), key=lambda reply: not isinstance(reply, Failed))
    assert failed.message == "follow_up.extends is True, but must be unset: an extension waits already"
    assert lengths(replies) == [0, 1, 2]


def test_a_proposal_without_room_fails_its_own_round(verifier: Verifier) -> None:
    a, *_ = greedy_tokens(verifier, 1)
    too_long = (Foreseen(ROOT, a, guess(*range(3, 19))),)
    first, second = verifier.run(
        Verify(key(0), len(PROMPT), (), NO_PROPOSAL), FollowUp(key(0), too_long, plainly=False)
    )
    assert isinstance(first, Verified)
    assert isinstance(second, Failed)
    assert second.key == key(1)


@pytest.fixture
async def cluster(tiny_model: TinyModel) -> AsyncIterator[Cluster]:
    async with running_cluster(tiny_model("llama")) as running:
        yield running


async def test_plain_decoding_waits_for_no_coordinator(cluster: Cluster) -> None:
    """Most of its rounds are begun by the verifier, and they are those that the coordinator counts."""
    core = cluster.verifiers[0]._worker._core  # type: ignore[attr-defined]
    begun: list[bool] = []
    original = core._follow

    def follow(session: Any, **named: Any) -> Any:
        reply = original(session, **named)
        begun.append(session.work is not None)
        return reply

    core._follow = follow
    options: dict[str, Any] = {"drafter": "none", "max_tokens": 60, "ignore_eos": True, "temperature": 0.7, "seed": 3}
    answer = await cluster.generate("again and again", **options)
    assert answer.speculation.rounds == 60
    assert sum(begun) >= 50
    assert answer.speculation.plain_rounds == 60
    assert not cluster.coordinator.replicas.verifiers[0]._pending


async def test_answers_that_end_early_leave_nothing_behind(cluster: Cluster) -> None:
    link = cluster.coordinator.replicas.verifiers[0]
    whole = (await cluster.generate("again and again", drafter="none", max_tokens=40, temperature=0.0)).text
    stop = whole[len(whole) // 2 :][:6]
    cut = await cluster.generate("again and again", drafter="none", max_tokens=40, temperature=0.0, stop=[stop])
    assert cut.text == whole[: whole.index(stop)]
    for length in (1, 2, 3):
        short = await cluster.generate("again and again", drafter="none", max_tokens=length, temperature=0.0)
        assert whole.startswith(short.text)
    stream = cluster.client.stream("again and again", drafter="none", max_tokens=400, ignore_eos=True)
    async with stream:
        await anext(aiter(stream))
    core = cluster.verifiers[0]._worker._core  # type: ignore[attr-defined]
    await until(lambda: not link._pending and not len(core.sessions))
