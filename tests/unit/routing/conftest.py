"""One real server for the tests of this folder; every test has a key prefix of its own."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from outrider.routing.connection import RegistryConnection
from outrider.routing.redis_url import parse
from tests.redis_server import RedisServer

Connect = Callable[[], RegistryConnection]

_prefixes = itertools.count()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
async def connect(redis_server: RedisServer) -> AsyncIterator[Connect]:
    """Makes connections, each as a process of its own would have it."""
    prefix, made = f"test{next(_prefixes)}", []

    def make() -> RegistryConnection:
        made.append(RegistryConnection(parse(redis_server.url), prefix=prefix, timeout_s=5))
        return made[-1]

    yield make
    for connection in made:
        await connection.close()
