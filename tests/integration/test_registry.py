"""Coordinators and replicas that find each other through a real server, which is killed, emptied and started again."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider.client import AsyncClient
from outrider.config.registry import RegistrySettings
from outrider.engine.replica import Replica
from outrider.errors import ConfigError
from outrider.routing.records import ReplicaRecord
from outrider.routing.registry import Registry
from outrider_coordinator.main import Coordinator
from outrider_coordinator.settings import CoordinatorSettings
from outrider_verifier.main import main as verifier_main
from tests.cluster import start_draft, start_verifier, until
from tests.conftest import TinyModel
from tests.redis_server import RedisServer

PROMPT = "again and again and again"
OPTIONS: dict[str, Any] = {"temperature": 0.8, "seed": 21, "max_tokens": 60, "ignore_eos": True, "fixed_length": True}
FAST = {"heartbeat_s": 0.1, "registry_timeout_s": 0.3}


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path) as server:
        yield server


class Fleet:
    """Replicas and coordinators of one registry, in the test's event loop."""

    def __init__(self, server: RedisServer, model: Path, stack: AsyncExitStack) -> None:
        self.server = server
        self._model = model
        self._stack = stack
        self._common = {"registry": server.url, **FAST}

    async def verifier(self, **settings: Any) -> tuple[Replica, str]:
        replica, address = await start_verifier(self._model, **(self._common | {"registry_ttl_s": 0.6} | settings))
        self._stack.push_async_callback(replica.stop)
        return replica, address

    async def draft(self, **settings: Any) -> tuple[Replica, str]:
        replica, address = await start_draft(
            self._model, layers=2, **(self._common | {"registry_ttl_s": 0.6} | settings)
        )
        self._stack.push_async_callback(replica.stop)
        return replica, address

    async def coordinator(self, **settings: Any) -> tuple[Coordinator, AsyncClient]:
        defaults = {"listen": "127.0.0.1:0", "start_timeout_s": 20, "draft_retry_s": 0.1}
        parts = Coordinator(CoordinatorSettings(**(self._common | defaults | settings)))
        self._stack.push_async_callback(parts.disconnect)
        await parts.connect()
        address = await parts.server.start()
        self._stack.push_async_callback(parts.server.grpc.stop, 0)
        return parts, await self._stack.enter_async_context(AsyncClient(address))

    async def listed(self) -> dict[str, ReplicaRecord]:
        """What the registry says, asked by somebody else."""
        connection = RegistrySettings(registry=self.server.url).connect_registry()  # type: ignore[arg-type]
        assert connection is not None
        try:
            return dict((await Registry(connection).look()).records)
        finally:
            await connection.close()

    async def run(self, script: str) -> Any:
        """Run a script on the server."""
        connection = RegistrySettings(registry=self.server.url).connect_registry()  # type: ignore[arg-type]
        assert connection is not None
        try:
            return await connection.run(script, [])
        finally:
            await connection.close()


@asynccontextmanager
async def running_fleet(server: RedisServer, model: Path) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        yield Fleet(server, model, stack)


def up(coordinator: Coordinator) -> set[str]:
    """The verifiers a coordinator is connected to."""
    return {link.address for link in coordinator.replicas.verifiers if link.ready}


async def test_replicas_come_and_go_and_two_coordinators_share_them(
    redis_server: RedisServer, tiny_model: TinyModel
) -> None:
    async with running_fleet(redis_server, tiny_model("llama")) as fleet:
        first, address = await fleet.verifier()
        one, client = await fleet.coordinator()
        two, other = await fleet.coordinator(drafter="model")
        expected = await client.generate(PROMPT, drafter="none", **OPTIONS)
        assert (await other.generate(PROMPT, drafter="none", **OPTIONS)).token_ids == expected.token_ids

        _, late = await fleet.verifier()
        _, draft = await fleet.draft()
        await until(lambda: up(one) == up(two) == {address, late})
        await until(lambda: all(any(link.ready for link in parts.replicas.drafts) for parts in (one, two)))
        assert [link.address for link in two.replicas.drafts] == [draft]
        guessed = await other.generate(PROMPT, drafter="model", **(OPTIONS | {"max_tokens": 200}))
        assert guessed.speculation.proposed_tokens > 0

        record = (await fleet.listed())[f"verifier/{address}"]
        assert record.capacity_tokens == 16384
        assert record.model == one.replicas.known_target.model.name
        assert record.vocabulary_fingerprint == one.replicas.known_target.model.vocabulary_fingerprint

        await first.stop()
        await until(lambda: up(one) == up(two) == {late})
        await until(lambda: len(one.replicas.verifiers) == len(two.replicas.verifiers) == 1)
        assert (await client.generate(PROMPT, **OPTIONS)).token_ids == expected.token_ids


async def test_what_another_coordinator_loaded_counts_too(redis_server: RedisServer, tiny_model: TinyModel) -> None:
    long = OPTIONS | {"max_tokens": 1500, "drafter": "none"}
    async with running_fleet(redis_server, tiny_model("llama")) as fleet, AsyncExitStack() as stack:
        _, loaded = await fleet.verifier()
        one, client = await fleet.coordinator()
        two, other = await fleet.coordinator()
        for _ in range(3):
            await anext(await stack.enter_async_context(other.stream(PROMPT, **long)))
        _, idle = await fleet.verifier()
        await until(lambda: idle in up(one))
        records = one.replicas._verifiers
        await until(lambda: sum(records.records[loaded].sessions.values()) == 3)
        for _ in range(3):
            await anext(await stack.enter_async_context(client.stream(PROMPT, **long)))
        assert two.replicas._on_verifiers.loads() == {loaded: 3}
        assert one.replicas._on_verifiers.loads() == {idle: 3}


async def test_a_draining_replica_gets_nothing_new_and_finishes_what_runs(
    redis_server: RedisServer, tiny_model: TinyModel
) -> None:
    async with running_fleet(redis_server, tiny_model("llama")) as fleet:
        replica, address = await fleet.verifier()
        parts, client = await fleet.coordinator()
        expected = await client.generate(PROMPT, drafter="none", **(OPTIONS | {"max_tokens": 200}))
        async with (
            client.stream(PROMPT, drafter="none", **(OPTIONS | {"max_tokens": 200})) as stream,
            AsyncExitStack() as stack,
        ):
            await anext(stream)
            _, other = await fleet.verifier()
            await until(lambda: other in up(parts))
            replica.refuse_new()
            await until(lambda: parts.replicas._verifiers.records[address].draining)
            for number in range(1, 4):
                short = client.stream(PROMPT, drafter="none", **(OPTIONS | {"max_tokens": 200}))
                await anext(await stack.enter_async_context(short))
                assert parts.replicas._on_verifiers.loads() == {address: 1, other: number}
            async for _ in stream:
                pass
        assert stream.result.token_ids == expected.token_ids
        await until(lambda: up(parts) == {other})  # it was let go as soon as nothing ran on it


async def test_the_registry_is_killed_mid_generation_and_comes_back(
    redis_server: RedisServer, tiny_model: TinyModel
) -> None:
    async with running_fleet(redis_server, tiny_model("llama")) as fleet:
        addresses = {(await fleet.verifier())[1] for _ in range(2)}
        parts, client = await fleet.coordinator(binding_ttl_s=1)
        await until(lambda: up(parts) == addresses)
        expected = await client.generate(PROMPT, **OPTIONS)
        chunks = 0
        async with client.stream(PROMPT, **OPTIONS) as stream:
            async for _ in stream:
                chunks += 1
                if chunks == 3:
                    redis_server.kill()
        assert stream.result.token_ids == expected.token_ids
        await until(lambda: not parts._registry.up)  # type: ignore[union-attr]
        for _ in range(3):  # new ones, by the last view
            assert (await client.generate(PROMPT, **OPTIONS)).token_ids == expected.token_ids
        async with client.stream(PROMPT, drafter="none", **(OPTIONS | {"max_tokens": 1200})) as stream:
            await anext(stream)  # bound while the registry is away
            redis_server.start()
            await until(lambda: parts._registry.up)  # type: ignore[union-attr]
            assert up(parts) == addresses
            while {record.address for record in (await fleet.listed()).values()} != addresses:
                await anext(stream)
            while not await fleet.run("return redis.call('KEYS', '{outrider}:binding:*')"):
                await anext(stream)
        _, late = await fleet.verifier()
        await until(lambda: up(parts) == addresses | {late})


async def test_a_registry_that_hangs_holds_nothing_up(redis_server: RedisServer, tiny_model: TinyModel) -> None:
    async with running_fleet(redis_server, tiny_model("llama")) as fleet:
        await fleet.verifier()
        parts, client = await fleet.coordinator()
        expected = await client.generate(PROMPT, **OPTIONS)
        os.kill(redis_server.pid, signal.SIGSTOP)
        try:
            assert (await client.generate(PROMPT, **OPTIONS)).token_ids == expected.token_ids
            assert not parts._registry.up  # type: ignore[union-attr]
            # From here on nobody waits for it at all.
            assert (await client.generate(PROMPT, **OPTIONS)).token_ids == expected.token_ids
        finally:
            os.kill(redis_server.pid, signal.SIGCONT)
        await until(lambda: parts._registry.up)  # type: ignore[union-attr]


async def test_an_emptied_registry_loses_no_replica(redis_server: RedisServer, tiny_model: TinyModel) -> None:
    async with running_fleet(redis_server, tiny_model("llama")) as fleet:
        addresses = {(await fleet.verifier(heartbeat_s=0.3))[1] for _ in range(2)}
        parts, client = await fleet.coordinator()
        await until(lambda: up(parts) == addresses)
        expected = await client.generate(PROMPT, **OPTIONS)
        chunks = 0
        async with client.stream(PROMPT, **OPTIONS) as stream:
            async for _ in stream:
                chunks += 1
                if chunks == 3:
                    await fleet.run("return redis.call('FLUSHALL')")
                assert set(parts.replicas._verifiers.records) == addresses
        assert stream.result.token_ids == expected.token_ids
        async with client.stream(PROMPT, drafter="none", **(OPTIONS | {"max_tokens": 1200})) as stream:
            while {record.address for record in (await fleet.listed()).values()} != addresses:
                await anext(stream)
                assert set(parts.replicas._verifiers.records) == addresses


async def test_a_restart_at_the_same_address_is_a_new_incarnation(
    redis_server: RedisServer, tiny_model: TinyModel
) -> None:
    async with running_fleet(redis_server, tiny_model("llama")) as fleet:
        replica, address = await fleet.verifier()
        parts, client = await fleet.coordinator()
        expected = await client.generate(PROMPT, **OPTIONS)
        before = (await fleet.listed())[f"verifier/{address}"].incarnation
        chunks = 0
        async with client.stream(PROMPT, **OPTIONS) as stream:
            async for _ in stream:
                chunks += 1
                if chunks == 3:
                    await replica.stop()
                    await fleet.verifier(listen=address)
        assert stream.result.token_ids == expected.token_ids
        after = (await fleet.listed())[f"verifier/{address}"].incarnation
        assert after != before
        await until(lambda: parts.replicas._verifiers.records[address].incarnation == after)
        (link,) = parts.replicas.verifiers
        assert link.welcome is not None
        assert link.welcome.incarnation == after


async def test_fixed_addresses_and_the_registry_are_combined(redis_server: RedisServer, tiny_model: TinyModel) -> None:
    async with running_fleet(redis_server, tiny_model("llama")) as fleet:
        _, fixed = await fleet.verifier(registry=None)
        _, found = await fleet.verifier()
        parts, client = await fleet.coordinator(verifiers=[fixed])
        await until(lambda: up(parts) == {fixed, found})
        assert (await client.generate(PROMPT, **OPTIONS)).usage.completion_tokens == 60


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--registry", "redis://:hunter2@h:x"], "registry port is not a number"),
        (["--registry", "redis://h", "--listen", "0.0.0.0:1"], "advertise is required with registry"),
        (["--registry", "redis://h", "--heartbeat-s", "6"], "must be at least 12, twice heartbeat_s"),
        (["--registry-prefix", "a b"], "registry-prefix"),
    ],
)
def test_settings_that_cannot_work_say_why(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verifier_main(["--model", "m", *flags]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "hunter2" not in error


def test_a_coordinator_without_replicas_and_registry_is_refused() -> None:
    from outrider.config import load

    with pytest.raises(ConfigError, match="verifiers is required without registry"):
        load(CoordinatorSettings, [], "outrider-coordinator")
