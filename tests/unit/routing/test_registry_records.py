"""Replicas in a real registry: their time, their incarnations, and records that cannot be read."""

from __future__ import annotations

import asyncio
import dataclasses
import logging

import pytest

from outrider.errors import InvalidArgument
from outrider.routing.records import ReplicaRecord, Role
from outrider.routing.registration import Registration
from outrider.routing.registry import Registry
from tests.unit.routing.conftest import Connect

RECORD = ReplicaRecord(Role.VERIFIER, "a:1", "m", "f", "first", 1000, 500, {"me": 2}, draining=False)


async def test_a_record_comes_back_as_it_was(connect: Connect) -> None:
    registry = Registry(connect())
    draft = dataclasses.replace(RECORD, role=Role.DRAFT, draining=True)
    await registry.register(RECORD, 30)
    await registry.register(draft, 30)
    listing = await Registry(connect()).look()
    assert listing.records == {"verifier/a:1": RECORD, "draft/a:1": draft}
    assert listing.era


async def test_a_silent_replica_is_listed_no_more(connect: Connect) -> None:
    registry = Registry(connect())
    await registry.register(RECORD, 0.2)
    await registry.register(dataclasses.replace(RECORD, address="b:1"), 30)
    era = (await registry.look()).era
    await asyncio.sleep(0.3)  # the time is what is tested
    listing = await registry.look()
    assert listing.records.keys() == {"verifier/b:1"}
    assert listing.era == era


async def test_a_new_incarnation_takes_the_place_and_the_old_one_cannot_remove_it(connect: Connect) -> None:
    registry = Registry(connect())
    later = dataclasses.replace(RECORD, incarnation="second")
    assert await registry.register(RECORD, 30) is None
    assert await registry.register(later, 30) == RECORD
    await registry.unregister(RECORD)
    assert (await registry.look()).records == {"verifier/a:1": later}
    await registry.unregister(later)
    assert (await registry.look()).records == {}


async def test_an_emptied_registry_has_another_era(connect: Connect) -> None:
    connection = connect()
    registry = Registry(connection)
    await registry.register(RECORD, 30)
    before = (await registry.look()).era
    await connection.run("return redis.call('DEL', KEYS[1])", [connection.key("replicas")])
    assert (await registry.look()).era == ""
    await registry.register(RECORD, 30)
    assert (await registry.look()).era not in ("", before)


async def test_an_unreadable_record_hides_no_other(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    connection = connect()
    registry = Registry(connection)
    await registry.register(RECORD, 30)
    script = "return redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])"
    for place, text in {"x": '99999999999999 {"role": "verifier"}', "y": "99999999999999 {", "z": "nothing"}.items():
        await connection.run(script, [connection.key("replicas")], place, text)
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            assert (await registry.look()).records == {"verifier/a:1": RECORD}
    assert len(caplog.records) == 2  # each once


def test_a_newer_versions_fields_are_ignored_and_wrong_ones_are_named() -> None:
    text = RECORD.to_json()
    assert ReplicaRecord.from_json(text.replace("{", '{"colour": 1,', 1)) == RECORD
    with pytest.raises(InvalidArgument, match="free_tokens"):
        ReplicaRecord.from_json(text.replace('"free_tokens":500', '"free_tokens":"many"'))


async def test_a_rival_for_the_same_address_is_reported_once(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    records = [dataclasses.replace(RECORD, incarnation=name) for name in ("one", "two")]
    tasks = [
        asyncio.create_task(Registration(Registry(connect()), lambda r=record: r, heartbeat_s=0.05, ttl_s=1).run())
        for record in records
    ]
    await asyncio.sleep(0.5)
    for task in tasks:
        task.cancel()
    errors = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert 1 <= len(errors) <= 2
    assert all("another replica registers as verifier/a:1" in error for error in errors)
