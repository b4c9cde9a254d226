"""What the worker does while the device computes, and what rounds are told to have cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch

from outrider.acceptance.params import Rule, SamplingParams
from outrider.acceptance.proposal import NO_PROPOSAL
from outrider.engine.draft import DraftCore
from outrider.engine.drafting_verify import DraftingVerifyCore
from outrider.engine.engine import Engine
from outrider.engine.laps import Laps
from outrider.engine.own_draft import OwnDraft
from outrider.engine.verify import FEW_VERDICTS
from outrider.engine.worker import DeviceWorker
from outrider.protocol.items import DraftFirst, FollowUp, Key, Open, Verified, Verify
from outrider.sampling.verify import Judging
from tests.conftest import TinyModel
from tests.tiny_models import VOCABULARY_SIZE
from tests.unit.engine.engines import make_engine, random_tokens

PROMPT = tuple(random_tokens(20, seed=1))
BASE = len(PROMPT)
FORWARD_S, JUDGE_S, HANDLE_S = 5.0, 2.0, 0.25


class Watched:
    """A verifier with a draft of its own, what its steps do in order, and a clock that only these move on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, model: TinyModel) -> None:
        self.now = 0.0
        self.log: list[str] = []
        self.engines = [make_engine(model("llama"), kv_tokens=1024) for _ in range(2)]
        own = OwnDraft(DraftCore(self.engines[1], max_proposal=15, lease_s=60))
        self.core = DraftingVerifyCore(self.engines[0], own, max_proposal=15, lease_s=60)
        self.core.laps = Laps(lambda: self.now)
        worker: DeviceWorker[Any, Any] = DeviceWorker(self.core)
        self.peer: Any = worker.connect("test", lambda replies: None, vocabulary_size=VOCABULARY_SIZE)
        for engine, name in zip(self.engines, ("target", "draft"), strict=True):
            monkeypatch.setattr(engine, "forward", self.seen(name, engine.forward, FORWARD_S))
        judged = self.seen("judge", Judging.verdicts, JUDGE_S)
        monkeypatch.setattr(Judging, "verdicts", judged)

    def seen(self, name: str, call: Callable[..., Any], takes_s: float) -> Callable[..., Any]:
        def seen(*args: Any) -> Any:
            self.log.append(name)
            self.now += takes_s
            return call(*args)

        return seen

    def handle(self, item: Any) -> Any:
        self.now += HANDLE_S
        return self.core.handle(self.peer, item)

    def step(self) -> list[Any]:
        self.log.clear()
        return [reply for _, reply in self.core.step(lambda: self.log.append("meanwhile"))]

    def run(self) -> None:
        """Steps until nothing is left to do."""
        while self.core.busy:
            self.step()

    def open(self, number: int = 1) -> None:
        params = SamplingParams(temperature=0.8)
        self.handle(Open(Key(number, 1, BASE), PROMPT, BASE, BASE + 60, params, Rule.MATCH, seed=1))


@pytest.fixture(name="watched")
def fixture_watched(monkeypatch: pytest.MonkeyPatch, tiny_model: TinyModel) -> Watched:
    return Watched(monkeypatch, tiny_model)


def verify_item(first: DraftFirst | None = None) -> Verify:
    return Verify(Key(1, 1, BASE), BASE, (), NO_PROPOSAL, first)


def test_where_this_thread_computes_replies_leave_before(watched: Watched) -> None:
    watched.open()
    watched.handle(verify_item(DraftFirst(2)))
    for name in ("draft", "draft"):  # the prompt with the first token, and the second one
        assert watched.step() == []
        assert watched.log == ["meanwhile", name]
    (reply,) = watched.step()
    assert isinstance(reply, Verified)
    assert watched.log == ["meanwhile", "target", "judge"]


def test_where_a_device_computes_replies_leave_once_it_does(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "computes_apart", True)
    watched.open()
    watched.step()  # of the prompt alone, which nothing waits for
    assert watched.log == ["target", "meanwhile"]
    watched.handle(verify_item(DraftFirst(2)))
    for name in ("draft", "draft"):
        watched.step()
        assert watched.log == [name, "meanwhile"]
    watched.step()
    assert watched.log == ["target", "meanwhile", "judge"]


@pytest.mark.parametrize("count", [1, FEW_VERDICTS, FEW_VERDICTS + 1])
def test_a_verifiers_few_replies_leave_before_its_draws_are_launched(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(Engine, "computes_apart", True)
    monkeypatch.setattr(Judging, "__init__", watched.seen("draws", Judging.__init__, 0.0))
    for number in range(1, count + 1):
        watched.open(number)
        watched.handle(Verify(Key(number, 1, BASE), BASE, (), NO_PROPOSAL))
    watched.step()
    rest = ["meanwhile", "draws"] if count <= FEW_VERDICTS else ["draws", "meanwhile"]
    assert watched.log == ["target", *rest, "judge"]


def test_a_step_that_fails_leaves_nothing_to_the_next(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "computes_apart", True)
    working = watched.engines[0].forward

    def broken(*arguments: Any) -> torch.Tensor:
        raise RuntimeError("no kernel")

    watched.open()
    watched.handle(verify_item())
    monkeypatch.setattr(watched.engines[0], "forward", broken)
    (failed,) = watched.step()
    assert "no kernel" in failed.message
    assert watched.log == []
    monkeypatch.setattr(watched.engines[0], "forward", working)
    watched.handle(Open(Key(2, 1, BASE), PROMPT, BASE, BASE + 9, SamplingParams(), Rule.MATCH, seed=1))
    watched.handle(Verify(Key(2, 1, BASE), BASE, (), NO_PROPOSAL))
    watched.step()
    assert watched.log == ["target", "meanwhile", "judge"]


@pytest.mark.parametrize("which", [0, 1])
def test_a_device_that_is_lost_ends_the_thread(watched: Watched, monkeypatch: pytest.MonkeyPatch, which: int) -> None:
    """Every later pass would fail too, and the sessions are safe elsewhere."""
    watched.open()
    watched.handle(verify_item(DraftFirst(2)))
    lost = mock.Mock(side_effect=torch.AcceleratorError("an illegal memory access was encountered"))
    monkeypatch.setattr(watched.engines[which], "forward", lost)
    monkeypatch.setattr(Engine, "check_device", lost)
    with pytest.raises(torch.AcceleratorError):
        watched.run()


@pytest.mark.parametrize("first", [None, DraftFirst(2)])
def test_rounds_tell_all_the_time_of_a_busy_thread(watched: Watched, first: DraftFirst | None) -> None:
    """That between passes too, each bit of it once."""
    watched.open()
    while watched.core.busy:
        watched.step()
    watched.now += 100.0  # nobody asks for anything
    began = watched.now
    watched.core.resume()
    watched.handle(verify_item(first))
    ended, rounds = 0.0, []
    while len(rounds) < 5:
        for reply in watched.step():
            rounds.append(reply)
            ended = watched.now
            base = watched.core.sessions.find(watched.peer, reply.key).history
            watched.handle(FollowUp(Key(1, 1, len(base)), (), plainly=first is None, draft_first=first))
    told = [(reply.verdict.step_microseconds, reply.step.draft_microseconds) for reply in rounds]
    assert sum(map(sum, told)) == (ended - began) * 1e6
    assert [ours for _, ours in told[1:]] == [0 if first is None else (2 * FORWARD_S + HANDLE_S) * 1e6] * 4


def test_prompts_are_in_no_rounds_time(watched: Watched) -> None:
    watched.core.resume()
    watched.open()
    while watched.core.busy:
        watched.step()
    watched.handle(verify_item())
    (reply,) = watched.step()
    assert reply.verdict.step_microseconds == (HANDLE_S + FORWARD_S + JUDGE_S) * 1e6
