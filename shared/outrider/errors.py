"""The errors Outrider raises, by whose fault they are; `outrider.rpc.status` maps them to gRPC status codes and back.

Every error about input names the field, the value it had and the limit it broke, as structured data as well as text.
"""

from __future__ import annotations

from dataclasses import dataclass


class OutriderError(Exception):
    """Base class; catch it to catch everything Outrider raises on purpose."""


@dataclass(eq=False)
class InvalidArgument(OutriderError):
    """The caller's fault: `field` had `value`, which breaks `limit` (a phrase such as "at most 2048")."""

    field: str
    value: object
    limit: str

    def __str__(self) -> str:
        return f"{self.field} is {shorten(self.value)}, but must be {self.limit}"


@dataclass(eq=False)
class ResourceExhausted(OutriderError):
    """No room now; `retry_after_s` seconds is a sensible wait."""

    message: str
    retry_after_s: float = 1.0

    def __str__(self) -> str:
        return f"{self.message}; retry after {self.retry_after_s:g} s"


class Unavailable(OutriderError):
    """A service that is needed cannot be reached now; retrying later may work."""


class FailedPrecondition(OutriderError):
    """The system is not in a state for this: wrong protocol version, another vocabulary."""


class DeadlineExceeded(OutriderError):
    """The caller's deadline passed first."""


class Cancelled(OutriderError):
    """The caller, or an Abort, ended the work."""


class Unauthenticated(OutriderError):
    """The caller brought no API key, or none that is known here."""


class NotFound(OutriderError):
    """What was named does not exist."""


class InternalError(OutriderError):
    """Our own fault: a bug or a broken peer, never the caller's input."""


class ModelLoadError(OutriderError):
    """A model file, architecture or size that cannot be served; the message says which and what to do."""


class ConfigError(OutriderError):
    """A setting that is unknown or wrong; found at start-up."""


def shorten(value: object, limit: int = 80) -> str:
    """A value as an error shows it: its repr, cut to `limit` characters."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
