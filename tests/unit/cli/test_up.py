"""`outrider up` as a real process; small scripts stand in for the services."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.unit.cli.conftest import WAIT_S, all_end, open_pidfds

StandIns = Callable[..., None]


@contextmanager
def up(*flags: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "outrider_cli", "up", "--model", "big", "--port", "0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_serves_until_a_signal_and_leaves_nothing_behind(stand_ins: StandIns, number: signal.Signals) -> None:
    with up("--draft-layers", "2", "--json") as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["address"] == f"127.0.0.1:{ready['pids']['coordinator']}"
        pidfds = open_pidfds(ready["pids"].values())
        process.send_signal(number)
        _, logs = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert all_end(pidfds)
    assert 'verifier    | flags ["--listen", "127.0.0.1:0", "--model", "big", "--memory-fraction", "0.4"]' in logs
    assert "coordinator | stopping" in logs
    assert "Traceback" not in logs


def test_up_says_what_to_do_next(stand_ins: StandIns) -> None:
    with up() as process:
        assert process.stdout is not None
        first, second = process.stdout.readline(), process.stdout.readline()
        process.terminate()
        _, logs = process.communicate(timeout=WAIT_S)
    assert first.startswith("Outrider is ready at 127.0.0.1:")
    assert second.strip().startswith("outrider generate --address 127.0.0.1:")
    assert "draft " not in logs, "no draft service unless one was asked for"
    assert '"--drafter", "auto"' in logs


def test_speculation_flags_reach_the_coordinator(stand_ins: StandIns) -> None:
    flags = ("--draft-model", "small", "--max-draft-tokens", "3", "--rule", "rejection", "--dtype", "bfloat16")
    flags += ("--quantization", "int4", "--draft-quantization", "int8")
    with up(*flags, "--coordinator-flags", "--log-level 'debug'", "--json") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        _, logs = process.communicate(timeout=WAIT_S)
    speculation = '"--drafter", "auto", "--max-draft-tokens", "3", "--rule", "rejection", "--log-level", "debug"'
    assert speculation in logs
    assert '"--model", "small", "--dtype", "bfloat16"' in logs
    for role, weights in (("verifier", "int4"), ("draft", "int8")):
        (line,) = (line for line in logs.splitlines() if line.startswith(role) and "flags [" in line)
        assert f'"--quantization", "{weights}"' in line


def test_a_draft_of_the_verifiers_own(stand_ins: StandIns) -> None:
    flags = ("--draft-layers", "3", "--draft-quantization", "int8", "--together", "--draft-flags", "--kv-tokens 64")
    with up(*flags, "--json") as process:
        assert process.stdout is not None
        assert list(json.loads(process.stdout.readline())["pids"]) == ["verifier", "coordinator"]
        process.terminate()
        _, logs = process.communicate(timeout=WAIT_S)
    (line,) = (line for line in logs.splitlines() if line.startswith("verifier") and "flags [" in line)
    assert '"--draft-layers", "3", "--draft-quantization", "int8", "--draft-kv-tokens", "64"' in line
    assert "memory-fraction" not in line


def test_together_needs_a_draft(stand_ins: StandIns) -> None:
    with up("--together") as process:
        _, logs = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2
    assert "--together" in logs
    assert "--draft-model or --draft-layers" in logs


def test_up_ends_with_a_clear_error_if_a_service_dies(stand_ins: StandIns) -> None:
    with up("--json") as process:
        assert process.stdout is not None
        pids = json.loads(process.stdout.readline())["pids"]
        pidfds = open_pidfds(pids.values())
        os.kill(pids["verifier"], signal.SIGKILL)
        _, logs = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert "Error: verifier was killed by SIGKILL. It last logged:" in logs
    assert "Traceback" not in logs
    assert all_end(pidfds)


def test_up_ends_with_a_clear_error_if_a_service_does_not_start(stand_ins: StandIns) -> None:
    stand_ins(verifier="crashes")
    with up() as process:
        output, logs = process.communicate(timeout=WAIT_S)
    assert (process.returncode, output) == (1, "")
    assert "Error: verifier ended with exit code 3. It last logged:" in logs
    assert logs.rstrip().endswith("ValueError: there is no such model")


def test_a_second_signal_does_not_wait_for_a_service_that_takes_its_time(stand_ins: StandIns) -> None:
    stand_ins(coordinator="ignores SIGTERM")
    with up("--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        pidfds = open_pidfds(json.loads(process.stdout.readline())["pids"].values())
        process.send_signal(signal.SIGINT)
        while not process.stderr.readline().startswith("stopping"):
            pass
        process.send_signal(signal.SIGINT)
        _, logs = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert "Traceback" not in logs
    assert all_end(pidfds)
