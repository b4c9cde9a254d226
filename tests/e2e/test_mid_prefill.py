"""Real verifier processes that are killed or stopped when a prompt is half computed: the answer is the same."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from outrider.client import Client
from outrider_cli.process import ServiceProcess
from tests.cluster import running_cluster
from tests.conftest import TinyModel
from tests.e2e.long_context import with_long_context

REPLICA = ["--dtype", "float32", "--device", "cpu", "--threads", "1", "--kv-tokens", "4096", "--grace-s", "5"]
REPLICA += ["--max-batch-tokens", "128"]  # a prompt of 700 tokens takes six passes
OPTIONS: dict[str, Any] = {"temperature": 0.8, "seed": 21, "max_tokens": 16, "ignore_eos": True}


def prompt(number: int) -> list[int]:
    """Prompts that begin differently: nothing of one is cached for another."""
    return [(number * 101 + 7 * place) % 480 + 20 for place in range(700)]


@dataclass
class Processes:
    """Two verifiers, either of which may be hurt, and a coordinator."""

    order: Path  # what signal the next verifier sends itself that is in the middle of a prompt
    verifiers: list[ServiceProcess] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)  # by the coordinator
    address: str = ""

    def hurt_one(self, client: Client, number: int, signal_number: int) -> tuple[tuple[int, ...], ServiceProcess]:
        """The answer to a prompt whose verifier is hurt half-way, and that verifier."""
        self.order.write_text(str(signal_number))
        answer = client.generate(token_ids=prompt(number), drafter="none", **OPTIONS).token_ids
        assert not self.order.exists(), "nobody was hurt"
        (hurt,) = [each for each in self.verifiers if self.order.with_suffix(f".{each.pid}").exists()]
        self.order.with_suffix(f".{hurt.pid}").unlink()
        return answer, hurt


@pytest.fixture(scope="module")
def model(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a context that holds a prompt of several passes."""
    return with_long_context(tiny_model("llama"), tmp_path_factory.mktemp("long") / "model")


@pytest.fixture(scope="module")
def processes(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    running = Processes(tmp_path_factory.mktemp("hurt") / "order")
    changed = threading.Condition()
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_HURT", str(running.order))

        def start(role: str, module: str, flags: list[str]) -> ServiceProcess:
            process = ServiceProcess(
                role,
                module,
                ["--listen", "127.0.0.1:0", *flags],
                changed=changed,
                log=lambda _, line: running.logged.append(line),
            )
            stack.callback(process.stop, 10)
            return process

        flags = ["--model", str(model), *REPLICA]
        running.verifiers += [start("verifier", "tests.e2e.hurting_verifier", flags) for _ in range(2)]
        wait_for(lambda: all(each.address for each in running.verifiers))
        peers = [flag for each in running.verifiers for flag in ("--verifiers", each.address)]
        coordinator = start("coordinator", "outrider_coordinator", [*peers, "--replica-silence-s", "1"])
        wait_for(lambda: sum(" is up: " in line for line in running.logged) == 2 and bool(coordinator.address))
        running.address = coordinator.address
        yield running


def wait_for(condition: Callable[[], bool], timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


async def undisturbed(model: Path) -> list[tuple[int, ...]]:
    """The answers of a cluster that computes each prompt in other pieces."""
    async with running_cluster(model, verifier={"max_batch_tokens": 1024}) as cluster:
        return [(await cluster.generate(prompt(n), drafter="none", **OPTIONS)).token_ids for n in (0, 1)]


def test_a_verifier_is_stopped_and_another_killed_mid_prefill(model: Path, processes: Processes) -> None:
    expected = asyncio.run(undisturbed(model))
    assert expected[0] != expected[1]
    with Client(processes.address, timeout=30) as client:
        answer, stopped = processes.hurt_one(client, 0, signal.SIGSTOP)
        assert answer == expected[0]
        assert not stopped.ended
        os.kill(stopped.pid, signal.SIGCONT)
        # It is used again: what it was computing when it was stopped is nobody's any more.
        wait_for(lambda: sum(f"{stopped.address} is up: " in line for line in processes.logged) == 2)

        answer, killed = processes.hurt_one(client, 1, signal.SIGKILL)
        assert answer == expected[1]
        wait_for(lambda: killed.ended)
        assert killed.returncode == -signal.SIGKILL
        # On the verifier that is left, the one that was stopped perhaps, the first prompt has its answer too.
        assert client.generate(token_ids=prompt(0), drafter="none", **OPTIONS).token_ids == expected[0]
