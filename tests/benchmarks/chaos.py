"""Let real services suffer random faults while clients ask them, and record what the clients saw and what was left.

Needs Linux, root and `ip` (iproute2): each service has a network namespace of its own.

python -m tests.benchmarks.chaos --seed 1
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.record import save
from tests.chaos.network import why_not
from tests.chaos.plan import count_faults
from tests.chaos.run import Outcome, run


def main() -> None:
    """Run, save, and fail if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="draws requests and faults; the same ones each time")
    parser.add_argument("--faults", type=int, default=520)
    parser.add_argument("--requests", type=int, default=2100)
    parser.add_argument("--seconds", type=float, default=660, help="time over which both are spread")
    parser.add_argument("--keep", type=Path, help="folder that keeps the services' logs")
    parser.add_argument("--name", default="chaos", help="name of the result")
    arguments = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    logging.getLogger().setLevel(logging.ERROR)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        outcome = asyncio.run(
            run(
                folder,
                seed=arguments.seed,
                faults=arguments.faults,
                requests=arguments.requests,
                seconds=arguments.seconds,
                say=lambda line: print(line, flush=True),
            )
        )
    print(save(arguments.name, record(outcome, arguments.seed)))
    for finding in outcome.findings:
        print(finding)
    print(f"{len(outcome.faults)} faults, {len(outcome.asked)} requests, {len(outcome.findings)} findings")
    sys.exit(bool(outcome.findings))


def record(outcome: Outcome, seed: int) -> dict[str, Any]:
    """What is kept of a run."""
    tally = outcome.tally
    return {
        "seed": seed,
        "load_average": os.getloadavg(),  # this machine's, at the end: what else ran took its share
        "seconds": {name: round(value, 1) for name, value in outcome.seconds.items()},
        "faults": len(outcome.faults),
        "faults_by_kind": count_faults(outcome.faults),
        "requests": len(outcome.asked),
        "requests_by_rule": dict(Counter(each.options.get("rule", "match") for each in outcome.asked)),
        "requests_by_drafter": dict(Counter(each.speculation["drafter"] for each in outcome.asked)),
        "requests_sampled": sum(each.options["temperature"] > 0 for each in outcome.asked),
        "clients": dict(Counter(str(each.manner) for each in outcome.asked)),
        "outcomes": dict(tally.outcomes),
        "attempts": {str(count): requests for count, requests in sorted(tally.attempts.items())},
        "asked_again_because": dict(tally.reasons.most_common()),
        "first_token_s": percentiles(tally.first_token_s),
        "total_s": percentiles(tally.total_s),
        "starts": outcome.starts,
        "before": outcome.before,
        "most": outcome.most,
        "after": outcome.after,
        "errors_logged": dict(outcome.logged.most_common()),
        "findings": outcome.findings,
        "fault_sequence": [dataclasses.asdict(fault) for fault in outcome.faults],
    }


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p90, p99 and the largest; empty without values."""
    ordered = sorted(values)
    marks = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: round(ordered[round(mark * (len(ordered) - 1))], 3) for name, mark in marks.items() if ordered}


if __name__ == "__main__":
    main()
