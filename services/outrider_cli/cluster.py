"""A whole Outrider on this machine: a verifier, a draft service and a coordinator, each in a process of its own."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from outrider_cli.process import Log, ServiceProcess

START_TIMEOUT_S = 600.0
"""Loading a large model from a slow disk takes minutes."""

STOP_GRACE_S = 40.0
"""Longer than the services' own grace for running work, 30 s at most by default."""

ANY_PORT = "127.0.0.1:0"


class LocalCluster:
    """Context manager: on entry the services start and load, on exit all of them are gone.

        with LocalCluster("path/to/model", draft_layers=6) as cluster:
            client = Client(cluster.address)

    Without `draft_model` and `draft_layers` the draft service runs the target model itself; `with_draft=False` starts
    none; `together` gives the draft to the verifier's own process, which is best where they share a GPU. `dtype` and
    `device` may be None: the services choose. `*_flags` go to the service as they are. `log` gets (role, line) for
    every line that a service logs. Raises ServiceFailed, with the service's last log lines, if one does not start; the
    children die with this process, even if it is killed.
    """

    def __init__(
        self,
        model: str,
        *,
        draft_model: str | None = None,
        draft_layers: int | None = None,
        dtype: str | None = "float32",
        device: str | None = "cpu",
        listen: str = ANY_PORT,
        coordinator_flags: Sequence[str] = (),
        verifier_flags: Sequence[str] = (),
        draft_flags: Sequence[str] = (),
        with_draft: bool = True,
        together: bool = False,
        start_timeout_s: float = START_TIMEOUT_S,
        log: Log | None = None,
    ) -> None:
        common = [*_flag("dtype", dtype), *_flag("device", device)]
        self._flags = {"verifier": ["--model", model, *common, *verifier_flags]}
        draft, more = ["--model", draft_model or model], [*_flag("layers", draft_layers), *draft_flags]
        if with_draft and together:
            self._flags["verifier"] += [flag.replace("--", "--draft-", 1) for flag in (*draft, *more)]
        elif with_draft:
            self._flags["draft"] = [*draft, *common, *more]
        self._models = tuple(self._flags)
        self._coordinator_flags = coordinator_flags
        self._listen = listen
        self._start_timeout_s = start_timeout_s
        self._log = log
        self._changed = threading.Condition()
        self._processes: dict[str, ServiceProcess] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the models' services side by side, then the coordinator that uses them."""
        try:
            for role in self._models:
                self._launch(role, ANY_PORT)
            self._await_ready(self._models)
            peers = [flag for role in self._models for flag in (f"--{role}s", self.address_of(role))]
            self._flags["coordinator"] = [*peers, *self._coordinator_flags]
            self._launch("coordinator", self._listen)
            self._await_ready(("coordinator", *self._models))
        except BaseException:
            self.stop()
            raise

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """End every service, the coordinator first so that it can drain. Harmless when nothing runs."""
        for process in reversed(self._processes.values()):
            process.stop(grace_s)
        self._processes.clear()

    def kill(self) -> None:
        """SIGKILL to every service; a `stop` in progress then returns at once. May be called from a signal handler."""
        for process in tuple(self._processes.values()):
            process.signal(signal.SIGKILL)

    def restart(self, role: str) -> ServiceProcess:
        """Start a service again after it ended, or after ending it, at the address it had."""
        old = self.process(role)
        old.stop(STOP_GRACE_S)
        self._launch(role, old.address)
        self._await_ready((role,))
        return self.process(role)

    @property
    def address(self) -> str:
        """Where clients connect."""
        return self.address_of("coordinator")

    @property
    def pids(self) -> dict[str, int]:
        """The process id of every service, by role."""
        return {role: process.pid for role, process in self._processes.items()}

    def address_of(self, role: str) -> str:
        """Where the verifier, draft or coordinator serves."""
        return self.process(role).address

    def process(self, role: str) -> ServiceProcess:
        """The verifier, draft or coordinator process. KeyError if there is none."""
        return self._processes[role]

    def wait_for_end(self, timeout_s: float | None) -> ServiceProcess | None:
        """Wait until a service ends by itself; None if all of them still run after `timeout_s` seconds."""
        services = tuple(self._processes.values())
        with self._changed:
            self._changed.wait_for(lambda: _first_ended(services) is not None, timeout_s)
        return _first_ended(services)

    def _launch(self, role: str, listen: str) -> None:
        flags = ["--listen", listen, *self._flags[role]]
        self._processes[role] = ServiceProcess(role, f"outrider_{role}", flags, changed=self._changed, log=self._log)

    def _await_ready(self, roles: Sequence[str]) -> None:
        """Wait until each of `roles` has said that it is ready. Raise ServiceFailed if one ends or time is up."""
        services = [self._processes[role] for role in roles]
        with self._changed:
            self._changed.wait_for(
                lambda: _first_ended(services) is not None or all(service.address for service in services),
                self._start_timeout_s,
            )
        if (ended := _first_ended(services)) is not None:
            raise ended.describe_end()
        for service in services:
            if not service.address:
                raise service.describe_failure(f"was not ready after {self._start_timeout_s:g} s")


def _first_ended(services: Sequence[ServiceProcess]) -> ServiceProcess | None:
    return next((service for service in services if service.ended), None)


def _flag(name: str, value: object) -> list[str]:
    return [] if value is None else [f"--{name}", str(value)]
