"""The device thread: one per process, the only one that touches the model, the KV cache and the sessions in it.

The event loop posts items and gets replies back; it never waits on the device, and no lock guards device state.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from outrider.errors import ResourceExhausted
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

Item = TypeVar("Item")
Reply = TypeVar("Reply")


class Peer(Generic[Item, Reply]):
    """One stream's place on the device thread. Sessions belong to a peer and end with it. Made by `connect`."""

    def __init__(
        self,
        worker: DeviceWorker[Item, Reply],
        name: str,
        deliver: Callable[[Sequence[Reply]], None],
        vocabulary_size: int,
    ) -> None:
        self.name = name
        self.deliver = deliver
        self.vocabulary_size = vocabulary_size
        self._worker = worker

    def post(self, item: Item) -> None:
        """Queue one item, from any thread. Raise ResourceExhausted when the queue is full."""
        self._worker.post(self, item)

    def close(self) -> None:
        """Free the peer's sessions, after what it posted before."""
        self._worker.post_close(self)


def nothing() -> None:
    """What there is to do while a pass runs, where there is nothing."""


class Core(Protocol[Item, Reply]):
    """What runs on the device thread."""

    def claim_thread(self) -> None:
        """Called on the device thread once, before anything else is."""
        ...

    @property
    def busy(self) -> bool:
        """True while `step` has something to do."""

    def handle(self, peer: Peer[Item, Reply], item: Item) -> Reply | None:
        """Take one item; a reply at once, or None if it comes from a later step (or never)."""

    def resume(self) -> None:
        """The thread has waited for items until now: that time belongs to no step."""

    def step(self, meanwhile: Callable[[], None] = nothing) -> Sequence[tuple[Peer[Item, Reply], Reply]]:
        """Run one forward pass over everything that is ready.

        `meanwhile` is called once the device computes and before it is waited for; before the pass where this thread
        itself computes. At most once, and not in a step that fails earlier.
        """

    def drop_peer(self, peer: Peer[Item, Reply]) -> None:
        """The peer's stream is gone: free its sessions."""

    def expire(self, now: float) -> None:
        """Free the sessions whose lease ran out at `now` (time.monotonic seconds)."""


class _Stop:
    """Wakes the thread up to end it."""


class DeviceWorker(Generic[Item, Reply]):
    """Owns the device thread. Streams `connect` to it."""

    EXPIRY_PERIOD_S = 1.0

    def __init__(
        self, core: Core[Item, Reply], *, on_failure: Callable[[], None] = lambda: None, max_queue: int = 65_536
    ) -> None:
        """`on_failure` is called on the device thread if an error ends it: the process has to go down then."""
        self._core = core
        self._on_failure = on_failure
        self._inbox: queue.Queue[tuple[Peer[Item, Reply], Item | None] | _Stop] = queue.Queue(max_queue)
        self._ready: list[tuple[Peer[Item, Reply], Reply]] = []  # replies that leave while the next pass runs
        self._thread = threading.Thread(target=self._run, name="device", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Finish the step in progress and end the thread."""
        self._inbox.put(_Stop(), timeout=timeout_s)
        self._thread.join(timeout_s)

    @property
    def alive(self) -> bool:
        """False once the thread has ended, for whatever reason."""
        return self._thread.is_alive()

    def connect(
        self, name: str, deliver: Callable[[Sequence[Reply]], None], *, vocabulary_size: int
    ) -> Peer[Item, Reply]:
        """A place for one stream; `deliver` is called on the device thread and must only hand the replies over.

        `vocabulary_size`: ids from here on do not exist for this peer.
        """
        return Peer(self, name, deliver, vocabulary_size)

    def post(self, peer: Peer[Item, Reply], item: Item) -> None:
        """Queue one item. Raise ResourceExhausted when the queue is full."""
        try:
            self._inbox.put_nowait((peer, item))
        except queue.Full:
            raise ResourceExhausted(f"the device queue holds {self._inbox.maxsize} items") from None

    def post_close(self, peer: Peer[Item, Reply]) -> None:
        """Free the peer's sessions, after what it posted before."""
        self._inbox.put((peer, None), timeout=60.0)

    def _run(self) -> None:
        try:
            self._core.claim_thread()
            try:
                self._loop()
            finally:
                self._hand_over()
        except BaseException:
            log.exception("the device thread ended")
            self._on_failure()

    def _loop(self) -> None:
        next_expiry = time.monotonic() + self.EXPIRY_PERIOD_S
        while True:
            for entry in self._take():
                if isinstance(entry, _Stop):
                    return
                self._handle(*entry)
            if self._core.busy:
                replies = self._core.step(self._hand_over)
                self._hand_over()  # what the step did not get to
                self._ready.extend(replies)
            if (now := time.monotonic()) >= next_expiry:
                self._core.expire(now)
                next_expiry = now + self.EXPIRY_PERIOD_S

    def _handle(self, peer: Peer[Item, Reply], item: Item | None) -> None:
        if item is None:
            self._core.drop_peer(peer)
        elif (reply := self._core.handle(peer, item)) is not None:
            self._ready.append((peer, reply))

    def _take(self) -> list[tuple[Peer[Item, Reply], Item | None] | _Stop]:
        """Everything that waits; blocks, at most until the next expiry, only when there is no step to run."""
        entries: list[tuple[Peer[Item, Reply], Item | None] | _Stop] = []
        try:
            if not self._core.busy:
                self._hand_over()
                entries.append(self._inbox.get(timeout=self.EXPIRY_PERIOD_S))
                self._core.resume()
            while True:
                entries.append(self._inbox.get_nowait())
        except queue.Empty:
            return entries

    def _hand_over(self) -> None:
        """Give each peer its replies in one piece, so that they leave in one frame.

        What the streams do with them takes this thread's processor time (the interpreter lock): so they get them while
        the device computes, not when it waits for this thread to prepare a pass.
        """
        ready, self._ready = self._ready, []
        by_peer: dict[Peer[Item, Reply], list[Reply]] = {}
        for peer, reply in ready:
            by_peer.setdefault(peer, []).append(reply)
        for peer, batch in by_peer.items():
            peer.deliver(batch)
