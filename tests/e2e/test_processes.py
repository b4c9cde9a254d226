"""Real processes, started the way `outrider up` starts them, and hurt the way machines hurt them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.client import Client
from outrider_cli.cluster import LocalCluster
from tests.conftest import TinyModel

PROMPT = "again and again and again"
OPTIONS: dict[str, Any] = {"temperature": 0.8, "seed": 21, "max_tokens": 120, "ignore_eos": True, "fixed_length": True}
REPLICA = ["--kv-tokens", "4096", "--threads", "1", "--grace-s", "0.5"]


@pytest.fixture(scope="module")
def cluster(tiny_model: TinyModel) -> Iterator[LocalCluster]:
    flags = ["--draft-timeout-s", "0.5", "--draft-retry-s", "0.2", "--drafter", "model"]
    with LocalCluster(
        str(tiny_model("llama")),
        draft_layers=2,
        verifier_flags=REPLICA,
        draft_flags=REPLICA,
        coordinator_flags=flags,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster.address, timeout=60) as connected:
        yield connected


@pytest.fixture(scope="module")
def expected(client: Client) -> tuple[int, ...]:
    return client.generate(PROMPT, drafter="none", **OPTIONS).token_ids


def interrupted(client: Client, hurt: Any, *, drafter: str, after: int = 5) -> Any:
    """One answer, during which `hurt` is called after a few chunks."""
    chunks = 0
    with client.stream(PROMPT, drafter=drafter, **OPTIONS) as stream:
        for _ in stream:
            chunks += 1
            if chunks == after:
                hurt()
    return stream.result


def wait_for_the_draft(client: Client) -> None:
    """Until the coordinator is connected to the draft, again."""
    deadline = time.monotonic() + 30
    while not client.model_info().drafts:
        assert time.monotonic() < deadline, "the coordinator did not come back to the draft"
        time.sleep(0.05)


def start(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A module with its arguments, which are to end it."""
    return subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=120, check=False, cwd=folder
    )


def test_every_drafter_gives_the_same_answer(client: Client, expected: tuple[int, ...]) -> None:
    for drafter in ("ngram", "model"):
        assert client.generate(PROMPT, drafter=drafter, **OPTIONS).token_ids == expected


def test_case_23_the_draft_is_killed_mid_stream(
    cluster: LocalCluster, client: Client, expected: tuple[int, ...]
) -> None:
    result = interrupted(client, lambda: os.kill(cluster.process("draft").pid, signal.SIGKILL), drafter="model")
    assert result.token_ids == expected
    assert result.speculation.fallback_reason
    with grpc.insecure_channel(cluster.address) as channel:  # without drafts it is as ready as before
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    cluster.restart("draft")
    wait_for_the_draft(client)
    # The new incarnation starts from the committed tokens, and guesses again.
    retried = client.generate(PROMPT, drafter="model", **(OPTIONS | {"max_tokens": 200}))
    assert retried.token_ids[:120] == expected
    assert retried.speculation.proposed_tokens > 0


def test_case_23_the_draft_stalls_mid_stream(cluster: LocalCluster, client: Client, expected: tuple[int, ...]) -> None:
    pid = cluster.process("draft").pid
    wait_for_the_draft(client)
    try:
        result = interrupted(client, lambda: os.kill(pid, signal.SIGSTOP), drafter="model")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert result.token_ids == expected
    assert "did not answer" in result.speculation.fallback_reason


def test_the_verifier_is_killed_mid_stream_and_comes_back(
    cluster: LocalCluster, client: Client, expected: tuple[int, ...]
) -> None:
    def kill_and_restart() -> None:
        os.kill(cluster.process("verifier").pid, signal.SIGKILL)
        cluster.restart("verifier")

    assert interrupted(client, kill_and_restart, drafter="ngram").token_ids == expected


def test_the_command_line_answers(cluster: LocalCluster, client: Client) -> None:
    command = [sys.executable, "-m", "outrider_cli", "generate", PROMPT, "--address", cluster.address]
    run = subprocess.run(
        [*command, "--raw", "--json", "--temperature", "0", "--max-tokens", "9"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    answer = json.loads(run.stdout)
    assert answer["text"] == client.generate(PROMPT, temperature=0, max_tokens=9).text


def test_the_readmes_example_works_as_printed(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert len(example.strip().splitlines()) <= 10
    assert '"127.0.0.1:7400"' in example
    exec(example.replace("127.0.0.1:7400", cluster.address), {})
    assert re.search(r"\d+ rounds, \d+ of \d+ guessed tokens accepted", capsys.readouterr().out)


def test_a_service_drains_on_sigterm(tiny_model: TinyModel) -> None:
    """The coordinator finishes what runs, then exits with 0, and the replicas follow."""
    flags = REPLICA
    with LocalCluster(str(tiny_model("llama")), with_draft=False, verifier_flags=flags) as cluster:
        processes = [cluster.process(role) for role in ("coordinator", "verifier")]
        with Client(cluster.address) as client, client.stream(PROMPT, drafter="none", **OPTIONS) as stream:
            iterator = iter(stream)
            next(iterator)
            os.kill(processes[0].pid, signal.SIGTERM)
            for _ in iterator:
                pass
        assert stream.result.usage.completion_tokens == 120
        assert cluster.wait_for_end(20) is processes[0]
        os.kill(processes[1].pid, signal.SIGTERM)
    assert [process.returncode for process in processes] == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["outrider_verifier", "--model", "/nowhere/at/all"], "/nowhere/at/all"),
        (["outrider_verifier"], "model is required"),
        (["outrider_verifier", "--model", "x", "--laiers", "3"], "layers"),
        (["outrider_coordinator", "--verifiers", "127.0.0.1:1", "--start-timeout-s", "0.5"], "no verifier answered"),
    ],
    ids=["no such model", "no model", "unknown flag", "no verifier"],
)
def test_case_30_what_cannot_start_says_why(arguments: list[str], words: str, tmp_path: Path) -> None:
    run = start(*arguments, folder=tmp_path)
    assert run.returncode in (1, 2)
    assert words in run.stderr
    assert "Traceback" not in run.stderr


def with_a_draft_in_the_verifier(model: Path) -> LocalCluster:
    return LocalCluster(
        str(model),
        draft_layers=2,
        verifier_flags=REPLICA,
        draft_flags=["--kv-tokens", "4096"],
        coordinator_flags=["--drafter", "model"],
        together=True,
    )


def test_a_draft_in_the_verifiers_own_process(tiny_model: TinyModel, expected: tuple[int, ...]) -> None:
    with with_a_draft_in_the_verifier(tiny_model("llama")) as running:
        assert list(running.pids) == ["verifier", "coordinator"]
        with Client(running.address, timeout=60) as client:
            answer = client.generate(PROMPT, drafter="model", **OPTIONS)
            assert answer.token_ids == expected
            assert answer.speculation.proposed_tokens > 0
            shown = subprocess.run(
                [sys.executable, "-m", "outrider_cli", "info", "--address", running.address],
                capture_output=True, text=True, timeout=60, check=True,
            )  # fmt: skip
            assert "draft   in the verifier's own process" in shown.stdout
        verifier = running.process("verifier")
    assert verifier.returncode == 0


@pytest.mark.slow  # tests/integration/test_own_draft.py has it stopped and started again, without processes
def test_it_is_killed_with_the_verifier_and_comes_back(tiny_model: TinyModel, expected: tuple[int, ...]) -> None:
    with with_a_draft_in_the_verifier(tiny_model("llama")) as running, Client(running.address, timeout=60) as client:

        def kill() -> None:
            running.process("verifier").signal(signal.SIGKILL)
            running.restart("verifier")

        assert interrupted(client, kill, drafter="model").token_ids == expected


def test_case_30_a_draft_model_that_nobody_has_is_an_error_at_start(cluster: LocalCluster) -> None:
    run = start("outrider_coordinator", "--verifiers", cluster.address_of("verifier"), "--drafter", "model")
    assert run.returncode in (1, 2)
    assert "drafts is empty and no verifier has a draft of its own" in run.stderr
    assert "Traceback" not in run.stderr
