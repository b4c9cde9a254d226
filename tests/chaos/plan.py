"""What a chaos run does, drawn from its seed alone: the requests, the clients' ways, and the faults."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tests.chaos.network import HERE
from tests.tiny_models import TEXTS


class Kind(StrEnum):
    """What happens to a machine."""

    KILL = "kill"  # kill -9, and a new process at the same address
    STALL = "stall"  # SIGSTOP, then SIGCONT
    DRAIN = "drain"  # SIGTERM, and a new process at the same address
    CUT = "cut"  # what two machines send each other is lost, one way or both
    ISOLATE = "isolate"  # what a machine sends to and gets from every other is lost


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault."""

    at_s: float  # after the run's begin
    kind: Kind
    machine: str
    other: str = ""  # the other end of a cut
    one_way: bool = False
    lasts_s: float = 0.0


class Manner(StrEnum):
    """How a client behaves."""

    READ = "read"
    SLOW = "slow"  # pauses after each chunk
    LEAVE = "leave"  # hangs up after some chunks
    ABORT = "abort"  # calls Abort after some chunks


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, and how its client behaves."""

    at_s: float
    prompt: str
    options: dict[str, Any]  # of the answer
    speculation: dict[str, Any]  # what must not change it
    manner: Manner
    after: int  # chunks before the client leaves or aborts
    pause_s: float  # of a slow client
    first: int  # the coordinator it asks first


WEIGHTS = {
    ("verifier", Kind.KILL): 3,
    ("draft", Kind.KILL): 3,
    ("coordinator", Kind.KILL): 7,
    ("redis", Kind.KILL): 6,
    ("verifier", Kind.DRAIN): 4,
    ("draft", Kind.DRAIN): 2,
    ("coordinator", Kind.DRAIN): 5,
    ("verifier", Kind.STALL): 10,
    ("draft", Kind.STALL): 8,
    ("coordinator", Kind.STALL): 7,
    ("redis", Kind.STALL): 6,
    ("coordinator-verifier", Kind.CUT): 10,
    ("coordinator-draft", Kind.CUT): 7,
    ("coordinator-redis", Kind.CUT): 5,
    ("verifier-redis", Kind.CUT): 3,
    ("here-coordinator", Kind.CUT): 4,
    ("verifier", Kind.ISOLATE): 2,
    ("draft", Kind.ISOLATE): 1,
    ("redis", Kind.ISOLATE): 1,
}
"""How often each fault happens to each role, out of their sum."""


def draw_faults(seed: int, count: int, seconds: float, roles: dict[str, Sequence[str]]) -> list[Fault]:
    """`count` faults over `seconds`, on machines listed by role."""
    rng = random.Random(f"faults {seed}")
    targets = rng.choices(list(WEIGHTS), WEIGHTS.values(), k=count)
    times = sorted(rng.uniform(0, seconds) for _ in range(count))
    machines = roles | {HERE: [HERE]}
    faults = []
    for at_s, (where, kind) in zip(times, targets, strict=True):
        ends = [rng.choice(machines[role]) for role in where.split("-")]
        longest = 1.5 if kind in (Kind.KILL, Kind.DRAIN) else 6.0
        faults.append(
            Fault(
                at_s=at_s,
                kind=kind,
                machine=ends[0],
                other=ends[1] if len(ends) > 1 else "",
                one_way=rng.random() < 0.3,
                lasts_s=longest * rng.random() ** 2,
            )
        )
    return faults


def draw_requests(seed: int, count: int, seconds: float, coordinators: int) -> list[Asked]:
    """`count` requests over `seconds`."""
    rng = random.Random(f"requests {seed}")
    words = sorted({word for text in TEXTS for word in text.split()})
    times = sorted(rng.uniform(0, seconds) for _ in range(count))
    return [_request(rng, words, at_s, number, coordinators) for number, at_s in enumerate(times)]


def count_faults(faults: Sequence[Fault]) -> dict[str, int]:
    """How many of each kind on each role."""
    names = (f"{fault.kind} {fault.machine.rstrip('0123456789')}" for fault in faults)
    ends = (f"-{fault.other.rstrip('0123456789')}" if fault.other else "" for fault in faults)
    return dict(sorted(Counter(name + end for name, end in zip(names, ends, strict=True)).items()))


def _request(rng: random.Random, words: Sequence[str], at_s: float, number: int, coordinators: int) -> Asked:
    length = rng.choice([3, 8, 15, 30, 45, 65])
    prompt = " ".join(rng.choices(words, k=length))
    if rng.random() < 0.4:
        prompt = " ".join([" ".join(prompt.split()[:6])] * 4)
    options: dict[str, Any] = {"seed": rng.getrandbits(64), "max_tokens": rng.choice([1, 8, 24, 40, 60, 80])}
    options["ignore_eos"] = rng.random() < 0.7
    options |= _sampling(rng)
    if rng.random() < 0.2:
        options["stop"] = rng.choices(["the", "e", " a", "ing", "on", "er", "\n", "ö"], k=2)
    drafter = rng.choice(["none", "ngram", "ngram", "model", "model", "auto"])
    speculation = {"drafter": drafter, "max_draft_tokens": rng.choice([2, 4, 8]), "fixed_length": rng.random() < 0.7}
    if rng.random() < 0.04:
        options["rule"] = "rejection"
    manners = [Manner.READ] * 80 + [Manner.SLOW] * 6 + [Manner.LEAVE] * 7 + [Manner.ABORT] * 7
    return Asked(
        at_s=at_s,
        prompt=prompt,
        options=options,
        speculation=speculation,
        manner=rng.choice(manners),
        after=rng.randint(0, 12),
        pause_s=rng.uniform(0.05, 0.4),
        first=number % coordinators,
    )


def _sampling(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.4:
        return {"temperature": 0.0}
    sampling: dict[str, Any] = {"temperature": rng.choice([0.5, 0.8, 1.0, 1.3])}
    for name, values in (("top_k", [5, 40]), ("top_p", [0.7, 0.95]), ("min_p", [0.02, 0.1])):
        if rng.random() < 0.3:
            sampling[name] = rng.choice(values)
    for name, values in (
        ("frequency_penalty", [-0.5, 0.7]),
        ("presence_penalty", [0.6]),
        ("repetition_penalty", [1.2]),
        ("min_tokens", [1]),
    ):
        if rng.random() < 0.2:
            sampling[name] = rng.choice(values)
    return sampling
