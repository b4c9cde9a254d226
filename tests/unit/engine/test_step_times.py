"""What a replica measures of itself when it starts."""

from __future__ import annotations

from itertools import pairwise

import pytest

from outrider.engine import step_times
from outrider.engine.draft import DraftCore
from outrider.engine.engine import Engine
from outrider.engine.model import load_model
from outrider.engine.options import EngineOptions, ModelOptions
from outrider.engine.step_times import time_drafting, time_verifying
from outrider.engine.verify import VerifyCore
from tests.cluster import running_cluster, until
from tests.conftest import TinyModel
from tests.times_of_rounds import forget


def engine(tiny_model: TinyModel, **options: int) -> Engine:
    return Engine(
        load_model(ModelOptions(str(tiny_model("llama")), dtype="float32", device="cpu")), EngineOptions(**options)
    )


@pytest.mark.parametrize(("core", "measure"), [(VerifyCore, time_verifying), (DraftCore, time_drafting)])
def test_rounds_of_rising_numbers_of_rows_are_timed_and_leave_nothing_behind(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch, core: type[VerifyCore], measure: type
) -> None:
    monkeypatch.setattr(step_times, "TIME_BUDGET_S", 60.0)
    monkeypatch.setattr(step_times, "ROWS", (1, 2, 4, 8, 16))
    one = engine(tiny_model, kv_tokens=4096)
    replica = core(one, max_proposal=15, lease_s=60)
    free = one.available_tokens
    found = measure(replica)
    assert found is not None
    assert found.rows == (1, 2, 4, 8, 16)
    assert all(0 < before <= after for before, after in pairwise(found.milliseconds))
    if core is VerifyCore:  # the sessions of a draft have a row each
        assert found.each == 8
        assert found.apart is not None
        assert found.apart.rows == (4, 16)
        assert found.plain is not None
        assert found.plain.rows == (1, 4, 16)
        assert all(0 < before <= after for before, after in pairwise(found.plain.milliseconds))
    else:
        assert found.apart is found.plain is None
        assert found.further is not None
        assert found.further.rows == (4, 16)
        assert all(0 <= before <= after for before, after in pairwise(found.further.milliseconds))
    assert not len(replica.sessions)
    assert not replica.busy
    assert one.available_tokens == free


def test_no_more_rows_are_timed_than_fit(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_times, "TIME_BUDGET_S", 60.0)
    small = engine(tiny_model, kv_tokens=32, block_size=16, max_batch_tokens=64)
    found = time_verifying(VerifyCore(small, max_proposal=15, lease_s=60))
    assert found is not None
    assert found.rows == (1, 2, 4, 8, 16)  # two sessions of a block each
    tiny = engine(tiny_model, kv_tokens=8, block_size=8, max_batch_tokens=64)
    assert time_verifying(VerifyCore(tiny, max_proposal=15, lease_s=60)) is None


async def test_coordinators_are_told(tiny_model: TinyModel) -> None:
    target = tiny_model("llama")
    forget()  # so that what they are told has been measured here
    async with running_cluster(target, target) as cluster:
        replicas = cluster.coordinator.replicas
        links = [*replicas.verifiers, *replicas.drafts]
        await until(lambda: all(link.step_times is not None for link in links))
        assert all(link.draft_step_times is None for link in links)
        await cluster.generate("again and again", max_tokens=4, ignore_eos=True)
        assert cluster.coordinator.generations.costs.table(2).verify_ms[0] > 0
