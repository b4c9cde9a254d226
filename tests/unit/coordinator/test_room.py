"""Whose turn it is when there is room in the KV cache again, and who gives way."""

from __future__ import annotations

import asyncio
import time

import pytest

from outrider.errors import ResourceExhausted
from outrider_coordinator import room as rooms
from outrider_coordinator.room import Room


def waiting(room: Room, client: str, *, refused: bool = False, tokens: int = 10, s: float = 5) -> asyncio.Task[None]:
    return asyncio.create_task(room.wait(client, tokens, time.monotonic() + s, refused=refused))


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_the_client_that_holds_least_is_next() -> None:
    room = Room()
    for session, (client, tokens) in enumerate([("a", 10), ("a", 10), ("b", 15), ("x", 5)]):
        room.enter(session, client, tokens)
    turns = {client: waiting(room, client) for client in ("a", "b", "c")}
    await settle()
    assert room.waiting == 3
    order = []
    room.leave(3)
    for session in range(10, 13):
        await settle()
        (client,) = (name for name, turn in turns.items() if turn.done())
        order.append(client)
        del turns[client]
        room.enter(session, client, 10)  # there may be more room: the next one tries
    assert order == ["c", "b", "a"]
    assert room.waiting == 0


async def test_who_was_refused_stays_in_front_of_its_own_clients_queue() -> None:
    room = Room()
    room.enter(1, "x", 10)
    later = waiting(room, "a")
    await settle()
    first = waiting(room, "a", refused=True)
    await settle()
    room.leave(1)
    await settle()
    assert first.done()
    assert not later.done()
    room.enter(2, "a", 10)
    await asyncio.wait_for(later, 1)


async def test_a_wait_ends_with_its_deadline() -> None:
    room = Room()
    room.enter(1, "b", 10)
    room.enter(2, "x", 5)
    other = waiting(room, "x")
    await settle()
    with pytest.raises(ResourceExhausted, match="no verifier has KV for 10 tokens, and 2 requests wait"):
        await asyncio.wait_for(waiting(room, "b", s=0.02), 1)
    assert room.waiting == 1
    await asyncio.wait_for(waiting(room, "c", s=0.02), 1)  # it is next, and tries once more
    with pytest.raises(ResourceExhausted):
        await asyncio.wait_for(waiting(room, "c", refused=True, s=0), 1)
    other.cancel()


async def test_the_next_tries_again_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room that another coordinator's session leaves is told to nobody."""
    monkeypatch.setattr(rooms, "POLL_S", 0.01)
    room = Room()
    room.enter(1, "b", 10)
    first, second = waiting(room, "a"), waiting(room, "b")
    await asyncio.wait_for(first, 1)
    await asyncio.wait_for(second, 1)  # once the other one does not wait any more


@pytest.mark.parametrize(
    ("held", "needed", "gives_way"),
    [
        ([("a", 10), ("a", 10)], 10, 1),  # both clients hold as much then
        ([("a", 10), ("a", 10), ("b", 10)], 10, None),  # it would only change places
        ([("a", 10)], 10, None),
        ([("a", 30), ("a", 10)], 31, None),
        ([("a", 10), ("a", 30)], 10, 1),
        ([("a", 10), ("a", 10), ("c", 30), ("c", 40)], 10, 3),
        ([("b", 10), ("b", 10)], 10, None),  # its own
    ],
)
async def test_the_newest_of_who_holds_more_gives_way(
    held: list[tuple[str, int]], needed: int, gives_way: int | None
) -> None:
    room = Room()
    for session, (client, tokens) in enumerate(held):
        room.enter(session, client, tokens)
    turn = waiting(room, "b", refused=True, tokens=needed)
    await settle()
    assert [n for n in range(len(held)) if room.gives_way(n)] == ([] if gives_way is None else [gives_way])
    turn.cancel()
    await asyncio.gather(turn, return_exceptions=True)
    for session in range(len(held)):
        room.leave(session)
    assert (room._held, room._guests, room._queues) == ({}, {}, {})


async def test_two_clients_come_to_rest() -> None:
    """Whatever gave way does not drive out what it gave way to."""
    room = Room()
    for session in range(4):
        room.enter(session, "a", 10)
    inside = dict.fromkeys(range(4), "a")
    changes = 0
    for session in range(10, 40):  # b keeps asking, and so does whatever of a's had to leave
        client = "b" if session % 2 else "a"
        turn = waiting(room, client, refused=True)
        await settle()
        leaving = next((each for each in inside if room.gives_way(each)), None)
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)
        if leaving is not None:
            room.leave(leaving)
            del inside[leaving]
            room.enter(session, client, 10)
            inside[session] = client
            changes += 1
    assert changes == 2
    assert sorted(inside.values()) == ["a", "a", "b", "b"]
