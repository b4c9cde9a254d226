"""A chaos run: the answers without faults, then the same requests while machines fail, then what is left behind."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from outrider.client import AsyncClient, Completion
from outrider.config.registry import RegistrySettings
from outrider.errors import Unavailable
from tests.chaos.clients import Clients, Tally
from tests.chaos.faults import Tormentor
from tests.chaos.fleet import PORT, Fleet, Machine
from tests.chaos.network import Network
from tests.chaos.plan import Asked, Fault, draw_faults, draw_requests
from tests.tiny_models import save_model

REPLICA = ["--dtype", "float32", "--device", "cpu", "--threads", "1", "--kv-tokens", "4096", "--grace-s", "3"]
REPLICA += [
    "--max-batch-tokens",
    "128",
    "--max-proposal",
    "15",
    "--lease-s",
    "60",
    "--heartbeat-s",
    "0.5",
    "--registry-ttl-s",
    "2.5",
]
COORDINATOR = ["--draft-timeout-s", "0.5", "--draft-retry-s", "0.3", "--failover-s", "20", "--verify-timeout-s", "10"]
COORDINATOR += ["--replica-silence-s", "2", "--heartbeat-s", "0.5", "--grace-s", "5", "--binding-ttl-s", "5"]
COORDINATORS = [[*COORDINATOR, "--look-ahead", "on"], COORDINATOR]

AT_A_TIME = 24
"""Most requests in progress."""

SETTLE_S = 90.0
"""Longest time until everything that the run left behind is gone: leases, keepalives of cut connections."""

SAMPLE_S = 5.0
OUR_FAULT = "unexpected error"
"""What a service logs when something of its own went wrong."""

MARGIN = {"descriptors": 12, "threads": 8, "tasks": 12}
"""How much more of each a service may hold after the run than before it."""


@dataclass
class Outcome:
    """What a run did and found."""

    faults: list[Fault] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    findings: list[str] = field(default_factory=list)
    before: dict[str, dict[str, Any]] = field(default_factory=dict)
    after: dict[str, dict[str, Any]] = field(default_factory=dict)
    most: dict[str, dict[str, float]] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    logged: Counter[str] = field(default_factory=Counter)


async def run(
    folder: Path, *, seed: int, faults: int, requests: int, seconds: float, say: Callable[[str], None]
) -> Outcome:
    """Let `faults` faults over `seconds` happen to a fleet that answers `requests` requests."""
    outcome = Outcome()
    names = ["redis", "verifier0", "verifier1", "draft0", "draft1", "coordinator0", "coordinator1"]
    with Network(names) as network:
        target, draft = save_model("llama", folder / "target"), save_model("llama", folder / "draft", layers=2)
        with Fleet(
            network,
            folder,
            verifier=["--model", str(target), *REPLICA],
            draft=["--model", str(draft), *REPLICA],
            coordinators=COORDINATORS,
            verifiers=2,
            drafts=2,
        ) as fleet:
            roles = {role: [machine.name for machine in fleet.of(role)] for role in ("redis", "verifier", "draft")}
            roles["coordinator"] = [machine.name for machine in fleet.of("coordinator")]
            outcome.faults = draw_faults(seed, faults, seconds, roles)
            outcome.asked = draw_requests(seed, requests, seconds, len(COORDINATORS))
            await _run(fleet, outcome, say)
            outcome.logged = _errors_logged(fleet)
            outcome.findings += [f"logged: {line}" for line in outcome.logged if OUR_FAULT in line]
    return outcome


async def _run(fleet: Fleet, outcome: Outcome, say: Callable[[str], None]) -> None:
    addresses = [fleet.address(machine.name) for machine in fleet.of("coordinator")]
    began = time.monotonic()
    await _settled(fleet)
    expected = await _undisturbed(addresses, outcome.asked)
    outcome.seconds["undisturbed"] = time.monotonic() - began
    say(f"{len(expected)} answers without faults in {outcome.seconds['undisturbed']:.0f} s")
    if left := await _settled(fleet):
        outcome.findings += [f"before any fault: {each}" for each in left]
    outcome.before = _inspect(fleet)

    began = time.monotonic()
    clients, tormentor = Clients(addresses, expected), Tormentor(fleet)
    outcome.tally = clients.tally
    watch = asyncio.create_task(_watch(fleet, outcome, tormentor, say, began))
    try:
        begun = partial(_share_begun, outcome)
        await asyncio.gather(tormentor.run(outcome.faults, began, begun), _ask_all(clients, outcome.asked, began))
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await clients.close()
    outcome.seconds["faults"] = time.monotonic() - began
    outcome.findings += tormentor.findings + clients.tally.findings
    if len(tormentor.done) + len(tormentor.findings) < len(outcome.faults):
        outcome.findings.append(f"{len(tormentor.done)} of {len(outcome.faults)} faults happened")

    began = time.monotonic()
    outcome.findings += [f"left behind: {each}" for each in await _settled(fleet)]
    outcome.seconds["settling"] = time.monotonic() - began
    again = await _undisturbed(addresses, outcome.asked[:40])
    for number, (first, second) in enumerate(zip(expected, again, strict=False)):
        if first is not None and second is not None and first.token_ids != second.token_ids:
            outcome.findings.append(f"request {number} is answered differently after the run")
    outcome.findings += [f"left behind: {each}" for each in await _settled(fleet)]
    deadline = time.monotonic() + SETTLE_S
    outcome.after = _inspect(fleet)
    while _grown(outcome) and time.monotonic() < deadline:
        await asyncio.sleep(1.0)
        outcome.after = _inspect(fleet)
    outcome.findings += _grown(outcome)
    outcome.starts = {machine.name: machine.starts for machine in fleet.machines.values()}


def _share_begun(outcome: Outcome) -> float:
    return outcome.tally.begun / len(outcome.asked)


async def _undisturbed(addresses: Sequence[str], asked: Sequence[Asked]) -> list[Completion | None]:
    """The answer to each request, without a drafter; None where its rule promises a distribution only."""
    places = asyncio.Semaphore(16)

    async def answer(number: int, each: Asked) -> Completion | None:
        async with places:
            if "rule" in each.options:
                return None
            client = clients[number % len(clients)]
            return await client.generate(each.prompt, drafter="none", **each.options)

    clients = [AsyncClient(address) for address in addresses]
    try:
        return list(await asyncio.gather(*(answer(number, each) for number, each in enumerate(asked))))
    finally:
        for client in clients:
            await client.close()


async def _ask_all(clients: Clients, asked: Sequence[Asked], began: float) -> None:
    places = asyncio.Semaphore(AT_A_TIME)

    async def ask(number: int, each: Asked) -> None:
        try:
            await clients.ask(number, each)
        finally:
            places.release()

    async with asyncio.TaskGroup() as tasks:
        for number, each in enumerate(asked):
            await asyncio.sleep(max(0.0, began + each.at_s - time.monotonic()))
            await places.acquire()
            tasks.create_task(ask(number, each))


async def _watch(
    fleet: Fleet, outcome: Outcome, tormentor: Tormentor, say: Callable[[str], None], began: float
) -> None:
    """What each service holds at most, and how the run goes on."""
    while True:
        await asyncio.sleep(SAMPLE_S)
        for machine in fleet.machines.values():
            if machine.role == "redis" or machine.busy.locked() or not machine.alive:
                continue
            with suppress(OSError, ValueError):
                most = outcome.most.setdefault(machine.name, {})
                for name, value in (await asyncio.to_thread(fleet.inspect, machine)).items():
                    most[name] = max(most.get(name, 0), value)
        tally = outcome.tally
        say(
            f"{time.monotonic() - began:4.0f} s: {len(tormentor.done)} faults, {tally.begun} requests begun, "
            f"{dict(tally.outcomes)}, {len(tally.findings) + len(tormentor.findings)} findings"
        )


async def _settled(fleet: Fleet) -> list[str]:
    """Wait until nothing is in progress anywhere and all are connected; what still is after SETTLE_S."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        left = [*_unsettled(fleet), *await _listed_wrongly(fleet)]
        if not left or time.monotonic() > deadline:
            return left
        await asyncio.sleep(0.5)


def _unsettled(fleet: Fleet) -> list[str]:
    left = []
    replicas = len(fleet.of("verifier")) + len(fleet.of("draft"))
    for name, held in _inspect(fleet).items():
        wanted = {"connected": replicas} if "connected" in held else {"streams": len(fleet.of("coordinator"))}
        for key in ("running", "waiting", "names", "placed", "pending", "bound", "sessions", "used_tokens", "queue"):
            if key in held:
                wanted[key] = 0
        left += [
            f"{name}: {key} is {held.get(key)}, not {value}" for key, value in wanted.items() if held.get(key) != value
        ]
    return left


def _inspect(fleet: Fleet) -> dict[str, dict[str, Any]]:
    return {
        machine.name: _inspect_one(fleet, machine) for machine in fleet.machines.values() if machine.role != "redis"
    }


def _inspect_one(fleet: Fleet, machine: Machine) -> dict[str, Any]:
    try:
        return fleet.inspect(machine)
    except (OSError, ValueError) as error:
        return {"unreachable": repr(error)}


async def _listed_wrongly(fleet: Fleet) -> list[str]:
    """What the registry has that is not so: bindings of no session, replicas that do not serve."""
    settings = RegistrySettings(registry=f"redis://{fleet.network.address('redis')}:{PORT}")  # type: ignore[arg-type]
    connection = settings.connect_registry()
    assert connection is not None
    try:
        bindings = await connection.run("return redis.call('KEYS', '{outrider}:binding:*')", [])
        places = await connection.run("return redis.call('HKEYS', '{outrider}:replicas')", [])
    except Unavailable as error:
        return [str(error)]
    finally:
        await connection.close()
    wanted = {f"{role}/{fleet.address(machine.name)}" for role in ("verifier", "draft") for machine in fleet.of(role)}
    left = [f"binding {key}" for key in bindings]
    return left + [f"{place} is listed wrongly or missing" for place in wanted ^ (set(places) - {"era"})]


def _grown(outcome: Outcome) -> list[str]:
    """Services that hold more descriptors, threads or tasks than before the run."""
    return [
        f"{name}: {key} grew from {before[key]} to {outcome.after[name].get(key)}"
        for name, before in outcome.before.items()
        for key, margin in MARGIN.items()
        if key in before and outcome.after[name].get(key, 0) > before[key] + margin
    ]


def _errors_logged(fleet: Fleet) -> Counter[str]:
    """Errors that services logged, without times and numbers."""
    counts: Counter[str] = Counter()
    for machine in fleet.machines.values():
        if machine.role == "redis":
            continue
        for line in machine.log.read_text(errors="replace").splitlines():
            if line[8:11] == " E ":
                counts[f"{machine.role}: {line[11:160]}"] += 1
    return counts
