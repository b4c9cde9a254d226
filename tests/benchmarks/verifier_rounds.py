"""What the rounds of a verifier with a draft of its own take, without coordinators and wire, on one GPU.

    python -m tests.benchmarks.verifier_rounds [--device cuda:0] [--sessions 1 4 16 64 128] [--lengths 0 2 3 4]

The synthetic pair (tests/benchmarks/synthetic_pair.py) in one process; sessions with standing orders to guess so many
tokens a round, or none. Each case is run with and without launching ahead (`outrider.engine.drafting_verify`). A round
is the median between two in which every session had one; `waits` is the part of the time in which the host waits for
the device: near 0, the host is what is short.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import random
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from outrider.engine.drafting_verify import DraftingVerifyCore  # before torch: see outrider.engine

import torch  # isort: skip
from outrider.acceptance.params import Rule, SamplingParams
from outrider.acceptance.proposal import NO_PROPOSAL
from outrider.engine.draft import DraftCore
from outrider.engine.engine import Engine
from outrider.engine.own_draft import OwnDraft
from outrider.engine.worker import DeviceWorker
from outrider.protocol.items import MAX_ROUNDS, DraftFirst, FollowUp, Key, Open, Verified, Verify
from tests.benchmarks.record import RESULTS, save
from tests.benchmarks.synthetic_replica import load

SEED = 5
ROUNDS = 30
PROMPT = 128


class Waits:
    """Seconds in which the host has waited for the device."""

    def __init__(self) -> None:
        self.seconds = 0.0
        event: Any = torch.cuda.Event
        wait = event.synchronize

        def timed(its: Any) -> None:
            started = time.perf_counter()
            wait(its)
            self.seconds += time.perf_counter() - started

        event.synchronize = timed


def main() -> None:
    """Run all cases and save them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--shape", default="8b")
    parser.add_argument("--agreement", type=float, default=0.855)
    parser.add_argument("--sessions", type=int, nargs="*", default=[1, 4, 16, 64, 128])
    parser.add_argument("--lengths", type=int, nargs="*", default=[0, 2, 3, 4])
    parser.add_argument("--profile", type=int, nargs="*", default=[], help="sessions: print where the host's time goes")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--name", default="verifier_rounds")
    arguments = parser.parse_args()
    arguments.kv_tokens = 100_000
    (_, target), (_, draft) = load(arguments, draft=False), load(arguments, draft=True)
    waits = Waits()
    result: dict[str, Any] = {"seed": SEED, "prompt": PROMPT, "rounds": ROUNDS, "cases": []}
    for sessions in arguments.sessions:
        for length in arguments.lengths:
            for ahead in (False, True) if target.device.type == "cuda" else (False,):
                case = run(target, draft, sessions, length, waits, ahead=ahead, profile=sessions in arguments.profile)
                result["cases"].append(case)
                print({name: value for name, value in case.items() if name != "samples_ms"}, flush=True)
    save(arguments.name, result, arguments.out)


def run(
    target: Engine, draft: Engine, sessions: int, length: int, waits: Waits, *, ahead: bool, profile: bool
) -> dict[str, Any]:
    """One case."""
    draft._run.takes_drawn = ahead
    target._run.takes_drawn = ahead or length > 0  # its passes behind guesses are launched before those are known
    own = OwnDraft(DraftCore(draft, max_proposal=15, lease_s=600))
    core = DraftingVerifyCore(target, own, max_proposal=15, lease_s=600)
    core.claim_thread()
    worker: DeviceWorker[Any, Any] = DeviceWorker(core)
    peer: Any = worker.connect("rounds", lambda replies: None, vocabulary_size=target.info.vocabulary_size)
    for number in range(sessions):
        _begin(core, peer, number, length)
    ends, committed, drafting, verifying = [], [], [], []
    done: set[int] = set()
    tokens = 0
    before, profiler = 0.0, cProfile.Profile()
    while core.busy and len(ends) < ROUNDS + 8:
        if len(ends) == 8 and not before:
            before = waits.seconds
            if profile and ahead:
                profiler.enable()
        replies = core.step()
        for _, reply in replies:
            assert isinstance(reply, Verified), reply
            done.add(reply.key.session)
            tokens += 1 + _stood(reply)
        if len(done) == sessions:
            ends.append(time.perf_counter())
            committed.append(tokens)
            drafting.append(reply.step.draft_microseconds / 1e3)
            verifying.append(reply.verdict.step_microseconds / 1e3)
            done, tokens = set(), 0
    profiler.disable()
    waited = waits.seconds - before
    core.drop_peer(peer)
    while core.busy:
        core.step()
    gaps = [(after - before) * 1e3 for before, after in pairwise(ends[7:])]
    if profile and ahead:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(30)
    round_ms, each = statistics.median(gaps), statistics.mean(committed[8:]) / sessions
    return {
        "sessions": sessions, "length": length, "ahead": ahead, "round_ms": round(round_ms, 2),
        "tokens_a_round": round(each, 2), "tokens_per_second": round(each * sessions / round_ms * 1e3),
        "waits": round(waited * 1e3 / sum(gaps), 2), "draft_ms": round(statistics.median(drafting[8:]), 2),
        "verify_ms": round(statistics.median(verifying[8:]), 2),
        "samples_ms": [round(gap, 3) for gap in gaps],
    }  # fmt: skip


def _stood(reply: Verified) -> int:
    """How many guessed tokens stand."""
    drawn = reply.verdict.next_tokens
    for place, token in enumerate(reply.drafted.tree.tokens):
        if drawn[place] != token:
            return place
    return len(reply.drafted)


def _begin(core: DraftingVerifyCore, peer: Any, number: int, length: int) -> None:
    """A session and its orders."""
    chance = random.Random(SEED * 1000 + number)
    prompt = tuple(chance.randrange(core.engine.info.vocabulary_size) for _ in range(PROMPT))
    room = PROMPT + (length + 1) * (MAX_ROUNDS + 2)
    key = Key(number, 1, PROMPT)
    core.handle(peer, Open(key, prompt, PROMPT, room, SamplingParams(temperature=1.0), Rule.MATCH, number))
    core.handle(peer, Verify(key, PROMPT, (), NO_PROPOSAL))
    first = DraftFirst(length) if length else None
    core.handle(peer, FollowUp(key, (), plainly=not length, draft_first=first, rounds=MAX_ROUNDS))


if __name__ == "__main__":
    main()
