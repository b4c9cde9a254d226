"""Registries of several real servers: a master that dies under its sentinels, and a cluster whose keys are spread."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from redis.crc import key_slot

from outrider.errors import Unavailable
from outrider.routing.connection import RegistryConnection
from outrider.routing.redis_store import RedisStore
from outrider.routing.redis_url import parse
from outrider.routing.registry import Registry
from tests.redis_server import RedisServer, free_port
from tests.unit.routing.test_registry_records import RECORD


async def eventually(condition: Any, timeout_s: float = 20) -> Any:
    """Ask again until what is waited for, here of other processes, is so; its value."""
    async with asyncio.timeout(timeout_s):
        while not (value := await condition()):  # noqa: ASYNC110 (other processes have no event for it)
            await asyncio.sleep(0.05)
    return value


@pytest.mark.slow
async def test_a_master_dies_and_the_registry_goes_on_at_the_replica(tmp_path: Path) -> None:
    """Three sentinels, of which two must agree. What had been replicated is still there; then it is written to."""
    with ExitStack() as stack:
        master = stack.enter_context(RedisServer(folder(tmp_path, "master")))
        follower = RedisServer(folder(tmp_path, "follower"), "--replicaof", f"127.0.0.1 {master.port}")
        stack.enter_context(follower)
        await eventually(lambda: is_replica_in_sync(follower.port))
        sentinels = [stack.enter_context(sentinel(tmp_path, number, master.port)) for number in range(3)]
        await eventually(lambda: know_each_other([each.port for each in sentinels]))

        hosts = ",".join(f"127.0.0.1:{each.port}" for each in sentinels)
        connection = RegistryConnection(parse(f"redis+sentinel://{hosts}/main"), prefix="p", timeout_s=0.5)
        registry, store = Registry(connection), RedisStore(connection, "me", ttl_s=30)
        await registry.register(RECORD, 60)
        before = await registry.look()
        bound = await store.bind("s", "a:1", "i", instead_of=None)
        await eventually(lambda: has_seen(follower.port, connection.key("binding", "s")))
        renewing = asyncio.create_task(store.run())

        master.kill()
        with pytest.raises(Unavailable):
            await registry.look()
        assert await store.find("s") == bound  # meanwhile by what is known here

        async def looked() -> Any:
            try:
                return await registry.look()
            except Unavailable:
                return None

        after = await eventually(looked)
        assert connection.up
        assert after == before, "the same era: nothing was lost"
        assert await registry.register(RECORD, 60) == RECORD
        assert await RedisStore(connection, "another", ttl_s=30).find("s") == bound
        replaced = await store.bind("s", "b:2", "j", instead_of=bound)
        assert replaced.epoch > bound.epoch
        assert await has_seen(follower.port, connection.key("binding", "s"))
        renewing.cancel()
        await connection.close()


@pytest.mark.slow
async def test_a_cluster_of_three_nodes_keeps_each_prefix_on_one_of_them(tmp_path: Path) -> None:
    """Three targets, each with a prefix of its own, on three nodes, of which the URL names one."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(cluster_node(tmp_path, number)) for number in range(3)]
        await join([node.port for node in nodes])
        url = parse(f"redis+cluster://127.0.0.1:{nodes[0].port}")
        prefixes = [prefix_in(number) for number in range(3)]
        connections = [RegistryConnection(url, prefix=prefix, timeout_s=5) for prefix in prefixes]
        for number, connection in enumerate(connections):
            registry, store = Registry(connection), RedisStore(connection, f"me{number}", ttl_s=0.4)
            await registry.register(RECORD, 30)
            assert (await registry.look()).records == {RECORD.place: RECORD}
            made = [await store.bind(f"s{n}", "a:1", "i", instead_of=None) for n in range(20)]
            renewing = asyncio.create_task(store.run())
            await asyncio.sleep(0.8)  # the time is what is tested: renewal names all keys in one script
            other = RedisStore(connection, "another", ttl_s=30)
            assert [await other.find(f"s{n}") for n in range(20)] == made
            for n, binding in enumerate(made):
                await store.release(f"s{n}", binding)
            assert [await other.find(f"s{n}") for n in range(20)] == [None] * 20
            renewing.cancel()
            assert await other.bind("s", "b:2", "j", instead_of=None) == await other.find("s")
        for node, prefix in zip(nodes, prefixes, strict=True):
            async with redis.asyncio.Redis(port=node.port, decode_responses=True) as admin:
                assert set(await admin.keys()) == {f"{{{prefix}}}:replicas", f"{{{prefix}}}:binding:s"}
        for connection in connections:
            await connection.close()


def folder(home: Path, name: str) -> Path:
    """A server's own; a cluster node and a sentinel write down what they know."""
    (home / name).mkdir()
    return home / name


def sentinel(home: Path, number: int, master_port: int) -> RedisServer:
    place = folder(home, f"sentinel{number}")
    (place / "sentinel.conf").write_text(
        f"sentinel monitor main 127.0.0.1 {master_port} 2\n"
        "sentinel down-after-milliseconds main 500\n"
        "sentinel failover-timeout main 2000\n"
    )
    return RedisServer(place, str(place / "sentinel.conf"), "--sentinel")


def cluster_node(home: Path, number: int) -> RedisServer:
    flags = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()), "--cluster-node-timeout", "5000")
    return RedisServer(folder(home, f"node{number}"), *flags)


async def is_replica_in_sync(port: int) -> bool:
    async with redis.asyncio.Redis(port=port) as admin:
        return bool((await admin.info("replication"))["master_link_status"] == "up")


async def has_seen(port: int, key: str) -> bool:
    async with redis.asyncio.Redis(port=port) as admin:
        return bool(await admin.exists(key))


async def know_each_other(ports: Sequence[int]) -> bool:
    """True once each sentinel knows the two others and the replica."""
    for port in ports:
        async with redis.asyncio.Redis(port=port, decode_responses=True) as admin:
            state = await admin.execute_command("SENTINEL", "MASTER", "main")
        if (int(state["num-other-sentinels"]), int(state["num-slaves"])) != (2, 1):
            return False
    return True


async def join(ports: Sequence[int]) -> None:
    """Make one cluster of the nodes, a third of the slots on each."""
    for number, port in enumerate(ports):
        async with redis.asyncio.Redis(port=port) as admin:
            first, end = number * 16384 // len(ports), (number + 1) * 16384 // len(ports)
            await admin.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            await admin.execute_command("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
    async with redis.asyncio.Redis(port=ports[0], decode_responses=True) as admin:
        for port in ports[1:]:
            async with redis.asyncio.Redis(port=port, decode_responses=True) as other:
                bus = (await other.execute_command("CONFIG", "GET", "cluster-port"))["cluster-port"]
            await admin.execute_command("CLUSTER", "MEET", "127.0.0.1", port, bus)

    async def whole() -> bool:
        for port in ports:
            async with redis.asyncio.Redis(port=port) as admin:
                state = await admin.cluster("info")
            if state["cluster_state"] != "ok" or int(state["cluster_known_nodes"]) != len(ports):
                return False
        return True

    await eventually(whole)


def prefix_in(third: int) -> str:
    """A prefix whose keys are kept by that node of three."""
    for number in range(1000):
        if key_slot(f"target{number}".encode()) * 3 // 16384 == third:
            return f"target{number}"
    raise AssertionError("a thousand names miss a third of the slots")
