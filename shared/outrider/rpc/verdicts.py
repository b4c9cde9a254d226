"""Protobuf <-> plain values: the verdicts of rounds that shared a step, in columns.

That is nearly all that a verifier says, in every round of every session: written one message each, they take more than
twice as long, of the interpreter that the device thread needs for the next pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from itertools import accumulate, chain, pairwise
from typing import TypeAlias

from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Source, Verdict
from outrider.acceptance.tree import TokenTree
from outrider.errors import InternalError
from outrider.protocol.items import Key, Step, Verified, VerifierReply
from outrider.rpc.values import step_from_proto, write_step
from outrider.v1 import verifier_pb2

Shared: TypeAlias = tuple[int, Step]
"""What the verdicts of one step have in common: its microseconds, and what else is said of it."""


def shared(reply: VerifierReply) -> Shared | None:
    """What it has in common with others of its step; None if it has no place in columns."""
    if not isinstance(reply, Verified):
        return None
    _, (_, thresholds, logprobs, microseconds), drafted, step = reply
    if thresholds or logprobs or not (drafted is NO_PROPOSAL or _is_bare_chain(drafted)):
        return None
    return microseconds, step


def _is_bare_chain(drafted: Proposal) -> bool:
    return drafted.source is Source.MODEL and not drafted.q and drafted.tree.is_chain


def write_verdicts(rounds: Sequence[Verified], common: Shared, wire: verifier_pb2.Verdicts) -> None:
    """Fill in the wire form of at least one verdict, all of which have this in `common`, as `shared` says."""
    keys, verdicts, drafted, _ = zip(*rounds, strict=True)
    wire.sessions[:], wire.epochs[:], wire.base_lengths[:] = zip(*keys, strict=True)
    next_tokens, _, _, _ = zip(*verdicts, strict=True)
    wire.next_tokens[:] = chain.from_iterable(next_tokens)
    if len(wire.next_tokens) != len(rounds) or not all(next_tokens):
        wire.next_counts[:] = map(len, next_tokens)
    drafted_tokens = [proposal.tree.tokens for proposal in drafted]
    if any(drafted_tokens):
        wire.drafted_tokens[:] = chain.from_iterable(drafted_tokens)
        wire.drafted_counts[:] = map(len, drafted_tokens)
    wire.step_microseconds, step = common
    write_step(step, wire)


def verdicts_from_proto(wire: verifier_pb2.Verdicts) -> Iterator[Verified]:
    """The replies, in their order. Raise InternalError if the columns do not fit each other: the peer is broken.

    They are made one at a time: as plain values, all that a hostile frame has room for would fill the memory.
    """
    sessions, epochs, base_lengths = wire.sessions[:], wire.epochs[:], wire.base_lengths[:]
    if not len(sessions) == len(epochs) == len(base_lengths):
        counted = f"{len(sessions)} sessions, {len(epochs)} epochs, {len(base_lengths)} base lengths"
        raise InternalError(f"verdicts of {counted}")
    next_tokens = _lists("next tokens", wire.next_tokens, wire.next_counts[:] or [1] * len(sessions), sessions)
    drafted = _lists("drafted tokens", wire.drafted_tokens, wire.drafted_counts[:] or [0] * len(sessions), sessions)
    microseconds, step = wire.step_microseconds, step_from_proto(wire)
    return (
        Verified(key, Verdict(tokens, (), (), microseconds), _drafted(guess), step)
        for key, tokens, guess in zip(map(Key, sessions, epochs, base_lengths), next_tokens, drafted, strict=True)
    )


def _drafted(tokens: tuple[int, ...]) -> Proposal:
    return Proposal(TokenTree.chain(tokens), Source.MODEL) if tokens else NO_PROPOSAL


def _lists(name: str, wire: Sequence[int], counts: Sequence[int], rounds: Sized) -> Iterator[tuple[int, ...]]:
    """The lists that a column was made of."""
    numbers = tuple(wire[:])
    if len(counts) != len(rounds) or sum(counts) != len(numbers):
        counted = f"{len(numbers)} {name} and {len(counts)} counts, in all {sum(counts)}"
        raise InternalError(f"verdicts of {len(rounds)} rounds have {counted}")
    return (numbers[start:end] for start, end in pairwise(accumulate(counts, initial=0)))
