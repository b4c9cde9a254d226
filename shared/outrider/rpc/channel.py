"""Options of every channel and server: message sizes, keepalive, encryption. One place, so both ends agree."""

from __future__ import annotations

import ipaddress

import grpc
import grpc.aio

from outrider.rpc.tls import ClientTls

MAX_MESSAGE_BYTES = 32 << 20
"""A frame of 1,000 sessions is well under 1 MiB; a tokenizer comes in pieces; a long prompt is 4 bytes a token."""

TOKENIZER_PIECE_BYTES = 1 << 20

_SIZES = [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.max_send_message_length", MAX_MESSAGE_BYTES)]

SILENCE_S = 15.0
"""After so many seconds without a sign of life a peer counts as gone: its machine or the network is, or it hangs."""

CHANNEL_OPTIONS = [
    *_SIZES,
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A replica that restarts is found again quickly.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]

SERVER_OPTIONS = [
    *_SIZES,
    ("grpc.max_concurrent_streams", 128),  # a coordinator needs two on its connection
    ("grpc.so_reuseport", 0),  # a second server on the same port is an error, not a silent share
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
]


def open_channel(address: str, tls: ClientTls | None = None, *, silence_s: float = SILENCE_S) -> grpc.aio.Channel:
    """A channel to `host:port`, encrypted with `tls`, whose files are read now. Raise ConfigError if they are bad.

    Its calls fail after `silence_s` seconds without a sign of life: a ping after two thirds, its answer in the rest.
    """
    options = [
        *CHANNEL_OPTIONS,
        ("grpc.keepalive_time_ms", round(silence_s * 2000 / 3)),
        # The first is about a network that acknowledges nothing, the second, a minute if unset, about a process that
        # hangs: its machine still acknowledges every byte.
        ("grpc.keepalive_timeout_ms", round(silence_s * 1000 / 3)),
        ("grpc.http2.ping_timeout_ms", round(silence_s * 1000 / 3)),
    ]
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, tls.credentials(), options=options)


def is_loopback(address: str) -> bool:
    """True if only this machine can reach `host:port`."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
