"""A verifier and a draft in one process that take turns: the same answers, and never two passes at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.replica import Replica, load, run_all
from outrider.errors import InternalError
from outrider_pair.process import assemble
from outrider_pair.settings import PairSettings
from tests.cluster import REPLICA, Cluster, running_cluster, until
from tests.conftest import TinyModel

PROMPTS = [f"again and again {number} times and again" for number in range(5)]
OPTIONS: dict[str, Any] = {"temperature": 0.8, "max_tokens": 40, "ignore_eos": True, "fixed_length": True}


def pair_of(model: Path) -> tuple[Replica, Replica]:
    options = PairSettings(model=str(model), draft_layers=2, draft_kv_tokens=8192, **REPLICA)
    return assemble(options, load(options), load(options.draft()))


@asynccontextmanager
async def running_pair(model: Path) -> AsyncIterator[tuple[Cluster, tuple[Replica, Replica]]]:
    replicas = pair_of(model)
    verifier, draft = [await replica.start() for replica in replicas]
    try:
        async with running_cluster(model, verifiers=0, more_verifiers=[verifier], more_drafts=[draft]) as cluster:
            yield cluster, replicas
    finally:
        for replica in replicas:
            await replica.stop()


def count_at_once(replicas: tuple[Replica, Replica]) -> list[int]:
    """How many passes run at each pass of the replicas."""
    running, found, lock = 0, [], threading.Lock()
    for replica in replicas:
        core: Any = replica._core
        step = core.step

        def counted(step: Any = step) -> Any:
            nonlocal running
            with lock:
                running += 1
                found.append(running)
            try:
                return step()
            finally:
                with lock:
                    running -= 1

        core.step = counted
    return found


async def test_answers_are_those_of_the_target_alone_and_passes_take_turns(tiny_model: TinyModel) -> None:
    async with running_pair(tiny_model("llama")) as (cluster, replicas):
        at_once = count_at_once(replicas)
        asked = [(prompt, drafter) for prompt in PROMPTS for drafter in ("none", "model")]
        answers = await asyncio.gather(
            *(cluster.generate(prompt, seed=7, drafter=drafter, **OPTIONS) for prompt, drafter in asked)
        )
        by_drafter = {
            each: [answer for (_, drafter), answer in zip(asked, answers, strict=True) if drafter == each]
            for each in ("none", "model")
        }
        assert [a.token_ids for a in by_drafter["model"]] == [a.token_ids for a in by_drafter["none"]]
        assert all(answer.speculation.proposed_tokens for answer in by_drafter["model"])
        assert set(at_once) == {1}
        assert {type(replica._worker._turn).__name__ for replica in replicas} == {"VerifyTurn", "DraftTurn"}


@pytest.mark.parametrize("failing", [0, 1])
async def test_when_one_of_them_fails_both_end(tiny_model: TinyModel, failing: int) -> None:
    replicas = pair_of(tiny_model("llama"))
    running = asyncio.create_task(run_all(*replicas))
    await until(lambda: all(replica.server.port for replica in replicas))
    replicas[failing]._device_failed()
    with pytest.raises(InternalError, match="the device thread ended"):
        await asyncio.wait_for(running, 30)
    for replica in replicas:
        assert not replica._worker.alive
        with pytest.raises(OSError, match="Connect call failed"):
            await asyncio.open_connection("127.0.0.1", replica.server.port)
