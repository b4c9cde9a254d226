"""The event loop of the services tells of a connection that has just been closed in a way of its own."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from outrider.errors import Unavailable
from outrider.routing.connection import RegistryConnection
from outrider.routing.redis_url import parse
from tests.redis_server import RedisServer


def test_a_connection_closed_while_it_is_written_to_is_a_registry_that_is_away(redis_server: RedisServer) -> None:
    async def lose_it() -> tuple[object, object]:
        connection = RegistryConnection(parse(redis_server.url), prefix="lost", timeout_s=5)
        try:
            await connection.run("return 1", [])
            (pooled,) = connection._client.connection_pool._available_connections
            pooled._writer.transport.close()
            try:
                during: object = await connection.run("return 2", [])
            except Unavailable as error:
                during = error
            return during, await connection.run("return 3", [], probe=True)
        finally:
            await connection.close()

    during, afterwards = uvloop.run(lose_it())
    assert isinstance(during, Unavailable)
    assert afterwards == 3


@pytest.mark.parametrize("fails", [False, True], ids=["an answer", "an error"])
async def test_a_cancellation_that_comes_together_with_an_answer_is_not_lost(fails: bool) -> None:
    """asyncio.wait_for, with which redis-py waits, loses it in Python 3.11."""
    connection = RegistryConnection(parse("redis://127.0.0.1:1"), prefix="lost", timeout_s=5)
    reply: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    class Waiting:
        async def eval(self, *arguments: object) -> int:
            answer = await asyncio.wait_for(reply, 5)
            if fails:
                raise OSError("closed")
            return answer

    client, connection._client = connection._client, Waiting()
    task = asyncio.create_task(connection.run("return 1", []))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    reply.set_result(1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await client.aclose()
