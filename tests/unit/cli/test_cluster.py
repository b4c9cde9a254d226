"""LocalCluster and ServiceProcess with real processes; small scripts stand in for the services."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable

import pytest

from outrider_cli.cluster import LocalCluster
from outrider_cli.process import ServiceFailed
from tests.unit.cli.conftest import WAIT_S, alive, all_end, open_pidfds

StandIns = Callable[..., None]
ROLES = ["verifier", "draft", "coordinator"]


class Lines:
    """Collects log lines; thread-safe, because every service logs on its own thread."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __call__(self, role: str, line: str) -> None:
        self.lines.append((role, line))

    def flags_of(self, role: str) -> list[str]:
        (flags,) = [line for who, line in self.lines if who == role and line.startswith("flags ")]
        return json.loads(flags.removeprefix("flags "))


def test_services_start_with_their_flags_and_end_with_the_block(stand_ins: StandIns) -> None:
    log = Lines()
    cluster = LocalCluster(
        "big",
        draft_model="small",
        draft_layers=3,
        coordinator_flags=["--drafter", "model"],
        verifier_flags=["--threads", "1"],
        draft_flags=["--threads", "2"],
        log=log,
    )
    with cluster:
        assert list(cluster.pids) == ROLES
        pidfds = open_pidfds(cluster.pids.values())
        verifier, draft = cluster.address_of("verifier"), cluster.address_of("draft")
        assert verifier == f"127.0.0.1:{cluster.process('verifier').pid}"
        assert cluster.address == cluster.address_of("coordinator")
    assert all_end(pidfds)
    common = ["--listen", "127.0.0.1:0", "--model"]
    types = ["--dtype", "float32", "--device", "cpu"]
    assert log.flags_of("verifier") == [*common, "big", *types, "--threads", "1"]
    assert log.flags_of("draft") == [*common, "small", *types, "--layers", "3", "--threads", "2"]
    peers = ["--verifiers", verifier, "--drafts", draft]
    assert log.flags_of("coordinator") == ["--listen", "127.0.0.1:0", *peers, "--drafter", "model"]
    assert ("verifier", "loading verifier") in log.lines
    assert [role for role, line in log.lines if line == "stopping"] == ["coordinator", "draft", "verifier"]


def test_without_a_draft(stand_ins: StandIns) -> None:
    log = Lines()
    with LocalCluster("big", with_draft=False, dtype=None, device=None, listen="127.0.0.1:0", log=log) as cluster:
        assert list(cluster.pids) == ["verifier", "coordinator"]
        with pytest.raises(KeyError):
            cluster.process("draft")
    assert log.flags_of("verifier") == ["--listen", "127.0.0.1:0", "--model", "big"]
    assert "--drafts" not in log.flags_of("coordinator")


def test_a_draft_in_the_verifiers_process(stand_ins: StandIns) -> None:
    log = Lines()
    options = {"draft_model": "small", "draft_layers": 3, "draft_flags": ["--kv-tokens", "64"], "together": True}
    with LocalCluster("big", verifier_flags=["--threads", "1"], log=log, **options) as cluster:
        assert list(cluster.pids) == ["verifier", "coordinator"]
    own = ["--draft-model", "small", "--draft-layers", "3", "--draft-kv-tokens", "64"]
    types = ["--dtype", "float32", "--device", "cpu"]
    assert log.flags_of("verifier") == ["--listen", "127.0.0.1:0", "--model", "big", *types, "--threads", "1", *own]
    assert "--drafts" not in log.flags_of("coordinator")


@pytest.mark.parametrize("role", ROLES)
def test_a_service_that_crashes_is_named_with_its_last_lines(stand_ins: StandIns, role: str) -> None:
    stand_ins(**{role: "crashes"})
    cluster = LocalCluster("big")
    with pytest.raises(ServiceFailed) as caught:
        cluster.start()
    first, *logged = str(caught.value).splitlines()
    assert first == f"{role} ended with exit code 3. It last logged:"
    assert logged[-1] == "  ValueError: there is no such model"
    assert cluster.pids == {}


def test_a_crash_is_noticed_while_another_service_still_loads(stand_ins: StandIns) -> None:
    stand_ins(verifier="hangs", draft="crashes")
    with pytest.raises(ServiceFailed, match="draft ended with exit code 3"):
        LocalCluster("big", start_timeout_s=WAIT_S * 10).start()


def test_a_service_that_hangs_ends_the_start_after_the_timeout(stand_ins: StandIns) -> None:
    stand_ins(draft="hangs")
    log = Lines()
    with pytest.raises(ServiceFailed, match=r"draft was not ready after 1.5 s"):
        LocalCluster("big", start_timeout_s=1.5, log=log).start()
    assert sorted(role for role, line in log.lines if line == "stopping") == ["draft", "verifier"]


def test_a_service_that_ignores_sigterm_is_killed(stand_ins: StandIns) -> None:
    stand_ins(verifier="ignores SIGTERM")
    cluster = LocalCluster("big")
    cluster.start()
    verifier = cluster.process("verifier")
    cluster.stop(grace_s=0.2)
    assert verifier.returncode == -signal.SIGKILL
    cluster.stop()  # harmless


def test_the_death_of_a_service_is_noticed(stand_ins: StandIns) -> None:
    with LocalCluster("big") as cluster:
        assert cluster.wait_for_end(0.0) is None
        os.kill(cluster.process("draft").pid, signal.SIGKILL)
        ended = cluster.wait_for_end(WAIT_S)
        assert ended is cluster.process("draft")
        assert str(ended.describe_end()).startswith("draft was killed by SIGKILL. It last logged:")


def test_a_service_restarts_at_its_address(stand_ins: StandIns) -> None:
    with LocalCluster("big") as cluster:
        old = cluster.process("draft")
        new = cluster.restart("draft")
        assert (old.returncode, cluster.process("draft")) == (0, new)
        assert new.pid != old.pid
        assert cluster.address_of("draft") == old.address
        assert cluster.wait_for_end(0.0) is None


def test_services_outlive_the_thread_that_started_them(stand_ins: StandIns) -> None:
    cluster = LocalCluster("big")
    starter = threading.Thread(target=cluster.start)
    starter.start()
    starter.join(WAIT_S)
    try:
        assert len(cluster.pids) == 3
        assert cluster.wait_for_end(0.5) is None
    finally:
        cluster.stop()


def test_no_service_outlives_a_parent_that_is_killed(stand_ins: StandIns) -> None:
    stand_ins(draft="ignores SIGTERM")
    script = """
        import signal
        from outrider_cli.cluster import LocalCluster
        with LocalCluster("big") as cluster:
            print(*cluster.pids.values(), flush=True)
            signal.pause()
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 3
    assert all(alive(pid) for pid in pids)
    pidfds = open_pidfds(pids)
    parent.kill()
    parent.wait(WAIT_S)
    parent.stdout.close()
    assert all_end(pidfds)


def test_no_thread_is_left_behind(stand_ins: StandIns) -> None:
    before = set(threading.enumerate())
    with LocalCluster("big"):
        assert set(threading.enumerate()) - before
    assert not set(threading.enumerate()) - before
