"""What a session's verifier was told to begin by itself, and the replies that will come of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outrider.acceptance.outcomes import OutcomeCache
from outrider.acceptance.proposal import NO_PROPOSAL, Proposal
from outrider.acceptance.tree import TokenTree
from outrider.protocol.items import FollowUp, Foreseen, Key, VerifierReply, VerifierRequest
from outrider.rpc.replica_link import ReplicaLink

VerifierLink = ReplicaLink[VerifierRequest, VerifierReply]


class Orders:
    """Orders of one opening of one session: at most one at a time, for the round in flight.

    Coordinator and verifier decide a round alike, so both know without a word whether the next one is under way.
    """

    def __init__(self, link: VerifierLink, key: Callable[[int], Key]) -> None:
        """`key` makes the key of a base length."""
        self._link = link
        self._key = key
        self._base = 0  # of the round in flight when the order was given; 0: there is none
        self._outcomes = OutcomeCache(0, NO_PROPOSAL.tree, ())
        self._plainly = False
        self._expected: list[Key] = []
        self._promised: tuple[int, Proposal | None] = 0, None  # what was found last, and for how many committed tokens

    def give(self, base: int, in_flight: TokenTree, foreseen: Sequence[Foreseen], *, plainly: bool) -> int:
        """Tell the verifier what to begin when the round of `in_flight` after `base` tokens has ended; bytes sent."""
        assert self._base == 0, "one order a round"
        self._base, self._plainly = base, plainly
        self._outcomes = OutcomeCache(base, in_flight, ((f.node, f.next_token, f.proposal) for f in foreseen))
        deepest = max(in_flight.depths(), default=0)
        self._expected = [self._key(base + length) for length in range(1, deepest + 2)]
        for key in self._expected:
            self._link.expect(key)
        return self._link.tell(FollowUp(self._key(base), tuple(foreseen), plainly))

    def given(self, base: int) -> bool:
        """True if there is an order for this round."""
        return self._base == base

    def promised(self, committed: Sequence[int]) -> Proposal | None:
        """The proposal that the verifier checks after `committed` by itself; None: it waits to be told."""
        if not self._base:
            return None
        # Tokens are only ever added, so their number says which they are: each round asks twice.
        if self._promised[0] != len(committed):
            self._promised = len(committed), self._find(committed)
        return self._promised[1]

    def _find(self, committed: Sequence[int]) -> Proposal | None:
        lookup = self._outcomes.find(committed)
        if lookup is None:
            return None
        if lookup.proposal is not None:
            return lookup.proposal
        return NO_PROPOSAL if self._plainly else None

    def end(self, kept: Key | None = None) -> None:
        """The round has ended: no reply is expected any more but, where it was promised, `kept`."""
        for key in self._expected:
            if key != kept:
                self._link.forget(key)
        self._base, self._expected, self._promised = 0, [], (0, None)
