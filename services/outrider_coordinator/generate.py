"""The main flow of the whole system: propose, verify, accept, commit, emit."""

from __future__ import annotations

from collections.abc import AsyncIterator

from outrider_coordinator.session import Delta, Session
from outrider_coordinator.speculator import Speculator
from outrider_coordinator.stopwatch import RoundClock
from outrider_coordinator.target import TargetBinding


async def generate(session: Session, target: TargetBinding, speculator: Speculator) -> AsyncIterator[Delta]:
    """Run rounds until the generation ends; yield what each adds to the answer."""
    clock = RoundClock()
    while session.finish is None:
        promised = target.promised(session.committed)
        proposal = await speculator.propose(session.committed, session.draft_budget, promised)
        clock.proposed()
        speculator.look_ahead(session.committed, proposal, session.draft_budget)
        verdict = await target.verify(session.committed, proposal, plainly=speculator.goes_on_plainly(proposal))
        clock.verified(began_by_itself=promised is not None)
        delta = session.commit(proposal, verdict)
        speculator.learn(proposal, delta, propose_ms=clock.propose_ms, verify_ms=clock.verify_ms)
        yield delta
        clock.emitted()
