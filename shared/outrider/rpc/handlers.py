"""Taking a gRPC method's handler apart, for interceptors that put something around it."""

from __future__ import annotations

from typing import Any

import grpc


def taken_apart(handler: Any) -> tuple[Any, Any]:
    """What answers a call, and the function of grpc that makes such a handler out of it, a decoder and an encoder."""
    inner = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    return inner, make
