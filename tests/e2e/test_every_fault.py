"""Every fault to every role at every moment: the answer is the same, and nothing is left behind.

Real processes and a real Redis, each on a machine of its own (`tests.chaos.network`). Replicas wait at the moment
(`tests.chaos.moment`) until the fault has happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any

import pytest

from outrider.client import AsyncClient, Completion
from outrider.errors import Cancelled, DeadlineExceeded, Unavailable
from tests.chaos.fleet import CONTINUE, KILL, STOP, Fleet, Machine
from tests.chaos.moment import Moments
from tests.chaos.network import HERE, Network, why_not
from tests.cluster import until
from tests.conftest import TinyModel
from tests.e2e.long_context import with_long_context

PROMPT = [(7 * place) % 480 + 20 for place in range(700)]  # six passes of a replica
TOKENS = 24
OPTIONS: dict[str, Any] = {"temperature": 0.8, "seed": 21, "max_tokens": TOKENS, "ignore_eos": True}
OPTIONS |= {"fixed_length": True, "max_draft_tokens": 2}
REPLICA = ["--dtype", "float32", "--device", "cpu", "--threads", "1", "--kv-tokens", "4096", "--grace-s", "4"]
REPLICA += ["--heartbeat-s", "0.3", "--registry-ttl-s", "1.5", "--max-batch-tokens", "128", "--no-prefix-cache"]
COORDINATOR = ["--replica-silence-s", "1", "--heartbeat-s", "0.3", "--registry-timeout-s", "0.3"]
COORDINATOR += ["--draft-timeout-s", "3", "--draft-retry-s", "0.2"]
PATIENCE_S = 60.0

ROLES = ["draft", "verifier", "coordinator", "redis"]
FAULTS = ["kill", "stop", "restart", "partition"]
AT = {"mid-prefill": 300, "mid-round": len(PROMPT) + 8, "at the last token": len(PROMPT) + TOKENS - 1}
BEGUN = len(PROMPT) + 2
LAST_GUESS = len(PROMPT) + TOKENS - 4  # a round commits three tokens at most, and the last two rounds may have no guess

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(reason := why_not()), reason=reason)]


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> Moments:
    return Moments(tmp_path_factory.mktemp("moments"))


@pytest.fixture(scope="module")
def fleet(tiny_model: TinyModel, moments: Moments, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    model = with_long_context(tiny_model("llama"), tmp_path_factory.mktemp("long") / "model")
    flags = ["--model", str(model), *REPLICA]
    names = ["redis", "verifier0", "verifier1", "draft0", "coordinator0", "coordinator1"]
    folder = tmp_path_factory.mktemp("fleet")
    with pytest.MonkeyPatch.context() as patch, Network(names) as network:
        patch.setenv("TEST_MOMENTS", str(moments.folder))
        with Fleet(
            network,
            folder,
            verifier=flags,
            draft=[*flags, "--layers", "2"],
            coordinators=[COORDINATOR, COORDINATOR],
            verifiers=2,
            drafts=1,
        ) as running:
            yield running


@pytest.fixture(scope="module")
def expected(fleet: Fleet) -> Completion:
    async def undisturbed() -> Completion:
        await until(lambda: at_rest(fleet), PATIENCE_S)
        return await Client(fleet).ask("coordinator0", drafter="none")

    return asyncio.run(undisturbed())


def at_rest(fleet: Fleet) -> bool:
    """All are connected, and nobody holds anything of any session: no place, no KV, no binding, nothing to wait for."""
    services = [machine for machine in fleet.machines.values() if machine.role != "redis"]
    if not all(fleet.ready(machine) for machine in fleet.machines.values()):
        return False
    held = [fleet.inspect(machine) for machine in services]
    if any(each.get("connected", 3) != 3 or each.get("streams", 2) < 2 for each in held):
        return False
    levels = ("sessions", "used_tokens", "queue", "running", "waiting", "names", "placed", "pending", "bound")
    return not any(each.get(level) for each in held for level in levels)


@dataclass
class Client:
    """Asks until there is an answer, and remembers what it saw of those that broke off."""

    fleet: Fleet
    seen: list[list[int]] = field(default_factory=list)

    async def ask(self, coordinator: str, *, drafter: str) -> Completion:
        tokens: list[int] = []
        self.seen.append(tokens)
        async with (
            AsyncClient(self.fleet.address(coordinator), timeout=PATIENCE_S) as client,
            client.stream(token_ids=PROMPT, drafter=drafter, **OPTIONS) as stream,
        ):
            async for chunk in stream:
                tokens += chunk.token_ids
        assert tuple(tokens) == stream.result.token_ids
        return stream.result

    async def until_answered(self, *coordinators: str, drafter: str) -> Completion:
        """Ask each, and the last one again and again."""
        for name in chain(coordinators, repeat(coordinators[-1])):
            with suppress(Unavailable, DeadlineExceeded, Cancelled):
                return await self.ask(name, drafter=drafter)
            await asyncio.sleep(0.1)
        raise AssertionError("never")


@dataclass
class Fault:
    """One fault to one machine, or to all that could stand in for it."""

    fleet: Fleet
    kind: str
    machines: list[Machine]

    async def happen(self) -> None:
        for machine in self.machines:
            if self.kind == "stop":
                self.fleet.signal(machine, STOP)
            elif self.kind == "partition":
                for way in self._ways(machine):
                    self.fleet.network.cut(*way)
            else:
                self.fleet.signal(machine, KILL)
                await self.fleet.ended(machine)
        if self.kind == "restart":
            await self._restart()

    async def undo(self) -> None:
        for machine in self.machines:
            if self.kind == "stop":
                self.fleet.signal(machine, CONTINUE)
            elif self.kind == "partition":
                for way in self._ways(machine):
                    self.fleet.network.mend(*way)
        if self.kind == "kill":
            await self._restart()

    async def _restart(self) -> None:
        for machine in self.machines:
            await self.fleet.restart(machine)

    def _ways(self, machine: Machine) -> Iterator[tuple[str, str]]:
        for other in (HERE, *self.fleet.machines):
            if other != machine.name:
                yield from ((other, machine.name), (machine.name, other))


async def reach(fleet: Fleet, moments: Moments, role: str, moment: str) -> int:
    """Until some replica has come to the moment and waits there; the process that does."""
    if role != "draft":
        moments.order("verifier", AT[moment])
        return await waiting(moments, "verifier")
    # The verifier waits until the draft has the session: the answer could end before.
    moments.order("verifier", BEGUN)
    moments.order("draft", LAST_GUESS if moment == "at the last token" else AT[moment])
    await waiting(moments, "verifier")
    if moment != "mid-prefill":
        await until(lambda: fleet.inspect(fleet.machines["draft0"])["sessions"] == 1, PATIENCE_S)
        moments.release("verifier")
    return await waiting(moments, "draft")


async def waiting(moments: Moments, role: str) -> int:
    await until(lambda: moments.waiting(role) is not None, PATIENCE_S)
    pid = moments.waiting(role)
    assert pid is not None
    return pid


def struck(fleet: Fleet, role: str, kind: str, pid: int) -> list[Machine]:
    """Who suffers the fault; `pid` is the replica that waits at the moment."""
    if role == "verifier":
        # Of two, the other one takes over; where both start anew, the session has to come back to one of them.
        return [each for each in fleet.of(role) if kind == "restart" or (each.process and each.process.pid == pid)]
    return fleet.of(role)[:1]


@pytest.mark.parametrize("moment", list(AT))
@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("role", ROLES)
async def test_a_fault_changes_no_answer(
    fleet: Fleet, moments: Moments, expected: Completion, role: str, kind: str, moment: str
) -> None:
    await until(lambda: at_rest(fleet), PATIENCE_S)
    client = Client(fleet)
    drafter = "none" if moment == "at the last token" and role != "draft" else "model"
    # Who loses the coordinator asks the other one; where it comes back, itself.
    others = ["coordinator1"] if role == "coordinator" and kind in ("kill", "partition") else []
    fault: Fault | None = None
    asking = asyncio.create_task(client.until_answered("coordinator0", *others, drafter=drafter))
    try:
        pid = await reach(fleet, moments, role, moment)
        fault = Fault(fleet, kind, struck(fleet, role, kind, pid))
        await fault.happen()
        moments.release("verifier", "draft")
        if (role, kind) == ("coordinator", "partition"):
            await given_up(asking)  # by a client that hears nothing
            answer = await client.until_answered("coordinator1", drafter=drafter)
        elif (role, kind) == ("coordinator", "stop"):
            await asyncio.sleep(1.5)  # longer than the silence that is borne
            await fault.undo()
            answer = await asking
        else:
            answer = await asking
    finally:
        moments.release("verifier", "draft")
        await given_up(asking)
        if fault is not None:
            await fault.undo()
    assert (answer.token_ids, answer.text) == (expected.token_ids, expected.text)
    for tokens in client.seen:
        assert tuple(tokens) == expected.token_ids[: len(tokens)], "what broke off began alike"
    await until(lambda: at_rest(fleet), PATIENCE_S)


async def given_up(asking: asyncio.Task[Completion]) -> None:
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
