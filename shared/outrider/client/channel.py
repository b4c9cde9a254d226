"""How the client connects: retries, keepalive, deadlines, its API key."""

from __future__ import annotations

import json
import math
import os

from outrider import __version__
from outrider.errors import InvalidArgument
from outrider.rpc import api_key
from outrider.rpc.channel import MAX_MESSAGE_BYTES, is_loopback
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

DEFAULT_ADDRESS = "127.0.0.1:7400"
DEFAULT_TIMEOUT_S = 600.0

_SERVICE = "outrider.v1.GenerationService"

# Unary calls are idempotent, so a coordinator that is just (re)starting is tried again: after about 0.1, 0.2 and
# 0.4 s. Generate is never repeated: an answer may have begun.
_SERVICE_CONFIG = {
    "methodConfig": [
        {
            "name": [{"service": _SERVICE, "method": method} for method in ("Abort", "Tokenize", "GetModelInfo")],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}


def channel_options(address: str) -> list[tuple[str, str | int]]:
    """gRPC channel arguments for a coordinator at `address`."""
    options: list[tuple[str, str | int]] = [
        ("grpc.service_config", json.dumps(_SERVICE_CONFIG)),
        ("grpc.primary_user_agent", f"outrider-client/{__version__}"),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        # A coordinator that vanished without a goodbye is noticed within 40 s, however long a stream has been quiet.
        # A coordinator that comes back is found again within a second or two; gRPC's own back-off grows to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    if is_loopback(address):
        options.append(("grpc.enable_http_proxy", 0))  # a proxy named in the environment cannot reach this machine
    return options


def deadline(timeout: float | None, default: float) -> float:
    """The seconds a call may take: `timeout`, or the client's default. Never unlimited."""
    seconds = default if timeout is None else timeout
    if not (math.isfinite(seconds) and seconds > 0):
        raise InvalidArgument("timeout", seconds, "a positive number of seconds")
    return seconds


def call_metadata(key: str | None, address: str, *, encrypted: bool) -> tuple[tuple[str, str], ...]:
    """What every call carries: the API key, from the environment if `key` is None."""
    metadata = api_key.to_metadata(os.environ.get(api_key.VARIABLE) if key is None else key)
    if metadata and not encrypted and not is_loopback(address):
        log.warning("the API key travels to %s unencrypted: connect with tls", address)
    return metadata
