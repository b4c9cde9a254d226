"""What a round takes when drafting is hidden behind verification: real coordinator and streams, simulated replicas.

    python -m tests.benchmarks.look_ahead_overlap [--verify-ms 10] [--draft-share 0.6] [--acceptance 0.8] [--awake]

The replicas (tests/benchmarks/simulated) only wait: a verify step takes --verify-ms, a proposal of K tokens
--draft-share of that. A round's time is the time between two chunks at the client, batch 1, with look-ahead off and on
in turns. What is measured is Outrider's own share of a round; no model runs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import nullcontext
from typing import Any

from outrider.client import Client
from tests.benchmarks.record import save
from tests.benchmarks.simulated.awake import awake_cores
from tests.benchmarks.simulated.cluster import simulated_cluster

WARM_UP = 20
"""Chunks of each answer that are not counted: the draft opens, the times are learned."""


def main() -> None:
    """Run and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verify-ms", type=float, default=10.0)
    parser.add_argument("--draft-share", type=float, default=0.6)
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--acceptance", type=float, default=0.8)
    parser.add_argument("--tokens", type=int, default=1000, help="of each answer")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--adaptive", action="store_true", help="let the controller choose lengths, and what misses do")
    parser.add_argument("--awake", action="store_true", help="keep the cores from sleeping, see simulated/awake.py")
    parser.add_argument("--name", default="look_ahead_overlap")
    arguments = parser.parse_args()
    samples: dict[str, list[tuple[float, int]]] = {"plain": [], "off": [], "on": []}
    told: dict[str, list[Any]] = {"plain": [], "off": [], "on": []}
    with awake_cores() if arguments.awake else nullcontext():
        for mode in ("off", "on"):
            measure(mode, arguments, samples, told)
    summary = {name: row(samples[name], told[name]) for name in samples}
    overhead = summary["on"]["median_ms"] - arguments.verify_ms
    path = save(
        arguments.name,
        {"seed": 0, "options": vars(arguments), "simulated": True, "summary": summary, "round_ms_and_tokens": samples},
    )
    print(path)
    for name, values in summary.items():
        print(f"{name:6}", {key: round(value, 3) for key, value in values.items()})
    print(f"a round with look-ahead takes {overhead:.2f} ms more than a verify step of {arguments.verify_ms:g} ms")


def measure(
    mode: str, arguments: argparse.Namespace, samples: dict[str, list[tuple[float, int]]], told: dict[str, list[Any]]
) -> None:
    """Plain answers and such with a draft in turns, look-ahead off or on."""
    step_ms = arguments.draft_share * arguments.verify_ms / arguments.draft_tokens
    verifier = ["--step-ms", arguments.verify_ms, "--acceptance", arguments.acceptance]
    draft = ["--step-ms", step_ms, "--acceptance", arguments.acceptance]
    flags = ["--look-ahead", mode, "--max-draft-tokens", arguments.draft_tokens]
    flags += [] if arguments.adaptive else ["--fixed-length"]
    with simulated_cluster(verifier, draft, flags) as (coordinator,), Client(coordinator.address) as client:
        for seed in range(arguments.turns):
            for name, drafter in (("plain", "none"), (mode, "model")):
                times, stats = answer(client, drafter, seed, arguments.tokens)
                samples[name] += times
                told[name].append(stats)


def answer(client: Client, drafter: str, seed: int, count: int) -> tuple[list[tuple[float, int]], Any]:
    """Milliseconds before each chunk of one answer and its tokens, and what the answer says of its speculation."""
    options: Any = {"drafter": drafter, "temperature": 1.0, "seed": seed, "ignore_eos": True}
    rounds: list[tuple[float, int]] = []
    last = 0.0
    with client.stream(token_ids=[5, 6, 7], max_tokens=count, **options) as stream:
        for place, chunk in enumerate(stream):
            now = time.perf_counter()
            if place > WARM_UP:
                rounds.append(((now - last) * 1e3, len(chunk.token_ids)))
            last = now
    return rounds, stream.result.speculation


def row(rounds: list[tuple[float, int]], told: list[Any]) -> dict[str, float]:
    """Figures of one mode."""
    times = [milliseconds for milliseconds, _ in rounds]
    look_ups = sum(each.look_ups for each in told)
    return {
        "median_ms": statistics.median(times),
        "mean_ms": statistics.fmean(times),
        "p90_ms": statistics.quantiles(times, n=10)[-1],
        "rounds": float(len(times)),
        "tokens_per_second": sum(tokens for _, tokens in rounds) / sum(times) * 1e3,
        "accepted_length": statistics.fmean(each.accepted_length for each in told),
        "hit_rate": sum(each.hits for each in told) / look_ups if look_ups else 0.0,
    }


if __name__ == "__main__":
    main()
