"""How many sessions and tokens a second one coordinator carries: the real one, before replicas that only wait.

    python -m tests.benchmarks.coordinator_capacity [--sessions 1000] [--seconds 60] [--step-ms 100] [--drafter none]

Replicas are simulated (tests/benchmarks/simulated); every session streams to a client of its own on one connection. All
four processes share this machine's cores, so the figures are a lower bound of the coordinator's. What a round takes
beyond the verifier's step is Outrider's own; the coordinator's CPU time and memory are read from /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from typing import Any

from outrider.client import AsyncClient
from outrider.rpc.server import run_event_loop
from tests.benchmarks.record import save
from tests.benchmarks.simulated.cluster import simulated_cluster

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
OPTIONS: dict[str, Any] = {"temperature": 1.0, "ignore_eos": True, "max_tokens": 1_000_000}


def main() -> None:
    """Run and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--step-ms", type=float, default=100.0)
    parser.add_argument("--draft-ms", type=float, default=10.0)
    parser.add_argument("--acceptance", type=float, default=0.8)
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--drafter", default="model", choices=["none", "model"])
    parser.add_argument("--name", default="coordinator_capacity")
    arguments = parser.parse_args()
    verifier = ["--step-ms", arguments.step_ms, "--acceptance", arguments.acceptance]
    draft = ["--step-ms", arguments.draft_ms, "--acceptance", arguments.acceptance]
    flags = ["--max-sessions", arguments.sessions, "--max-draft-tokens", arguments.draft_tokens, "--fixed-length"]
    with simulated_cluster(verifier, draft, flags) as (address, process):
        result: dict[str, Any] = {}
        run_event_loop(measure(address, process.pid, arguments, result))
    path = save(arguments.name, {"seed": 0, "simulated": True, "options": vars(arguments), **result})
    print(path)
    print({key: value for key, value in result.items() if key != "memory_mb"})
    print("memory, MB:", [round(value) for value in result["memory_mb"]])


async def measure(address: str, pid: int, arguments: argparse.Namespace, result: dict[str, Any]) -> None:
    """Streams from all sessions at once; counts what comes in between warm-up and end."""
    counting, tokens, gaps = asyncio.Event(), [0, 0], []

    async def one(seed: int) -> None:
        last = 0.0
        options = OPTIONS | {"seed": seed, "drafter": arguments.drafter}
        async with client.stream(token_ids=[5, 6, 7], **options) as stream:
            async for chunk in stream:
                now = time.perf_counter()
                if counting.is_set():
                    tokens[0] += len(chunk.token_ids)
                    tokens[1] += 1
                    gaps.append((now - last) * 1e3)
                last = now

    async with AsyncClient(address) as client:
        tasks = [asyncio.create_task(one(seed)) for seed in range(arguments.sessions)]
        await asyncio.sleep(max(10.0, arguments.sessions / 50))
        counting.set()
        started, cpu = time.perf_counter(), cpu_seconds(pid)
        memory = [resident_mb(pid)]
        while (left := arguments.seconds - (time.perf_counter() - started)) > 0:
            await asyncio.sleep(min(left, arguments.seconds / 10))
            memory.append(resident_mb(pid))
        seconds, cpu = time.perf_counter() - started, cpu_seconds(pid) - cpu
        counting.clear()
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    failures = [repr(each) for each in ended if not isinstance(each, asyncio.CancelledError)]
    above = [gap - arguments.step_ms for gap in gaps]
    result |= {
        "seconds": seconds,
        "tokens_per_second": tokens[0] / seconds,
        "rounds_per_second": tokens[1] / seconds,
        "coordinator_cpu_share": cpu / seconds,
        "coordinator_cpu_ms_per_round": cpu / max(tokens[1], 1) * 1e3,
        "added_ms": {"p50": statistics.median(above), "p99": statistics.quantiles(above, n=100)[-1]},
        "failures": failures[:10],
        "memory_mb": memory,
    }


def cpu_seconds(pid: int) -> float:
    """Processor time of a process, all threads."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mb(pid: int) -> float:
    """Resident memory of a process."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * PAGE / 1e6


if __name__ == "__main__":
    main()
