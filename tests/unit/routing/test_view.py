"""What a coordinator believes about the replicas while the registry forgets, restarts and is away."""

from __future__ import annotations

from outrider.routing.records import ReplicaRecord, Role
from outrider.routing.view import Listing, View, look_again


def record(address: str, incarnation: str = "1") -> ReplicaRecord:
    return ReplicaRecord(Role.VERIFIER, address, "m", "f", incarnation, 100, 50, {})


def listing(era: str, *addresses: str) -> Listing:
    return Listing(era, {address: record(address) for address in addresses})


def looks(*steps: tuple[float, Listing, bool]) -> list[set[str]]:
    """The places known after each look at (time, listing, interrupted); forgotten replicas are kept for 10 s."""
    view, known = View(), []
    for now, found, interrupted in steps:
        view = look_again(view, found, now=now, keep_s=10, interrupted=interrupted)
        known.append(set(view.records))
    return known


def test_a_replica_that_is_listed_no_more_is_gone_at_once() -> None:
    assert looks((0, listing("e", "a", "b"), False), (2, listing("e", "b"), False)) == [{"a", "b"}, {"b"}]


def test_after_a_flush_replicas_have_time_to_register_again() -> None:
    steps = [
        (0, listing("e", "a", "b"), False),
        (2, listing(""), False),
        (4, listing("f", "a"), False),
        (11.9, listing("f", "a"), False),
        (12.1, listing("f", "a"), False),
    ]
    assert looks(*steps) == [{"a", "b"}, {"a", "b"}, {"a", "b"}, {"a", "b"}, {"a"}]


def test_a_replica_that_came_back_after_a_flush_and_left_is_gone_at_once() -> None:
    steps = [
        (0, listing("e", "a"), False),
        (2, listing(""), False),
        (4, listing("f", "a"), False),
        (6, listing("f"), False),
    ]
    assert looks(*steps)[-1] == set()


def test_after_an_outage_records_that_expired_meanwhile_are_kept_too() -> None:
    """A server that comes back with its data has the same era, but heard no heartbeat."""
    steps = [
        (0, listing("e", "a"), False),
        (60, listing("e"), True),
        (69, listing("e"), False),
        (71, listing("e"), False),
    ]
    assert looks(*steps) == [{"a"}, {"a"}, {"a"}, set()]


def test_the_newest_record_counts() -> None:
    view = look_again(View(), listing("e", "a"), now=0, keep_s=10, interrupted=False)
    view = look_again(view, Listing("e", {"a": record("a", "2")}), now=1, keep_s=10, interrupted=False)
    assert view.records["a"].incarnation == "2"
