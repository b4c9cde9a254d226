"""The pass that verifies what a verifier's own draft draws is launched before the host knows what that is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from torch import Tensor

from outrider.acceptance.params import Rule
from outrider.acceptance.proposal import NO_PROPOSAL
from outrider.acceptance.tree import TokenTree
from outrider.engine.batch import Feed
from outrider.engine.draft import DraftCore
from outrider.engine.drafting_verify import DraftingVerifyCore
from outrider.engine.drawn import Drawn, Guessed
from outrider.engine.own_draft import OwnDraft
from outrider.engine.runner import Chains, Runner
from outrider.protocol.items import DraftFirst, FollowUp, Key, Verified, Verify
from tests.conftest import TinyModel
from tests.unit.engine.engines import make_engine
from tests.unit.engine.test_drafting_together import Stepwise, settle_on_host
from tests.unit.engine.test_own_draft import LENGTH, Verifier, draft_engine


class Behind:
    """A runner whose passes take tokens by where they are drawn."""

    takes_drawn = True

    def __init__(self, run: Runner) -> None:
        self.run = run
        self.behind = 0  # passes with such tokens
        self.passes = 0

    def __call__(self, feeds: Sequence[Feed], drawn: Drawn | None = None) -> Tensor:
        self.passes += 1
        self.behind += any(token < 0 for feed in feeds for token in feed.ids())
        return self.run([known(feed, drawn) for feed in feeds])

    def settle(self, drawn: Tensor, rounds: Sequence[Guessed]) -> Drawn:
        return settle_on_host(drawn, rounds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.run, name)


def known(feed: Feed, drawn: Drawn | None) -> Feed:
    """The feed with the tokens that it refers to, where it really stands."""
    if all(token >= 0 for token in feed.ids()):
        return feed
    assert drawn is not None

    def token(each: int) -> int:
        return each if each >= 0 else int(drawn.memory[-1 - each])

    at = feed.at
    if feed.back >= 0:
        assert at is not None
        assert drawn.backs is not None
        at -= int(drawn.backs[feed.back])
    tree = TokenTree(tuple(map(token, feed.tree.tokens)), feed.tree.parents)
    return dataclasses.replace(feed, tokens=list(map(token, feed.tokens)), tree=tree, at=at, back=-1)


def verifiers(directory: Path) -> tuple[Verifier, Verifier, Behind, Stepwise]:
    """One that waits for the draft, one that does not, and the runners of the latter's target and draft."""
    pair = []
    for takes_drawn in (False, True):
        engine, draft = make_engine(directory, kv_tokens=4096), draft_engine(directory, 2048)
        engine._run = behind = Behind(engine._run)
        behind.takes_drawn = takes_drawn
        draft._run = stepwise = Stepwise(draft._run)
        own = OwnDraft(DraftCore(draft, max_proposal=15, lease_s=60))
        pair.append(Verifier(DraftingVerifyCore(engine, own, max_proposal=15, lease_s=60)))
    return pair[0], pair[1], behind, stepwise


@pytest.mark.parametrize("length", [1, 2, 4])
def test_answers_and_guesses_are_the_same(tiny_model: TinyModel, length: int) -> None:
    first, second, behind, _ = verifiers(tiny_model("llama"))
    wanted = DraftFirst(length)
    assert first.answers(Rule.MATCH, wanted, range(5)) == second.answers(Rule.MATCH, wanted, range(5))
    assert first.drafted == second.drafted
    assert behind.behind == behind.passes - 5  # all but the prompts'
    assert behind.behind >= LENGTH // (length + 1)


def test_a_guess_with_siblings_is_waited_for(tiny_model: TinyModel) -> None:
    first, second, behind, _ = verifiers(tiny_model("llama"))
    wanted = DraftFirst(3, (2,))
    assert first.answers(Rule.MATCH, wanted, range(3)) == second.answers(Rule.MATCH, wanted, range(3))
    assert behind.behind == 0


def rounds(
    verifier: Verifier,
    wishes: dict[int, DraftFirst | None],
    count: int,
    stop: tuple[int, ...] = (),
    room: dict[int, int] | None = None,
) -> dict[int, list[Verified]]:
    """Several rounds of sessions, of which each has a wish of its own.

    `stop`: what ends a guess. `room`: how many tokens sessions have room for after their prompts.
    """
    room = room or {}
    sizes = {number: len(verifier.open(number, Rule.MATCH, room.get(number, 2 * LENGTH))) for number in wishes}
    for held in verifier.core._own._held.values():  # type: ignore[attr-defined]
        held.opening = dataclasses.replace(held.opening, stop_token_ids=stop)
    items: list[Any] = [
        Verify(Key(number, 1, sizes[number]), sizes[number], (), NO_PROPOSAL, wish) for number, wish in wishes.items()
    ]
    found: dict[int, list[Verified]] = {number: [] for number in wishes}
    for _ in range(count):
        replies = verifier.run(*items)
        items = []
        for reply in replies:
            assert isinstance(reply, Verified), reply
            number = reply.key.session
            found[number].append(reply)
            items.append(FollowUp(reply.key, (), plainly=wishes[number] is None, draft_first=wishes[number]))
    return found


def contents(found: dict[int, list[Verified]]) -> dict[int, list[Any]]:
    """What does not depend on how it came about."""
    return {
        number: [(each.key, each.verdict.next_tokens, each.drafted) for each in replies]
        for number, replies in found.items()
    }


def test_sessions_with_other_wishes_share_the_pass(tiny_model: TinyModel) -> None:
    first, second, behind, _ = verifiers(tiny_model("llama"))
    wishes = {1: DraftFirst(3), 2: None, 3: DraftFirst(1), 4: DraftFirst(5)}
    one, two = (rounds(verifier, wishes, 6) for verifier in (first, second))
    assert contents(one) == contents(two)
    assert behind.behind >= 5
    assert {(each.step.sessions, each.step.rows) for replies in two.values() for each in replies} == {(4, 13)}


def test_a_session_at_its_end_leaves_the_others_their_guesses(tiny_model: TinyModel) -> None:
    first, second, behind, _ = verifiers(tiny_model("llama"))
    wishes: dict[int, DraftFirst | None] = {1: DraftFirst(4), 2: DraftFirst(4), 3: DraftFirst(4)}
    one, two = (contents(rounds(verifier, wishes, 1, room={2: 2, 3: 1})) for verifier in (first, second))
    assert one == two
    assert [len(two[number][0][2]) for number in wishes] == [4, 2, 1]
    assert behind.behind == 1


def test_a_stop_token_in_a_guess_ends_it(tiny_model: TinyModel) -> None:
    """The pass has rows for what would have followed; nobody looks at them, and nothing of them stays."""
    first, second, behind, _ = verifiers(tiny_model("llama"))
    wishes: dict[int, DraftFirst | None] = {1: DraftFirst(4), 2: DraftFirst(4)}
    guessed = rounds(first, wishes, 1)[1][0].drafted.tree.tokens
    first, second, behind, _ = verifiers(tiny_model("llama"))
    one, two = (contents(rounds(verifier, wishes, 3, (guessed[1],))) for verifier in (first, second))
    assert one == two
    assert one[1][0][2].tree.tokens == guessed[: guessed.index(guessed[1]) + 1]
    assert behind.behind > 0


def test_a_draft_that_can_draw_nothing_costs_its_own_guess(tiny_model: TinyModel) -> None:
    _, verifier, behind, stepwise = verifiers(tiny_model("llama"))
    real = stepwise.rank

    def spoilt(logits: Tensor, states: Any, positions: Any) -> Chains:
        found = real(logits, states, positions)
        if len(positions) == 2:
            found.scores[0][1] = math.nan
        return found

    with mock.patch.object(stepwise, "rank", spoilt):
        found = rounds(verifier, {1: DraftFirst(3), 2: DraftFirst(3)}, 1)
    assert len(found[1][0].drafted) == 3
    assert found[2][0].drafted == NO_PROPOSAL
    assert [len(found[number][0].verdict.next_tokens) for number in (1, 2)] == [4, 1]
    assert behind.behind == 1
    assert not verifier.core.busy


def test_a_pass_that_fails_ends_its_sessions_alone(tiny_model: TinyModel) -> None:
    _, verifier, behind, _ = verifiers(tiny_model("llama"))
    size = len(verifier.open(1, Rule.MATCH))
    with mock.patch.object(behind, "run", side_effect=RuntimeError("broken")):
        (reply,) = verifier.run(Verify(Key(1, 1, size), size, (), NO_PROPOSAL, DraftFirst(3)))
    assert "broken" in reply.message
    assert len(verifier.core.sessions) == 0
    answers = verifier.answers(Rule.MATCH, DraftFirst(3), [2, 3])
    assert all(len(answer) == LENGTH for answer in answers.values())
