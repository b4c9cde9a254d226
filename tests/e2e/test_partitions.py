"""Real processes on machines of their own: what they send each other is lost, mid-answer, without a word to either.

Each machine is a network namespace (`tests.chaos.network`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.client import Client, Completion
from tests.chaos.fleet import TERMINATE, Fleet
from tests.chaos.moment import Moments
from tests.chaos.network import HERE, Network, why_not
from tests.conftest import TinyModel

PROMPT = "again and again and again"
# More rounds than an answer may be ahead of its client, so that it is still in progress when the client has some of it.
OPTIONS: dict[str, Any] = {"temperature": 0.8, "seed": 21, "max_tokens": 160, "ignore_eos": True, "fixed_length": True}
OPTIONS["max_draft_tokens"] = 1
MIDWAY = 100  # tokens of prompt and answer: long after the client has the first of them
REPLICA = ["--dtype", "float32", "--device", "cpu", "--threads", "1", "--kv-tokens", "4096", "--grace-s", "8"]
REPLICA += ["--heartbeat-s", "0.3", "--registry-ttl-s", "1.5"]
COORDINATOR = ["--replica-silence-s", "1", "--heartbeat-s", "0.3", "--registry-timeout-s", "0.3"]
COORDINATOR += ["--draft-timeout-s", "0.3", "--draft-retry-s", "0.2"]

pytestmark = pytest.mark.skipif(bool(reason := why_not()), reason=reason)


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> Moments:
    return Moments(tmp_path_factory.mktemp("moments"))


@pytest.fixture(scope="module")
def fleet(tiny_model: TinyModel, moments: Moments, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    names = ["redis", "verifier0", "verifier1", "draft0", "coordinator0"]
    model = ["--model", str(tiny_model("llama")), *REPLICA]
    with (
        environment("TEST_MOMENTS", str(moments.folder)),
        Network(names) as network,
        Fleet(
            network,
            tmp_path_factory.mktemp("fleet"),
            verifier=model,
            draft=[*model, "--layers", "2", "--grace-s", "30"],
            coordinators=[COORDINATOR],
            verifiers=2,
            drafts=1,
        ) as running,
    ):
        wait_for(lambda: running.inspect(running.machines["coordinator0"])["connected"] == 3)
        yield running


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """Set a variable for what is started meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def client(fleet: Fleet) -> Iterator[Client]:
    with Client(fleet.address("coordinator0"), timeout=60) as connected:
        yield connected


@pytest.fixture(scope="module")
def expected(client: Client) -> Completion:
    return client.generate(PROMPT, drafter="none", **OPTIONS)


def wait_for(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.03)


def interrupted(client: Client, hurt: Callable[[], object], *, drafter: str) -> Completion:
    """One answer, during which `hurt` is called after a few chunks; text and tokens are those that were streamed."""
    text, tokens, chunks = "", list[int](), 0
    with client.stream(PROMPT, drafter=drafter, **OPTIONS) as stream:
        for chunk in stream:
            text, chunks = text + chunk.text, chunks + 1
            tokens += chunk.token_ids
            if chunks == 5:
                hurt()
    assert (text, tuple(tokens)) == (stream.result.text, stream.result.token_ids)
    return stream.result


def busy_verifier(fleet: Fleet) -> str:
    """The verifier that the only session is on."""
    (busy,) = [each.name for each in fleet.of("verifier") if fleet.inspect(each)["sessions"]]
    return busy


def connected(fleet: Fleet) -> int:
    return int(fleet.inspect(fleet.machines["coordinator0"])["connected"])


def nothing_left(fleet: Fleet) -> bool:
    held = [fleet.inspect(machine) for machine in fleet.machines.values() if machine.role != "redis"]
    return not any(
        each.get(key) for each in held for key in ("sessions", "used_tokens", "running", "placed", "pending")
    )


class Cut:
    """Loses what two machines send each other, one way or both, from `cut` to `mend`."""

    def __init__(self, fleet: Fleet, *ways: tuple[str, str]) -> None:
        self._network = fleet.network
        self.ways = list(ways)

    def cut(self) -> None:
        for way in self.ways:
            self._network.cut(*way)

    def mend(self) -> None:
        for way in self.ways:
            self._network.mend(*way)


@pytest.mark.parametrize("one_way", [False, True], ids=["both ways", "answers only"])
def test_a_verifier_is_cut_off_mid_answer(fleet: Fleet, client: Client, expected: Completion, one_way: bool) -> None:
    cut = Cut(fleet)

    def hurt() -> None:
        busy = busy_verifier(fleet)
        cut.ways = [(busy, "coordinator0"), ("coordinator0", busy)][: 1 if one_way else 2]
        cut.cut()

    began = time.monotonic()
    try:
        result = interrupted(client, hurt, drafter="ngram")
    finally:
        cut.mend()
    assert (result.token_ids, result.text) == (expected.token_ids, expected.text)
    assert time.monotonic() - began < 10, "a cut is noticed within replica_silence_s"
    wait_for(lambda: connected(fleet) == 3)
    wait_for(lambda: nothing_left(fleet))  # also on the verifier that was cut off


def test_the_draft_is_cut_off_mid_answer(fleet: Fleet, client: Client, expected: Completion) -> None:
    cut = Cut(fleet, ("draft0", "coordinator0"), ("coordinator0", "draft0"))
    began = time.monotonic()
    try:
        result = interrupted(client, cut.cut, drafter="model")
    finally:
        cut.mend()
    assert (result.token_ids, result.text) == (expected.token_ids, expected.text)
    assert result.speculation.proposed_tokens > 0
    assert result.speculation.fallback_reason
    assert time.monotonic() - began < 10
    wait_for(lambda: connected(fleet) == 3)
    wait_for(lambda: nothing_left(fleet))
    assert client.generate(PROMPT, drafter="model", **OPTIONS).speculation.proposed_tokens > 0


def test_the_registry_is_cut_off_mid_answer(fleet: Fleet, client: Client, expected: Completion) -> None:
    others = [machine.name for machine in fleet.machines.values() if machine.role != "redis"]
    cut = Cut(fleet, *(way for name in others for way in ((name, "redis"), ("redis", name))))
    began = time.monotonic()
    try:
        assert interrupted(client, cut.cut, drafter="ngram").token_ids == expected.token_ids
        # New ones are placed by the last view, even after every record would have expired.
        while time.monotonic() < began + 2.0:
            assert client.generate(PROMPT, drafter="none", **OPTIONS).token_ids == expected.token_ids
    finally:
        cut.mend()
    assert connected(fleet) == 3
    wait_for(lambda: nothing_left(fleet))


def test_the_client_is_cut_off_mid_answer_and_leaves_nothing(
    fleet: Fleet, client: Client, expected: Completion
) -> None:
    """The coordinator goes on to the bound of what may wait for a client, and ends it all when the client is back."""
    cut = Cut(fleet, ("coordinator0", HERE))
    with Client(fleet.address("coordinator0"), timeout=1.5) as lonely:
        try:
            with pytest.raises(Exception, match="Deadline"):
                interrupted(lonely, cut.cut, drafter="none")
        finally:
            cut.mend()
    wait_for(lambda: nothing_left(fleet))
    assert client.generate(PROMPT, drafter="none", **OPTIONS).token_ids == expected.token_ids


def terminate(fleet: Fleet, name: str) -> int:
    """SIGTERM, until its health says NOT_SERVING; the process."""
    machine = fleet.machines[name]
    assert machine.process is not None
    fleet.signal(machine, TERMINATE)
    with grpc.insecure_channel(fleet.address(name)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        wait_for(lambda: stub.Check(health_pb2.HealthCheckRequest(), timeout=5).status == NOT_SERVING)
    return machine.process.pid


def ended_well(fleet: Fleet, name: str) -> None:
    """It has ended by itself with nothing left to do; start it again."""
    machine = fleet.machines[name]
    assert machine.process is not None
    machine.process.wait(10)
    assert machine.process.poll() == 0
    assert "work was left" not in machine.log.read_text()
    fleet.launch(machine)
    wait_for(lambda: fleet.ready(machine))
    wait_for(lambda: connected(fleet) == 3)


def test_sigterm_hands_a_verifiers_sessions_over(
    fleet: Fleet, client: Client, expected: Completion, moments: Moments
) -> None:
    """Health says NOT_SERVING, the client notices nothing, and the process has ended before its grace has."""
    moments.order("verifier", MIDWAY)
    coordinator = fleet.machines["coordinator0"].log
    names: list[str] = []

    def hurt() -> None:
        wait_for(lambda: moments.waiting("verifier") is not None)
        names.append(busy_verifier(fleet))
        terminate(fleet, names[0])
        time.sleep(4.2)  # longer than half of the grace, in the middle of a round
        moments.release("verifier")

    try:
        assert interrupted(client, hurt, drafter="ngram").token_ids == expected.token_ids
    finally:
        moments.release("verifier")
    assert f"leaves {fleet.address(names[0])}, which drains" in coordinator.read_text()
    ended_well(fleet, names[0])


def test_sigterm_lets_a_drafts_sessions_end(
    fleet: Fleet, client: Client, expected: Completion, moments: Moments
) -> None:
    """There is no other draft: the session goes on with this one, whose process ends with it."""
    moments.order("verifier", MIDWAY)

    def hurt() -> None:
        wait_for(lambda: moments.waiting("verifier") is not None)
        terminate(fleet, "draft0")
        moments.release("verifier")

    try:
        result = interrupted(client, hurt, drafter="model")
    finally:
        moments.release("verifier")
    assert result.token_ids == expected.token_ids
    assert result.speculation.fallback_reason == ""
    ended_well(fleet, "draft0")


NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
