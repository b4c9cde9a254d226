"""The store of bindings and the choice among replicas."""

from __future__ import annotations

from outrider.routing.choose import least_loaded
from outrider.routing.store import InProcessStore


def test_the_least_loaded_ready_replica_is_chosen() -> None:
    assert least_loaded(["a", "b", "c"], {"a": 2, "b": 1, "c": 1}) == "b"
    assert least_loaded(["a", "b"], {"a": 2}) == "b"
    assert least_loaded([], {"a": 1}) is None


def test_a_replica_that_just_failed_is_the_last_choice() -> None:
    assert least_loaded(["a", "b"], {"b": 9}, avoid={"a"}) == "b"
    assert least_loaded(["a"], {}, avoid={"a"}) == "a"


async def test_bindings_count_once_and_only_the_current_one_can_be_released() -> None:
    store = InProcessStore()
    await store.bind("s", "a")
    await store.bind("t", "a")
    assert await store.loads() == {"a": 2}
    await store.bind("s", "b")
    assert await store.loads() == {"a": 1, "b": 1}
    await store.release("s", "a")  # an old binding: too late
    assert await store.loads() == {"a": 1, "b": 1}
    await store.release("s", "b")
    await store.release("t", "a")
    assert await store.loads() == {}
