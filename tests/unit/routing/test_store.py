"""Bindings: the same behaviour of the store of one process and of the shared one, and races between coordinators."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from outrider.routing.kept import Kept
from outrider.routing.redis_store import RedisStore
from outrider.routing.store import Binding, InProcessStore, Store
from tests.unit.routing.conftest import Connect

MakeStore = Callable[[], Store]


@pytest.fixture(params=["in process", "redis"])
def store(request: pytest.FixtureRequest, connect: Connect) -> Store:
    return InProcessStore("me") if request.param == "in process" else RedisStore(connect(), "me", ttl_s=30)


async def test_a_binding_is_found_until_it_is_released(store: Store) -> None:
    assert await store.find("s") is None
    made = await store.bind("s", "a:1", "i", instead_of=None)
    assert made == Binding("a:1", "i", "me", made.epoch)
    assert await store.find("s") == made
    assert await store.find("t") is None
    await store.release("s", made)
    assert await store.find("s") is None


async def test_what_is_bound_is_replaced_only_by_who_knows_it(store: Store) -> None:
    first = await store.bind("s", "a:1", "i", instead_of=None)
    assert await store.bind("s", "b:1", "j", instead_of=None) == first
    second = await store.bind("s", "b:1", "j", instead_of=first)
    assert (second.replica, second.incarnation) == ("b:1", "j")
    assert second.epoch > first.epoch
    assert await store.bind("s", "c:1", "k", instead_of=first) == second
    await store.release("s", first)  # too late
    assert await store.find("s") == second


async def test_epochs_grow_over_forgotten_bindings(store: Store) -> None:
    first = await store.bind("s", "a:1", "i", instead_of=None)
    await store.release("s", first)
    assert (await store.bind("s", "a:1", "i", instead_of=first)).epoch > first.epoch


async def test_two_coordinators_never_pin_a_session_to_different_replicas(connect: Connect) -> None:
    """Both go for every session at once, each for a replica of its own; both must come out with the same binding."""
    stores = [RedisStore(connect(), name, ttl_s=30) for name in ("one", "two")]
    rng = random.Random(7)
    winners = set()
    for session in range(300):
        name = f"s{session}"
        stale = None
        if session % 3 == 0:  # a stale binding to replace
            stale = await stores[rng.randrange(2)].bind(name, "gone:1", "old", instead_of=None)

        async def claim(store: RedisStore, replica: str, delay: float, stale: Binding | None, name: str) -> Binding:
            await asyncio.sleep(delay)
            return await store.bind(name, replica, "new", instead_of=stale)

        delays = [rng.random() * 0.0005 for _ in stores]
        results = await asyncio.gather(
            *(claim(store, f"r{n}:1", delays[n], stale, name) for n, store in enumerate(stores))
        )
        assert results[0] == results[1] == await stores[0].find(name)
        assert results[0].incarnation == "new"
        winners.add(results[0].owner)
    assert winners == {"one", "two"}, "there was no race"


async def test_bindings_end_with_their_owner_and_live_while_it_renews_them(connect: Connect) -> None:
    dead, alive = (RedisStore(connect(), name, ttl_s=0.6) for name in ("dead", "alive"))
    await dead.bind("d", "a:1", "i", instead_of=None)
    made = await alive.bind("s", "a:1", "i", instead_of=None)
    renewing = asyncio.create_task(alive.run())
    await asyncio.sleep(1.2)  # the time is what is tested
    assert await alive.find("d") is None
    assert await alive.find("s") == made
    renewing.cancel()


async def test_renewal_puts_back_what_was_forgotten_and_leaves_what_was_taken(connect: Connect) -> None:
    connection = connect()
    mine, other = RedisStore(connection, "mine", ttl_s=0.3), RedisStore(connect(), "other", ttl_s=30)
    kept = await mine.bind("kept", "a:1", "i", instead_of=None)
    taken = await mine.bind("taken", "a:1", "i", instead_of=None)
    await connection.run("return redis.call('DEL', KEYS[1])", [connection.key("binding", "kept")])
    theirs = await other.bind("taken", "b:1", "j", instead_of=taken)
    renewing = asyncio.create_task(mine.run())
    async with asyncio.timeout(5):
        while await other.find("kept") is None:  # noqa: ASYNC110 (nothing tells when another process renewed)
            await asyncio.sleep(0.02)
    renewing.cancel()
    assert await other.find("kept") == kept
    assert await other.find("taken") == theirs
    assert theirs.epoch > taken.epoch


async def test_a_kept_binding_is_found_by_every_coordinator_until_its_time_is_up(connect: Connect) -> None:
    mine, other = RedisStore(connect(), "mine", ttl_s=30), RedisStore(connect(), "other", ttl_s=30)
    made = await mine.bind("c", "a:1", "i", instead_of=None)
    await mine.release("c", made, keep_s=0.4)
    assert await mine.find("c") == await other.find("c") == made
    theirs = await other.bind("c", "a:1", "i", instead_of=made)  # the conversation goes on there
    assert theirs.epoch > made.epoch
    await mine.release("c", made, keep_s=0.4)  # too late
    await asyncio.sleep(0.5)  # the time is what is tested
    assert await other.find("c") == theirs
    await other.release("c", theirs, keep_s=0.1)
    await asyncio.sleep(0.2)
    assert await other.find("c") is None


async def test_bindings_kept_here_are_known_while_the_registry_has_lost_them(connect: Connect) -> None:
    connection = connect()
    store = RedisStore(connection, "me", ttl_s=30)
    made = await store.bind("c", "a:1", "i", instead_of=None)
    await store.release("c", made, keep_s=30)
    await connection.run("return redis.call('DEL', KEYS[1])", [connection.key("binding", "c")])
    assert await store.find("c") == made
    again = await store.bind("c", "a:1", "i", instead_of=made)
    assert await store.find("c") == again


async def test_a_kept_binding_ends_and_gives_way_to_who_knows_it(store: Store) -> None:
    made = await store.bind("c", "a:1", "i", instead_of=None)
    await store.release("c", made, keep_s=30)
    assert await store.bind("c", "b:1", "j", instead_of=None) == made
    moved = await store.bind("c", "b:1", "j", instead_of=made)
    assert moved.replica == "b:1"
    await store.release("c", moved, keep_s=0.05)
    await asyncio.sleep(0.1)
    assert await store.find("c") is None


async def test_renewing_does_not_cut_short_what_is_kept(connect: Connect) -> None:
    """A renewal on its way while its session ends would give the binding the short time of a running one."""
    store, other = RedisStore(connect(), "me", ttl_s=0.3), RedisStore(connect(), "other", ttl_s=30)
    made = await store.bind("c", "a:1", "i", instead_of=None)
    renewing = asyncio.create_task(store._renew([("c", made)]))
    await asyncio.sleep(0)
    await store.release("c", made, keep_s=30)
    await renewing
    await asyncio.sleep(0.5)
    assert await other.find("c") == made


def test_what_is_kept_is_bounded_in_number_and_time() -> None:
    now = 0.0
    kept: Kept[int] = Kept(lambda: now, most=3)
    for number in range(5):
        kept.put(str(number), number, 10)
    assert [kept.get(str(number)) for number in range(5)] == [None, None, 2, 3, 4]
    kept.put("2", 2, 20)  # young again
    now = 15.0
    assert kept.get("3") is None
    assert kept.left_s("2", 2) == 5
    assert kept.left_s("2", 7) == kept.left_s("3", 3) == 0
    kept.put("5", 5, 10)
    assert len(kept) == 2
