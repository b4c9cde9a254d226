"""The coordinator's replicas: which verifiers and drafts there are, and who gets which."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from outrider.acceptance.costs import RoundCosts
from outrider.errors import Unavailable
from outrider.protocol.items import DraftReply, DraftRequest, VerifierReply, VerifierRequest
from outrider.routing.choose import Candidate, choose
from outrider.routing.prefixes import PrefixMemory, beginnings
from outrider.routing.records import Role
from outrider.routing.store import Binding, Store
from outrider.routing.view import View
from outrider.rpc import codec
from outrider.rpc.channel import SILENCE_S
from outrider.rpc.replica_link import ReplicaLink
from outrider.rpc.tls import ClientTls
from outrider.telemetry import metrics
from outrider_coordinator.draining import hands_over, leave_if_idle, let_go_when_idle, moves_at_once
from outrider_coordinator.links import Links
from outrider_coordinator.pairing import Pairing, Target
from outrider_coordinator.placements import Placement, Placements

VerifierLink = ReplicaLink[VerifierRequest, VerifierReply]
DraftLink = ReplicaLink[DraftRequest, DraftReply]

Link = TypeVar("Link", VerifierLink, DraftLink)


class Replicas:
    """All replicas. `run` (a task) keeps them connected; sessions are placed on them, bound to them and released."""

    def __init__(
        self,
        verifiers: Sequence[str],
        drafts: Sequence[str],
        store: Store,
        *,
        name: str,
        tls: ClientTls | None = None,
        silence_s: float = SILENCE_S,
    ) -> None:
        """`verifiers` and `drafts` are fixed addresses, host:port; without `tls` connections to them are unencrypted.

        `name` is unlike that of any other coordinator that shares the store. A replica counts as lost after `silence_s`
        seconds without a sign of life.
        """
        self._name = name
        self._store = store
        self._pairing = pairing = Pairing()
        ours = partial(ReplicaLink, coordinator=name, tls=tls, silence_s=silence_s)
        verifier = partial(ours, codec.VERIFIER, pair=pairing.verifier)
        draft = partial(ours, codec.DRAFT, pair=pairing.draft)
        self._on_verifiers, self._on_drafts = on_verifiers, on_drafts = Placements(name), Placements(name)
        self._verifiers: Links[VerifierLink] = Links(lambda at: let_go_when_idle(verifier(at), on_verifiers), verifiers)
        self._drafts: Links[DraftLink] = Links(lambda at: let_go_when_idle(draft(at), on_drafts), drafts)
        self._prefixes = PrefixMemory()
        self._started = asyncio.Event()

    async def run(self) -> None:
        """Keep every replica connected, and the bindings alive, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._verifiers.start(tasks)
            self._drafts.start(tasks)
            tasks.create_task(self._store.run(), name="bindings")
            self._started.set()

    @property
    def verifiers(self) -> list[VerifierLink]:
        """The links to verifiers, connected or not."""
        return list(self._verifiers)

    @property
    def max_proposal(self) -> int:
        """Most tokens of a proposal that every connected replica takes."""
        links = (*self._verifiers, *self._drafts)
        return min([link.max_proposal for link in links if link.max_proposal is not None], default=0)

    @property
    def drafts(self) -> list[DraftLink]:
        """The links to drafts, connected or not."""
        return list(self._drafts)

    def tell_step_times(self, costs: RoundCosts) -> None:
        """What the connected replicas' passes take, if they say so: of the first of each kind, the others are alike."""
        told = [link for link in self._verifiers if link.step_times is not None]
        if not told:
            return
        drafts = [each.step_times for each in self._drafts] if len(self._drafts) else [told[0].draft_step_times]
        assert told[0].step_times is not None
        costs.expect(told[0].step_times, next(filter(None, drafts), None))

    async def follow(self, view: View) -> None:
        """Take in what the registry lists now."""
        await self._started.wait()
        for role, links, placements in (
            (Role.VERIFIER, self._verifiers, self._on_verifiers),
            (Role.DRAFT, self._drafts, self._on_drafts),
        ):
            records = {
                record.address: record
                for record in view.records.values()
                if record.role is role and self._pairing.worth_connecting(record)
            }
            links.follow(records, busy=placements.loads().keys())
            metrics.registered_replicas.set(len(records), {"role": role.value})

    async def target(self) -> Target:
        """The served model, once a verifier is known."""
        return await self._pairing.target()

    @property
    def known_target(self) -> Target:
        """The served model. Raise Unavailable before the first verifier connected."""
        return self._pairing.known_target

    # Sessions on verifiers: placed, opened there by the caller, bound, released

    async def place_verifier(
        self,
        session: int,
        tokens: int,
        timeout_s: float,
        *,
        avoid: Collection[str] = (),
        conversation: str = "",
        text: Sequence[int] = (),
        salt: str = "",
    ) -> VerifierLink:
        """A verifier for a session that may need KV for `tokens`; the caller opens it there, then binds it.

        A turn of a `conversation` goes where the last one went; a `text` where its beginning was opened before, for the
        same `salt`. Waits for a verifier at most `timeout_s` seconds, then
        raises Unavailable.
        """
        name = conversation or self._named(session)
        found = await self._store.find(name)
        known = beginnings(text, salt)
        deadline = time.monotonic() + timeout_s
        while True:
            bound_to = _still_there(found, self._verifiers)
            link = self._choose(
                name, self._verifiers, self._on_verifiers, tokens, bound_to=bound_to, avoid=avoid, known=known
            )
            if link is not None:
                self._on_verifiers.add(session, Placement(name, link.address, tokens, found, known))
                return link
            if (remaining := deadline - time.monotonic()) <= 0:
                raise Unavailable(f"no verifier is connected: {self._verifiers.states()}")
            await self._verifiers.wait_for_change(remaining)

    async def bind_verifier(self, session: int, link: VerifierLink) -> None:
        """Bind a session that is open on a verifier. Raise Unavailable if another coordinator bound it elsewhere."""
        placement = self._on_verifiers.get(session)
        assert placement is not None
        assert placement.address == link.address, "placed there"
        incarnation = link.welcome.incarnation if link.welcome is not None else ""
        stands = await self._store.bind(placement.name, link.address, incarnation, instead_of=placement.found)
        if (stands.replica, stands.incarnation) != (link.address, incarnation):
            raise Unavailable(f"the session is bound to {stands.replica} by {stands.owner}")
        if stands.owner == self._name:
            placement.binding = stands
        self._prefixes.remember(_started_as(link), placement.text)

    def hands_over(self, link: VerifierLink, tokens: int) -> bool:
        """True once a session that needs KV for `tokens` should leave a verifier that drains, for another one."""
        return hands_over(link, self._candidates(self._verifiers, self._on_verifiers), tokens)

    async def release_verifier(self, session: int, link: VerifierLink, *, keep_s: float = 0.0) -> None:
        """The session is no longer on that verifier; its conversation stays bound to it for `keep_s` seconds."""
        placement = self._on_verifiers.remove(session, link.address)
        leave_if_idle(link, self._on_verifiers)
        if placement is not None and placement.binding is not None:
            await self._store.release(placement.name, placement.binding, keep_s=keep_s)

    # Sessions on drafts: nobody but this coordinator ever asks which, so only conversations are bound, between turns

    async def bind_draft(self, session: int, *, conversation: str = "") -> DraftLink:
        """Place a session on a ready draft, where its conversation was. Raise Unavailable if there is none now."""
        name = f"{conversation}/draft" if conversation else self._named(session)
        found = await self._store.find(name) if conversation else None
        link = self._choose(name, self._drafts, self._on_drafts, 0, bound_to=_still_there(found, self._drafts))
        if link is None:
            raise Unavailable(f"no draft is connected: {self._drafts.states()}")
        self._on_drafts.add(session, Placement(name, link.address, 0, found))
        return link

    def draft_moves(self, link: DraftLink, tokens: int) -> bool:
        """True if a session that needs KV for `tokens` should leave a draft that drains, for another one."""
        return moves_at_once(link, self._candidates(self._drafts, self._on_drafts), tokens)

    async def release_draft(self, session: int, link: DraftLink, *, keep_s: float = 0.0) -> None:
        """The session is no longer on that draft; its conversation is bound to it for `keep_s` seconds."""
        placement = self._on_drafts.remove(session, link.address)
        leave_if_idle(link, self._on_drafts)
        if placement is not None and keep_s > 0 and link.welcome is not None:
            incarnation = link.welcome.incarnation
            stands = await self._store.bind(placement.name, link.address, incarnation, instead_of=placement.found)
            if stands.owner == self._name:
                await self._store.release(placement.name, stands, keep_s=keep_s)

    def _choose(
        self,
        name: str,
        links: Links[Link],
        placements: Placements,
        tokens: int,
        *,
        bound_to: str | None = None,
        avoid: Collection[str] = (),
        known: Sequence[bytes] = (),
    ) -> Link | None:
        candidates = self._candidates(links, placements, known)
        address = choose(name, candidates, bound_to=bound_to, tokens=tokens, avoid=avoid)
        return next((link for link in links if link.address == address), None)

    def _candidates(self, links: Links[Any], placements: Placements, known: Sequence[bytes] = ()) -> list[Candidate]:
        """The replicas that are connected and take sessions; `known` are the beginnings of a session's text."""
        found = [
            (
                link,
                placements.candidate(link.address, links.records.get(link.address), listed=links.listed(link.address)),
            )
            for link in links
            if link.takes_new
        ]
        return [
            replace(candidate, cached_tokens=self._prefixes.cached_tokens(_started_as(link), known))
            for link, candidate in found
        ]

    def _named(self, session: int) -> str:
        """The session's name among all coordinators'."""
        return f"{self._name}/{session}"


def _still_there(found: Binding | None, links: Iterable[VerifierLink] | Iterable[DraftLink]) -> str | None:
    """Where the session's state may still be: the bound replica, if it was not restarted."""
    if found is None:
        return None
    now = {link.address: link.welcome.incarnation for link in links if link.welcome is not None}
    return found.replica if now.get(found.replica) == found.incarnation else None


def _started_as(link: ReplicaLink[Any, Any]) -> str:
    """A replica as it was started last: after a restart it holds nothing of before."""
    return f"{link.address} {link.welcome.incarnation if link.welcome is not None else ''}"
