"""What a round takes when drafting is hidden behind verification: real coordinator and streams, simulated replicas.

    python -m tests.benchmarks.look_ahead_overlap [--verify-ms 10] [--draft-share 0.6] [--acceptance 0.8]

The replicas (tests/benchmarks/simulated) only wait: a verify step takes --verify-ms, a proposal of K tokens
--draft-share of that. A round's time is the time between two chunks at the client, batch 1, with look-ahead off and on
in turns. What is measured is Outrider's own share of a round; no model runs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from outrider.client import Client
from tests.benchmarks.record import save
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
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    samples: dict[str, list[float]] = {"plain": [], "off": [], "on": []}
    told: dict[str, list[Any]] = {"plain": [], "off": [], "on": []}
    step_ms = arguments.draft_share * arguments.verify_ms / arguments.draft_tokens
    verifier = ["--step-ms", arguments.verify_ms, "--acceptance", arguments.acceptance]
    draft = ["--step-ms", step_ms, "--acceptance", arguments.acceptance]
    for mode in ("off", "on"):
        flags = ["--look-ahead", mode, "--max-draft-tokens", arguments.draft_tokens, "--fixed-length"]
        with simulated_cluster(verifier, draft, flags) as (address, _), Client(address) as client:
            for seed in range(arguments.turns):
                for name, drafter in (("plain", "none"), (mode, "model")):
                    times, stats = answer(client, drafter, seed, arguments.rounds)
                    samples[name] += times
                    told[name].append(stats)
    summary = {name: row(samples[name], told[name]) for name in samples}
    overhead = summary["on"]["median_ms"] - arguments.verify_ms
    path = save(
        "look_ahead_overlap",
        {"seed": 0, "options": vars(arguments), "simulated": True, "summary": summary, "round_ms": samples},
    )
    print(path)
    for name, values in summary.items():
        print(f"{name:6}", {key: round(value, 3) for key, value in values.items()})
    print(f"a round with look-ahead takes {overhead:.2f} ms more than a verify step of {arguments.verify_ms:g} ms")


def answer(client: Client, drafter: str, seed: int, rounds: int) -> tuple[list[float], Any]:
    """Milliseconds between the chunks of one answer, and what it says of its speculation."""
    options: Any = {"drafter": drafter, "temperature": 1.0, "seed": seed, "ignore_eos": True}
    times, last = [], None
    with client.stream(token_ids=[5, 6, 7], max_tokens=rounds * 5, **options) as stream:
        for place, _ in enumerate(stream):
            now = time.perf_counter()
            if last is not None and place > WARM_UP:
                times.append((now - last) * 1e3)
            last = now
            if place == WARM_UP + rounds:
                break
        else:
            return times, stream.result.speculation
    return times, None


def row(times: list[float], told: list[Any]) -> dict[str, float]:
    """Figures of one mode."""
    known = [each for each in told if each is not None]
    figures = {
        "median_ms": statistics.median(times),
        "mean_ms": statistics.fmean(times),
        "p90_ms": statistics.quantiles(times, n=10)[-1],
        "rounds": float(len(times)),
    }
    if known and sum(each.look_ups for each in known):
        figures["hit_rate"] = sum(each.hits for each in known) / sum(each.look_ups for each in known)
    if known and known[0].accepted_length:
        figures["accepted_length"] = statistics.fmean(each.accepted_length for each in known)
    return figures


if __name__ == "__main__":
    main()
