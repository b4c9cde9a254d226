"""A drafting round: tokens guessed one after another after what is committed, and beside them their next likeliest.

The pass that gives a token ranks the others of its place too, so these siblings cost no pass. Their KV is not computed:
where the target takes one, it is one more committed token to run.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Source, SparseQ
from outrider.acceptance.tree import ROOT, TokenTree
from outrider.engine.batch import Feed
from outrider.engine.runner import Growth
from outrider.engine.schedule import Demand
from outrider.engine.sessions import Session
from outrider.protocol.items import Drafted, DraftedAhead
from outrider.sampling.draft import DraftedToken, DraftRow


class Drafting(Protocol):
    """A session's work on a draft replica, pass by pass."""

    @property
    def ranks(self) -> int:
        """How many tokens it wants ranked at each row of the coming pass; 0: it wants one drafted at each."""

    @property
    def least_ranks(self) -> int:
        """How many of them it cannot do without."""

    @property
    def steps_left(self) -> int:
        """How many tokens it still wants one after another; 0 before it is known where they begin."""

    @property
    def most_siblings(self) -> int:
        """Most siblings that one of them wants."""

    @property
    def draws_apart(self) -> bool:
        """Whether all that it wants can be drawn without the host between, and verified from where that is drawn."""

    def demand(self, session: Session[Drafting]) -> Demand:
        """What it has to run next."""

    def feed(self, session: Session[Drafting]) -> Feed:
        """The pass that `demand` leads up to."""

    def rows(self, session: Session[Drafting]) -> list[DraftRow]:
        """The rows of that pass, one for each row of its logits."""

    def positions(self, session: Session[Drafting]) -> list[int]:
        """Where in the session's text the tokens of those rows would stand."""

    def take(self, session: Session[Drafting], drafted: Sequence[DraftedToken]) -> None:
        """Take in the drafted tokens of a pass, one a row."""

    def take_ranked(self, session: Session[Drafting], ranked: Sequence[tuple[int, ...]]) -> None:
        """Take in the ranked tokens of a pass, one list a row; may be more of them than it wants."""

    def growth(self, session: Session[Drafting]) -> Growth:
        """The tokens that it has so far, as something that grows on the device. They are not run yet."""

    def ends_alone(self, session: Session[Drafting]) -> bool:
        """Whether one step beyond what is left may follow at once, for which nobody waits: there is nobody else."""

    def take_grown(self, session: Session[Drafting], steps: Sequence[Sequence[tuple[int, ...]]], *, more: bool) -> None:
        """Take in the ranked tokens of several passes over the growth, [steps][branches]; one `more` is under way."""

    def reply(self, session: Session[Drafting]) -> Drafted | DraftedAhead | None:
        """The result, when it is there."""

    @property
    def awaited(self) -> bool:
        """Whether somebody waits for what comes of its next pass."""

    def is_over(self, session: Session[Drafting]) -> bool:
        """Whether it wants no pass any more."""


DraftSession = Session[Drafting]


@dataclass(slots=True)
class Growing:
    """A chain of drafted tokens with siblings beside them, `siblings[i]` at most beside the i-th."""

    siblings: tuple[int, ...] = ()
    tokens: list[int] = field(default_factory=list)
    beside: list[tuple[int, ...]] = field(default_factory=list)  # one for each token
    q: list[SparseQ] = field(default_factory=list)

    @property
    def ranks(self) -> int:
        """How many tokens are to be ranked for the next place; 0: none wants siblings, one is to be drafted."""
        place = len(self.tokens)
        wanted = self.siblings[place] if place < len(self.siblings) else 0
        return wanted + 1 if wanted else 0

    def add(self, token: DraftedToken) -> None:
        """One more token without siblings."""
        self.tokens.append(token.token)
        self.beside.append(())
        if token.q is not None:
            self.q.append(token.q)

    def add_ranked(self, ranked: tuple[int, ...]) -> None:
        """One more token, the likeliest of `ranked`, with as many of the next ones as it wants for siblings."""
        wanted = self.ranks
        self.tokens.append(ranked[0])
        self.beside.append(ranked[1:wanted])

    def add_until(self, ranked: Sequence[tuple[int, ...]], most: int, stop_ids: Set[int]) -> int:
        """Tokens as `add_ranked` takes them, until there are `most` or one of `stop_ids`; how many it took."""
        if not self.siblings and stop_ids.isdisjoint(first := [each[0] for each in ranked[: most - len(self.tokens)]]):
            self.tokens += first
            return len(first)
        for taken, tokens in enumerate(ranked, start=1):
            self.add_ranked(tokens)
            if len(self.tokens) == most or tokens[0] in stop_ids:
                return taken
        return len(ranked)

    @property
    def proposal(self) -> Proposal:
        """What there is."""
        if not self.tokens:
            return NO_PROPOSAL
        tree = TokenTree.caterpillar(self.tokens, self.beside) if self.siblings else TokenTree.chain(self.tokens)
        return Proposal(tree, Source.MODEL, tuple(self.q))


@dataclass(slots=True)
class Guess:
    """A proposal in the making. The KV of guessed tokens stays where the target accepts them."""

    max_tokens: int
    growing: Growing

    @property
    def ranks(self) -> int:
        """See `Drafting`."""
        return self.growing.ranks

    @property
    def least_ranks(self) -> int:
        """All of them."""
        return self.growing.ranks

    @property
    def steps_left(self) -> int:
        """How many tokens are missing."""
        return self.max_tokens - len(self.growing.tokens)

    @property
    def most_siblings(self) -> int:
        """Most siblings that one of the missing tokens wants."""
        siblings = self.growing.siblings
        return max(siblings[len(self.growing.tokens) :], default=0) if siblings else 0

    @property
    def draws_apart(self) -> bool:
        """A chain is that is not begun."""
        return not (self.growing.siblings or self.growing.tokens)

    def demand(self, session: DraftSession) -> Demand:
        """The committed and guessed tokens without KV."""
        return Demand(len(session.history) - len(session.sequence.cached) + len(self.growing.tokens), 0)

    def feed(self, session: DraftSession) -> Feed:
        """The rest of the history, or the newest guess; logits for the last of them."""
        known, computed = len(session.history), len(session.sequence.cached)
        guessed = self.growing.tokens[max(computed - known, 0) :]
        return Feed(session.sequence, session.history[computed:] + guessed, want_logits=True)

    def rows(self, session: DraftSession) -> list[DraftRow]:
        """The next token's."""
        return [DraftRow(session.sampling, len(session.history), tuple(self.growing.tokens))]

    def positions(self, session: DraftSession) -> list[int]:
        """The next token's."""
        return [len(session.history) + len(self.growing.tokens)]

    def take(self, session: DraftSession, drafted: Sequence[DraftedToken]) -> None:
        """One more token."""
        (token,) = drafted
        self.growing.add(token)

    def take_ranked(self, session: DraftSession, ranked: Sequence[tuple[int, ...]]) -> None:
        """One more token with its siblings."""
        (tokens,) = ranked
        self.growing.add_ranked(tokens)

    def growth(self, session: DraftSession) -> Growth:
        """The newest guess; it and what follows join the chain in the cache."""
        return Growth(session.sequence, session.sampling, (self.growing.tokens[-1],), (ROOT,), joins=True)

    def ends_alone(self, session: DraftSession) -> bool:
        """It ends with its last token."""
        return False

    def take_grown(self, session: DraftSession, steps: Sequence[Sequence[tuple[int, ...]]], *, more: bool) -> None:
        """As many of the tokens as there are until it has ended."""
        self.take_chain(session, [ranked for (ranked,) in steps])

    def take_chain(self, session: DraftSession, ranked: Sequence[tuple[int, ...]]) -> None:
        """`take_grown` with the only branch's steps."""
        self.growing.add_until(ranked, self.max_tokens, session.stop_token_ids)

    def reply(self, session: DraftSession) -> Drafted | None:
        """The proposal, when there is all of it."""
        return Drafted(session.key, self.growing.proposal) if self.is_over(session) else None

    @property
    def awaited(self) -> bool:
        """It ends with its reply."""
        return True

    def is_over(self, session: DraftSession) -> bool:
        """When it is as long as was asked for or ends with a stop token: nothing can follow one."""
        tokens = self.growing.tokens
        return len(tokens) >= self.max_tokens or tokens[-1] in session.stop_token_ids
