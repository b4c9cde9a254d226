"""Throw hostile messages at every server and record what came of it.

python -m tests.benchmarks.fuzz --inputs 100000
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tests.benchmarks.record import save
from tests.cluster import running_cluster
from tests.doubles import drawing_apart
from tests.fuzz.fuzzer import Fuzzer, Report
from tests.tiny_models import save_model

CLUSTER: dict[str, Any] = {
    "verifier": {"kv_tokens": 16_384, "draft_layers": 2, "draft_kv_tokens": 16_384},
    "draft": {"kv_tokens": 16_384},
    "default_max_tokens": 6,
    "max_sessions": 32,
    "max_waiting": 64,
    "verify_timeout_s": 20.0,
    "draft_timeout_s": 5.0,
}


def main() -> None:
    """Run, save, and fail if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000, help="messages to send")
    parser.add_argument("--check-every", type=int, default=500, help="messages between two checks of the whole state")
    parser.add_argument("--most-s", type=float, default=float("inf"), help="seconds after which no attack begins")
    parser.add_argument("--name", default="fuzz", help="of the record")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ahead", action="store_true", help="with doubles of what draws on a GPU: rounds go ahead")
    arguments = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)
    torch.set_num_threads(1)
    started = time.perf_counter()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        for double in drawing_apart() if arguments.ahead else ():
            stack.enter_context(mock.patch.object(*double))
        report = asyncio.run(fuzz(Path(folder), arguments))
    seconds = time.perf_counter() - started
    print(save(arguments.name, record(report, arguments.seed, seconds)))
    print(f"{report.total} inputs in {seconds:.0f} s, {report.checks} checks, {len(report.findings)} findings")
    sys.exit(bool(report.findings))


async def fuzz(folder: Path, arguments: argparse.Namespace) -> Report:
    """Attack a cluster of tiny models: one verifier, which can draft by itself too, one draft, one coordinator."""
    target = save_model("llama", folder / "target")
    draft = save_model("llama", folder / "draft", layers=2)
    async with running_cluster(target, draft, **CLUSTER) as cluster:
        fuzzer = Fuzzer(cluster, arguments.seed)
        return await fuzzer.run(arguments.inputs, arguments.check_every, arguments.most_s)


def record(report: Report, seed: int, seconds: float) -> dict[str, Any]:
    """What is kept of a run."""
    return {
        "seed": seed,
        "seconds": round(seconds, 1),
        "inputs": report.total,
        "inputs_by_server": dict(report.inputs),
        "checks": report.checks,
        "ended_with": dict(sorted(report.codes.items())),
        "longest_event_loop_stall_s": round(report.longest_stall_s, 3),
        "findings": report.findings,
    }


if __name__ == "__main__":
    main()
