"""The draft model's proposals: asked for when they are needed, or drafted ahead."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence

from outrider.acceptance.choice import Choice
from outrider.acceptance.guesses import validate_foreseen, validate_guess
from outrider.acceptance.proposal import NO_PROPOSAL, Proposal
from outrider.acceptance.tree import TokenTree
from outrider.errors import InternalError, InvalidArgument, OutriderError
from outrider.protocol.items import (
    Advance,
    Close,
    DraftAhead,
    Drafted,
    DraftedAhead,
    DraftReply,
    DraftRequest,
    FailureCode,
    Key,
    Open,
    Propose,
)
from outrider.rpc.exchange import ItemError
from outrider.rpc.replica_link import ReplicaLink
from outrider.telemetry import metrics
from outrider.telemetry.logs import get_logger
from outrider_coordinator.replicas import Replicas
from outrider_coordinator.session import Session

log = get_logger(__name__)

DraftLink = ReplicaLink[DraftRequest, DraftReply]


class ModelDrafter:
    """A draft model behind DraftService.

    Opening never holds a round up: until the draft is open there is no proposal. A draft that fails or is late is let
    go, and asked for again after a while; the session goes on without it. So is one that answers what it was not asked
    for. One that drains is left for another between two rounds, if there is one.
    """

    def __init__(
        self,
        session: Session,
        replicas: Replicas,
        *,
        timeout_s: float,
        retry_s: float,
        epochs: itertools.count[int],
        allowance: int = 0,
    ) -> None:
        """`timeout_s` bounds the wait for one proposal; `retry_s` is the pause after a failure.

        `allowance`: tokens that the draft keeps room for beyond the session's own, to look ahead.
        """
        self._allowance = allowance
        self.fallback_reason = ""
        self._session = session
        self._replicas = replicas
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._epochs = epochs
        self._link: DraftLink | None = None
        self._opening: asyncio.Task[None] | None = None
        self._epoch = 0
        self._known = 0  # committed tokens the draft has been told of
        self._drafted_at = 0  # committed tokens when it last drafted in this opening: the KV of those is there
        self._next_try = 0.0  # time.monotonic seconds; infinity once the session has outgrown the draft

    def level(self, committed: Sequence[int]) -> int:
        """1 once the draft holds the session; starts opening it where that is due."""
        return int(self._is_open(committed))

    def up_to_date(self, committed: Sequence[int], max_tokens: int) -> bool:
        """False for the first guess after opening, and when more was committed since the last than one round does."""
        return self._drafted_at > 0 and len(committed) - self._drafted_at <= max_tokens + 1

    async def propose(self, committed: Sequence[int], choice: Choice) -> Proposal:
        """The draft's guess, or none if it is not there yet, is late, or is gone."""
        if choice.length == 0 or not self._is_open(committed):
            return NO_PROPOSAL
        try:
            return await self._ask(committed, choice)
        except OutriderError as error:
            await self._give_up(error)
            return NO_PROPOSAL

    @property
    def may_look_ahead(self) -> bool:
        """True while the draft holds the session and computes on other hardware than every verifier."""
        if self._link is None or self._link.model is None:
            return False
        hardware = self._link.model.hardware
        return all(link.model is None or link.model.hardware != hardware for link in self._replicas.verifiers)

    @property
    def is_open(self) -> bool:
        """True while the draft holds the session."""
        return self._link is not None and self._opening is None

    @property
    def most_nodes(self) -> int:
        """Most tokens of a proposal that this session's replicas take."""
        return self._replicas.max_proposal

    async def draft_ahead(
        self, committed: Sequence[int], base: int, in_flight: TokenTree, wanted: Choice, branches: tuple[int, ...]
    ) -> DraftedAhead | None:
        """What the draft foresees of the round in flight after `base` committed tokens; None if it fails.

        `wanted`: each proposal; `branches`: how many outcomes, as `fan_out` gives them.
        """
        if not self.is_open or self._link is None:
            return None
        known = self._known
        append = tuple(committed[known:base])
        item = DraftAhead(self._key(base), known, append, in_flight, wanted.length, branches, wanted.siblings)
        self._known = self._drafted_at = base  # what follows on the stream is handled after it
        try:
            exchange = await self._link.call(item, self._timeout_s)
            reply = self._checked_ahead(exchange.reply, in_flight, wanted, sum(branches))
        except OutriderError as error:
            await self._give_up(error)
            return None
        self._session.counts.wire_bytes += exchange.wire_bytes
        return reply

    async def close(self) -> None:
        """Free the session on the draft, even while it opens; a conversation's KV is kept for its next turn."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        if self._link is not None:
            link, self._link = self._link, None
            keep_s, known, committed = self._session.keep_s, self._known, self._session.committed
            if keep_s > 0 and len(committed) > known:  # what it guessed right is to be kept as well
                advance = Advance(self._key(len(committed)), known, tuple(committed[known:]))
                self._session.counts.wire_bytes += link.tell(advance)
            self._session.counts.wire_bytes += link.tell(Close(self._key(len(committed)), keep_s))
            await self._replicas.release_draft(self._session.number, link, keep_s=keep_s)

    async def _ask(self, committed: Sequence[int], choice: Choice) -> Proposal:
        assert self._link is not None
        known, base = self._known, len(committed)
        item = Propose(self._key(base), known, tuple(committed[known:]), choice.length, choice.siblings)
        exchange = await self._link.call(item, self._timeout_s)
        self._session.counts.wire_bytes += exchange.wire_bytes
        self._known = self._drafted_at = base
        return self._checked(exchange.reply, choice)

    def _checked(self, reply: DraftReply, asked: Choice) -> Proposal:
        """The guess, if it is one that was asked for. Raise InternalError if not: the verifier would refuse it."""
        assert isinstance(reply, Drafted)
        try:
            validate_guess(
                reply.proposal,
                asked,
                self._session.request.speculation.rule,
                vocabulary_size=self._replicas.known_target.model.vocabulary_size,
            )
        except InvalidArgument as error:
            raise self._wrong(error) from error
        return reply.proposal

    def _checked_ahead(self, reply: DraftReply, in_flight: TokenTree, asked: Choice, most: int) -> DraftedAhead:
        """The same for what it foresees of the round in flight: at most `most` outcomes."""
        assert isinstance(reply, DraftedAhead)
        try:
            validate_foreseen(
                [(each.node, each.next_token, each.proposal) for each in reply.foreseen],
                in_flight,
                most,
                asked,
                self._session.request.speculation.rule,
                vocabulary_size=self._replicas.known_target.model.vocabulary_size,
            )
        except InvalidArgument as error:
            raise self._wrong(error) from error
        return reply

    def _wrong(self, error: InvalidArgument) -> InternalError:
        return InternalError(f"{self._link.address if self._link else 'the draft'} answered wrongly: {error}")

    def _is_open(self, committed: Sequence[int]) -> bool:
        """True once the draft holds the session; starts opening it where that is due."""
        if self._opening is None:
            due = time.monotonic() >= self._next_try if self._link is None else self._is_to_move(self._link)
            if due:
                name = f"open draft of session {self._session.number}"
                self._opening = asyncio.create_task(self._open(tuple(committed)), name=name)
                return False
            return self._link is not None
        if self._opening.done():
            self._opening = None
            return self._link is not None
        return False

    def _is_to_move(self, link: DraftLink) -> bool:
        """True if the draft drains and another one has room: it can open the session there at once."""
        if link.hands_over_at is None:
            return False  # as in nearly all rounds: nobody is listed for nothing
        return self._replicas.draft_moves(link, self._session.request.max_length + self._allowance)

    async def _open(self, committed: tuple[int, ...]) -> None:
        if self._link is not None:
            log.info("session %d leaves %s, which drains", self._session.number, self._link.address)
            await self._leave(self._link)
        try:
            link = await self._replicas.bind_draft(self._session.number, conversation=self._session.conversation)
            self._link, self._epoch, self._known = link, next(self._epochs), len(committed)
            self._drafted_at = 0
            exchange = await link.call(self._open_item(committed), self._timeout_s)
            self._session.counts.wire_bytes += exchange.wire_bytes
        except OutriderError as error:
            await self._give_up(error)

    def _open_item(self, committed: tuple[int, ...]) -> Open:
        request = self._session.request
        return Open(
            key=self._key(len(committed)),
            tokens=committed,
            prompt_length=len(request.prompt),
            max_length=request.max_length + self._allowance,
            params=request.params,
            rule=request.speculation.rule,
            seed=request.seed,
            stop_token_ids=tuple(sorted(request.conditions.final_token_ids)),
            cache_salt=request.tenant,
        )

    async def _give_up(self, error: OutriderError) -> None:
        """Let the replica go; try again later, or never if the session has outgrown the draft's context."""
        self.fallback_reason = str(error)
        outgrown = isinstance(error, ItemError) and error.code is FailureCode.CONTEXT_LENGTH
        self._next_try = float("inf") if outgrown else time.monotonic() + self._retry_s
        log.warning("session %d goes on without its draft: %s", self._session.number, error)
        metrics.fallbacks.add(1, {"cause": "draft"})
        if self._link is not None:
            await self._leave(self._link)

    async def _leave(self, link: DraftLink) -> None:
        self._link = None
        self._session.counts.wire_bytes += link.tell(Close(self._key(self._known)))
        await self._replicas.release_draft(self._session.number, link)

    def _key(self, base_length: int) -> Key:
        return Key(self._session.number, self._epoch, base_length)
