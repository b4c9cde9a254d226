"""What a link does with replies: those that come early, late, twice, broken, or never."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence

import pytest

from outrider.acceptance.proposal import NO_PROPOSAL, Verdict
from outrider.errors import DeadlineExceeded, InternalError, Unavailable
from outrider.protocol.items import (
    PROTOCOL_VERSION,
    Failed,
    FailureCode,
    Key,
    Opened,
    Verified,
    VerifierReply,
    VerifierRequest,
    Verify,
)
from outrider.rpc import codec
from outrider.rpc.convert import verifier_reply_to_proto
from outrider.rpc.exchange import ItemError
from outrider.rpc.replica_link import ReplicaLink
from outrider.v1 import model_pb2_grpc, replica_pb2, verifier_pb2

Link = ReplicaLink[VerifierRequest, VerifierReply]
KEY = Key(1, 2, 3)
ITEM = Verify(KEY, 2, (7,), NO_PROPOSAL)
REPLY = Verified(KEY, Verdict((5,)))


async def pair(model: object, stub: model_pb2_grpc.ModelServiceAsyncStub) -> int:
    """Nothing is ever connected here."""
    raise AssertionError


@pytest.fixture
async def link() -> Link:
    """A link whose stream is up, without anybody at its other end."""
    link: Link = ReplicaLink(codec.VERIFIER, "nowhere:1", pair=pair, coordinator="test")
    link._up.set()
    return link


def arrive(link: Link, reply: VerifierReply) -> None:
    """The reply comes over the wire."""
    link._take(verifier_reply_to_proto(reply))


async def test_a_reply_that_comes_before_it_is_asked_for_is_kept(link: Link) -> None:
    link.expect(KEY)
    arrive(link, REPLY)
    assert (await link.receive(KEY, 1.0)).reply == REPLY
    assert not link._pending


async def test_a_reply_wakes_whoever_waits(link: Link) -> None:
    call = asyncio.create_task(link.call(ITEM, 60.0))
    await asyncio.sleep(0)
    arrive(link, REPLY)
    exchange = await asyncio.wait_for(call, 5.0)
    assert exchange.reply == REPLY
    assert exchange.wire_bytes == len(codec.VERIFIER.item_to_proto(ITEM).SerializeToString()) + len(
        codec.VERIFIER.reply_to_proto(REPLY).SerializeToString()
    )


async def test_only_the_first_reply_counts(link: Link) -> None:
    link.expect(KEY)
    arrive(link, REPLY)
    arrive(link, Failed(KEY, FailureCode.INTERNAL, "too late"))
    assert (await link.receive(KEY, 1.0)).reply == REPLY


async def test_a_reply_that_never_comes_ends_the_wait(link: Link) -> None:
    with pytest.raises(DeadlineExceeded, match=r"nowhere:1 did not answer within 0\.01 s"):
        await link.call(ITEM, 0.01)
    arrive(link, REPLY)  # nobody waits any more
    assert not link._pending


async def test_a_cancelled_wait_leaves_nothing_behind(link: Link) -> None:
    call = asyncio.create_task(link.call(ITEM, 60.0))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not link._pending


async def test_a_refused_item_raises_its_code(link: Link) -> None:
    link.expect(KEY)
    arrive(link, Failed(KEY, FailureCode.BASE_LENGTH, "no"))
    with pytest.raises(ItemError) as raised:
        await link.receive(KEY, 1.0)
    assert (raised.value.code, raised.value.message) == (FailureCode.BASE_LENGTH, "no")


async def test_a_broken_reply_is_the_error_of_its_session_alone(link: Link) -> None:
    other = Key(2, 2, 3)
    link.expect(KEY)
    link.expect(other)
    link._take(verifier_pb2.VerifierReply(session=1, epoch=2, base_length=3))  # without an event
    arrive(link, Verified(other, Verdict((5,))))
    with pytest.raises(InternalError, match="no known event"):
        await link.receive(KEY, 1.0)
    assert (await link.receive(other, 1.0)).reply.key == other


def arrive_together(link: Link, replies: Sequence[VerifierReply]) -> verifier_pb2.VerifierReply:
    """They come in columns; their message."""
    (wire,) = codec.VERIFIER.replies_frame(replies, codec.VERIFIER.reply_to_proto).replies.replies
    assert wire.HasField("verdicts")
    link._take(wire)
    return wire


async def test_verdicts_that_come_together_are_those_of_their_sessions(link: Link) -> None:
    """Those that are waited for, or will be; those of older openings and rounds, and answers to others, are dropped."""
    link.expect(KEY)
    opening, early = Key(3, 2, 3), Key(2, 1, 6)
    link.expect(opening, event="opened")
    link.expect_after(Key(2, 1, 3), 3)
    keys = [Key(1, 1, 3), KEY, Key(1, 2, 2), early, Key(2, 1, 9), opening]
    replies = [Verified(key, Verdict((number,))) for number, key in enumerate(keys)]
    wire = arrive_together(link, replies)
    arrive_together(link, [Verified(KEY, Verdict((9,)))] * 2)  # the first one counts
    exchange = await link.receive(KEY, 1.0)
    assert exchange == (replies[1], wire.ByteSize() // len(keys))
    begin_last(link, early)
    assert (await link.receive(early, 1.0)).reply == replies[3]
    assert link._pending[opening].result is None
    link.forget(opening)
    assert link.expected == 0


async def test_columns_that_do_not_fit_each_other_settle_nothing(link: Link) -> None:
    link.expect(KEY)
    (wire,) = codec.VERIFIER.replies_frame([REPLY, REPLY], codec.VERIFIER.reply_to_proto).replies.replies
    wire.verdicts.epochs.pop()
    with pytest.raises(InternalError, match="verdicts of 2 sessions, 1 epochs"):
        link._take(wire)
    assert link._pending[KEY].result is None


async def test_a_lost_stream_fails_those_who_wait_and_those_who_will(
    link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    waits = asyncio.create_task(link.call(ITEM, 60.0))
    later, never = Key(1, 2, 4), Key(1, 2, 5)
    link.expect(later)
    link.expect(never)
    await asyncio.sleep(0)
    link._go_down(Unavailable("gone"))
    for each in (waits, asyncio.create_task(link.receive(later, 1.0))):
        with pytest.raises(Unavailable, match="nowhere:1 was lost: gone"):
            await asyncio.wait_for(each, 5.0)
    link.forget(never)
    gc.collect()
    assert not link._pending
    assert not caplog.records  # asyncio complains of failures that nobody asks for


async def test_frames_carry_their_items_in_order() -> None:
    wires = [codec.VERIFIER.item_to_proto(Verify(Key(n, 1, 1), 1, (), NO_PROPOSAL)) for n in range(3)]
    frame = verifier_pb2.VerifyRequest.FromString(codec.VERIFIER.items_frame(wires).SerializeToString())
    assert frame.WhichOneof("body") == "items"
    assert [item.session for item in frame.items.items] == [0, 1, 2]
    hello = codec.VERIFIER.hello_frame(replica_pb2.Hello(protocol_version=PROTOCOL_VERSION))
    assert hello.WhichOneof("body") == "hello"


async def test_a_late_answer_to_the_opening_is_not_taken_for_that_of_the_round_after_it(link: Link) -> None:
    """Both have one key. It was an internal error once."""
    call = asyncio.create_task(link.call(ITEM, 60.0))
    await asyncio.sleep(0)
    arrive(link, Opened(KEY, 0))
    arrive(link, REPLY)
    assert (await asyncio.wait_for(call, 5.0)).reply == REPLY


def verdict_at(base: int) -> Verified:
    return Verified(Key(1, 2, base), Verdict((base,)))


def begin_last(link: Link, key: Key) -> None:
    """The round that was to follow begins, and none follows it."""
    link.begin_after(key)
    link.end_after(key)


async def test_of_the_rounds_that_may_follow_the_one_that_did_is_received(link: Link) -> None:
    """A verdict may be there before anybody knows that it is the one."""
    link.expect_after(KEY, 3)
    for base in (2, 3, 6, 7):  # 3 is the round in flight, 7 is beyond what may follow
        arrive(link, verdict_at(base))
    begin_last(link, Key(1, 2, 6))
    assert (await link.receive(Key(1, 2, 6), 1.0)).reply == verdict_at(6)
    assert link.expected == 0


async def test_the_round_that_follows_may_answer_late(link: Link) -> None:
    link.expect_after(KEY, 3)
    begin_last(link, Key(1, 2, 4))
    arrive(link, verdict_at(5))
    receive = asyncio.create_task(link.receive(Key(1, 2, 4), 60.0))
    await asyncio.sleep(0)
    arrive(link, verdict_at(4))
    assert (await asyncio.wait_for(receive, 5.0)).reply == verdict_at(4)
    assert link.expected == 0


async def test_what_may_follow_is_of_one_opening_and_ends(link: Link) -> None:
    link.expect_after(KEY, 3)
    other = Key(1, 9, 2)
    link.expect_after(other, 3)
    assert link.expected == 2
    arrive(link, Verified(Key(1, 9, 4), Verdict((8,))))
    link.end_after(KEY)
    arrive(link, verdict_at(4))
    begin_last(link, Key(1, 9, 4))
    assert (await link.receive(Key(1, 9, 4), 1.0)).reply.key == Key(1, 9, 4)
    assert link.expected == 0


async def test_a_lost_stream_fails_the_round_that_was_to_follow(link: Link) -> None:
    link.expect_after(KEY, 3)
    arrive(link, verdict_at(4))
    link._go_down(Unavailable("gone"))
    begin_last(link, Key(1, 2, 6))
    with pytest.raises(Unavailable, match="nowhere:1 was lost: gone"):
        await link.receive(Key(1, 2, 6), 1.0)
    assert link.expected == 0


async def test_replies_of_a_verifier_that_is_rounds_ahead_are_kept(link: Link) -> None:
    """Three rounds of at most 3 tokens follow one of at most 2."""
    link.expect_after(KEY, 2 + 2 * 3, rounds=3)
    for base in (4, 7, 8):
        arrive(link, verdict_at(base))
    for base, left in ((4, 2), (7, 1), (8, 0)):
        link.begin_after(Key(1, 2, base), left * 3)
        assert link.expected == 2  # it, and whatever follows
        assert (await link.receive(Key(1, 2, base), 1.0)).reply == verdict_at(base)
    link.end_after(Key(1, 2, 8))
    assert link.expected == 0


async def test_no_more_of_them_are_kept_than_rounds_may_follow(link: Link) -> None:
    link.expect_after(KEY, 100, rounds=2)
    (following,) = link._following.values()
    for base in range(4, 60):
        arrive(link, verdict_at(base))
    assert list(following.early) == [4, 5]
    link.begin_after(Key(1, 2, 5), 3)
    assert not following.early  # 4 is none that can come after it
    for base in (9, 5, 7, 8):
        arrive(link, verdict_at(base))
    assert list(following.early) == [7]
    assert (await link.receive(Key(1, 2, 5), 1.0)).reply == verdict_at(5)


async def test_a_lost_stream_fails_the_rounds_that_had_not_come(link: Link) -> None:
    link.expect_after(KEY, 6, rounds=3)
    arrive(link, verdict_at(5))
    arrive(link, Opened(Key(1, 2, 6), 0))  # no reply to a round
    link._go_down(Unavailable("gone"))
    link.begin_after(Key(1, 2, 5), 4)
    assert (await link.receive(Key(1, 2, 5), 1.0)).reply == verdict_at(5)
    for base in (6, 8):
        link.begin_after(Key(1, 2, base), 2)
        with pytest.raises(Unavailable, match="nowhere:1 was lost: gone"):
            await link.receive(Key(1, 2, base), 1.0)
