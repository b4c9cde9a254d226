"""Tokens a second of the whole system with the synthetic pair: real processes, real gRPC, GPUs.

    python -m tests.benchmarks.pair_speed --verifier cuda:0 --draft cuda:1 [--agreement 0.8] [--concurrency 1 4 16]

One verifier (8B shape) and one draft (its first 3 layers) serve several coordinators that differ in their settings, in
turns: plain decoding, speculation with a fixed length, the same with look-ahead, and the controller's own choice. With
--repeats each has as many turns with every number of clients, and ratios are those of turns that followed each other.
Every client asks for --tokens tokens after a random prompt of --prompt tokens, with a seed.
With --simulated 6 there is no GPU: a verifier with a draft of its own waits six times as long as an H200 was seen to
take (tests/benchmarks/simulated/card.py), --agreement is the chance that a guessed token stands, and coordinators, gRPC
and clients are the real ones: this shows what the controller chooses, and not what hosts and GPUs reach. With --apart,
too, verifier and draft are services of their own, as on two cards.
Counted is what arrives between the last client's first token and the first client's last one; the verifier is busy
while its device thread is in a pass.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import AsyncExitStack, ExitStack
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from outrider.client import AsyncClient
from outrider_cli.process import ServiceProcess
from tests.benchmarks.record import RESULTS, save

START_TIMEOUT_S = 150.0
SEED = 11
VOCABULARY, TINY, SIMULATED = 128_000, 900, 400
APART_MS = {"verifier": (4.0, 0.025), "draft": (0.7, 0.0115)}
"""What the passes of an 8B target and its 3-layer draft take on H200s, about: at least, and for each row more."""


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verifier", default="cuda:0")
    parser.add_argument("--draft", default="cuda:1")
    parser.add_argument("--together", action="store_true", help="the verifier has the draft, on its own device")
    parser.add_argument("--simulated", type=float, help="no GPU: a verifier that waits, so many times slower than one")
    parser.add_argument("--apart", action="store_true", help="with --simulated: the draft is a service of its own")
    parser.add_argument("--shape", default="8b")
    parser.add_argument("--agreement", type=float, default=0.8)
    parser.add_argument("--concurrency", type=int, nargs="*", default=[1, 4, 16, 32])
    parser.add_argument("--coordinators", type=int, default=1, help="processes, each with its part of the clients")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--draft-tokens", type=int, nargs="*", default=[5], help="of the modes with a fixed length")
    parser.add_argument("--temperature", type=float, default=1.0, help="the lower, the less the common noise decides")
    parser.add_argument("--repeats", type=int, default=1, help="turns of every mode with each number of clients")
    parser.add_argument("--modes", nargs="*", default=["plain", "fixed", "ahead", "auto"])
    parser.add_argument("--name", default="pair_speed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    runs: list[tuple[str, int, list[Any]]] = []  # mode, its fixed length or 0, and a coordinator's flags
    for mode in arguments.modes:
        if mode in ("fixed", "ahead"):
            more = ["--fixed-length", "--fallback-acceptance", 0, "--trees", "off"]
            more += ["--look-ahead", "on" if mode == "ahead" else "off", "--max-draft-tokens"]
            runs += [(mode, length, [*more, length]) for length in arguments.draft_tokens]
        else:
            runs.append((mode, 0, ["--max-draft-tokens", 8] if mode == "auto" else []))
    busy = Path(tempfile.mkdtemp()) / "busy"
    busy.write_bytes(bytes(8))
    arguments.busy_file = busy
    result: dict[str, Any] = {"seed": SEED, "options": {k: str(v) for k, v in vars(arguments).items()}, "runs": []}
    with ExitStack() as stack:
        replicas = start_replicas(stack, arguments)
        coordinators = [
            [
                start(stack, "coordinator", "outrider_coordinator", ["--listen", "127.0.0.1:0", *replicas, *flags])
                for _ in range(arguments.coordinators)
            ]
            for _, _, flags in runs
        ]
        for clients, repeat in product(arguments.concurrency, range(arguments.repeats)):
            for (mode, length, _), ours in zip(runs, coordinators, strict=True):
                for each in ours:
                    wait(each)
                turn = len(result["runs"])
                addresses = [each.address for each in ours]
                found = asyncio.run(measure(addresses, clients, mode, length, turn, arguments))
                which = {"mode": mode, "length": length, "concurrency": clients, "repeat": repeat}
                result["runs"].append({**which, **found})
                print(
                    f"{mode:6}{length or '':1} x {clients:3}: {found['tokens_per_second']:8.1f} tok/s,"
                    f" {found['tokens_per_round']:.2f} a round, round {found['round_ms']:.2f} ms,"
                    f" verifier busy {found['verifier_busy'] or 0:.2f},"
                    f" first token {found['first_token_ms']:.0f} ms, {found['speculation']}",
                    flush=True,
                )
                save(arguments.name, result, arguments.out)
    print("\n".join(over_the_first(result["runs"])))


def over_the_first(runs: list[dict[str, Any]]) -> list[str]:
    """For every number of clients the speeds of all modes, medians, and each turn's over that of the first mode's."""
    speeds: dict[int, dict[str, list[float]]] = {}
    for run in runs:
        name = f"{run['mode']}{run['length'] or ''}"
        speeds.setdefault(run["concurrency"], {}).setdefault(name, []).append(run["tokens_per_second"])
    lines = []
    for clients, modes in speeds.items():
        first, *others = modes.items()
        parts = [f"{clients:4} clients: {first[0]} {statistics.median(first[1]):.0f}"]
        for name, found in others:
            ratios = [speed / base for speed, base in zip(found, first[1], strict=True)]
            turns = " ".join(f"{ratio:.2f}" for ratio in ratios)
            parts.append(f"{name} {statistics.median(found):.0f} = {statistics.median(ratios):.2f} ({turns})")
        lines.append(", ".join(parts))
    return lines


def start_replicas(stack: ExitStack, arguments: argparse.Namespace) -> list[str]:
    """Start target and draft; the coordinator's flags that name them."""
    if arguments.simulated:
        return start_simulated(stack, arguments)
    module, shape = "tests.benchmarks.synthetic_replica", ["--shape", arguments.shape]
    target = ["--device", arguments.verifier, "--agreement", arguments.agreement, *shape]
    target += ["--busy-file", arguments.busy_file]
    if arguments.together:
        process = start(stack, "verifier", module, ["verifier", "--with-draft", *target])
        wait(process)
        return ["--verifiers", process.address]
    verifier = start(stack, "verifier", module, ["verifier", *target])
    draft = start(stack, "draft", module, ["draft", "--device", arguments.draft, *shape])
    for process in (verifier, draft):
        wait(process)
    return ["--verifiers", verifier.address, "--drafts", draft.address]


def start_simulated(stack: ExitStack, arguments: argparse.Namespace) -> list[str]:
    """The same of replicas that only wait."""
    module, acceptance = "tests.benchmarks.simulated.replica", ["--acceptance", arguments.agreement]
    if not arguments.apart:
        verifier = start(stack, "verifier", module, ["verifier", "--slower", arguments.simulated, *acceptance])
        wait(verifier)
        return ["--verifiers", verifier.address]
    found: list[str] = []
    for role, (step_ms, row_ms) in APART_MS.items():
        flags = [role, "--tells", "--step-ms", step_ms * arguments.simulated, *acceptance]
        flags += ["--row-ms", row_ms * arguments.simulated]
        process = start(stack, role, module, flags)
        wait(process)
        found += [f"--{role}s", process.address]
    return found


def start(stack: ExitStack, role: str, module: str, flags: list[Any]) -> ServiceProcess:
    """A process that ends with `stack`."""
    process = ServiceProcess(role, module, [str(flag) for flag in flags], changed=threading.Condition(), log=_log)
    stack.callback(process.stop, 5.0)
    return process


def _log(role: str, line: str) -> None:
    print(f"{role}: {line}", file=sys.stderr, flush=True)


def wait(process: ServiceProcess) -> None:
    """Until it serves."""
    with process._changed:
        process._changed.wait_for(lambda: process.ended or process.address != "", START_TIMEOUT_S)
    if not process.address:
        raise process.describe_failure("did not start")


async def measure(
    addresses: list[str], clients: int, mode: str, length: int, turn: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    """One sweep of as many requests as clients, after a short one that is not counted. `length`: 0 if not fixed.

    Each `turn` has prompts of its own: else whoever comes first would read them for those after it.
    """
    options: dict[str, Any] = {"temperature": arguments.temperature, "ignore_eos": True}
    options["drafter"] = {"plain": "none", "fixed": "model", "ahead": "model", "auto": "auto"}[mode]

    size = SIMULATED if arguments.simulated else TINY if arguments.shape == "tiny" else VOCABULARY

    async def one(client: AsyncClient, seed: int, tokens: int) -> tuple[float, list[tuple[float, int]], Any]:
        draws = random.Random(f"{turn}/{seed}")
        text = [draws.randrange(size) for _ in range(arguments.prompt)]
        chunks: list[tuple[float, int]] = []
        started = time.perf_counter()
        async with client.stream(token_ids=text, seed=seed, max_tokens=tokens, **options) as stream:
            async for chunk in stream:
                chunks.append((time.perf_counter(), len(chunk.token_ids)))
        return started, chunks, stream.result

    async with AsyncExitStack() as stack:
        talks = [await stack.enter_async_context(AsyncClient(address)) for address in addresses]
        at = [talks[number % len(talks)] for number in range(clients)]
        await asyncio.gather(*(one(client, 1000 + seed, 48) for seed, client in enumerate(at)))
        watch = asyncio.create_task(watch_busy(arguments.busy_file))
        found = await asyncio.gather(*(one(client, SEED + seed, arguments.tokens) for seed, client in enumerate(at)))
        watch.cancel()
        samples = await watch
    begin = max(chunks[0][0] for _, chunks, _ in found)
    end = min(chunks[-1][0] for _, chunks, _ in found)
    counted = [count for _, chunks, _ in found for when, count in chunks if begin < when <= end]
    inside = [sample for sample in samples if begin <= sample[0] <= end]
    busy = (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0]) if len(inside) > 1 else None
    gaps = [b - a for _, chunks, _ in found for (a, _), (b, _) in pairwise(chunks)]
    stats = [result.speculation for _, _, result in found]
    proposed, hits = sum(each.proposed_tokens for each in stats), sum(each.hits for each in stats)
    guesses: Counter[str] = Counter()  # rounds, by whose guess
    for each in stats:
        guesses.update({one.source.value: one.rounds for one in each.sources})
    return {
        "tokens_per_second": sum(counted) / (end - begin),
        "verifier_busy": busy,
        "tokens_per_round": statistics.mean(count for _, chunks, _ in found for _, count in chunks),
        "round_ms": statistics.median(gaps) * 1000,
        "first_token_ms": statistics.median(chunks[0][0] - started for started, chunks, _ in found) * 1000,
        "speculation": {
            "acceptance": round(sum(each.accepted_tokens for each in stats) / proposed, 3) if proposed else None,
            "a_place": a_place(sum(each.accepted_tokens for each in stats), proposed, length) if length else None,
            "guessed": round(proposed / sum(guesses.values()), 2) if guesses else None,
            "plain": round(sum(each.plain_rounds for each in stats) / sum(each.rounds for each in stats), 3),
            "guesses": dict(guesses),
            "falls": sum(bool(each.fallback_reason) for each in stats),
            "hits": round(hits / look_ups, 3) if (look_ups := sum(each.look_ups for each in stats)) else None,
        },
        "window_s": end - begin,
        "round_ms_samples": [round(gap * 1000, 2) for gap in gaps[:400]],
    }


def busy_s(path: Path) -> float:
    """Seconds that the verifier has spent in passes."""
    (seconds,) = struct.unpack("d", path.read_bytes())
    return float(seconds)


def a_place(accepted: int, proposed: int, length: int) -> float | None:
    """The chance p of each place, all of `length` alike, at which so many would be accepted: sum(p**i) / length."""
    if not proposed:
        return None
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        mean = sum(middle**place for place in range(1, length + 1)) / length
        low, high = (middle, high) if mean < accepted / proposed else (low, middle)
    return round(low, 3)


async def watch_busy(path: Path) -> list[tuple[float, float]]:
    """(when, seconds that the verifier has spent in passes) every few milliseconds, until cancelled."""
    samples: list[tuple[float, float]] = []
    try:
        while True:
            samples.append((time.perf_counter(), busy_s(path)))
            await asyncio.sleep(0.003)
    except asyncio.CancelledError:
        return samples


if __name__ == "__main__":
    main()
