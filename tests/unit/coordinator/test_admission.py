"""How many generations run, how many wait, and who is refused."""

from __future__ import annotations

import asyncio

import pytest

from outrider.errors import ResourceExhausted
from outrider_coordinator.admission import Admission


async def test_places_are_given_in_order_of_arrival() -> None:
    admission = Admission(max_running=2, max_waiting=10, timeout_s=5)
    order: list[int] = []

    async def work(number: int) -> None:
        async with admission.place():
            assert admission.running <= 2
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(work(number) for number in range(8)))
    assert order == list(range(8))
    assert (admission.running, admission.waiting) == (0, 0)


async def test_a_full_queue_refuses_at_once() -> None:
    admission = Admission(max_running=1, max_waiting=1, timeout_s=5)
    async with admission.place():
        waiting = asyncio.create_task(_enter(admission))
        await asyncio.sleep(0)
        with pytest.raises(ResourceExhausted, match="1 generations run and 1 wait"):
            await _enter(admission)
    await waiting


async def test_a_long_wait_is_refused_and_leaves_no_trace() -> None:
    admission = Admission(max_running=1, max_waiting=1, timeout_s=0.01)
    async with admission.place():
        with pytest.raises(ResourceExhausted, match=r"within 0\.01 s"):
            await _enter(admission)
        assert admission.waiting == 0
    await _enter(admission)


async def test_one_that_stops_waiting_takes_no_place() -> None:
    admission = Admission(max_running=1, max_waiting=1, timeout_s=5)
    async with admission.place():
        waiting = asyncio.create_task(_enter(admission))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(1):
        await _enter(admission)
        await admission.drained()


async def _enter(admission: Admission) -> None:
    async with admission.place():
        pass
