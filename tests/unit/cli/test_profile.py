"""`outrider profile` becomes a process that has torch, with every flag as it was given."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from outrider_cli import profile
from outrider_cli.main import app


def run(monkeypatch: pytest.MonkeyPatch, *flags: str) -> tuple[int, list[str], str]:
    """The exit code, the command that this process became, and what was printed."""
    commands: list[list[str]] = []
    monkeypatch.setattr(profile.os, "execv", lambda path, command: commands.append(command))
    result = CliRunner().invoke(app, ["profile", *flags])
    return result.exit_code, commands[0] if commands else [], result.output


def test_every_flag_reaches_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--target", "T", "--draft", "D", "--draft", "E", "--draft-tokens", "1..8", "--json", "--out", "O"]
    assert run(monkeypatch, *flags)[:2] == (0, [sys.executable, "-m", "outrider.profiling.main", *flags])


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code, command, text = run(monkeypatch, "--target", "T")
    assert (code, command) == (1, [])
    assert "pip install 'outrider[engine]'" in text
    assert run(monkeypatch, "--help")[1][-1] == "--help"  # which needs none


def test_the_flags_are_listed_in_a_process_without_torch() -> None:
    code = """
import runpy, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers"):
            raise ImportError(f"{name} is not for this process")
sys.meta_path.insert(0, Refuse())
sys.argv = ["main", "--help"]
runpy.run_module("outrider.profiling.main", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "--draft-tokens" in done.stdout
