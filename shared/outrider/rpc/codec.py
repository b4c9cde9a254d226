"""The two replica streams side by side: which frames, items and stubs each one speaks.

Both have the same shape, so one server-side handler (`replica_server`) and one client-side link (`replica_link`) serve
both; a codec is all that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Generic, Protocol, TypeVar, cast

import grpc.aio

from outrider.protocol.items import DraftReply, DraftRequest, Verified, VerifierReply, VerifierRequest
from outrider.rpc import convert
from outrider.rpc.malformed import lenient
from outrider.rpc.verdicts import shared, write_verdicts
from outrider.v1 import draft_pb2, replica_pb2, verifier_pb2

Item = TypeVar("Item")
Reply = TypeVar("Reply")
ReplyIn = TypeVar("ReplyIn", contravariant=True)


class WireItem(Protocol):
    """What every item and reply has on the wire."""

    @property
    def session(self) -> int:
        """The session it belongs to."""

    def ByteSize(self) -> int:  # noqa: N802 (protobuf's name)
        """Its size on the wire."""


class ReplyToProto(Protocol[ReplyIn]):
    """Writes a reply."""

    def __call__(self, reply: ReplyIn, wire: Any = None) -> Any:
        """Into `wire`, an empty message, where that is given; the message."""


@dataclass(frozen=True, slots=True)
class Codec(Generic[Item, Reply]):
    """How one replica service maps frames to plain items. Frames stay `Any`: they differ by service only in name."""

    service: str
    item_to_proto: Callable[[Item], Any]
    item_from_proto: Callable[[Any], Item]
    reply_to_proto: ReplyToProto[Reply]
    reply_from_proto: Callable[[Any], Reply]
    hello_frame: Callable[[replica_pb2.Hello], Any]
    items_frame: Callable[[Iterable[Any]], Any]
    welcome_frame: Callable[[replica_pb2.Welcome], Any]
    replies_frame: Callable[[Iterable[Reply], ReplyToProto[Reply]], Any]
    draining_frame: Callable[[replica_pb2.Draining], Any]
    open_stream: Callable[[grpc.aio.Channel], grpc.aio.StreamStreamCall[Any, Any]]
    """Reads frames, and an Undecodable for each that is none; the stubs' own decoders would give None."""


# Replies are written where they stand in their frame: made apart and then put in, they take twice as long.


def _verifier_items_frame(items: Iterable[verifier_pb2.VerifierItem]) -> verifier_pb2.VerifyRequest:
    frame = verifier_pb2.VerifyRequest()
    frame.items.items.extend(items)
    return frame


def _verifier_replies_frame(
    replies: Iterable[VerifierReply], write: ReplyToProto[VerifierReply]
) -> verifier_pb2.VerifyResponse:
    frame = verifier_pb2.VerifyResponse()
    add = frame.replies.replies.add
    for common, group in groupby(replies, shared):
        alike = list(group)
        if common is not None and len(alike) > 1:
            write_verdicts(cast("list[Verified]", alike), common, add().verdicts)
        else:
            for reply in alike:
                write(reply, add())
    return frame


def _draft_items_frame(items: Iterable[draft_pb2.DraftItem]) -> draft_pb2.DraftRequest:
    frame = draft_pb2.DraftRequest()
    frame.items.items.extend(items)
    return frame


def _draft_replies_frame(replies: Iterable[DraftReply], write: ReplyToProto[DraftReply]) -> draft_pb2.DraftResponse:
    frame = draft_pb2.DraftResponse()
    add = frame.replies.replies.add
    for reply in replies:
        write(reply, add())
    return frame


VERIFIER: Codec[VerifierRequest, VerifierReply] = Codec(
    service="outrider.v1.VerifierService",
    item_to_proto=convert.verifier_item_to_proto,
    item_from_proto=convert.verifier_item_from_proto,
    reply_to_proto=convert.verifier_reply_to_proto,
    reply_from_proto=convert.verifier_reply_from_proto,
    hello_frame=lambda hello: verifier_pb2.VerifyRequest(hello=hello),
    items_frame=_verifier_items_frame,
    welcome_frame=lambda welcome: verifier_pb2.VerifyResponse(welcome=welcome),
    replies_frame=_verifier_replies_frame,
    draining_frame=lambda draining: verifier_pb2.VerifyResponse(draining=draining),
    open_stream=lambda channel: channel.stream_stream(
        "/outrider.v1.VerifierService/Verify",
        request_serializer=verifier_pb2.VerifyRequest.SerializeToString,
        response_deserializer=lenient(verifier_pb2.VerifyResponse.FromString),
    )(),
)

DRAFT: Codec[DraftRequest, DraftReply] = Codec(
    service="outrider.v1.DraftService",
    item_to_proto=convert.draft_item_to_proto,
    item_from_proto=convert.draft_item_from_proto,
    reply_to_proto=convert.draft_reply_to_proto,
    reply_from_proto=convert.draft_reply_from_proto,
    hello_frame=lambda hello: draft_pb2.DraftRequest(hello=hello),
    items_frame=_draft_items_frame,
    welcome_frame=lambda welcome: draft_pb2.DraftResponse(welcome=welcome),
    replies_frame=_draft_replies_frame,
    draining_frame=lambda draining: draft_pb2.DraftResponse(draining=draining),
    open_stream=lambda channel: channel.stream_stream(
        "/outrider.v1.DraftService/Draft",
        request_serializer=draft_pb2.DraftRequest.SerializeToString,
        response_deserializer=lenient(draft_pb2.DraftResponse.FromString),
    )(),
)
