"""The main flow of the whole system: propose, verify, accept, commit, emit."""

from __future__ import annotations

from collections.abc import AsyncIterator

from outrider_coordinator.session import Delta, Session
from outrider_coordinator.speculator import Speculator
from outrider_coordinator.stopwatch import Stopwatch
from outrider_coordinator.target import TargetBinding


async def generate(session: Session, target: TargetBinding, speculator: Speculator) -> AsyncIterator[Delta]:
    """Run rounds until the generation ends; yield what each adds to the answer."""
    while session.finish is None:
        watch = Stopwatch()
        proposal = await speculator.propose(session.committed, session.draft_budget)
        propose_ms = watch.lap_ms()
        speculator.look_ahead(session.committed, proposal, session.draft_budget)
        verdict = await target.verify(session.committed, proposal)
        verify_ms = watch.lap_ms()
        delta = session.commit(proposal, verdict)
        speculator.learn(proposal, delta, propose_ms=propose_ms, verify_ms=verify_ms)
        yield delta
