"""How many sessions and tokens a second coordinators carry: real ones, before replicas that only wait.

    python -m tests.benchmarks.coordinator_capacity [--sessions 1000] [--seconds 60] [--step-ms 100] [--drafter none]

Replicas are simulated (tests/benchmarks/simulated); every session streams one answer after the other, over a few
connections, which are read with the generated messages and no client above them. Of every 20th session all tokens are
compared with the text that the simulated target writes: `checked` says how many. The coordinator, the load generator
and both replicas share this machine's cores with whatever else runs, so the tokens a second are what was seen, not what
the coordinator can do. What it can do is told by its own processor time, read from /proc: `tokens_per_cpu_second`, of
all its threads. One process runs Python on one core at a time, and gRPC's threads beside it:
`main_thread_cpu_ms_per_round` says where a single process ends, and `--coordinators` starts several. A busy machine
raises these times as well (shared caches and hyperthreads), so they too are upper bounds. What a round takes beyond the
verifier's step is added latency, the drafting and the waiting for a core included.

On a machine with more cores `--cores 0,1` measures the coordinators alone: they have these cores for themselves, and
the load generator and the replicas the others.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import math
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc.aio

from outrider.rpc.server import run_event_loop
from outrider.v1 import generation_pb2 as pb
from tests.benchmarks.record import save
from tests.benchmarks.simulated.affinity import keep_on
from tests.benchmarks.simulated.cluster import simulated_cluster
from tests.benchmarks.simulated.text import Text

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
SAMPLE_EVERY_S = 10.0
CALL_TIMEOUT_S = 600.0
"""Longest answer, in seconds beyond the measurement."""
KEPT_GAPS = 5_000
"""Of the added latencies so many are written down, evenly taken; the percentiles are of all."""
CONNECTIONS = 4
CHECKED_EVERY = 20
"""Of so many sessions the tokens of one are compared with the simulated text."""
PROMPT = (5, 6, 7)
DRAFTERS = {"none": pb.DRAFTER_NONE, "model": pb.DRAFTER_MODEL, "own": pb.DRAFTER_MODEL}


def main() -> None:
    """Run and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--step-ms", type=float, default=100.0)
    parser.add_argument("--draft-ms", type=float, default=10.0)
    parser.add_argument("--acceptance", type=float, default=0.8)
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--drafter", default="model", choices=list(DRAFTERS), help="own: the verifier's")
    parser.add_argument("--answer-tokens", type=int, default=1024)
    parser.add_argument("--look-ahead", default="off", choices=["off", "auto"])
    parser.add_argument("--coordinators", type=int, default=1, help="processes, each with its part of the sessions")
    parser.add_argument("--cores", type=cores, default=[], help="those of the coordinators alone, such as 0,1")
    parser.add_argument("--adaptive", action="store_true", help="let the sessions choose the length of their guesses")
    parser.add_argument("--name", default="coordinator_capacity")
    arguments = parser.parse_args()
    if arguments.cores:
        keep_on(os.getpid(), os.sched_getaffinity(0).difference(arguments.cores))  # and the processes that it starts
    verifier = ["--step-ms", arguments.step_ms, "--acceptance", arguments.acceptance]
    draft = ["--step-ms", arguments.draft_ms, "--acceptance", arguments.acceptance]
    flags = ["--max-draft-tokens", arguments.draft_tokens, "--look-ahead", arguments.look_ahead]
    flags += [] if arguments.adaptive else ["--fixed-length"]
    flags += [
        "--max-sessions",
        arguments.sessions,
        "--max-streams",
        2 * arguments.sessions,
    ]  # an ended one counts for a while
    # A simulated draft that waits for a core is late, and sessions would go on without it: that is not measured here.
    flags += ["--draft-timeout-s", 60]
    if own := arguments.drafter == "own":
        verifier += ["--own-draft-ms", arguments.draft_ms]
    with simulated_cluster(
        verifier, None if own else draft, flags, coordinators=arguments.coordinators
    ) as coordinators:
        result: dict[str, Any] = {}
        addresses, pids = [each.address for each in coordinators], [each.pid for each in coordinators]
        if arguments.cores:
            for pid in pids:
                keep_on(pid, arguments.cores)
        run_event_loop(measure(addresses, pids, arguments, result))
    path = save(arguments.name, {"seed": 0, "simulated": True, "options": vars(arguments), **result})
    print(path)
    print({key: value for key, value in result.items() if key not in ("samples", "added_ms_samples")})
    print("memory, MB:", [round(sample["memory_mb"]) for sample in result["samples"]])


async def measure(
    addresses: Sequence[str], pids: Sequence[int], arguments: argparse.Namespace, result: dict[str, Any]
) -> None:
    """Streams from all sessions at once; counts what comes in between warm-up and end."""
    counts, gaps = Counts(), []

    async def one(number: int) -> None:
        generate = stubs[number % len(stubs)]
        checked = number % CHECKED_EVERY == 0
        for answer in itertools.count():  # answers end, or their tokens alone would fill the memory
            seed = number + answer * arguments.sessions
            await read(generate(request(seed, arguments), timeout=arguments.seconds + CALL_TIMEOUT_S), seed, checked)

    async def read(stream: grpc.aio.UnaryStreamCall[Any, Any], seed: int, checked: bool) -> None:
        last = math.inf  # the first chunk holds the wait for a place and the opening
        position, pages = len(PROMPT), text.pages(seed)
        async for response in stream:
            now = time.perf_counter()
            token_ids = response.delta.token_ids
            counts.tokens += (size := len(token_ids))
            counts.rounds += size > 0
            if checked:
                counts.wrong += list(token_ids) != pages.tokens(position, size)
                counts.checked += size
                position += size
            if started < last < math.inf:
                gaps.append((now - last) * 1e3 - arguments.step_ms)
            last = now

    started, text = math.inf, Text(arguments.acceptance)
    channels = [
        grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(CONNECTIONS)
        for address in addresses
    ]
    stubs = [
        channel.unary_stream(
            "/outrider.v1.GenerationService/Generate",
            request_serializer=pb.GenerateRequest.SerializeToString,
            response_deserializer=pb.GenerateResponse.FromString,
        )
        for channel in channels
    ]
    tasks = [asyncio.create_task(one(number)) for number in range(arguments.sessions)]
    await asyncio.sleep(max(10.0, arguments.sessions / 50))
    gc.collect()
    gc.freeze()
    started = time.perf_counter()
    samples = [sample(pids, started, counts)]
    while samples[-1]["s"] < arguments.seconds:
        await asyncio.sleep(min(SAMPLE_EVERY_S, arguments.seconds - samples[-1]["s"]))
        samples.append(sample(pids, started, counts))
    failures = [repr(task.exception()) for task in tasks if task.done()]  # no session ends by itself
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)  # a call that is cancelled may say so in several ways
    for channel in channels:
        await channel.close()
    failures += [f"{counts.wrong} chunks are not the simulated text"] * (counts.wrong > 0)
    first, last = samples[0], samples[-1]
    seconds, tokens, rounds, cpu, main_cpu = (
        last[name] - first[name] for name in ("s", "tokens", "rounds", "cpu_s", "main_thread_cpu_s")
    )
    result |= {
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "rounds_per_second": rounds / seconds,
        "tokens_per_round": tokens / rounds,
        "coordinator_cpu_share": cpu / seconds,
        "coordinator_cpu_ms_per_round": cpu / rounds * 1e3,
        "main_thread_cpu_ms_per_round": main_cpu / rounds * 1e3,
        "coordinator_cpu_ms_per_token": cpu / tokens * 1e3,
        "tokens_per_cpu_second": tokens / cpu,
        "added_ms": {"p50": statistics.median(gaps), "p99": statistics.quantiles(gaps, n=100)[-1]},
        "checked": {"tokens": counts.checked, "wrong_chunks": counts.wrong},
        "failures": failures[:10],
        "samples": samples,
        "added_ms_samples": [round(gap, 1) for gap in gaps[:: max(1, len(gaps) // KEPT_GAPS)]],
    }


def cores(text: str) -> list[int]:
    """Numbers of cores that this process may use, separated by commas; some must be left for the others."""
    found = {int(number) for number in text.split(",")}
    if not found < os.sched_getaffinity(0):
        raise argparse.ArgumentTypeError("these must be some, not all, of the cores that this process may use")
    return sorted(found)


def request(seed: int, arguments: argparse.Namespace) -> pb.GenerateRequest:
    """One answer's; its seed names the text."""
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=PROMPT),
        max_tokens=arguments.answer_tokens,
        ignore_eos=True,
        seed=seed,
        speculation=pb.Speculation(drafter=DRAFTERS[arguments.drafter]),
    )


@dataclass(slots=True)
class Counts:
    """What the clients got so far."""

    tokens: int = 0
    rounds: int = 0
    checked: int = 0  # tokens
    wrong: int = 0  # chunks with any other token than the text's


def sample(pids: Sequence[int], started: float, counts: Counts) -> dict[str, float]:
    """Everything at one moment, in seconds, tokens, rounds and MB since the start of each; of all coordinators."""
    return {
        "s": time.perf_counter() - started,
        "tokens": counts.tokens,
        "rounds": counts.rounds,
        "cpu_s": sum(cpu_seconds(f"/proc/{pid}/stat") for pid in pids),
        "main_thread_cpu_s": sum(cpu_seconds(f"/proc/{pid}/task/{pid}/stat") for pid in pids),
        "memory_mb": sum(map(resident_mb, pids)),
    }


def cpu_seconds(path: str) -> float:
    """Processor time of a process, all threads, or of one thread: what its stat file says."""
    with open(path, encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mb(pid: int) -> float:
    """Resident memory of a process."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * PAGE / 1e6


if __name__ == "__main__":
    main()
