"""The replica streams themselves, spoken to without a coordinator: fences, errors of one item, leases, admission."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio

from outrider.acceptance.params import Rule, SamplingParams
from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Source, SparseQ
from outrider.acceptance.tree import TokenTree
from outrider.engine.replica import Replica
from outrider.protocol.items import (
    PROTOCOL_VERSION,
    Advance,
    Close,
    Drafted,
    FailureCode,
    Key,
    Open,
    Opened,
    Propose,
    Verified,
    Verify,
)
from outrider.rpc import codec
from outrider.rpc.channel import open_channel
from outrider.rpc.exchange import ItemError
from outrider.rpc.replica_link import ReplicaLink
from outrider.v1 import replica_pb2, verifier_pb2, verifier_pb2_grpc
from tests.cluster import start_draft, start_verifier, until
from tests.conftest import TinyModel

pytestmark = pytest.mark.asyncio(loop_scope="module")

GREEDY = SamplingParams(temperature=0.0)


def opening(session: int, tokens: list[int], *, epoch: int = 1, **more: Any) -> Open:
    options = {"prompt_length": len(tokens), "max_length": 64, "params": GREEDY, "rule": Rule.MATCH, "seed": 0} | more
    return Open(key=Key(session, epoch, len(tokens)), tokens=tuple(tokens), **options)


async def connect(codec_: Any, address: str) -> tuple[ReplicaLink[Any, Any], asyncio.Task[None]]:
    async def pair(model: Any, stub: Any) -> int:
        return int(model.vocabulary_size)

    link: ReplicaLink[Any, Any] = ReplicaLink(codec_, address, pair=pair, coordinator="test")
    task = asyncio.create_task(link.run())
    await link.wait_ready(20)
    return link, task


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def verifier(tiny_model: TinyModel) -> AsyncIterator[tuple[Replica, str]]:
    replica, address = await start_verifier(tiny_model("llama"), kv_tokens=256)
    yield replica, address
    await replica.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def link(verifier: tuple[Replica, str]) -> AsyncIterator[ReplicaLink[Any, Any]]:
    link, task = await connect(codec.VERIFIER, verifier[1])
    yield link
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def call(link: ReplicaLink[Any, Any], item: Any) -> Any:
    return (await link.call(item, 20)).reply


async def failure(link: ReplicaLink[Any, Any], item: Any) -> FailureCode:
    with pytest.raises(ItemError) as caught:
        await call(link, item)
    return caught.value.code


async def next_token(link: ReplicaLink[Any, Any], session: int, tokens: list[int], known: int, epoch: int = 1) -> int:
    reply = await call(link, Verify(Key(session, epoch, len(tokens)), known, tuple(tokens[known:]), NO_PROPOSAL))
    assert isinstance(reply, Verified)
    return reply.verdict.next_tokens[0]


async def test_a_session_lives_from_open_to_close(link: ReplicaLink[Any, Any]) -> None:
    tokens = [5, 6, 7]
    assert isinstance(await call(link, opening(1, tokens)), Opened)
    for _ in range(4):
        tokens.append(await next_token(link, 1, tokens, max(3, len(tokens) - 1)))
    link.tell(Close(Key(1, 1, len(tokens))))
    assert await failure(link, Verify(Key(1, 1, 8), 7, (1,), NO_PROPOSAL)) is FailureCode.UNKNOWN_SESSION


async def test_history_can_be_rolled_back(link: ReplicaLink[Any, Any]) -> None:
    await call(link, opening(2, [5, 6, 7]))
    first = await next_token(link, 2, [5, 6, 7], 3)
    for wrong in ([40, 41, 42, 43], [44]):
        await next_token(link, 2, [5, 6, 7, *wrong], 3)
    link.tell(Advance(Key(2, 1, 3), 3, ()))
    assert await next_token(link, 2, [5, 6, 7], 3) == first
    link.tell(Close(Key(2, 1, 3)))


async def test_epochs_fence_old_openings(link: ReplicaLink[Any, Any]) -> None:
    await call(link, opening(3, [5, 6], epoch=4))
    assert await failure(link, opening(3, [5, 6], epoch=4)) is FailureCode.STALE_EPOCH
    assert await failure(link, Verify(Key(3, 3, 2), 2, (), NO_PROPOSAL)) is FailureCode.STALE_EPOCH
    assert isinstance(await call(link, opening(3, [5, 6, 9], epoch=5)), Opened)
    assert await failure(link, Verify(Key(3, 4, 2), 2, (), NO_PROPOSAL)) is FailureCode.STALE_EPOCH
    await next_token(link, 3, [5, 6, 9], 3, epoch=5)
    link.tell(Close(Key(3, 5, 3)))


async def test_wrong_base_lengths_are_refused(link: ReplicaLink[Any, Any]) -> None:
    await call(link, opening(4, [5, 6, 7]))
    for keep, append, base in ((3, (1,), 5), (4, (), 4), (0, (), 0)):
        item = Verify(Key(4, 1, base), keep, append, NO_PROPOSAL)
        assert await failure(link, item) is FailureCode.BASE_LENGTH
    await next_token(link, 4, [5, 6, 7], 3)  # the session is unharmed
    link.tell(Close(Key(4, 1, 3)))


@pytest.mark.parametrize(
    "proposal",
    [
        Proposal(TokenTree((600,), (-1,)), Source.MODEL),
        Proposal(TokenTree((1, 2), (-1, 5)), Source.MODEL),
        Proposal(TokenTree((1, 2), (-1, 1)), Source.MODEL),
        Proposal(TokenTree.chain([1] * 16), Source.MODEL),
        Proposal(TokenTree((1,), (-1,)), Source.MODEL, (SparseQ((1, 2), (0.0, 0.0)),)),
        Proposal(TokenTree((1,), (-1,)), Source.MODEL, (SparseQ((1, 2), (float("nan"), 1.0)),)),
        Proposal(TokenTree((1,), (-1,)), Source.MODEL, (SparseQ((2,), (1.0,)),)),
    ],
    ids=["unknown token", "parent ahead", "own parent", "too long", "zero q", "nan q", "impossible token"],
)
async def test_case_27_a_malformed_proposal_fails_alone(link: ReplicaLink[Any, Any], proposal: Proposal) -> None:
    await call(link, opening(5, [5, 6, 7], rule=Rule.REJECTION))
    await call(link, opening(6, [8, 9]))
    bad = asyncio.create_task(failure(link, Verify(Key(5, 1, 3), 3, (), proposal)))
    assert isinstance(await call(link, Verify(Key(6, 1, 2), 2, (), NO_PROPOSAL)), Verified)
    assert await bad is FailureCode.INVALID_ARGUMENT
    link.tell(Close(Key(5, 1, 3)))
    link.tell(Close(Key(6, 1, 2)))


async def test_case_27_frames_without_sense_do_not_end_the_stream(verifier: tuple[Replica, str]) -> None:
    async with open_channel(verifier[1]) as channel:
        stream = verifier_pb2_grpc.VerifierServiceStub(channel).Verify()
        model = verifier[0]._streams._info.model
        hello = replica_pb2.Hello(
            protocol_version=PROTOCOL_VERSION, vocabulary_fingerprint=model.vocabulary_fingerprint, vocabulary_size=512
        )
        await stream.write(verifier_pb2.VerifyRequest(hello=hello))
        assert (await stream.read()).HasField("welcome")
        await stream.write(verifier_pb2.VerifyRequest())
        await stream.write(verifier_pb2.VerifyRequest(hello=hello))
        empty = verifier_pb2.VerifierItem(session=1, epoch=1, base_length=1)
        await stream.write(verifier_pb2.VerifyRequest(items=verifier_pb2.VerifierItems(items=[empty])))
        reply = (await stream.read()).replies.replies[0]
        assert reply.error.code == replica_pb2.ITEM_ERROR_CODE_INVALID_ARGUMENT
        assert "event" in reply.error.message
        await stream.done_writing()


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        ({"protocol_version": 9}, "protocol version 9"),
        ({"vocabulary_fingerprint": "abc"}, "vocabulary abc"),
    ],
)
async def test_a_wrong_hello_is_refused(verifier: tuple[Replica, str], hello: dict[str, Any], words: str) -> None:
    model = verifier[0]._streams._info.model
    good = {
        "protocol_version": PROTOCOL_VERSION,
        "vocabulary_fingerprint": model.vocabulary_fingerprint,
        "vocabulary_size": 512,
    }
    async with open_channel(verifier[1]) as channel:
        stream = verifier_pb2_grpc.VerifierServiceStub(channel).Verify()
        await stream.write(verifier_pb2.VerifyRequest(hello=replica_pb2.Hello(**(good | hello))))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert words in str(caught.value.details())


async def test_admission_counts_blocks(link: ReplicaLink[Any, Any], verifier: tuple[Replica, str]) -> None:
    """256 tokens of KV hold four sessions of 64, and a fifth once one of them is gone."""
    for session in range(10, 14):
        await call(link, opening(session, [session, 1, 2]))
    assert await failure(link, opening(14, [14, 1, 2])) is FailureCode.RESOURCE_EXHAUSTED
    for session in range(10, 14):  # those inside are unharmed
        await next_token(link, session, [session, 1, 2], 3)
    link.tell(Close(Key(10, 1, 3)))
    assert isinstance(await call(link, opening(14, [14, 1, 2])), Opened)
    for session in range(11, 15):
        link.tell(Close(Key(session, 1, 3)))


async def test_the_prefix_cache_serves_a_second_session(link: ReplicaLink[Any, Any]) -> None:
    tokens = [*range(20, 60)]
    await call(link, opening(20, tokens))
    first = await next_token(link, 20, tokens, 40)
    link.tell(Close(Key(20, 1, 40)))
    reply = await call(link, opening(21, tokens))
    assert reply.cached_tokens == 32  # two full blocks of 16
    assert await next_token(link, 21, tokens, 40) == first
    link.tell(Close(Key(21, 1, 40)))
    assert (await call(link, opening(22, tokens, cache_salt="another tenant"))).cached_tokens == 0
    link.tell(Close(Key(22, 1, 40)))


async def test_case_24_leases_and_lost_streams_free_sessions(tiny_model: TinyModel) -> None:
    replica, address = await start_verifier(tiny_model("llama"), kv_tokens=256, lease_s=0.2)
    engine = replica._worker._core.engine  # type: ignore[attr-defined]
    whole = engine.available_tokens
    link, task = await connect(codec.VERIFIER, address)
    await call(link, opening(1, [5, 6, 7]))
    assert engine.available_tokens < whole
    await until(lambda: engine.available_tokens == whole, 10)  # the lease ran out
    assert await failure(link, Verify(Key(1, 1, 3), 3, (), NO_PROPOSAL)) is FailureCode.UNKNOWN_SESSION
    await call(link, opening(2, [5, 6, 7], epoch=2))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until(lambda: engine.available_tokens == whole, 10)  # the stream is gone
    await replica.stop()


async def test_case_21_a_draft_refuses_what_outgrows_its_context(tiny_model: TinyModel) -> None:
    replica, address = await start_draft(tiny_model("llama"), kv_tokens=32)
    link, task = await connect(codec.DRAFT, address)
    assert await failure(link, opening(1, [7] * 32)) is FailureCode.CONTEXT_LENGTH
    await call(link, opening(2, [7] * 28))
    reply = await call(link, Propose(Key(2, 1, 28), 28, (), 15))
    assert isinstance(reply, Drafted)
    assert len(reply.proposal) == 5  # 28 committed and 4 of the guessed tokens fill the 32
    assert await failure(link, Propose(Key(2, 1, 33), 28, (1,) * 5, 4)) is FailureCode.CONTEXT_LENGTH
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await replica.stop()


@pytest.mark.parametrize("rule", list(Rule))
async def test_case_07_two_holders_of_the_target_cannot_draw_differently(
    link: ReplicaLink[Any, Any], tiny_model: TinyModel, rule: Rule
) -> None:
    """Draws are a function of seed and position, and acceptance is decided in one place, the coordinator."""
    replica, address = await start_verifier(tiny_model("llama"))
    other, task = await connect(codec.VERIFIER, address)
    sampled = SamplingParams(temperature=0.9)
    proposal = Proposal(TokenTree.chain((40, 41, 42)), Source.MODEL)
    for seed in range(20):
        verdicts = []
        for holder in (link, other):
            await call(holder, opening(50, [5, 6, 7], epoch=1 + seed, params=sampled, rule=rule, seed=seed))
            reply = await call(holder, Verify(Key(50, 1 + seed, 3), 3, (), proposal))
            verdicts.append((reply.verdict.next_tokens, reply.verdict.thresholds))
        assert verdicts[0] == verdicts[1]
    link.tell(Close(Key(50, 20, 3)))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await replica.stop()
