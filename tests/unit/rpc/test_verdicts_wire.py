"""Verdicts of one step share a message, whatever else is in their frame; columns that do not fit are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, RowLogprobs, Source, SparseQ, Verdict
from outrider.acceptance.tally import PLACES, Tally
from outrider.acceptance.tree import TokenTree
from outrider.errors import InternalError
from outrider.protocol.items import Failed, FailureCode, Key, Opened, Step, Verified, VerifierReply
from outrider.rpc import convert
from outrider.rpc.codec import VERIFIER
from outrider.rpc.verdicts import verdicts_from_proto
from outrider.v1 import verifier_pb2
from tests.unit.rpc.test_rpc_convert import common_replies, keys, proposals, token_lists, verdicts

STEP, LATER = Step(9, 3), Step(9, 3, 700, 2, 5, waited=True, tally=Tally((5, 3), (3, 3)))
CHAIN = Proposal(TokenTree.chain((7, 8)), Source.MODEL)

chains = token_lists.filter(bool).map(lambda tokens: Proposal(TokenTree.chain(tokens), Source.MODEL))
steps = st.sampled_from([STEP, LATER])
plain = st.builds(
    lambda tokens, microseconds: Verdict(tokens, (), (), microseconds), token_lists, st.sampled_from([0, 6400])
)
rounds = st.builds(
    Verified, keys, plain | plain | plain | verdicts, st.just(NO_PROPOSAL) | chains | chains | proposals(), steps
)


def sent(replies: Sequence[VerifierReply]) -> list[verifier_pb2.VerifierReply]:
    """The messages of the frame, at its other end."""
    data = VERIFIER.replies_frame(replies, VERIFIER.reply_to_proto).SerializeToString()
    return list(verifier_pb2.VerifyResponse.FromString(data).replies.replies)


def read(wires: Sequence[verifier_pb2.VerifierReply]) -> list[VerifierReply]:
    replies: list[VerifierReply] = []
    for wire in wires:
        if wire.HasField("verdicts"):
            replies += verdicts_from_proto(wire.verdicts)
        else:
            replies.append(convert.verifier_reply_from_proto(wire))
    return replies


def verified(number: int, step: Step = STEP, *, drafted: Proposal = NO_PROPOSAL, length: int = 1) -> Verified:
    tokens = tuple(range(40_000 + number, 40_000 + number + length))
    return Verified(Key(number, 1, 900), Verdict(tokens, step_microseconds=6400), drafted, step)


@given(st.lists(rounds | rounds | common_replies, max_size=12))
def test_frames_survive_with_the_order_of_their_replies(replies: list[VerifierReply]) -> None:
    assert read(sent(replies)) == replies


@pytest.mark.parametrize(
    "of_a_step",
    [
        [verified(number) for number in range(32)],
        [verified(number, drafted=CHAIN, length=3) for number in range(32)],
        [verified(1), verified(2, drafted=CHAIN, length=3), verified(3, length=0), verified(4, length=2), verified(5)],
        [verified(1, length=2), verified(2, length=0)],  # as many tokens as if each had one
    ],
)
def test_the_verdicts_of_a_step_are_one_message(of_a_step: list[VerifierReply]) -> None:
    (wire,) = wires = sent(of_a_step)
    assert wire.WhichOneof("event") == "verdicts"
    assert read(wires) == of_a_step


def test_plain_verdicts_cost_a_few_bytes_each() -> None:
    (wire,) = sent([verified(number) for number in range(32)])
    assert wire.ByteSize() <= 32 * 8
    assert not wire.verdicts.next_counts
    assert not wire.verdicts.drafted_counts


def test_other_replies_and_other_steps_stand_between_them_in_their_order() -> None:
    chain_with_q = Proposal(TokenTree.chain((7,)), Source.MODEL, (SparseQ((7,), (1.0,)),))
    tree = Proposal(TokenTree((7, 8), (-1, -1)), Source.MODEL)
    of_its_own: list[VerifierReply] = [
        Opened(Key(10, 1, 5), 4),
        Failed(Key(1, 1, 900), FailureCode.BASE_LENGTH, "too late"),
        Verified(Key(11, 1, 900), Verdict((1, 2), thresholds=(0.5,)), NO_PROPOSAL, STEP),
        Verified(Key(12, 1, 900), Verdict((1,), logprobs=(RowLogprobs((1,), (-0.5,)),)), NO_PROPOSAL, STEP),
        verified(13, drafted=chain_with_q, length=2),
        verified(14, drafted=tree, length=3),
    ]
    replies = [verified(1), verified(2), *of_its_own, verified(3), verified(4), verified(5, LATER), verified(6, LATER)]
    wires = sent([*replies, verified(7)])
    events = [wire.WhichOneof("event") for wire in wires]
    assert events == ["verdicts", "opened", "error", *["verdict"] * 4, "verdicts", "verdicts", "verdict"]
    assert read(wires) == [*replies, verified(7)]


Change = Callable[[verifier_pb2.Verdicts], object]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda wire: wire.sessions.append(4), "verdicts of 4 sessions, 3 epochs, 3 base lengths"),
        (lambda wire: wire.epochs.pop(), "verdicts of 3 sessions, 2 epochs, 3 base lengths"),
        (lambda wire: wire.ClearField("base_lengths"), "verdicts of 3 sessions, 3 epochs, 0 base lengths"),
        (lambda wire: wire.ClearField("sessions"), "verdicts of 0 sessions, 3 epochs, 3 base lengths"),
        (lambda wire: wire.next_tokens.append(4), "3 rounds have 8 next tokens and 3 counts, in all 7"),
        (lambda wire: wire.ClearField("next_counts"), "3 rounds have 7 next tokens and 3 counts, in all 3"),
        (lambda wire: wire.next_counts.append(0), "3 rounds have 7 next tokens and 4 counts, in all 7"),
        (lambda wire: wire.ClearField("next_tokens"), "3 rounds have 0 next tokens and 3 counts, in all 7"),
        (lambda wire: wire.drafted_tokens.pop(), "3 rounds have 3 drafted tokens and 3 counts, in all 4"),
        (lambda wire: wire.ClearField("drafted_counts"), "3 rounds have 4 drafted tokens and 3 counts, in all 0"),
        (lambda wire: wire.drafted_counts.extend([2**32 - 1] * 9), "3 rounds have 4 drafted tokens and 12 counts"),
    ],
)
def test_columns_that_do_not_fit_each_other_are_refused(change: Change, words: str) -> None:
    """Nothing is taken from them: whose verdict is which cannot be known."""
    (wire,) = sent([verified(1), verified(2, drafted=CHAIN, length=3), verified(3, drafted=CHAIN, length=3)])
    change(wire.verdicts)
    with pytest.raises(InternalError, match=words):
        verdicts_from_proto(wire.verdicts)


@pytest.mark.parametrize(
    ("tried", "stood", "words"),
    [
        ([3, 1], [1], "2 places tried and 1 that stood"),
        ([], [1], "0 places tried and 1 that stood"),
        ([1] * (PLACES + 1), [1] * (PLACES + 1), "17 places tried and 17 that stood, at most 16"),
        ([3, 1], [1, 2], r"\(3, 1\) tokens tried, of which \(1, 2\) stood"),
    ],
)
def test_a_tally_that_cannot_be_one_is_refused(tried: list[int], stood: list[int], words: str) -> None:
    verdicts = verifier_pb2.Verdicts(sessions=[1], epochs=[1], base_lengths=[900], next_tokens=[5])
    verdict = verifier_pb2.VerifierReply(session=1, verdict=verifier_pb2.Verdict(next_tokens=[5]))
    for wire in (verdicts, verdict.verdict):
        wire.tally_tried[:], wire.tally_stood[:] = tried, stood
    with pytest.raises(InternalError, match=words):
        verdicts_from_proto(verdicts)
    with pytest.raises(InternalError, match=words):
        convert.verifier_reply_from_proto(verdict)


def test_columns_of_nothing_are_no_replies() -> None:
    assert list(verdicts_from_proto(verifier_pb2.Verdicts(step_rows=3))) == []
