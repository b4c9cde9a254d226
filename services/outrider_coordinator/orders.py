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


MARGIN = 3
"""With so many rounds of an order still to begin, it is time to say what follows them.

What is said while the last of them runs comes too late wherever a coordinator takes longer for all its sessions'
verdicts than the verifier for a pass; who has no order then misses that pass. And a verifier may have begun a plain
round before it tells of the last one.
"""


class Orders:
    """Orders of one opening of one session, from the round in flight on: one, and what extends it.

    Coordinator and verifier decide a round alike, so both know without a word whether the next one is under way. Where
    an order stands for several rounds the verifier may be ahead by so many.
    """

    def __init__(self, link: VerifierLink, key: Callable[[int], Key]) -> None:
        """`key` makes the key of a base length."""
        self._link = link
        self._key = key
        self._base = 0  # of the round in flight, if there is an order for it; 0: there is none
        self._rounds = 0  # that follow by it
        self._first = 0  # base of the round that it, or the one that it extends, was given in: its name
        self._extension: Order | None = None
        self._depth = 0  # of the round in flight
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
        self._base = self._first = base
        self._otherwise, self._rounds, self._depth = otherwise, rounds, deepest(in_flight)
        if foreseen:
            assert isinstance(in_flight, TokenTree), "of what the verifier drafts nothing can be foreseen"
            self._outcomes = OutcomeCache(base, in_flight, ((f.node, f.next_token, f.proposal) for f in foreseen))
        key = self._key(base)
        self._link.expect_after(key, self._latest(), rounds)
        first = otherwise if isinstance(otherwise, DraftFirst) else None
        plainly = otherwise is not None and first is None
        return self._link.tell(FollowUp(key, tuple(foreseen), plainly, first, rounds))

    def extend(self, order: Order) -> int:
        """Tell the verifier what follows the rounds that `standing` tells of; bytes sent."""
        assert self._extension is None, "one extension at a time"
        self._extension = order
        self._link.extend_after(self._key(self._base), self._latest(), order.rounds)
        first = order.then if isinstance(order.then, DraftFirst) else None
        return self._link.tell(FollowUp(self._key(self._first), (), first is None, first, order.rounds, extends=True))

    def wants_more(self, base: int) -> bool:
        """True if it is time to say what follows the round after `base`, or the last one that an order is for."""
        if not self.given(base):
            return True
        return self._extension is None and self._outcomes is None and self._rounds <= MARGIN

    def standing(self, base: int) -> Order | None:
        """What the order says for after the round in flight, that after `base`; None: there is no order."""
        if not self.given(base) or self._otherwise is None:
            return None
        return Order(self._otherwise, self._rounds)

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
        self._depth = deepest(self._otherwise) if self._otherwise is not None else 0
        if not self._rounds and self._extension is not None:
            (self._otherwise, self._rounds), self._extension = self._extension, None
        self._link.begin_after(self._key(base), self._latest())
        if self._rounds:
            self._base, self._promised = base, (0, None)
        else:
            self.end()

    def end(self) -> None:
        """There is no order any more: no reply to a round that it promised is expected."""
        if self._base:
            self._link.end_after(self._key(self._base))
        self._base, self._promised = 0, (0, None)
        self._outcomes = self._otherwise = self._extension = None

    def _latest(self) -> int:
        """How many tokens after the round in flight the last of those that follow it begins at most."""
        latest = last = self._depth + 1
        parts = (self._otherwise, self._rounds), self._extension or (None, 0)
        for then, rounds in parts:
            if rounds:
                last = 1 if then is None else deepest(then) + 1
                latest += rounds * last
        return latest - last
