"""Turns on a device that two threads share: who goes first, and how long the other waits."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from outrider.engine import turns
from outrider.engine.turns import GATHER_S, OVERDUE_S, AloneTurn, SharedDevice, Turn


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Taker:
    """A thread that takes a turn and holds it until told to give it back."""

    def __init__(self, turn: Turn, name: str, order: list[str]) -> None:
        self._release = threading.Event()
        self.has_it = threading.Event()
        self._thread = threading.Thread(target=self._take, args=(turn, name, order), daemon=True)
        self._thread.start()

    def _take(self, turn: Turn, name: str, order: list[str]) -> None:
        with turn:
            order.append(name)
            self.has_it.set()
            assert self._release.wait(10)

    def give_back(self) -> None:
        assert self.has_it.wait(10)
        self._release.set()
        self._thread.join(10)
        assert not self._thread.is_alive()


def until(condition: Callable[[], bool]) -> None:
    done = threading.Event()
    for _ in range(1000):
        if condition():
            return
        done.wait(0.01)
    raise TimeoutError


def test_who_wants_to_draft_goes_before_who_wants_to_verify() -> None:
    device, order = SharedDevice(Clock()), []
    running = Taker(device.verifying, "verify", order)
    assert running.has_it.wait(10)
    verify = Taker(device.verifying, "verify again", order)
    draft = Taker(device.drafting, "draft", order)
    until(lambda: device._drafts_wait and device._overdue_at < float("inf"))
    running.give_back()
    assert draft.has_it.wait(10)
    assert not verify.has_it.is_set()
    draft.give_back()
    verify.give_back()
    assert order == ["verify", "draft", "verify again"]


def test_verifying_that_is_overdue_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "OVERDUE_S", 0.02)
    clock = Clock()
    device, order = SharedDevice(clock), []
    running = Taker(device.drafting, "draft", order)
    assert running.has_it.wait(10)
    verify = Taker(device.verifying, "verify", order)
    until(lambda: device._overdue_at < float("inf"))
    draft = Taker(device.drafting, "draft again", order)
    until(lambda: device._drafts_wait)
    clock.now += OVERDUE_S + 1
    running.give_back()
    assert verify.has_it.wait(10)
    assert not draft.has_it.is_set()
    verify.give_back()
    draft.give_back()
    assert order == ["draft", "verify", "draft again"]


def test_verifying_waits_for_the_proposals_of_the_last_guess_unless_all_are_there() -> None:
    clock = Clock()
    device = SharedDevice(clock)
    assert device.verifying.pause(complete=False) == 0
    with device.drafting:
        pass
    assert device.drafting.pause(complete=False) == 0
    assert device.verifying.pause(complete=True) == 0
    clock.now += GATHER_S / 4
    assert device.verifying.pause(complete=False) == pytest.approx(GATHER_S * 3 / 4, rel=0.01)
    with device.verifying:
        pass
    clock.now += GATHER_S
    assert device.verifying.pause(complete=False) == 0


def test_a_thread_that_has_its_device_alone_never_waits() -> None:
    turn = AloneTurn()
    with turn:
        assert turn.pause(complete=False) == 0
