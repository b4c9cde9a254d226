"""Orders that stand for several rounds: the same answers as without, whatever happens in the middle of one."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from outrider.protocol.items import Close, FollowUp
from outrider_coordinator import speculator
from outrider_coordinator.orders import MARGIN
from tests.cluster import Cluster, running_cluster, start_verifier, until
from tests.conftest import TinyModel
from tests.integration.test_draining import drain, told
from tests.integration.test_own_draft import OWN, assert_nothing_is_left

PROMPT = [*range(20, 30)]
# A fixed length keeps the draft at work, whatever it is worth on this machine.
OPTIONS: dict[str, Any] = {"temperature": 0.8, "seed": 21, "max_tokens": 60, "ignore_eos": True, "fixed_length": True}
DRAFTERS = pytest.mark.parametrize("drafter", ["none", "model"])


@pytest.fixture
async def cluster(tiny_model: TinyModel) -> AsyncIterator[Cluster]:
    """One verifier, which drafts by itself."""
    async with running_cluster(tiny_model("llama"), verifier=OWN) as running:
        yield running
        await assert_nothing_is_left(running)


class Ahead:
    """Lets a verifier get ahead of its coordinator: verdicts wait until all rounds of an order have been run."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, *, place: int = 0, stays: int = 0) -> None:
        """`stays`: verdicts of so-manieth order wait until they are released; 0: of none."""
        link: Any = cluster.coordinator.replicas.verifiers[place]
        self.orders: list[FollowUp] = []
        self.kept: list[Any] = []
        self.late: list[Any] = []  # what was kept of a session that has been closed
        self.most_early = 0
        self.stays = stays
        self.holds = True  # False: verdicts wait for nothing any more
        self.base = 0  # of the last round whose verdict had come, or was on its way, when the last order was given
        self._wanted = 0  # rounds that follow it, by that order and what it extends
        self._following = link._following
        self._tell, self._take = link.tell, link._take
        monkeypatch.setattr(link, "tell", self._told)
        monkeypatch.setattr(link, "_take", self._keep)

    @property
    def complete(self) -> bool:
        """Whether the verifier has run all that it was told of."""
        return 0 < self._wanted == sum(wire.base_length > self.base for wire in self.kept)

    def release(self) -> None:
        """All verdicts that wait."""
        kept = self.late + self.kept
        self.late, self.kept, self._wanted = [], [], 0
        for wire in kept:
            self._take(wire)
        self.most_early = max([self.most_early, *(len(each.early) for each in self._following.values())])

    def _told(self, item: Any) -> int:
        if isinstance(item, FollowUp) and item.rounds > 1:
            self.orders.append(item)
            following = self._following[item.key.session, item.key.epoch]
            self.base = max([following.first - 1, *following.early])
            self._wanted = following.rounds - len(following.early)
        elif isinstance(item, Close):
            self.late, self.kept, self._wanted = self.kept, [], 0
        return int(self._tell(item))

    def _keep(self, wire: Any) -> None:
        if not self.holds or not self._wanted or not wire.HasField("verdict"):
            self._take(wire)
            return
        self.kept.append(wire)
        if self.complete and len(self.orders) != self.stays:
            self.release()


@DRAFTERS
async def test_they_never_change_the_answer(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, drafter: str) -> None:
    """Under any rule, for rounds are the same ones; nor does it matter how far the verifier is ahead."""
    for rule in ("match", "rejection", "block"):
        options = OPTIONS | {"drafter": drafter, "rule": rule}
        with monkeypatch.context() as patch:
            patch.setattr(speculator, "STANDS", 1)
            expected = await cluster.generate(PROMPT, **options)
        with monkeypatch.context() as patch:
            ahead = Ahead(cluster, patch)
            answer = await cluster.generate(PROMPT, **options)
        assert answer.token_ids == expected.token_ids
        assert answer.speculation.rounds == expected.speculation.rounds
        assert answer.speculation.accepted_tokens == expected.speculation.accepted_tokens
        assert bool(answer.speculation.proposed_tokens) is (drafter == "model")
        assert speculator.STANDS <= ahead.most_early <= speculator.STANDS + MARGIN
        assert len(ahead.orders) < answer.speculation.rounds / 3


@DRAFTERS
async def test_a_verifier_may_die_ahead_of_its_coordinator(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch, drafter: str
) -> None:
    target, options = tiny_model("llama"), OPTIONS | {"drafter": drafter}
    async with running_cluster(target, verifier=OWN) as cluster:
        expected = await cluster.generate(PROMPT, **options)
        address = cluster.coordinator.replicas.verifiers[0].address
        for released in (False, True):
            with monkeypatch.context() as patch:
                ahead = Ahead(cluster, patch, stays=2)
                async with cluster.client.stream(token_ids=PROMPT, **options) as stream:
                    await until(lambda: ahead.complete)  # noqa: B023 (it is not called after this round)
                    if not released:
                        ahead.kept.clear()
                    await cluster.verifiers[-1].stop()
                    ahead.release()
                    replica, _ = await start_verifier(target, listen=address, **OWN)
                    cluster.verifiers.append(replica)
                    cluster.stack.push_async_callback(replica.stop)
                    await stream.read()
            assert stream.result.token_ids == expected.token_ids
        cluster.verifiers[:-1] = []
        await assert_nothing_is_left(cluster)


@DRAFTERS
async def test_answers_may_end_while_the_verifier_is_ahead(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, drafter: str
) -> None:
    """By a stop token, which the verifier knows as well, a stop string, an abort, or because the client leaves."""
    options = OPTIONS | {"drafter": drafter}
    whole = await cluster.generate(PROMPT, **options)
    ahead = Ahead(cluster, monkeypatch)

    stop = whole.text[len(whole.text) // 2 :][:6]
    cut = await cluster.generate(PROMPT, stop=[stop], session_id="a", **options)
    assert cut.text == whole.text[: whole.text.index(stop)]
    # The verifier has been told what stands of what it ran: the next turn finds it.
    history = [*PROMPT, *cut.token_ids]
    again = await cluster.generate([*history, 7], session_id="a", **(options | {"max_tokens": 1}))
    assert again.usage.cached_tokens >= len(history) - 1

    async def begin(**more: Any) -> Any:
        """Until the verifier has run all rounds of the second order, which the coordinator hears nothing of."""
        ahead.orders.clear()
        stream = cluster.client.stream(token_ids=PROMPT, **(options | more))
        await stream.__aenter__()
        return stream

    ahead.stays = 2
    for leave in (False, True):
        stream = await begin(request_id="r")
        await until(lambda: ahead.complete)
        began, reached = (at - len(PROMPT) for at in (ahead.base, ahead.kept[-1].base_length))
        if leave:
            await stream.__aexit__(None, None, None)
        else:
            await cluster.client.abort("r")
            found = (await stream.read()).token_ids
            assert found == whole.token_ids[: len(found)]
            assert len(found) < reached
        await assert_nothing_is_left(cluster)
        ahead.release()  # too late for anybody

    # A token that some round of that order commits, and none before it: of the round in flight at most 5 stand.
    stop_token = whole.token_ids[began + 5]
    assert stop_token not in whole.token_ids[: began + 5]
    stream = await begin(stop_token_ids=[stop_token])
    await until(lambda: any(stop_token in wire.verdict.next_tokens for wire in ahead.kept))
    ahead.holds = False
    ahead.release()
    assert (await stream.read()).token_ids == whole.token_ids[: began + 6]


@DRAFTERS
async def test_a_session_leaves_a_verifier_that_drains_while_it_is_ahead(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, drafter: str
) -> None:
    caplog.set_level(logging.INFO, "outrider_coordinator")
    options = OPTIONS | {"drafter": drafter}
    async with running_cluster(tiny_model("llama"), verifiers=2, verifier=OWN) as cluster:
        expected = await cluster.generate(PROMPT, **options)
        replicas = cluster.coordinator.replicas
        aheads = [Ahead(cluster, monkeypatch, place=place, stays=2) for place in (0, 1)]
        async with cluster.client.stream(token_ids=PROMPT, **options) as stream:
            await until(lambda: any(ahead.complete for ahead in aheads))
            place = [ahead.complete for ahead in aheads].index(True)
            stopping = drain(cluster, place, 60.0)
            await told(cluster, place)
            replicas.verifiers[place].hands_over_at = time.monotonic()  # half of the grace is over
            aheads[1 - place].orders.clear()
            aheads[1 - place].stays = 0
            aheads[place].release()
            await stream.read()
        assert stream.result.token_ids == expected.token_ids
        left = re.findall(r"leaves (\S+), which drains", caplog.text)
        assert left == [replicas.verifiers[place].address]
        await stopping
        await assert_nothing_is_left(cluster)
