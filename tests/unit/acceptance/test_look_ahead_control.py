"""How far to draft ahead: as far as verification hides it, and not at all where nothing would pay."""

from __future__ import annotations

from itertools import pairwise

from outrider.acceptance.choice import Choice, ahead_length
from outrider.acceptance.control import DraftControl
from outrider.acceptance.costs import CostTable, RoundCosts
from outrider.acceptance.policy import Policy
from outrider.acceptance.proposal import Source
from outrider.acceptance.round import Round

LONGEST = 8


def control(*, verify_ms: float, draft_ms: float, ahead_ms: float, acceptance: float, policy: Policy) -> DraftControl:
    """One that has seen a while of rounds; times in milliseconds a token for the drafts."""
    costs = RoundCosts()
    one = DraftControl(costs, policy)
    for turn in range(120):
        length = turn % LONGEST
        choice = one.decide({Source.MODEL: 1}, LONGEST)
        proposed = choice.length and max(length, 1)
        accepted = next((i for i in range(proposed) if (turn * 7 + i * 3) % 10 >= acceptance * 10), proposed)
        one.record(Round(proposed, accepted, accepted + 1, proposed * draft_ms or None, verify_ms, True))
        costs.observe_ahead(length + 1, (length + 1) * ahead_ms)
    one.decide({Source.MODEL: 1}, LONGEST)
    return one


def test_a_hidden_draft_is_as_long_as_verification_hides() -> None:
    one = control(verify_ms=10, draft_ms=2, ahead_ms=2, acceptance=0.9, policy=Policy())
    assert one.look_ahead(LONGEST) in (4, 5, 6)
    assert one.look_ahead(2) == 2


def test_it_does_not_draft_further_than_outcomes_are_foreseen() -> None:
    """Hidden up to 8 tokens; but of guesses of 8 few outcomes are foreseen, as of fewer tokens more.

    What was not foreseen is asked for, which takes as long again as the round.
    """

    def ahead(hits: dict[int, int], asking_ms: float) -> int:
        costs = RoundCosts()
        one = DraftControl(costs, Policy(fallback_acceptance=0.0))
        for turn in range(200):
            length = one.decide({Source.MODEL: 1}, LONGEST).length
            stood = min(length, (3, 1, 8, 0, 2, 4)[turn % 6])
            asked = 2 + 3 * (turn % 3)
            hit = (turn // 3) % 10 < hits[asked]
            took = 10.0 if hit else 10.0 + asking_ms
            one.record(Round(length, stood, stood + 1, asking_ms, 10.0, hit, ahead=asked, period_ms=took))
        one.decide({Source.MODEL: 1}, LONGEST)
        return one.look_ahead(LONGEST)

    assert ahead({2: 10, 5: 10, 8: 10}, 10.0) >= 7
    assert ahead({2: 10, 5: 4, 8: 1}, 10.0) <= 4
    assert ahead({2: 10, 5: 4, 8: 1}, 0.5) >= 7, "a fresh guess takes hardly any time: it need not be foreseen"


def test_sessions_draft_ahead_as_far_as_those_beside_them_where_it_is_hardly_worse() -> None:
    """Two of one coordinator: the second would otherwise go a token further, or fall short of it."""
    hidden = CostTable((10.0,) * 7, (0.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0), (0.0, 10.0, 10.0, 10.0, 10.2, 11.0, 15.0))
    expected = (0.8, 1.4, 1.85, 2.05, 2.2, 2.3)

    def hits(length: int) -> float:
        return 1.0 - 0.05 * length

    best = ahead_length(hidden, expected, hits)
    assert best == 4
    assert ahead_length(hidden, expected, hits, others=3) == 3
    assert ahead_length(hidden, expected, hits, others=1) == best, "that would be much worse"
    assert ahead_length(hidden, expected[:2], hits, others=4) == 2, "no further than it may"


def test_what_plain_rounds_are_believed_to_take_does_not_make_long_guesses_look_free() -> None:
    """With several sessions, rounds wait for each other's passes; plain ones are then believed to take as long."""
    draft = (0.0, *(3.0 * length for length in range(1, 9)))
    ahead = (0.0, 21.8, 21.8, 22.0, 25.5, 33.7, 35.8, 41.0, 42.0)
    expected = (0.8, 1.44, 1.97, 2.31, 2.55, 2.71, 2.84, 2.95)
    believed = CostTable((35.0,) * 9, draft, ahead, miss_ms=22.7, pass_ms=16.0)
    assert ahead_length(believed, expected, lambda length: 1.0 - 0.06 * length) in (3, 4)


def test_a_draft_too_slow_to_be_hidden_does_not_work_ahead() -> None:
    one = control(verify_ms=10, draft_ms=40, ahead_ms=40, acceptance=0.9, policy=Policy())
    assert one.look_ahead(LONGEST) == 0


def given_up(now_ms: float) -> list[int]:
    """In which of 1,000 rounds it drafts ahead once it took 60 ms for a while and takes `now_ms` a token since."""
    costs = RoundCosts()
    one = DraftControl(costs, Policy())
    asked: list[int] = []
    for turn in range(1020):
        length = one.decide({Source.MODEL: 1}, LONGEST).length
        ahead = one.look_ahead(LONGEST)
        one.record(Round(length, length, length + 1, 2.0 * length or None, 10.0))
        if turn % 50 == 0:
            costs.observe_verify(0, 10.0)  # what a plain round takes stays known
        if ahead:
            costs.observe_ahead(ahead, 60.0 if turn < 20 else ahead * now_ms)
            asked += [turn - 20] if turn >= 20 else []
    return asked


def test_drafting_ahead_that_was_given_up_is_soon_tried_again() -> None:
    """What it took while prompts were read says nothing of later rounds."""
    asked = given_up(now_ms=2.0)
    assert asked[0] < 60
    assert len(asked) > 900


def test_the_longer_drafting_ahead_does_not_pay_the_more_seldom_it_is_tried() -> None:
    asked = given_up(now_ms=40.0)
    assert len(asked) < 20
    tries = [turn for before, turn in pairwise([-100, *asked]) if turn - before > 1]
    waits = [later - earlier for earlier, later in pairwise(tries)]
    assert len(waits) >= 2
    assert all(later > 1.5 * earlier for earlier, later in pairwise(waits))


def test_rounds_that_are_as_long_whatever_is_drafted_ahead_speak_for_more_of_it() -> None:
    """As with several sessions, whose passes take turns. Before, there was one; and while others began it took long."""
    costs = RoundCosts()
    one = DraftControl(costs, Policy())
    asked: list[int] = []
    for turn in range(300):
        alone, begins = turn < 100, 100 <= turn < 112
        length = one.decide({Source.MODEL: 1}, LONGEST).length
        ahead = one.look_ahead(LONGEST)
        stood = min(length, (3, 1, 8, 0, 2, 4)[turn % 6])
        one.record(Round(length, stood, stood + 1, 1.0 + 1.2 * length if length else None, 5.0 if alone else 9.0))
        costs.observe_verify(0, 4.2 if alone else 5.0)
        if ahead:
            costs.observe_ahead(ahead, 25.0 if begins else max(4.6 if alone else 9.0, 1.9 * ahead))
        asked.append(ahead)
    assert min(asked[50:100]) >= 2
    assert sum(length >= 2 for length in asked[112:]) > 120


def test_what_does_not_pay_when_it_is_asked_for_can_pay_ahead() -> None:
    """At 7 ms a token no guess is worth its time; hidden, one token costs nothing."""
    one = control(verify_ms=10, draft_ms=9.5, ahead_ms=7, acceptance=0.6, policy=Policy(fallback_acceptance=0.0))
    assert one.decide({Source.MODEL: 1}, LONGEST).length == 0
    assert one.look_ahead(LONGEST) >= 1


def test_tokens_at_hand_cost_nothing() -> None:
    one = control(verify_ms=10, draft_ms=9.5, ahead_ms=7, acceptance=0.8, policy=Policy(fallback_acceptance=0.0))
    choice = one.decide({Source.MODEL: 1}, LONGEST, at_hand=3)
    assert choice.source is Source.MODEL
    assert 1 <= choice.length <= 3


def test_a_fixed_length_looks_ahead_by_that_length() -> None:
    one = DraftControl(RoundCosts(), Policy(fixed_length=True))
    assert one.look_ahead(4) == 0  # nothing can propose yet
    assert one.decide({Source.MODEL: 1}, 4) == Choice(Source.MODEL, 4)
    assert one.look_ahead(4) == 4
    assert one.decide({Source.MODEL: 1}, 4, at_hand=3) == Choice(Source.MODEL, 3)


def test_a_request_that_fell_back_does_not_look_ahead() -> None:
    one = DraftControl(RoundCosts(), Policy(fallback_window=8, fallback_acceptance=0.5))
    for _ in range(8):
        length = one.decide({Source.MODEL: 1}, 4).length
        one.record(Round(length, 0, 1, 1.0, 10.0))
    assert one.fallback_reason
    assert one.look_ahead(4) == 0


def test_it_rests_where_it_would_decide_for_a_plain_round() -> None:
    """And where nothing can propose; but not while there is something to learn, or a probe is due."""
    costs = RoundCosts()
    one = DraftControl(costs, Policy(fallback_acceptance=0.0))
    assert one.rests({}, LONGEST)
    assert one.rests({Source.MODEL: 1}, 0)
    assert not one.rests({Source.MODEL: 1}, LONGEST)  # its times are unknown
    rested = []
    for _ in range(200):
        rests = one.rests({Source.MODEL: 1}, LONGEST)
        choice = one.decide({Source.MODEL: 1}, LONGEST)
        rested.append(rests)
        assert not rests or choice.length == 0
        one.record(Round(choice.length, 0, 1, choice.length * 1.0 or None, 10.0))
    assert rested[-100:].count(True) > 90
    assert rested[-100:].count(False) > 0  # the probes
    assert not DraftControl(costs, Policy(fixed_length=True)).rests({Source.MODEL: 1}, LONGEST)


def test_a_number_of_sessions_that_was_never_seen_has_no_siblings_ahead_yet() -> None:
    """Drafting ahead is known by then, what the target takes with so many sessions is not."""
    costs = RoundCosts()
    one = DraftControl(costs, Policy(max_siblings=4))
    for length in range(1, LONGEST + 1):
        one.decide({Source.MODEL: 1}, LONGEST)
        one.record(Round(length, length, length + 1, 2.0 * length, 10.0, True))
        costs.observe_ahead(length, 2.0 * length)
    costs.at_load(64)
    assert one.look_ahead(LONGEST) >= 1
    assert one.siblings_ahead(LONGEST) == ()


def test_the_round_after_is_decided_for_without_disturbing_the_one_in_progress() -> None:
    one = DraftControl(RoundCosts(), Policy(fixed_length=True))
    assert one.decide({Source.NGRAM: 2}, 4) == Choice(Source.NGRAM, 4)
    assert one.decide_next({Source.MODEL: 1}, 3) == Choice(Source.MODEL, 3)
    assert not one.leads  # n-grams are in progress still
    one.record(Round(4, 4, 5, None, 10.0))
    one.went_on({Source.MODEL: 1}, Choice(Source.MODEL, 3))
    assert one.leads


def test_a_verifier_that_goes_ahead_is_told_what_follows_a_probe_before() -> None:
    """What would be done without it: no second probe, and the first one is known as such when it begins."""
    one = DraftControl(RoundCosts(), Policy(fallback_acceptance=0.0), ahead=True)
    ordered: list[Choice] = [one.decide({Source.MODEL: 1}, LONGEST)]
    lengths: list[int] = []
    for _ in range(400):
        choice = ordered.pop(0)
        one.went_on({Source.MODEL: 1}, choice)
        while len(ordered) < 2:
            after = one.decide_next({Source.MODEL: 1}, LONGEST)
            assert after is not None
            ordered.append(after)
        lengths.append(choice.length)
        one.record(Round(choice.length, 0, 1, choice.length * 1.0 or None, 10.0))
    settled = lengths[60:]
    assert 2 <= settled.count(1) < 20
    assert settled.count(0) == len(settled) - settled.count(1)
    assert (1, 1) not in pairwise(settled)


def test_what_follows_a_probe_depends_on_what_comes_of_it() -> None:
    one = DraftControl(RoundCosts(), Policy(fallback_acceptance=0.0))
    asked = 0
    for _ in range(300):
        choice = one.decide({Source.MODEL: 1}, LONGEST)
        after = one.decide_next({Source.MODEL: 1}, LONGEST)
        if after is None:
            asked += 1
            assert choice == Choice(Source.MODEL, 1)
        one.record(Round(choice.length, 0, 1, choice.length * 1.0 or None, 10.0))
    assert 0 < asked < 20


def test_rounds_are_taken_to_last_as_long_as_from_verdict_to_verdict() -> None:
    """The way of a guess and of its verdict is hidden as well: guesses of 2 that hide are no worse than longer ones."""
    costs = RoundCosts()
    one = DraftControl(costs, Policy())
    period_ms = {2: 4.4, 3: 6.2, 4: 7.4}
    for turn in range(240):
        length = one.decide({Source.MODEL: 1}, LONGEST).length
        asked = 2 + turn % 3
        accepted = next((place for place in range(length) if (turn * 7 + place * 3) % 10 >= 8), length)
        took = 4.0 if not length else 5.8 + 0.1 * length
        one.record(Round(length, accepted, accepted + 1, 1.0, took, True, ahead=asked, period_ms=period_ms[asked]))
    one.decide({Source.MODEL: 1}, LONGEST)
    assert one.look_ahead(LONGEST) == 2
