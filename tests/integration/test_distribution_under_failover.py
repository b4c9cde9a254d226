"""Under rejection and block an answer that changes its verifier in the middle stays a valid sample: chi-squared."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

from tests.cluster import running_cluster
from tests.conftest import TinyModel
from tests.distribution import measure

ANSWERS = 1200
PAUSE_S = 0.15

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("rule", ["rejection", "block"])
async def test_answers_that_change_their_verifier_follow_the_targets_distribution(
    tiny_model: TinyModel, rule: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "outrider_coordinator")
    target = tiny_model("llama")
    async with running_cluster(
        target, target, verifiers=2, draft={"layers": 2}, max_sessions=64, draft_retry_s=0.05
    ) as cluster:
        links = [*cluster.coordinator.replicas.verifiers, *cluster.coordinator.replicas.drafts]

        async def cut() -> None:
            """The stream to one replica after the other, with everything that is on its way on it."""
            for link in itertools.cycle(links):
                await link.wait_ready(20)
                await asyncio.sleep(PAUSE_S)
                link.leave()

        cutting = asyncio.create_task(cut())
        try:
            result = await measure(cluster, target, ANSWERS, rule=rule, drafter="model", seed=7)
        finally:
            cutting.cancel()
    lost = sum(" lost " in record.getMessage() for record in caplog.records)
    assert lost > 20, "few answers were disturbed"
    assert result.impossible == 0
    assert result.p_value > 1e-4, result
    assert result.acceptance_rate is not None
    assert 0 < result.acceptance_rate < 1
