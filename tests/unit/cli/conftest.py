"""Fixtures: stand-in services on the module path, and looking at processes without polling."""

from __future__ import annotations

import os
import select
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

WAIT_S = 60.0


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`python -m outrider_ROLE` runs the stand-in; call the fixture to give roles another behaviour than `ready`."""
    for role in ("coordinator", "draft", "verifier"):
        package = tmp_path / f"outrider_{role}"
        package.mkdir()
        (package / "__init__.py").touch()
        shutil.copy(Path(__file__).with_name("stand_in.py"), package / "__main__.py")
    path = [str(tmp_path), *(os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(":") if entry)]
    monkeypatch.setenv("PYTHONPATH", ":".join(path))

    def behave(**behaviours: str) -> None:
        for role, behaviour in behaviours.items():
            monkeypatch.setenv(f"STAND_IN_{role.upper()}", behaviour)

    return behave


def open_pidfds(pids: Iterable[int]) -> list[int]:
    """File descriptors that become readable when the processes end."""
    return [os.pidfd_open(pid) for pid in pids]


def all_end(pidfds: list[int], within_s: float = WAIT_S) -> bool:
    """Wait until every one of the processes has ended; closes the descriptors."""
    try:
        return all(select.select([pidfd], [], [], within_s)[0] for pidfd in pidfds)
    finally:
        for pidfd in pidfds:
            os.close(pidfd)


def alive(pid: int) -> bool:
    """True if there is such a process."""
    return Path(f"/proc/{pid}").exists()
