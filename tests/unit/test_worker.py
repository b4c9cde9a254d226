"""The device thread, with a core that only counts (a test double)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import pytest

from outrider.engine.worker import FEW_ITEMS, DeviceWorker, Peer, nothing


class Counting:
    """Answers every third item at once, and the others in the next step."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Peer[int, int], int]] = []
        self.dropped: list[str] = []
        self.expiries = 0
        self.threads: set[int] = set()
        self.begun = threading.Event()
        self.release = threading.Event()
        self.release.set()

    @property
    def busy(self) -> bool:
        return bool(self.waiting)

    @property
    def awaited(self) -> bool:
        return bool(self.waiting)

    def handle(self, peer: Peer[int, int], item: int) -> int | None:
        self.threads.add(threading.get_ident())
        self.begun.set()
        assert self.release.wait(10)
        if item < 0:
            raise ZeroDivisionError("a bug")
        if item % 3 == 0:
            return item
        self.waiting.append((peer, item))
        return None

    def step(self, meanwhile: Callable[[], None] = nothing) -> Sequence[tuple[Peer[int, int], int]]:
        meanwhile()
        done, self.waiting = self.waiting, []
        return done

    def claim_thread(self) -> None:
        """There is no device."""

    def resume(self) -> None:
        """Nothing is timed."""

    def drop_peer(self, peer: Peer[int, int]) -> None:
        self.dropped.append(peer.name)

    def expire(self, now: float) -> None:
        self.expiries += 1


class Inbox:
    """Where a peer's replies go, and a way to wait for them."""

    def __init__(self) -> None:
        self.replies: list[int] = []
        self._changed = threading.Condition()

    def deliver(self, replies: Sequence[int]) -> None:
        with self._changed:
            self.replies.extend(replies)
            self._changed.notify_all()

    def wait_for(self, count: int) -> list[int]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.replies) >= count, 10)
            return sorted(self.replies)


def test_every_item_is_answered_to_its_own_peer_on_one_thread() -> None:
    core = Counting()
    worker: DeviceWorker[int, int] = DeviceWorker(core)
    worker.start()
    inboxes = [Inbox(), Inbox()]
    peers = [worker.connect(f"peer {i}", inbox.deliver, vocabulary_size=1) for i, inbox in enumerate(inboxes)]
    for item in range(100):
        peers[item % 2].post([item])
    assert inboxes[0].wait_for(50) == list(range(0, 100, 2))
    assert inboxes[1].wait_for(50) == list(range(1, 100, 2))
    peers[0].close()
    worker.stop()
    assert core.dropped == ["peer 0"]
    assert len(core.threads) == 1
    assert threading.get_ident() not in core.threads


def test_a_full_queue_refuses_and_loses_nothing() -> None:
    core = Counting()
    core.release.clear()  # the device is busy with its first item
    worker: DeviceWorker[int, int] = DeviceWorker(core, max_queue=4)
    worker.start()
    inbox = Inbox()
    peer = worker.connect("peer", inbox.deliver, vocabulary_size=1)
    assert peer.post([0]) == 1
    assert core.begun.wait(10)
    assert peer.post([1, 2, 3]) == 3
    assert peer.post([4, 5, 6]) == 1
    assert peer.post([5]) == 0
    core.release.set()
    assert inbox.wait_for(5) == [0, 1, 2, 3, 4]
    assert peer.post([5, 6, 7, 8]) == 4
    assert inbox.wait_for(9) == list(range(9))
    worker.stop()


NO_STEP = 0
AT_ONCE = -1


class Stepping(Counting):
    """Answers each item after as many steps as it says, all side by side. `NO_STEP` begins none, `AT_ONCE` needs none.

    Nobody waits for the steps after an answer, if it is `left` to be done.
    """

    def __init__(self, log: list[str], idle_step: int = 0, broken_step: int = 0, left: int = 0) -> None:
        """Nothing is done meanwhile in the step number `idle_step`; `broken_step` raises; so many steps are `left`."""
        super().__init__()
        self.log = log
        self.left = left
        self.all_done = threading.Event()  # nothing is left
        self.idle_step, self.broken_step = idle_step, broken_step
        self.steps = 0

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.left)

    def handle(self, peer: Peer[int, int], item: int) -> int | None:
        if item == AT_ONCE:
            return item
        if item == NO_STEP:
            self.log.append("nothing")
        else:
            self.waiting.append((peer, item))
        return None

    def step(self, meanwhile: Callable[[], None] = nothing) -> Sequence[tuple[Peer[int, int], int]]:
        if not self.awaited:
            self.left -= 1
            self.log.append("left over")
            if not self.left:
                self.all_done.set()
            return ()
        self.steps += 1
        self.log.append("launched")
        if self.steps != self.idle_step:
            meanwhile()
        self.begun.set()
        assert self.release.wait(10)
        self.log.append("waited")
        if self.steps == self.broken_step:
            raise ZeroDivisionError("a bug")
        done = [each for each in self.waiting if each[1] == self.steps]
        self.waiting = [each for each in self.waiting if each[1] > self.steps]
        return done


class Watched:
    """A worker that has got items, all at once, and what it does: steps, and replies on their way."""

    def __init__(self, *items: int, **core: int) -> None:
        self.log: list[str] = []
        self.inbox = Inbox()
        self.core = Stepping(self.log, **core)
        self.ended = threading.Event()
        self.worker: DeviceWorker[int, int] = DeviceWorker(self.core, on_failure=self.ended.set)
        self.peer = self.worker.connect("peer", self.deliver, vocabulary_size=1)
        assert self.peer.post(items) == len(items)

    def deliver(self, replies: Sequence[int]) -> None:
        self.log.append(f"told {list(replies)}")
        self.inbox.deliver(replies)


def test_replies_leave_once_the_next_pass_is_launched_or_at_once_if_there_is_none() -> None:
    watched = Watched(1, 2, 2)
    watched.worker.start()
    watched.inbox.wait_for(3)
    watched.worker.stop()
    assert watched.log == ["launched", "waited", "launched", "told [1]", "waited", "told [2, 2]"]


def test_replies_wait_for_the_pass_of_what_came_while_their_own_ran() -> None:
    """Nothing else is to be run, but an item waits already: the device first."""
    watched = Watched(1)
    watched.core.release.clear()
    watched.worker.start()
    assert watched.core.begun.wait(10)
    watched.peer.post([2])
    watched.core.release.set()
    watched.inbox.wait_for(2)
    watched.worker.stop()
    assert watched.log == ["launched", "waited", "launched", "told [1]", "waited", "told [2]"]


@pytest.mark.parametrize(("items", "told"), [(1, -1), (FEW_ITEMS, -1), (FEW_ITEMS + 1, 2)])
def test_replies_wait_for_a_few_items_at_most_and_not_once_these_have_begun_nothing(items: int, told: int) -> None:
    watched = Watched(1)
    watched.core.release.clear()
    watched.worker.start()
    assert watched.core.begun.wait(10)
    watched.peer.post([NO_STEP] * items)
    watched.core.release.set()
    watched.inbox.wait_for(1)
    watched.worker.stop()
    assert sorted(watched.log) == sorted(["launched", "waited", "told [1]", *["nothing"] * items])
    assert watched.log[told] == "told [1]"


def test_what_nobody_waits_for_comes_after_replies_and_items() -> None:
    watched = Watched(1, left=2)
    watched.core.release.clear()
    watched.worker.start()
    assert watched.core.begun.wait(10)
    watched.peer.post([2])
    watched.core.release.set()
    assert watched.core.all_done.wait(10)
    watched.worker.stop()
    steps = ["launched", "waited", "launched", "told [1]", "waited", "told [2]"]
    assert watched.log == [*steps, "left over", "left over"]


def test_a_reply_does_not_wait_for_a_step_that_nobody_waits_for() -> None:
    """One that is there as soon as it is asked for: what is left is done after it, and after what else comes."""
    watched = Watched(AT_ONCE, left=1)
    watched.worker.start()
    watched.inbox.wait_for(1)
    assert watched.core.all_done.wait(10)
    watched.worker.stop()
    assert watched.log == [f"told [{AT_ONCE}]", "left over"]


def test_a_step_that_does_nothing_meanwhile_holds_nothing_up() -> None:
    watched = Watched(1, 3, idle_step=2)
    watched.worker.start()
    watched.inbox.wait_for(2)
    watched.worker.stop()
    assert watched.log == ["launched", "waited", "launched", "waited", "told [1]", "launched", "waited", "told [3]"]


def test_what_is_ready_leaves_when_a_bug_ends_the_thread() -> None:
    watched = Watched(1, 3, idle_step=2, broken_step=2)
    watched.worker.start()
    assert watched.ended.wait(10)
    assert watched.log == ["launched", "waited", "launched", "waited", "told [1]"]


def test_what_is_ready_leaves_when_the_worker_is_stopped() -> None:
    watched = Watched(1, 3)
    watched.core.release.clear()
    watched.worker.start()
    assert watched.core.begun.wait(10)
    stopping = threading.Thread(target=watched.worker.stop)
    stopping.start()
    deadline = time.monotonic() + 10
    while watched.worker._inbox.empty() and time.monotonic() < deadline:  # until it has been told to stop
        time.sleep(0.001)
    watched.core.release.set()
    stopping.join(10)
    assert watched.log == ["launched", "waited", "told [1]"]


def test_a_bug_in_the_core_ends_the_thread_and_is_reported() -> None:
    failed = threading.Event()
    worker: DeviceWorker[int, int] = DeviceWorker(Counting(), on_failure=failed.set)
    worker.start()
    worker.connect("peer", Inbox().deliver, vocabulary_size=1).post([-1])
    assert failed.wait(10)
    worker.stop()
    assert not worker.alive
