"""How many generations run, how many wait, who is next, and who is refused."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from outrider.errors import ResourceExhausted
from outrider_coordinator.admission import Admission


def admission(
    max_running: int, max_waiting: int = 1000, timeout_s: float = 5, max_waiting_each: int = 1000
) -> Admission:
    return Admission(max_running, max_waiting, timeout_s, max_waiting_each=max_waiting_each)


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_clients_own_requests_get_places_in_order_of_arrival() -> None:
    places = admission(max_running=2, max_waiting=10)
    order: list[int] = []

    async def work(number: int) -> None:
        async with places.place():
            assert places.running <= 2
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(work(number) for number in range(8)))
    assert order == list(range(8))
    assert (places.running, places.waiting) == (0, 0)


async def test_a_full_queue_refuses_at_once() -> None:
    places = admission(max_running=1, max_waiting=1)
    async with places.place():
        waiting = asyncio.create_task(_enter(places))
        await settle()
        with pytest.raises(ResourceExhausted, match="1 generations run and 1 wait") as caught:
            await _enter(places)
        assert caught.value.retry_after_s >= 1
    await waiting


async def test_a_long_wait_is_refused_and_leaves_no_trace() -> None:
    places = admission(max_running=1, max_waiting=1, timeout_s=0.01)
    async with places.place():
        with pytest.raises(ResourceExhausted, match=r"within 0\.01 s"):
            await _enter(places)
        assert places.waiting == 0
    await _enter(places)


async def test_one_that_stops_waiting_takes_no_place() -> None:
    places = admission(max_running=1, max_waiting=1)
    async with places.place():
        waiting = asyncio.create_task(_enter(places))
        await settle()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert places.waiting == 0
    async with asyncio.timeout(1):
        await _enter(places)
        await places.drained()


async def test_a_place_that_comes_with_the_cancellation_goes_to_the_next() -> None:
    places = admission(max_running=1)
    async with places.place():
        first, second = asyncio.create_task(_enter(places)), asyncio.create_task(_enter(places))
        await settle()
    first.cancel()  # it has its place, and does not know yet
    await asyncio.wait_for(second, 1)
    await places.drained()
    assert first.cancelled()
    assert (places.running, places.waiting) == (0, 0)


async def test_a_flood_does_not_delay_another_client() -> None:
    """100 requests of one client wait when another one comes: from then on the two take turns."""
    places = admission(max_running=1)
    order: list[str] = []

    async def work(client: str) -> None:
        async with places.place(client):
            order.append(client)
            await asyncio.sleep(0)

    async with places.place("flood"):
        tasks = [asyncio.create_task(work("flood")) for _ in range(100)]
        await settle()
        tasks += [asyncio.create_task(work("calm")) for _ in range(3)]
        await settle()
    await asyncio.gather(*tasks)
    assert order[:6] == ["flood", "calm", "flood", "calm", "flood", "calm"]
    assert len(order) == 103


async def test_places_are_shared_by_what_is_held_not_by_turns() -> None:
    """One client's answers are long: with turns it would come to hold nearly every place."""
    places = admission(max_running=4)
    held: dict[str, int] = {"long": 0, "short": 0}
    most: list[int] = []
    ends = asyncio.Event()

    async def work(client: str, wait: Any) -> None:
        async with places.place(client):
            held[client] += 1
            most.append(held["long"])
            await wait()
            held[client] -= 1

    async def moment() -> None:
        await asyncio.sleep(0)

    async with places.place("a"), places.place("b"), places.place("c"), places.place("d"):
        tasks = [asyncio.create_task(work("long", ends.wait)) for _ in range(10)]
        await settle()
        tasks += [asyncio.create_task(work("short", moment)) for _ in range(40)]
        await settle()
    for _ in range(300):
        await asyncio.sleep(0)
        if places.waiting == 8:
            break
    # All the short ones came through beside two long ones.
    assert places.waiting <= 8
    assert max(most[:40]) == 2
    ends.set()
    await asyncio.gather(*tasks)


async def test_a_client_has_a_queue_of_its_own() -> None:
    places = admission(max_running=1, max_waiting=10, max_waiting_each=2)
    async with places.place("flood"):
        tasks = [asyncio.create_task(_enter(places, "flood")) for _ in range(2)]
        await settle()
        with pytest.raises(ResourceExhausted, match="2 requests of this client wait"):
            await _enter(places, "flood")
        tasks.append(asyncio.create_task(_enter(places, "calm")))
        await settle()
        assert places.waiting == 3
    await asyncio.gather(*tasks)


async def test_a_full_house_refuses_the_client_with_the_longest_queue() -> None:
    places = admission(max_running=1, max_waiting=4)
    async with places.place("x"):
        flood = [asyncio.create_task(_enter(places, "flood")) for _ in range(4)]
        await settle()
        calm = [asyncio.create_task(_enter(places, "calm")) for _ in range(2)]
        await settle()
        assert [task.done() for task in flood] == [False, False, True, True]  # the newest ones gave way
        with pytest.raises(ResourceExhausted, match="1 generations run and 4 wait, 4 of them of this client"):
            flood[3].result()
        assert isinstance(flood[2].exception(), ResourceExhausted)
        for client in ("calm", "flood"):  # now both have as many
            with pytest.raises(ResourceExhausted):
                await _enter(places, client)
        assert places.waiting == 4
    await asyncio.gather(*flood[:2], *calm)
    assert (places.running, places.waiting) == (0, 0)


async def test_whatever_happens_nothing_is_left() -> None:
    """Arrivals, ends, cancellations and time-outs of five clients in any order."""
    rng = random.Random(3)
    places = admission(max_running=3, max_waiting=12, timeout_s=0.02, max_waiting_each=6)

    async def work(client: str) -> None:
        async with places.place(client):
            assert places.running <= 3
            await asyncio.sleep(rng.random() * 0.004)

    tasks = []
    for _ in range(400):
        tasks.append(asyncio.create_task(work(f"c{rng.randrange(5)}")))
        if rng.random() < 0.3:
            rng.choice(tasks).cancel()
        if rng.random() < 0.5:
            await asyncio.sleep(rng.random() * 0.002)
        assert places.waiting <= 12
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} == {type(None), asyncio.CancelledError, ResourceExhausted}
    assert (places.running, places.waiting, places._held, places._queues) == (0, 0, {}, {})
    await asyncio.wait_for(places.drained(), 1)


async def _enter(places: Admission, client: str = "") -> None:
    async with places.place(client):
        pass
