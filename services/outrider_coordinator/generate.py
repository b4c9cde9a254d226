"""The main flow of the whole system: propose, verify, accept, commit, emit."""

from __future__ import annotations

from collections.abc import AsyncIterator

from outrider_coordinator.drafters import Drafter
from outrider_coordinator.session import Delta, Session
from outrider_coordinator.target import TargetBinding


async def generate(session: Session, target: TargetBinding, drafter: Drafter) -> AsyncIterator[Delta]:
    """Run rounds until the generation ends; yield what each adds to the answer."""
    while session.finish is None:
        proposal = await drafter.propose(session.committed, session.draft_budget)
        verdict = await target.verify(session.committed, proposal)
        yield session.commit(proposal, verdict)
