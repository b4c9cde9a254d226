"""One service, as its own main runs it, beside a thread that tells what it holds.

    python -m tests.chaos.service SOCKET MODULE [FLAGS...]

Whoever connects to the Unix socket gets a JSON object: open descriptors, threads, asyncio tasks, memory, and what the
service has for sessions. Dies with the process that started it. With TEST_MOMENTS=FOLDER replicas wait where that
says (`tests.chaos.moment`).
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import runpy
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from outrider_cli.child import die_with_parent


def main() -> None:
    """Run the service that the command line names."""
    path, module, *flags = sys.argv[1:]
    die_with_parent(os.getppid())
    Path(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    threading.Thread(target=_answer, args=(listener,), daemon=True).start()
    if module == "outrider_coordinator":
        _remember(importlib.import_module("outrider_coordinator.main").Coordinator)
    else:
        _remember(importlib.import_module("outrider.engine.replica").Replica)
        if folder := os.environ.get("TEST_MOMENTS"):
            importlib.import_module("tests.chaos.moment").wait_at_moments(Path(folder), module.rpartition("_")[2])
    sys.argv[:] = [module, *flags]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


_made: list[Any] = []


def _remember(kind: Any) -> None:
    """Keep what is made of a class: the service's parts, which its main does not hand out."""
    make = kind.__init__

    def make_and_remember(self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        _made.append(self)

    kind.__init__ = make_and_remember


def _answer(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(json.dumps(_held()).encode())


def _held() -> dict[str, Any]:
    held: dict[str, Any] = {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "memory_mb": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6,
    }
    for each in _made:
        held |= _of_coordinator(each) if type(each).__name__ == "Coordinator" else _of_replica(each)
    return held


def _of_coordinator(coordinator: Any) -> dict[str, Any]:
    generations, replicas = coordinator.generations, coordinator.replicas
    links = [*replicas.verifiers, *replicas.drafts]
    loop = coordinator._links.get_loop() if coordinator._links is not None else None
    return {
        "tasks": len(asyncio.all_tasks(loop)) if loop is not None else 0,
        "running": generations.admission.running,
        "waiting": generations.admission.waiting,
        "names": len(generations._running),
        "placed": sum((replicas._on_verifiers.loads() + replicas._on_drafts.loads()).values()),
        "pending": sum(link.expected for link in links),
        "bound": len(getattr(replicas._store, "_held", ())),
        "connected": sum(link.ready for link in links),
    }


def _of_replica(replica: Any) -> dict[str, Any]:
    return {
        "tasks": len(asyncio.all_tasks(replica._loop)),
        "sessions": len(replica._core.sessions),
        "used_tokens": replica._core.engine.capacity_tokens - replica._core.engine.available_tokens,
        "streams": replica._streams._open,
        "queue": replica._worker._inbox.qsize(),
    }


if __name__ == "__main__":
    main()
