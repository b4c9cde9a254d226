"""A session's place on a verifier: opened when first needed, re-opened from the committed tokens when lost."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Sequence

from outrider.acceptance.proposal import NO_PROPOSAL
from outrider.acceptance.tree import TokenTree
from outrider.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidArgument,
    OutriderError,
    ResourceExhausted,
    Unavailable,
)
from outrider.protocol.items import (
    Advance,
    Close,
    DraftFirst,
    FailureCode,
    Foreseen,
    Key,
    Open,
    Opened,
    Verified,
    VerifierReply,
    VerifierRequest,
    Verify,
)
from outrider.rpc.exchange import ItemError
from outrider.rpc.replica_link import ReplicaLink
from outrider.telemetry import metrics
from outrider.telemetry.logs import get_logger
from outrider_coordinator.judged import Judged, judged
from outrider_coordinator.orders import Checked, Order, Orders
from outrider_coordinator.replicas import Replicas
from outrider_coordinator.room import Room
from outrider_coordinator.session import Session

log = get_logger(__name__)

VerifierLink = ReplicaLink[VerifierRequest, VerifierReply]

_REOPEN = {
    # What a replica forgot, or what we no longer agree on with it, comes back from the committed tokens.
    FailureCode.UNKNOWN_SESSION,
    FailureCode.STALE_EPOCH,
    FailureCode.BASE_LENGTH,
    FailureCode.INTERNAL,
}
MAX_REOPENINGS = 8


class TargetBinding:
    """Binds one session to one verifier at a time. Losing the replica costs time, never tokens."""

    def __init__(
        self,
        session: Session,
        replicas: Replicas,
        room: Room,
        *,
        client: str,
        timeout_s: float,
        failover_s: float,
        room_s: float,
        retry_s: float,
        epochs: itertools.count[int],
    ) -> None:
        """`timeout_s` bounds one reply, prefill included; `failover_s` the time without any verifier.

        `retry_s` is the pause after a verifier's own draft had nothing. `room_s` bounds the wait for room on a verifier
        before the answer has begun, `timeout_s` later ones.
        """
        self._room = room
        self._client = client
        self._room_s = room_s
        self._session = session
        self._replicas = replicas
        self._timeout_s = timeout_s
        self._failover_s = failover_s
        self._epochs = epochs
        self._link: VerifierLink | None = None
        self._epoch = 0
        self._known = 0  # committed tokens the replica has been told of
        self._lost: set[str] = set()  # replicas that failed this session since its last round
        self._in_flight = 0  # base length of the round on its way; 0: there is none
        self._orders: Orders | None = None
        self._retry_s = retry_s
        self._drafts_from = 0.0  # time.monotonic seconds
        self.draft_trouble = ""  # why the verifier's own draft last had nothing, if that ever was so

    @property
    def drafts(self) -> bool:
        """True while the session is on a verifier that drafts by itself, and that draft has something for it."""
        return self._link is not None and self._link.drafts and time.monotonic() >= self._drafts_from

    @property
    def opening(self) -> int:
        """Which opening of the session this is: another number each time."""
        return self._epoch

    async def verify(
        self,
        committed: Sequence[int],
        wanted: Checked,
        following: Callable[[Order | None], Order | None] = lambda standing: None,
    ) -> Judged:
        """The target's word on a proposal after `committed`, or on what its verifier drafts by itself.

        `following` is asked, once the round is on its way, what the verifier is to go on with, whatever comes of it,
        unless that was said before; or what after so many rounds of an order that stands and will soon be used up. On a
        verifier that does not draft, a round for which it was to is a plain one.

        Raises Unavailable when no verifier could be had in time, ResourceExhausted when none has room.
        """
        for _ in range(MAX_REOPENINGS):
            if self._link is not None and self._is_to_move(self._link):
                log.info("session %d leaves %s, which drains", self._session.number, self._link.address)
                await self._leave(keep_s=0.0)
            if self._room.gives_way(self._session.number):
                await self._leave(keep_s=0.0)
            try:
                link = self._link or await self._open_in_turn(committed)
                return await self._round(link, committed, wanted, following)
            except (Unavailable, DeadlineExceeded) as error:
                await self._lose(error)
            except ItemError as error:
                begun = self._session.counts.rounds > 0  # then it is not refused: it waits where it would be
                if error.code not in _REOPEN and not (begun and error.code is FailureCode.RESOURCE_EXHAUSTED):
                    raise _as_client_error(error) from error
                await self._lose(error)
        raise Unavailable(f"the session was lost {MAX_REOPENINGS} times in a row")

    def follow_up(
        self,
        base: int,
        in_flight: TokenTree | DraftFirst,
        foreseen: Sequence[Foreseen] = (),
        *,
        otherwise: Checked | None,
        rounds: int = 1,
    ) -> None:
        """Let the verifier begin by itself what comes after the round of `in_flight`, if that is still on its way."""
        if self._orders is not None and self._in_flight == base and not self._orders.given(base):
            bytes_sent = self._orders.give(base, in_flight, foreseen, otherwise=otherwise, rounds=rounds)
            self._session.counts.wire_bytes += bytes_sent

    def promised(self, committed: Sequence[int]) -> Checked | None:
        """What the verifier checks after `committed` already; None: it waits to be told."""
        return self._orders.promised(committed) if self._orders else None

    async def close(self) -> None:
        """Free the session's state, wherever it is; a conversation's KV is kept for its next turn."""
        await self._leave(self._session.keep_s)

    def _is_to_move(self, link: VerifierLink) -> bool:
        """True once the session should leave a verifier that drains, for another one."""
        if link.hands_over_at is None:
            return False  # asked before every round: how busy the replicas are takes a look at every session
        return self._replicas.hands_over(link, self._session.request.max_length)

    async def _leave(self, keep_s: float) -> None:
        self._room.leave(self._session.number)
        if self._orders is not None:
            self._orders.end()
            self._orders = None
        if self._link is not None:
            link, self._link = self._link, None
            known, committed = self._known, self._session.committed
            if keep_s > 0 and len(committed) > known:  # what the last round accepted is to be kept as well
                advance = Advance(self._key(len(committed)), known, tuple(committed[known:]))
                self._session.counts.wire_bytes += link.tell(advance)
            self._session.counts.wire_bytes += link.tell(Close(self._key(len(committed)), keep_s))
            await self._replicas.release_verifier(self._session.number, link, keep_s=keep_s)

    async def _round(
        self,
        link: VerifierLink,
        committed: Sequence[int],
        wanted: Checked,
        following: Callable[[Order | None], Order | None],
    ) -> Judged:
        assert self._orders is not None
        known, base = self._known, len(committed)
        key = self._key(base)
        if self._orders.promised(committed) is not None:
            self._orders.begin(base)
        else:
            self._orders.end()
            if isinstance(wanted, DraftFirst) and not self.drafts:
                wanted = NO_PROPOSAL
            link.send(_verify(key, known, tuple(committed[known:]), wanted))
        self._in_flight = base
        # A verifier that goes ahead begins what follows this round before it tells of the one before.
        for _ in range(2 if link.goes_ahead else 1):
            if self._orders.wants_more(base):
                self._order(base, wanted, following)
        try:
            exchange = await link.receive(key, self._timeout_s)
        finally:
            self._in_flight = 0
        self._session.counts.wire_bytes += exchange.wire_bytes
        assert isinstance(exchange.reply, Verified)
        found = self._judged(link, exchange.reply, wanted)
        self._known = base
        self._lost.clear()
        return found

    def _order(self, base: int, wanted: Checked, following: Callable[[Order | None], Order | None]) -> None:
        """Say what is to follow the round in flight, or the last one that an order is for."""
        assert self._orders is not None
        standing = self._orders.standing(base)
        order = following(standing)
        if order is None or (isinstance(order.then, DraftFirst) and not self.drafts):
            return
        if standing is not None:
            self._session.counts.wire_bytes += self._orders.extend(order)
        else:
            in_flight = wanted if isinstance(wanted, DraftFirst) else wanted.tree
            self.follow_up(base, in_flight, otherwise=order.then, rounds=order.rounds)

    def _judged(self, link: VerifierLink, reply: Verified, wanted: Checked) -> Judged:
        """What came of the round. Raise ItemError if it cannot be: then the verifier is lost to the session."""
        rule, target = self._session.request.speculation.rule, self._replicas.known_target.model
        try:
            found = judged(reply, wanted, rule, vocabulary_size=target.vocabulary_size)
        except InvalidArgument as error:
            self._pause_drafting(f"{link.address} drafted wrongly: {error}")
            raise ItemError(FailureCode.INTERNAL, self.draft_trouble) from error
        if isinstance(wanted, DraftFirst) and wanted.vote is None and not found.proposal:
            self._pause_drafting(f"the draft in {link.address} had nothing")
        return found

    def _pause_drafting(self, why: str) -> None:
        if time.monotonic() < self._drafts_from:
            return  # the round after, which had begun by itself, tells the same
        self.draft_trouble = why
        self._drafts_from = time.monotonic() + self._retry_s
        log.warning("session %d goes on without a draft for a while: %s", self._session.number, why)
        metrics.fallbacks.add(1, {"cause": "draft"})

    async def _open_in_turn(self, committed: Sequence[int]) -> VerifierLink:
        """Open where there is room, or wait until there is. Raises what `_open` does, and ResourceExhausted."""
        tokens, full = self._session.request.max_length, set[str]()
        deadline = time.monotonic() + (self._timeout_s if self._session.counts.rounds else self._room_s)
        if self._room.waiting:
            await self._room.wait(self._client, tokens, deadline, refused=False)
        while True:
            try:
                link = await self._open(committed, avoid=self._lost | full)
            except ItemError as error:
                if error.code is not FailureCode.RESOURCE_EXHAUSTED or self._link is None:
                    raise
                full.add(self._link.address)
                await self._leave(keep_s=0.0)
                if not any(each.takes_new and each.address not in full for each in self._replicas.verifiers):
                    await self._room.wait(self._client, tokens, deadline, refused=True)
                    full.clear()
            else:
                self._room.enter(self._session.number, self._client, tokens)
                return link

    async def _open(self, committed: Sequence[int], avoid: Collection[str]) -> VerifierLink:
        request = self._session.request
        number = self._session.number
        link = await self._replicas.place_verifier(
            number,
            request.max_length,
            self._failover_s,
            avoid=avoid,
            conversation=self._session.conversation,
            text=committed,
            salt=request.tenant,
        )
        self._link, self._epoch, self._known = link, next(self._epochs), len(committed)
        self._orders = Orders(link, self._key)
        item = Open(
            key=self._key(len(committed)),
            tokens=tuple(committed),
            prompt_length=len(request.prompt),
            max_length=request.max_length,
            params=request.params,
            rule=request.speculation.rule,
            seed=request.seed,
            logprobs=request.logprobs,
            stop_token_ids=tuple(sorted(request.conditions.final_token_ids)),
            cache_salt=request.tenant,
        )
        exchange = await link.call(item, self._timeout_s)
        self._session.counts.wire_bytes += exchange.wire_bytes
        await self._replicas.bind_verifier(number, link)
        if isinstance(exchange.reply, Opened) and self._session.counts.rounds == 0:
            self._session.counts.cached_tokens = min(exchange.reply.cached_tokens, len(request.prompt))
        return link

    async def _lose(self, error: OutriderError) -> None:
        if self._link is None:
            raise error  # no verifier at all
        log.warning("session %d lost %s: %s", self._session.number, self._link.address, error)
        self._lost.add(self._link.address)
        await self._leave(keep_s=0.0)

    def _key(self, base_length: int) -> Key:
        return Key(self._session.number, self._epoch, base_length)


def _verify(key: Key, keep: int, append: tuple[int, ...], wanted: Checked) -> Verify:
    if isinstance(wanted, DraftFirst):
        return Verify(key, keep, append, NO_PROPOSAL, wanted)
    return Verify(key, keep, append, wanted)


def _as_client_error(error: ItemError) -> OutriderError:
    if error.code is FailureCode.RESOURCE_EXHAUSTED:
        return ResourceExhausted(error.message)
    # The request was validated against this very model: what the verifier rejects now is our mistake.
    return InternalError(f"the verifier refused a valid item: {error}")
