"""`outrider distill` hands its flags to a process that has torch, and says what is missing before that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider_cli import distill
from outrider_cli.main import app


def run(monkeypatch: pytest.MonkeyPatch, *flags: str, returncode: int = 0) -> tuple[int, list[str]]:
    """The exit code, and the command that was started."""
    commands: list[list[str]] = []

    def started(command: list[str], *, check: bool) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        return subprocess.CompletedProcess(command, returncode)

    monkeypatch.setattr(distill.subprocess, "run", started)
    code = CliRunner().invoke(app, ["distill", *flags]).exit_code
    return code, commands[0] if commands else []


def test_every_flag_reaches_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = [
        "--target", "T", "--out", "O", "--prompts", "a.jsonl", "--prompts", "b.txt", "--from-log", "c",
        "--only", "collect", "--only", "train", "--config", "d.yaml", "--shard", "1/4",
    ]  # fmt: skip
    code, command = run(monkeypatch, *flags)
    assert code == 0
    assert command == [sys.executable, "-m", "outrider.distill.main", *flags]


def test_the_exit_code_is_the_process_s(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--target", "T", "--out", "O", "--prompts", "a.jsonl")
    assert run(monkeypatch, *flags, returncode=1)[0] == 1
    assert run(monkeypatch, *flags, returncode=-9)[0] == 137


def test_nothing_to_learn_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, "--target", "T", "--out", str(tmp_path / "new")) == (2, [])
    assert run(monkeypatch, "--target", "T", "--out", str(tmp_path), "--only", "sleep") == (2, [])
