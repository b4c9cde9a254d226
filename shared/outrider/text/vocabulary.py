"""Vocabularies: tokens by id, their fingerprint, and where two of them differ."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

HOLE = ""
"""Stands at an id that no token has."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The lowest id to which two vocabularies give different tokens."""

    token_id: int
    left: str
    right: str

    def __str__(self) -> str:
        return f"token {self.token_id} is {self.left!r} in one vocabulary and {self.right!r} in the other"


def tokens_by_id(vocabulary: Mapping[str, int]) -> list[str]:
    """The tokens in id order, as long as the highest id plus one, with `HOLE` where no token has the id."""
    tokens = [HOLE] * (max(vocabulary.values(), default=-1) + 1)
    for token, token_id in vocabulary.items():
        tokens[token_id] = token
    return tokens


def fingerprint(tokens: Sequence[str]) -> str:
    """SHA-256 over every (id, token), in hexadecimal; holes do not count, so trailing ones change nothing."""
    digest = hashlib.sha256()
    for token_id, token in enumerate(tokens):
        if token != HOLE:
            data = token.encode("utf-8", "surrogatepass")
            digest.update(struct.pack("<II", token_id, len(data)))
            digest.update(data)
    return digest.hexdigest()


def first_difference(left: Sequence[str], right: Sequence[str]) -> Difference | None:
    """The lowest id that both vocabularies use, for different tokens; None if a drafter of one can serve the other.

    An id that only one of them uses, beyond the other's end or in a hole of it, is no difference: what the target
    does not know it never accepts, and what the drafter does not know it never proposes.
    """
    for token_id, (ours, theirs) in enumerate(zip(left, right, strict=False)):
        if ours != theirs and HOLE not in (ours, theirs):
            return Difference(token_id, ours, theirs)
    return None
