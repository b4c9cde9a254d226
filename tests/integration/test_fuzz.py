"""A few seconds of what `python -m tests.benchmarks.fuzz` does for long: hostile messages against every server."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import InternalError, InvalidArgument, OutriderError
from outrider.protocol.items import PROTOCOL_VERSION
from outrider.rpc import codec, replica_server
from outrider.rpc.channel import open_channel
from outrider.rpc.verdicts import verdicts_from_proto
from outrider.v1 import draft_pb2, generation_pb2, model_pb2, replica_pb2, verifier_pb2, verifier_pb2_grpc
from tests.cluster import Cluster, running_cluster
from tests.conftest import TinyModel
from tests.fuzz.fuzzer import Fuzzer
from tests.fuzz.impostor import FRAMES, try_link
from tests.fuzz.inputs import Hostile

SOURCES = st.integers(0, 2**32).map(random.Random)

SETTINGS: dict[str, Any] = {"default_max_tokens": 6, "max_sessions": 32, "max_waiting": 64}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tiny_model: TinyModel) -> AsyncIterator[Cluster]:
    target, own = tiny_model("llama"), {"draft_layers": 2, "draft_kv_tokens": 4096}
    async with running_cluster(target, tiny_model("llama", layers=2), verifier=own, **SETTINGS) as running:
        yield running


@pytest.mark.asyncio(loop_scope="module")
async def test_hostile_messages_harm_nobody(cluster: Cluster) -> None:
    report = await Fuzzer(cluster, seed=7).run(inputs=400, check_every=150)
    assert report.findings == []
    assert report.total >= 400
    assert len(report.inputs) == 4
    # It is no test if everything is refused at the door.
    reached = ("coordinator Generate OK", "verifier item verdict", "draft item proposal")
    assert all(report.codes[code] > 0 for code in reached), report.codes


@pytest.mark.asyncio(loop_scope="module")
async def test_the_check_notices_what_the_fuzzer_must_not_miss(cluster: Cluster) -> None:
    fuzzer = Fuzzer(cluster, seed=7)
    await fuzzer.run(inputs=1, check_every=1)
    assert fuzzer.report.findings == []
    fuzzer._expected = (1, 2, 3)
    fuzzer._baseline["running"] = 3
    fuzzer._errors.seen.append("a stack trace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.fuzz.fuzzer.ANSWER_S", 0.5)
        await fuzzer.check("now")
    found = " / ".join(fuzzer.report.findings)
    for words in ("got other tokens", "held", "a stack trace"):
        assert words in found


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x12\x02\xff\xfe", b"\x0a\x7f"], ids=["tag", "utf-8", "length"])
async def test_bytes_that_are_no_message_are_the_callers_fault(
    cluster: Cluster, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_channel(cluster.address) as channel:
        for method in ("Generate", "Tokenize"):
            path = f"/outrider.v1.GenerationService/{method}"
            stream = method == "Generate"
            call = channel.unary_stream(path)(data, timeout=10).read() if stream else channel.unary_unary(path)(data)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert f"request is '{len(data)} bytes'" in str(caught.value.details())
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.asyncio(loop_scope="module")
async def test_case_27_a_frame_that_is_no_message_does_not_end_the_stream(cluster: Cluster) -> None:
    model = cluster.coordinator.replicas.known_target.model
    hello = replica_pb2.Hello(
        protocol_version=PROTOCOL_VERSION, vocabulary_fingerprint=model.vocabulary_fingerprint, vocabulary_size=512
    )
    item = verifier_pb2.VerifierItem(session=1, epoch=1, base_length=2)
    item.open.CopyFrom(replica_pb2.Open(tokens=[5, 6], prompt_length=2, max_length=16))
    frame = verifier_pb2.VerifyRequest(items=verifier_pb2.VerifierItems(items=[item]))
    async with open_channel(f"127.0.0.1:{cluster.verifiers[0].server.port}") as channel:
        call = channel.stream_stream(
            "/outrider.v1.VerifierService/Verify", response_deserializer=verifier_pb2.VerifyResponse.FromString
        )(timeout=20)
        await call.write(verifier_pb2.VerifyRequest(hello=hello).SerializeToString())
        assert (await call.read()).HasField("welcome")
        await call.write(b"\xff\xff\xff")
        await call.write(frame.SerializeToString())
        (reply,) = (await call.read()).replies.replies
        assert reply.HasField("opened")
        call.cancel()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("seed", [3, 9])
async def test_a_coordinators_link_bears_what_no_replica_would_send(
    cluster: Cluster, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Once a frame that is no message ended the whole coordinator."""
    caplog.set_level(logging.INFO, "outrider.rpc")
    sent = Counter[str]()
    assert await try_link(random.Random(seed), cluster.drafts[0]._info, sent, patience_s=20) == []
    assert sent["link"] == FRAMES
    assert "that is no message" in caplog.text
    assert "drains for at most" in caplog.text
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


async def greeted(cluster: Cluster, channel: grpc.aio.Channel) -> Any:
    """A stream to the verifier after its handshake."""
    model = cluster.coordinator.replicas.known_target.model
    call = verifier_pb2_grpc.VerifierServiceStub(channel).Verify(timeout=20)
    hello = replica_pb2.Hello(
        protocol_version=PROTOCOL_VERSION, vocabulary_fingerprint=model.vocabulary_fingerprint, vocabulary_size=512
    )
    await call.write(verifier_pb2.VerifyRequest(hello=hello))
    assert (await call.read()).HasField("welcome")
    return call


async def to_the_end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


def frame_of(*items: verifier_pb2.VerifierItem) -> verifier_pb2.VerifyRequest:
    return verifier_pb2.VerifyRequest(items=verifier_pb2.VerifierItems(items=items))


@pytest.mark.asyncio(loop_scope="module")
async def test_items_beyond_a_frames_limit_are_answered_too(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_server, "MAX_ITEMS_PER_FRAME", 2)
    async with open_channel(f"127.0.0.1:{cluster.verifiers[0].server.port}") as channel:
        call = await greeted(cluster, channel)
        items = [verifier_pb2.VerifierItem(session=number, epoch=1, base_length=1) for number in range(4)]
        await call.write(frame_of(*items))
        replies = (await call.read()).replies.replies
        call.cancel()
    assert {reply.session: "at most 2" in reply.error.message for reply in replies} == {
        0: False,
        1: False,
        2: True,
        3: True,
    }


@pytest.mark.asyncio(loop_scope="module")
async def test_a_peer_that_never_reads_loses_its_stream_alone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replica_server, "MAX_UNREAD_REPLIES", 500)
    items = [verifier_pb2.VerifierItem(session=number, epoch=1, base_length=1) for number in range(1000)]
    address = f"127.0.0.1:{cluster.verifiers[0].server.port}"
    small_window = [("grpc.http2.bdp_probe", 0)]  # what the two ends buffer on the way stays small
    async with grpc.aio.insecure_channel(address, small_window) as channel:
        call = await greeted(cluster, channel)
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for _ in range(50):
                await call.write(frame_of(*items))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await to_the_end(call)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "replies are unread" in str(caught.value.details())
    assert (await cluster.generate([1, 2, 3], max_tokens=3, ignore_eos=True)).usage.completion_tokens == 3
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.asyncio(loop_scope="module")
async def test_generators_are_guarded_too(cluster: Cluster) -> None:
    async with open_channel(f"127.0.0.1:{cluster.verifiers[0].server.port}") as channel:
        call = channel.unary_stream(
            "/outrider.v1.ModelService/GetTokenizer",
            response_deserializer=model_pb2.GetTokenizerResponse.FromString,
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"\xff\xff\xff", timeout=10).read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        pieces = [piece async for piece in call(b"", timeout=10)]
    assert {piece.file for piece in pieces} == {"tokenizer.json", "chat.json"}


@given(SOURCES, st.sampled_from([codec.VERIFIER, codec.DRAFT]), st.booleans())
def test_an_item_is_converted_or_refused(source: random.Random, service: codec.Codec[Any, Any], filled: bool) -> None:
    """No other error, whatever stands in the fields: those are sorted out before the device thread sees them."""
    kind: Any = verifier_pb2.VerifierItem if service is codec.VERIFIER else draft_pb2.DraftItem
    item = Hostile(source).fill(kind(), 1.0 if filled else 0.5)
    with suppress(InvalidArgument):
        service.item_from_proto(item)


@given(st.binary(max_size=200), st.sampled_from([codec.VERIFIER, codec.DRAFT]))
def test_a_reply_is_converted_or_refused(data: bytes, service: codec.Codec[Any, Any]) -> None:
    """What a broken replica answers is an error of one session, which the link knows how to take."""
    kind: Any = verifier_pb2.VerifierReply if service is codec.VERIFIER else draft_pb2.DraftReply
    reply = kind()
    try:
        reply.MergeFromString(data)
    except Exception:  # gRPC hands only messages on
        return
    with suppress(OutriderError):
        service.reply_from_proto(reply)


@given(SOURCES, st.booleans())
def test_verdicts_in_columns_are_converted_or_refused(source: random.Random, filled: bool) -> None:
    wire = Hostile(source).fill(verifier_pb2.Verdicts(), 1.0 if filled else 0.5)
    assert isinstance(wire, verifier_pb2.Verdicts)
    with suppress(InternalError):
        assert len(list(verdicts_from_proto(wire))) == len(wire.sessions)


@settings(max_examples=30)
@given(SOURCES)
def test_hostile_messages_are_messages(source: random.Random) -> None:
    message = Hostile(source).fill(generation_pb2.GenerateRequest(), 1.0)
    assert generation_pb2.GenerateRequest.FromString(message.SerializeToString()).ByteSize() == message.ByteSize()
