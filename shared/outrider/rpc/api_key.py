"""API keys as clients send them and as files store them: the key itself in a header, its hash at rest."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable

from outrider.errors import InvalidArgument

VARIABLE = "OUTRIDER_API_KEY"
"""Environment variable that clients take the key from."""

PREFIX = "outrider_"
_HEADER = "authorization"
_SCHEME = "bearer "
MAX_LENGTH = 256

NAME_RULE = "1 to 64 letters, digits, dots, dashes or underscores"


def new_key() -> str:
    """A new key: 256 random bits, written so that leak scanners recognise it."""
    return PREFIX + secrets.token_urlsafe(32)


def is_name(text: str) -> bool:
    """True if a key or a tenant may be called that; see NAME_RULE."""
    return re.fullmatch(r"[A-Za-z0-9._-]{1,64}", text) is not None


def digest(key: str) -> str:
    """What is stored of a key: its SHA-256 in hex.

    A key is 256 random bits, so nothing slower is needed: there is nothing to guess that a slow hash could delay.
    """
    return hashlib.sha256(key.encode()).hexdigest()


def to_metadata(key: str | None) -> tuple[tuple[str, str], ...]:
    """The metadata of a call made with `key`; none without. Raise InvalidArgument, which does not show the key."""
    if not key:
        return ()
    if len(key) > MAX_LENGTH or not (key.isascii() and key.isprintable()) or " " in key:
        limit = f"at most {MAX_LENGTH} printable ASCII characters without spaces"
        raise InvalidArgument("api_key", "a secret", limit)
    return ((_HEADER, f"Bearer {key}"),)


def from_metadata(metadata: Iterable[tuple[str, str | bytes]] | None) -> str | None:
    """The key a call was made with; None if it brought none in the form that `to_metadata` gives it."""
    for name, value in metadata or ():
        if name == _HEADER and isinstance(value, str) and value[: len(_SCHEME)].lower() == _SCHEME:
            return value[len(_SCHEME) :].strip()
    return None
