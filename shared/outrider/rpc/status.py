"""Outrider's errors as gRPC statuses with google.rpc details, and back. The code tells whose fault it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import grpc
import grpc.aio
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from outrider import errors
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

_CODES: tuple[tuple[type[errors.OutriderError], int], ...] = (
    (errors.InvalidArgument, code_pb2.INVALID_ARGUMENT),
    (errors.ResourceExhausted, code_pb2.RESOURCE_EXHAUSTED),
    (errors.Unavailable, code_pb2.UNAVAILABLE),
    (errors.FailedPrecondition, code_pb2.FAILED_PRECONDITION),
    (errors.DeadlineExceeded, code_pb2.DEADLINE_EXCEEDED),
    (errors.Cancelled, code_pb2.CANCELLED),
    (errors.NotFound, code_pb2.NOT_FOUND),
    (errors.Unauthenticated, code_pb2.UNAUTHENTICATED),
)
_TYPES = {code: kind for kind, code in _CODES}
_DOMAIN = "outrider"


def to_status(error: BaseException) -> status_pb2.Status:
    """The google.rpc.Status of an error. What is not an OutriderError is our fault: INTERNAL, without details."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            status = status_pb2.Status(code=code, message=str(error))
            status.details.extend(_details(error))
            return status
    text = str(error) if isinstance(error, errors.OutriderError) else "internal error; the server's log has the cause"
    return status_pb2.Status(code=code_pb2.INTERNAL, message=text)


def _details(error: BaseException) -> list[any_pb2.Any]:
    if isinstance(error, errors.InvalidArgument):
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=str(error))
        # The value and the limit travel apart, so that a client rebuilds the very same error.
        info = error_details_pb2.ErrorInfo(
            reason="INVALID_ARGUMENT",
            domain=_DOMAIN,
            metadata={"value": errors.shorten(error.value), "limit": error.limit},
        )
        return [_pack(error_details_pb2.BadRequest(field_violations=[violation])), _pack(info)]
    if isinstance(error, errors.ResourceExhausted):
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        reason = error_details_pb2.ErrorInfo(
            reason="RESOURCE_EXHAUSTED", domain=_DOMAIN, metadata={"message": error.message}
        )
        return [_pack(error_details_pb2.RetryInfo(retry_delay=delay)), _pack(reason)]
    return []


def _pack(message: object) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)  # type: ignore[arg-type]
    return packed


def from_rpc_error(error: grpc.RpcError) -> errors.OutriderError:
    """The Outrider error that a failed call means; UNAVAILABLE for a peer that cannot be reached."""
    code, message = _code_and_message(error)
    status = _status_of(error)
    if status is not None and code == code_pb2.INVALID_ARGUMENT:
        return _invalid_argument(status) or errors.InvalidArgument("request", message, "valid")
    if code == code_pb2.RESOURCE_EXHAUSTED:
        return _resource_exhausted(status, message)
    kind = _TYPES.get(code)
    if kind is errors.InvalidArgument:
        return errors.InvalidArgument("request", message, "valid")
    if kind is not None:
        return kind(message)
    return errors.InternalError(message)


def _code_and_message(error: grpc.RpcError) -> tuple[int, str]:
    if not isinstance(error, grpc.Call | grpc.aio.AioRpcError):
        return code_pb2.UNKNOWN, str(error)
    code = error.code()
    return int(code.value[0]) if code is not None else code_pb2.UNKNOWN, error.details() or str(code)


def _status_of(error: grpc.RpcError) -> status_pb2.Status | None:
    trailing = error.trailing_metadata() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else None
    for key, value in trailing or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            return status_pb2.Status.FromString(value)
    return None


def _invalid_argument(status: status_pb2.Status) -> errors.InvalidArgument | None:
    request, info = error_details_pb2.BadRequest(), error_details_pb2.ErrorInfo()
    for detail in status.details:
        detail.Unpack(request) or detail.Unpack(info)
    if not request.field_violations or "limit" not in info.metadata:
        return None
    return _Quoted(request.field_violations[0].field, info.metadata["value"], info.metadata["limit"])


class _Quoted(errors.InvalidArgument):
    """An InvalidArgument whose value came over the wire, in the form it is printed in."""

    def __str__(self) -> str:
        return f"{self.field} is {self.value}, but must be {self.limit}"


def _resource_exhausted(status: status_pb2.Status | None, message: str) -> errors.ResourceExhausted:
    retry, info = error_details_pb2.RetryInfo(), error_details_pb2.ErrorInfo()
    for detail in status.details if status is not None else ():
        detail.Unpack(retry) or detail.Unpack(info)
    seconds = retry.retry_delay.ToNanoseconds() / 1e9 or 1.0
    return errors.ResourceExhausted(info.metadata.get("message") or message, seconds)


@asynccontextmanager
async def errors_as_status(context: grpc.aio.ServicerContext[object, object]) -> AsyncIterator[None]:
    """Wrap a handler's body: what it raises ends the call with the matching status; unexpected errors are logged."""
    try:
        yield
    except grpc.aio.AbortError:
        raise
    except Exception as raised:
        error = _only_cause(raised)
        if isinstance(error, errors.InternalError):
            log.exception("internal error")
        elif not isinstance(error, errors.OutriderError):
            if isinstance(error, grpc.aio.InternalError) or context.done():
                # gRPC's word for a message whose receiver has gone. Should it be there after all, it is told.
                log.info("a message could not be sent: %r", error)
                with suppress(grpc.aio.InternalError):
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "a message could not be sent")
                return
            log.exception("unexpected error in a handler")
        await context.abort_with_status(rpc_status.to_status(to_status(error)))


def _only_cause(error: BaseException) -> BaseException:
    """What a task group wraps, where that is one error."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
