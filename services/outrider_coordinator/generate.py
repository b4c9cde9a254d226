"""The main flow of the whole system: propose, verify, accept, commit, emit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

from outrider_coordinator.session import Delta, Session
from outrider_coordinator.speculator import Speculator
from outrider_coordinator.stopwatch import RoundClock
from outrider_coordinator.target import TargetBinding


async def generate(session: Session, target: TargetBinding, speculator: Speculator) -> AsyncIterator[Delta]:
    """Run rounds until the generation ends; yield what each adds to the answer."""
    clock = RoundClock()
    while session.finish is None:
        promised = target.promised(session.committed)
        wanted = await speculator.propose(session.committed, session.draft_budget, promised)
        clock.proposed()
        speculator.look_ahead(session.committed, wanted, session.draft_budget)
        following = partial(speculator.following, session.committed, wanted)
        judged = await target.verify(session.committed, wanted, following)
        clock.verified(judged, began_by_itself=promised is not None, in_step=target.drafts)
        delta = session.commit(judged.proposal, judged.verdict)
        speculator.learn(
            judged, delta, propose_ms=clock.propose_ms, verify_ms=clock.verify_ms, period_ms=clock.period_ms
        )
        yield delta
        clock.emitted()
