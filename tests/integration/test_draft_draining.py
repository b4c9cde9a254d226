"""A draft that is told to end: its sessions go on with another one at once, or with it for as long as it is there."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest

from outrider.engine.replica import Replica
from tests.cluster import Cluster, running_cluster, slow_passes, until
from tests.conftest import TinyModel

PROMPT = "again and again and again"
# More rounds than an answer may be ahead of its client: one that waits holds the answer up.
OPTIONS: dict[str, Any] = {"temperature": 0.8, "seed": 21, "max_tokens": 160, "ignore_eos": True, "fixed_length": True}
OPTIONS |= {"max_draft_tokens": 1, "drafter": "model"}


async def the_busy_one(cluster: Cluster) -> int:
    """The place of the draft that the only session is on, once it is open there."""
    await until(lambda: any(len(draft._core.sessions) for draft in cluster.drafts))
    (place,) = [place for place, draft in enumerate(cluster.drafts) if len(draft._core.sessions)]
    return place


def drain(replica: Replica, grace_s: float) -> asyncio.Task[None]:
    """What SIGTERM does to a draft."""
    replica._settings = replica._settings.model_copy(update={"grace_s": grace_s})
    return asyncio.create_task(replica.server.stop(replica._drain, grace_s=grace_s))


@pytest.mark.parametrize("look_ahead", ["off", "on"])
async def test_sessions_leave_a_draft_that_drains_for_another(
    tiny_model: TinyModel, look_ahead: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "outrider_coordinator")
    target = tiny_model("llama")
    async with running_cluster(target, target, target, draft={"layers": 2}, look_ahead=look_ahead) as cluster:
        expected = await cluster.generate(PROMPT, **(OPTIONS | {"drafter": "none"}))
        drafts = cluster.coordinator.replicas.drafts
        with slow_passes(cluster, 0.01):
            async with cluster.client.stream(PROMPT, **OPTIONS) as stream:
                await anext(stream)
                place = await the_busy_one(cluster)
                stopping = drain(cluster.drafts[place], 60.0)
                await until(lambda: not drafts[place].takes_new)
                while not len(cluster.drafts[1 - place]._core.sessions):
                    await anext(stream)
                await asyncio.wait_for(stopping, 30)  # without a session it need not wait for the end of its grace
                answer = await stream.read()
        await until(lambda: not any(len(draft._core.sessions) for draft in cluster.drafts))
    assert (answer.token_ids, answer.text) == (expected.token_ids, expected.text)
    assert re.findall(r"leaves (\S+), which drains", caplog.text) == [drafts[place].address]
    assert answer.speculation.fallback_reason == ""  # nobody was let go
    assert answer.speculation.proposed_tokens > 0


async def test_without_another_a_session_goes_on_with_the_draft_that_drains(tiny_model: TinyModel) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, target, draft={"layers": 2}) as cluster:
        expected = await cluster.generate(PROMPT, **(OPTIONS | {"drafter": "none"}))
        link = cluster.coordinator.replicas.drafts[0]
        with slow_passes(cluster, 0.01):
            async with cluster.client.stream(PROMPT, **OPTIONS) as stream:
                await anext(stream)
                await the_busy_one(cluster)
                stopping = drain(cluster.drafts[0], 60.0)
                await until(lambda: not link.takes_new)
                assert link.ready
                await stream.read()
        await asyncio.wait_for(stopping, 30)
        # The next one has none.
        later = await cluster.generate(PROMPT, **OPTIONS)
    for answer in (stream.result, later):
        assert (answer.token_ids, answer.text) == (expected.token_ids, expected.text)
    assert stream.result.speculation.fallback_reason == ""
    assert stream.result.speculation.accepted_tokens > 0
    assert (later.speculation.proposed_tokens, later.speculation.fallback_reason[:8]) == (0, "no draft")


async def test_a_draft_whose_grace_ends_is_done_without(tiny_model: TinyModel) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, target, draft={"layers": 2}) as cluster:
        expected = await cluster.generate(PROMPT, **(OPTIONS | {"drafter": "none"}))
        with slow_passes(cluster, 0.01):
            async with cluster.client.stream(PROMPT, **OPTIONS) as stream:
                await anext(stream)
                await the_busy_one(cluster)
                await drain(cluster.drafts[0], 0.05)
                await stream.read()
    assert stream.result.token_ids == expected.token_ids
    reason = stream.result.speculation.fallback_reason
    assert "was lost" in reason or "is not connected" in reason  # in the middle of a guess, or between two
