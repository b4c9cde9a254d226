"""A small chaos run. `tests.benchmarks.chaos` is the large one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.network import why_not
from tests.chaos.run import run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(reason := why_not()), reason=reason)]


async def test_random_faults_lose_repeat_change_and_leave_nothing(tmp_path: Path) -> None:
    outcome = await run(tmp_path, seed=3, faults=40, requests=160, seconds=40, say=print)
    assert outcome.findings == []
    assert sum(outcome.tally.outcomes.values()) == 160
    assert outcome.tally.outcomes["answered"] > 100
    assert sum(outcome.starts.values()) > len(outcome.starts), "something was restarted"
