"""What a session's verifier was told to begin by itself, and the replies that will come of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from outrider.acceptance.outcomes import OutcomeCache
from outrider.acceptance.proposal import Proposal
from outrider.acceptance.tree import TokenTree
from outrider.protocol.items import DraftFirst, FollowUp, Foreseen, Key, VerifierReply, VerifierRequest
from outrider.rpc.replica_link import ReplicaLink

VerifierLink = ReplicaLink[VerifierRequest, VerifierReply]
Checked = Proposal | DraftFirst
"""What a round verifies: a proposal, or what the verifier drafts for it by itself."""


class Order(NamedTuple):
    """What follows a round, whatever comes of it; and what follows that, for so many rounds."""

    then: Checked
    rounds: int = 1


def deepest(checked: Checked | TokenTree) -> int:
    """Most tokens that can be accepted in a round."""
    if isinstance(checked, DraftFirst):
        return checked.max_tokens
    return (checked.tree if isinstance(checked, Proposal) else checked).depth


class Orders:
    """Orders of one opening of one session: at most one at a time, from the round in flight on.

    Coordinator and verifier decide a round alike, so both know without a word whether the next one is under way. Where
    an order stands for several rounds the verifier may be ahead by so many.
    """

    def __init__(self, link: VerifierLink, key: Callable[[int], Key]) -> None:
        """`key` makes the key of a base length."""
        self._link = link
        self._key = key
        self._base = 0  # of the round in flight, if there is an order for it; 0: there is none
        self._rounds = 0  # that follow by it
        self._outcomes: OutcomeCache | None = None  # None: nothing is foreseen, whatever comes is followed alike
        self._otherwise: Checked | None = None
        self._promised: tuple[int, Checked | None] = 0, None  # what was found last, and for how many committed tokens

    def give(
        self,
        base: int,
        in_flight: TokenTree | DraftFirst,
        foreseen: Sequence[Foreseen] = (),
        *,
        otherwise: Checked | None,
        rounds: int = 1,
    ) -> int:
        """Tell the verifier what to begin when the round of `in_flight` after `base` tokens has ended; bytes sent.

        `otherwise`: after an outcome that is not foreseen; `NO_PROPOSAL` is a plain round, None is nothing. It holds
        for `rounds`, where nothing is foreseen.
        """
        assert self._base == 0, "one order a round"
        assert rounds == 1 or not foreseen, "what was foreseen is of one round"
        self._base, self._otherwise, self._rounds = base, otherwise, rounds
        if foreseen:
            assert isinstance(in_flight, TokenTree), "of what the verifier drafts nothing can be foreseen"
            self._outcomes = OutcomeCache(base, in_flight, ((f.node, f.next_token, f.proposal) for f in foreseen))
        key = self._key(base)
        self._link.expect_after(key, deepest(in_flight) + 1 + self._longest(rounds - 1), rounds)
        first = otherwise if isinstance(otherwise, DraftFirst) else None
        plainly = otherwise is not None and first is None
        return self._link.tell(FollowUp(key, tuple(foreseen), plainly, first, rounds))

    def given(self, base: int) -> bool:
        """True if there is an order for this round."""
        return self._base == base

    def promised(self, committed: Sequence[int]) -> Checked | None:
        """What the verifier checks after `committed` by itself; None: it waits to be told."""
        if not self._base:
            return None
        # Tokens are only ever added, so their number says which they are: each round asks twice.
        if self._promised[0] != len(committed):
            self._promised = len(committed), self._find(committed)
        return self._promised[1]

    def _find(self, committed: Sequence[int]) -> Checked | None:
        if len(committed) <= self._base:
            return None
        if self._outcomes is not None:
            lookup = self._outcomes.find(committed)
            if lookup is None:
                return None
            if lookup.proposal is not None:
                return lookup.proposal
        return self._otherwise

    def begin(self, base: int) -> None:
        """The round after `base` tokens, which was promised, is the one in flight: its reply is expected.

        What is left of the order holds for it.
        """
        self._rounds -= 1
        self._link.begin_after(self._key(base), self._longest(self._rounds))
        if self._rounds:
            self._base, self._promised = base, (0, None)
        else:
            self.end()

    def end(self) -> None:
        """There is no order any more: no reply to a round that it promised is expected."""
        if self._base:
            self._link.end_after(self._key(self._base))
        self._base, self._promised = 0, (0, None)
        self._outcomes = self._otherwise = None

    def _longest(self, rounds: int) -> int:
        """Most tokens of so many rounds that follow by the order."""
        return rounds * (deepest(self._otherwise) + 1) if rounds and self._otherwise is not None else 0
