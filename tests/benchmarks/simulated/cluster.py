"""Real coordinator processes before simulated replicas, each in its own process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from outrider_cli.process import ServiceProcess

START_TIMEOUT_S = 60.0


@contextmanager
def simulated_cluster(
    verifier: Sequence[object], draft: Sequence[object] | None, coordinator: Sequence[object], *, coordinators: int = 1
) -> Iterator[list[ServiceProcess]]:
    """The coordinators, which share the replicas; the flags are those of each process. `draft` None: there is none."""
    changed = threading.Condition()

    def start(role: str, module: str, flags: Sequence[object]) -> ServiceProcess:
        process = ServiceProcess(role, module, [str(flag) for flag in flags], changed=changed)
        stack.callback(process.stop, 5.0)
        with changed:
            changed.wait_for(lambda: process.ended or process.address != "", START_TIMEOUT_S)
        if not process.address:
            raise process.describe_failure("did not start")
        return process

    with ExitStack() as stack:
        replica = "tests.benchmarks.simulated.replica"
        flags = ["--listen", "127.0.0.1:0", "--verifiers", start("verifier", replica, ["verifier", *verifier]).address]
        if draft is not None:
            flags += ["--drafts", start("draft", replica, ["draft", *draft]).address]
        flags += [str(flag) for flag in coordinator]
        yield [start("coordinator", "outrider_coordinator", flags) for _ in range(coordinators)]
