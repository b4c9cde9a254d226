"""Does to a fleet what the plan says, one fault at a time for each machine, and undoes it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from tests.chaos.fleet import CONTINUE, KILL, STOP, TERMINATE, Fleet, Machine
from tests.chaos.network import HERE
from tests.chaos.plan import Fault, Kind

AT_A_TIME = 10
AHEAD = 0.05
"""Share of the faults that may be ahead of the requests."""

DRAIN_S = 20.0
"""A service that got SIGTERM has ended by then: its grace and a busy machine."""


class Tormentor:
    """Carries faults out. `findings` are services that did not end or start as they should."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._places = asyncio.Semaphore(AT_A_TIME)
        self._cuts: Counter[tuple[str, str]] = Counter()  # cuts in force, by sender and receiver
        self.done: list[Fault] = []
        self.findings: list[str] = []

    async def run(self, faults: Sequence[Fault], began: float, progress: Callable[[], float]) -> None:
        """All faults, at their times after `began` (time.monotonic seconds).

        Where the requests, of which `progress` says the share that has begun, fall behind their times on a busy
        machine, the faults wait for them: they are meant for all requests.
        """
        async with asyncio.TaskGroup() as tasks:
            for number, fault in enumerate(faults):
                await asyncio.sleep(max(0.0, began + fault.at_s - time.monotonic()))
                while progress() < number / len(faults) - AHEAD:  # noqa: ASYNC110 (requests begin one by one)
                    await asyncio.sleep(0.05)
                await self._places.acquire()
                tasks.create_task(self._suffer(fault))

    async def _suffer(self, fault: Fault) -> None:
        try:
            async with AsyncExitStack() as stack:
                machine = self._fleet.machines.get(fault.machine)
                if fault.kind in (Kind.CUT, Kind.ISOLATE):
                    await self._cut(fault)
                else:
                    assert machine is not None
                    await stack.enter_async_context(machine.busy)
                    await self._hurt(fault, machine)
            self.done.append(fault)
        except (OSError, TimeoutError) as error:
            self.findings.append(f"{fault}: {error!r}")
        finally:
            self._places.release()

    async def _hurt(self, fault: Fault, machine: Machine) -> None:
        match fault.kind:
            case Kind.STALL:
                self._fleet.signal(machine, STOP)
                await asyncio.sleep(fault.lasts_s)
                self._fleet.signal(machine, CONTINUE)
            case Kind.KILL:
                self._fleet.signal(machine, KILL)
                await self._fleet.ended(machine)
                await asyncio.sleep(fault.lasts_s)
                await self._fleet.restart(machine)
            case Kind.DRAIN:
                self._fleet.signal(machine, TERMINATE)
                status = await self._fleet.ended(machine, DRAIN_S)
                if status != 0:
                    self.findings.append(f"{fault}: {machine.name} ended with {status} after SIGTERM")
                    self._fleet.signal(machine, KILL)
                    await self._fleet.ended(machine)
                await asyncio.sleep(fault.lasts_s)
                await self._fleet.restart(machine)

    async def _cut(self, fault: Fault) -> None:
        if fault.kind is Kind.CUT:
            pairs = [(fault.machine, fault.other), (fault.other, fault.machine)][: 1 if fault.one_way else 2]
        else:
            others = [name for name in (HERE, *self._fleet.machines) if name != fault.machine]
            pairs = [pair for name in others for pair in ((fault.machine, name), (name, fault.machine))]
        for pair in pairs:
            self._cuts[pair] += 1
            if self._cuts[pair] == 1:
                self._fleet.network.cut(*pair)
        await asyncio.sleep(fault.lasts_s)
        for pair in pairs:
            self._cuts[pair] -= 1
            if self._cuts[pair] == 0:
                self._fleet.network.mend(*pair)
