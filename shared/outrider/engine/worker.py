"""The device thread: one per process, the only one that touches the model, the KV cache and the sessions in it.

The event loop posts items and gets replies back; it never waits on the device, and no lock guards device state.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

FEW_ITEMS = 256
"""Items for which replies wait at most: soon handled."""

MOMENT_S = 0.0002
"""How long items are waited for before a step that nobody waits for: meanwhile the streams have the processor."""

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

    def post(self, items: Sequence[Item]) -> int:
        """Queue items, in their order, from any thread; how many of them, the first ones, found room."""
        return self._worker.post(self, items)

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

    @property
    def awaited(self) -> bool:
        """True while somebody waits for what `step` does; it may have something to do that can wait, and be dropped."""

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


_Entry = tuple[Peer[Item, Reply], Sequence[Item] | None]
"""What a peer posted at once; None: it has ended."""


class _Stop:
    """Wakes the thread up to end it."""


class DeviceWorker(Generic[Item, Reply]):
    """Owns the device thread. Streams `connect` to it."""

    EXPIRY_PERIOD_S = 1.0

    def __init__(
        self, core: Core[Item, Reply], *, on_failure: Callable[[], None] = lambda: None, max_queue: int = 65_536
    ) -> None:
        """`on_failure` is called on the device thread if an error ends it: the process has to go down then.

        `max_queue`: most items that wait for it.
        """
        self._core = core
        self._on_failure = on_failure
        self.max_queue = max_queue
        self._inbox: queue.SimpleQueue[_Entry[Item, Reply] | _Stop] = queue.SimpleQueue()
        self._queued = 0  # items in it; beside them each peer may have an entry that ends it
        self._counting = threading.Lock()
        self._ready: list[tuple[Peer[Item, Reply], Reply]] = []  # replies that leave while the next pass runs
        self._thread = threading.Thread(target=self._run, name="device", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Finish the step in progress and end the thread."""
        self._inbox.put(_Stop())
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

    def post(self, peer: Peer[Item, Reply], items: Sequence[Item]) -> int:
        """Queue items of a peer, in their order; how many of them, the first ones, found room."""
        with self._counting:
            count = min(len(items), self.max_queue - self._queued)
            self._queued += count
        if count:
            self._inbox.put((peer, items if count == len(items) else items[:count]))
        return count

    def post_close(self, peer: Peer[Item, Reply]) -> None:
        """Free the peer's sessions, after what it posted before."""
        self._inbox.put((peer, None))

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
            for entry in (entries := self._take()):
                if isinstance(entry, _Stop):
                    return
                self._handle(*entry)
            if self._core.awaited or (self._core.busy and not entries):
                replies = self._core.step(self._hand_over)
                self._hand_over()  # what the step did not get to
                self._ready.extend(replies)
            else:
                self._hand_over()  # no pass begins for which they waited
            if (now := time.monotonic()) >= next_expiry:
                self._core.expire(now)
                next_expiry = now + self.EXPIRY_PERIOD_S

    def _handle(self, peer: Peer[Item, Reply], items: Sequence[Item] | None) -> None:
        if items is None:
            self._core.drop_peer(peer)
            return
        with self._counting:
            self._queued -= len(items)
        for item in items:
            if (reply := self._core.handle(peer, item)) is not None:
                self._ready.append((peer, reply))

    def _take(self) -> list[_Entry[Item, Reply] | _Stop]:
        """Everything that waits; blocks only where nobody waits for a step, at most until the next expiry.

        Where a few items wait, the replies do too: most likely a pass begins with these, while which they leave.
        """
        entries: list[_Entry[Item, Reply] | _Stop] = []
        try:
            if not self._core.awaited:
                if not 0 < self._queued <= FEW_ITEMS:
                    self._hand_over()
                entries.append(self._inbox.get(timeout=MOMENT_S if self._core.busy else self.EXPIRY_PERIOD_S))
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
        by_peer: defaultdict[Peer[Item, Reply], list[Reply]] = defaultdict(list)
        for peer, reply in ready:
            by_peer[peer].append(reply)
        for peer, batch in by_peer.items():
            peer.deliver(batch)
