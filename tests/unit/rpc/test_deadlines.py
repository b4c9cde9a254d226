"""Waits that share timers: each is ended after its own time, and not before."""

from __future__ import annotations

import asyncio

from outrider.rpc.deadlines import GRAIN_S, Deadlines


async def test_a_wait_is_ended_when_its_time_is_over_and_not_before() -> None:
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    began = loop.time()
    waits = {seconds: loop.create_future() for seconds in (0.0, 0.01, 0.2, 0.21)}
    ended: dict[float, float] = {}
    for seconds, wait in waits.items():
        wait.add_done_callback(lambda _, seconds=seconds: ended.setdefault(seconds, loop.time() - began))
        deadlines.add(wait, seconds)
    await asyncio.wait_for(asyncio.gather(*waits.values()), 60.0)
    await asyncio.sleep(0)
    assert ended.keys() == waits.keys()
    assert all(after >= seconds for seconds, after in ended.items())


async def test_what_was_discarded_or_is_done_is_left_alone() -> None:
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    done, discarded, last = (loop.create_future() for _ in range(3))
    deadlines.add(done, 0.0)
    deadlines.add(discarded, 0.0).discard(discarded)
    done.set_result(None)
    deadlines.add(last, 2 * GRAIN_S)
    await asyncio.wait_for(last, 60.0)
    assert not discarded.done()
    assert not deadlines._waits
