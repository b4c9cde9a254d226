"""A session's place on a verifier: opened when first needed, re-opened from the committed tokens when lost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from outrider.acceptance.proposal import Proposal, Verdict
from outrider.acceptance.tree import TokenTree
from outrider.errors import DeadlineExceeded, InternalError, OutriderError, ResourceExhausted, Unavailable
from outrider.protocol.items import (
    Advance,
    Close,
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
from outrider.rpc.replica_link import ItemError, ReplicaLink
from outrider.telemetry.logs import get_logger
from outrider_coordinator.orders import Orders
from outrider_coordinator.replicas import Replicas
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
        self, session: Session, replicas: Replicas, *, timeout_s: float, failover_s: float, epochs: itertools.count[int]
    ) -> None:
        """`timeout_s` bounds one reply, prefill included; `failover_s` the time without any verifier."""
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

    async def verify(self, committed: Sequence[int], proposal: Proposal, *, plainly: bool = False) -> Verdict:
        """The target's word on a proposal after `committed`; `plainly`: a plain round follows, whatever comes of it.

        Raises Unavailable when no verifier could be had in time, ResourceExhausted when none has room.
        """
        for _ in range(MAX_REOPENINGS):
            if self._link is not None and self._replicas.hands_over(self._link, self._session.request.max_length):
                log.info("session %d leaves %s, which drains", self._session.number, self._link.address)
                await self.close()
            try:
                link = self._link or await self._open(committed)
                return await self._round(link, committed, proposal, plainly)
            except (Unavailable, DeadlineExceeded) as error:
                await self._lose(error)
            except ItemError as error:
                if error.code not in _REOPEN and not self._waits_for_room(error):
                    raise _as_client_error(error) from error
                await self._lose(error)
                if error.code is FailureCode.RESOURCE_EXHAUSTED:
                    await asyncio.sleep(self._failover_s / MAX_REOPENINGS)
        raise Unavailable(f"the session was lost {MAX_REOPENINGS} times in a row")

    def follow_up(
        self, base: int, in_flight: TokenTree, foreseen: Sequence[Foreseen] = (), *, plainly: bool = False
    ) -> None:
        """Let the verifier begin by itself what comes after the round of `in_flight`, if that is still on its way."""
        if self._orders is not None and self._in_flight == base and not self._orders.given(base):
            bytes_sent = self._orders.give(base, in_flight, foreseen, plainly=plainly)
            self._session.counts.wire_bytes += bytes_sent

    def promised(self, committed: Sequence[int]) -> Proposal | None:
        """The proposal that the verifier checks after `committed` already; None: it waits to be told."""
        return self._orders.promised(committed) if self._orders else None

    async def close(self) -> None:
        """Free the session's state, wherever it is; a conversation's KV is kept for its next turn."""
        await self._leave(self._session.keep_s)

    async def _leave(self, keep_s: float) -> None:
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

    async def _round(self, link: VerifierLink, committed: Sequence[int], proposal: Proposal, plainly: bool) -> Verdict:
        assert self._orders is not None
        known, base = self._known, len(committed)
        key = self._key(base)
        if self._orders.promised(committed) is not None:
            self._orders.end(kept=key)
        else:
            self._orders.end()
            link.send(Verify(key, known, tuple(committed[known:]), proposal))
        self._in_flight = base
        if plainly:
            self.follow_up(base, proposal.tree, plainly=True)
        try:
            exchange = await link.receive(key, self._timeout_s)
        finally:
            self._in_flight = 0
        self._session.counts.wire_bytes += exchange.wire_bytes
        if not isinstance(exchange.reply, Verified):
            raise InternalError(f"{link.address} answered a round with {type(exchange.reply).__name__}")
        self._known = base
        self._lost.clear()
        return exchange.reply.verdict

    async def _open(self, committed: Sequence[int]) -> VerifierLink:
        request = self._session.request
        number = self._session.number
        link = await self._replicas.place_verifier(
            number, request.max_length, self._failover_s, avoid=self._lost, conversation=self._session.conversation
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

    def _waits_for_room(self, error: ItemError) -> bool:
        """An answer that has begun is not refused: it lost its place to a failure, and waits for another one."""
        return error.code is FailureCode.RESOURCE_EXHAUSTED and self._session.counts.rounds > 0

    async def _lose(self, error: OutriderError) -> None:
        if self._link is None:
            raise error  # no verifier at all
        log.warning("session %d lost %s: %s", self._session.number, self._link.address, error)
        self._lost.add(self._link.address)
        await self._leave(keep_s=0.0)

    def _key(self, base_length: int) -> Key:
        return Key(self._session.number, self._epoch, base_length)


def _as_client_error(error: ItemError) -> OutriderError:
    if error.code is FailureCode.RESOURCE_EXHAUSTED:
        return ResourceExhausted(error.message)
    # The request was validated against this very model: what the verifier rejects now is our mistake.
    return InternalError(f"the verifier refused a valid item: {error}")
