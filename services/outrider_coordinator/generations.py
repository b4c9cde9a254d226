"""All running generations: admits them, gives each its target and drafter, ends them, counts them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

from outrider.acceptance.control import DraftControl
from outrider.acceptance.costs import RoundCosts
from outrider.acceptance.node_budget import NodeBudget
from outrider.acceptance.params import Rule
from outrider.acceptance.policy import Policy
from outrider.acceptance.pools import Pools
from outrider.acceptance.proposal import Source
from outrider.acceptance.stopping import FinishReason
from outrider.errors import InvalidArgument, Unavailable
from outrider.telemetry import metrics
from outrider_coordinator.admission import Admission
from outrider_coordinator.buffer import Buffer
from outrider_coordinator.drafters import Drafter, NgramDrafter, OwnDrafter
from outrider_coordinator.generate import generate
from outrider_coordinator.look_ahead import LookAhead
from outrider_coordinator.model_drafter import ModelDrafter
from outrider_coordinator.recorder import Recorder
from outrider_coordinator.replicas import Replicas
from outrider_coordinator.request import DrafterKind, LookAheadMode, Request, TreeMode
from outrider_coordinator.room import Room
from outrider_coordinator.session import Delta, Session
from outrider_coordinator.settings import CoordinatorSettings
from outrider_coordinator.speculator import Speculator
from outrider_coordinator.target import TargetBinding

COMPLETE = (FinishReason.STOP, FinishReason.LENGTH)
"""Ends of answers that are worth recording."""


MAX_AHEAD = 64
"""Rounds whose deltas wait for a slow client before the generation waits too."""


@dataclass(slots=True)
class _Running:
    """A generation in progress: the task that waits for a place or runs its rounds, and whether Abort was called."""

    task: asyncio.Task[object]
    aborted: bool = False


class Generation:
    """One generation: iterate over its deltas; afterwards `session` and `fallback_reason` tell how it went."""

    def __init__(self, session: Session, target: TargetBinding, speculator: Speculator, client: str) -> None:
        self.session = session
        self.client = client
        self._target = target
        self._speculator = speculator

    @property
    def fallback_reason(self) -> str:
        """Why speculation stopped, if it did."""
        return self._speculator.fallback_reason

    def deltas(self) -> AsyncIterator[Delta]:
        """The rounds' deltas, in order."""
        return generate(self.session, self._target, self._speculator)

    async def close(self) -> None:
        """Free what the replicas hold."""
        await self._speculator.close()
        await self._target.close()


class Generations:
    """The generations of this process, by request id."""

    def __init__(self, replicas: Replicas, settings: CoordinatorSettings) -> None:
        self._replicas = replicas
        self._settings = settings
        self._numbers = itertools.count(1)
        self._epochs = itertools.count(1)  # one counter for all: an epoch is never used twice
        self._running: dict[tuple[str, str], _Running] = {}  # by tenant and request id
        self._closed = False
        self.costs = RoundCosts()
        self.pools = Pools()
        self.nodes = NodeBudget(self.costs)
        self.recorder: Recorder | None = None
        self.room = Room()
        self.admission = Admission(
            settings.max_sessions,
            settings.max_waiting,
            settings.queue_timeout_s,
            max_waiting_each=settings.max_waiting_each,
        )

    def start(self, request: Request, client: str = "") -> Generation:
        """A generation that has not asked any replica for anything yet. Raise Unavailable after `close`."""
        if self._closed:
            raise Unavailable("this coordinator is ending: another one has to be asked")
        tokenizer = self._replicas.known_target.tokenizer
        keep_s = self._settings.conversation_lease_s if request.session_id else 0.0
        session = Session(next(self._numbers), request, tokenizer.detokenizer(), keep_s=keep_s)
        target = TargetBinding(
            session,
            self._replicas,
            self.room,
            client=client,
            timeout_s=self._settings.verify_timeout_s,
            failover_s=self._settings.failover_s,
            room_s=self._settings.queue_timeout_s,
            retry_s=self._settings.draft_retry_s,
            epochs=self._epochs,
        )
        return Generation(session, target, self._speculator(session, target), client)

    def close(self) -> None:
        """Let nothing new begin."""
        self._closed = True

    async def run(self, generation: Generation) -> AsyncIterator[Delta]:
        """Run a generation to its end, or until `abort`; its replicas are free afterwards, whatever happens."""
        session = generation.session
        name = (session.request.tenant, session.request.request_id)
        entry = self._enter(name)
        try:
            async with aclosing(self._rounds(generation, entry)) as deltas:
                async for delta in deltas:
                    yield delta
            if entry.aborted and session.finish is None:
                yield session.abort()
        finally:
            del self._running[name]
            await generation.close()
            _record(session)
            if self.recorder is not None and session.finish is not None and session.finish.reason in COMPLETE:
                self.recorder.add(session)

    async def _rounds(self, generation: Generation, entry: _Running) -> AsyncGenerator[Delta]:
        """The deltas of an admitted generation; `abort` ends them early, without an error."""
        waiting = entry.task
        try:
            async with self.admission.place(generation.client):
                generation.session.clock.admitted = time.monotonic()
                async with aclosing(Buffer(generation.deltas(), MAX_AHEAD)) as deltas:
                    # From here on it is the rounds that abort ends: what they committed still reaches the client.
                    entry.task = deltas.task
                    async for delta in deltas:
                        yield delta
        except asyncio.CancelledError:
            if not entry.aborted or entry.task is not waiting:
                raise  # the client is gone
            waiting.uncancel()

    def abort(self, request_id: str, tenant: str = "") -> bool:
        """End a tenant's generation; False if none of that id runs."""
        entry = self._running.get((tenant, request_id))
        if entry is None or entry.aborted:
            return False
        entry.aborted = True
        entry.task.cancel()
        return True

    def _enter(self, name: tuple[str, str]) -> _Running:
        if name in self._running:
            raise InvalidArgument("request_id", name[1], "unlike that of any running generation")
        task = asyncio.current_task()
        assert task is not None
        self._running[name] = entry = _Running(task)
        return entry

    def _speculator(self, session: Session, target: TargetBinding) -> Speculator:
        settings, wanted = self._settings, session.request.speculation
        # Without draft replicas it is the verifiers that draft, if anybody does.
        drafting = [] if self._replicas.drafts else [link for link in self._replicas.verifiers if link.drafts]
        own, trees = bool(drafting), settings.trees if wanted.rule is Rule.MATCH else TreeMode.OFF
        ahead = any(link.goes_ahead for link in drafting)
        if trees is TreeMode.AUTO and ahead:
            trees = TreeMode.OFF  # siblings would bring less than not going ahead costs
        policy = Policy(
            wanted.fixed_length,
            settings.fallback_window,
            settings.fallback_acceptance,
            max_siblings=settings.max_siblings if trees is not TreeMode.OFF else 0,
            always_siblings=trees is TreeMode.ON,
        )
        kinds = {wanted.drafter} if wanted.drafter is not DrafterKind.AUTO else {DrafterKind.NGRAM, DrafterKind.MODEL}
        self._replicas.tell_step_times(self.costs)
        in_step = own and DrafterKind.MODEL in kinds
        control = DraftControl(self.costs, policy, self.pools, self.nodes, in_step=in_step, ahead=ahead)
        look_ahead: LookAhead | None = None
        own_draft: OwnDrafter | None = None
        drafters: dict[Source, Drafter] = {}
        if DrafterKind.NGRAM in kinds:
            drafters[Source.NGRAM] = NgramDrafter()
        if DrafterKind.MODEL in kinds and self._replicas.drafts:
            drafters[Source.MODEL] = model = ModelDrafter(
                session,
                self._replicas,
                timeout_s=settings.draft_timeout_s,
                retry_s=settings.draft_retry_s,
                epochs=self._epochs,
                allowance=self._look_ahead_tokens(wanted.max_draft_tokens),
            )
            mode, branches = settings.look_ahead, settings.look_ahead_branches
            look_ahead = LookAhead(session, model, target, control, mode=mode, branches=branches)
        elif DrafterKind.MODEL in kinds:  # whatever verifier the session comes to may have one
            drafters[Source.MODEL] = own_draft = OwnDrafter(target)
        lacking = wanted.drafter is DrafterKind.MODEL and own_draft is not None and not own
        reason = "this coordinator has no draft replicas" if lacking else ""
        return Speculator(
            session,
            control,
            drafters,
            look_ahead=look_ahead,
            own_draft=own_draft,
            most_nodes=lambda: self._replicas.max_proposal,
            reason=reason,
        )

    def _look_ahead_tokens(self, max_draft_tokens: int) -> int:
        if self._settings.look_ahead is LookAheadMode.OFF:
            return 0
        return self._settings.look_ahead_branches * max_draft_tokens


def _record(session: Session) -> None:
    """Count a generation once, at its end: metric sums equal usage sums."""
    drafter = {"drafter": session.request.speculation.drafter.value}
    reason = session.finish.reason.value if session.finish is not None else "error"
    metrics.requests.add(1, {"reason": reason})
    metrics.prompt_tokens.add(len(session.request.prompt))
    metrics.cached_tokens.add(session.counts.cached_tokens)
    metrics.completion_tokens.add(session.completion_tokens)
    metrics.rounds.add(session.counts.rounds, drafter)
    for (source, length), rounds in session.counts.lengths.items():
        metrics.guess_lengths.add(rounds, {"source": source.value, "length": length})
    if session.counts.proposed:
        metrics.proposed_tokens.add(session.counts.proposed, drafter)
        metrics.accepted_tokens.add(session.counts.accepted, drafter)
        metrics.sibling_tokens.add(session.counts.siblings, drafter)
