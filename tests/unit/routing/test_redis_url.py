"""The registry's URL: its forms, its errors, and that no password leaves it; then each form against real servers."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from pydantic import SecretStr, ValidationError

from outrider.config import describe
from outrider.config.registry import RegistrySettings
from outrider.errors import ConfigError, Unavailable
from outrider.routing.connection import RegistryConnection
from outrider.routing.redis_url import Form, RedisUrl, parse
from outrider.routing.registry import Registry
from tests.redis_server import RedisServer, free_port
from tests.unit.routing.test_registry_records import RECORD


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("redis://h", RedisUrl(Form.SINGLE, False, (("h", 6379),))),
        ("redis://h:1/3", RedisUrl(Form.SINGLE, False, (("h", 1),), db=3)),
        ("redis://:p%40%2F@h", RedisUrl(Form.SINGLE, False, (("h", 6379),), password="p@/")),
        ("redis://u:p:q@h", RedisUrl(Form.SINGLE, False, (("h", 6379),), username="u", password="p:q")),
        ("rediss://[::1]:7", RedisUrl(Form.SINGLE, True, (("::1", 7),))),
        ("redis+sentinel://a,b:2/main", RedisUrl(Form.SENTINEL, False, (("a", 26379), ("b", 2)), service="main")),
        (
            "rediss+sentinel://:p@a/main/2?sentinel_password=q",
            RedisUrl(Form.SENTINEL, True, (("a", 26379),), None, "p", "main", 2, sentinel_password="q"),
        ),
        ("redis+cluster://a:1,b", RedisUrl(Form.CLUSTER, False, (("a", 1), ("b", 6379)))),
    ],
)
def test_every_form_is_understood(text: str, expected: RedisUrl) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "scheme is missing"),
        ("http://h", "scheme is http, but must be redis://"),
        ("redis://", "host is missing"),
        ("redis://:hunter2", "host is missing"),
        ("redis://user:hunter2", "port is not a number"),
        ("redis://h:70000", "port is 70000, but must be a number from 1 to 65535"),
        ("redis://h/x", "database is x"),
        ("redis://h/1/2", "path is /1/2"),
        ("redis://:hun/ter2@h", "percent-encoded"),
        ("redis://:hun#ter2@h", "percent-encoded"),
        ("redis://[::1", "unreadable"),
        ("redis://h?ca_file=/x", "option is ca_file, but must be left out"),
        ("rediss://h?ca_file=/no/such", "ca_file is /no/such, but must be a file that exists"),
        ("rediss://h?timeout=3", "option is timeout, but must be one of ca_file, cert_file, key_file"),
        ("redis+sentinel://h", "service is missing"),
        ("redis+cluster://h/1", "a cluster has one database"),
    ],
)
def test_every_error_names_the_part_and_what_is_allowed(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert words in str(caught.value)
    assert "hun" not in str(caught.value)
    with pytest.raises(ValidationError):
        RegistrySettings(registry=SecretStr(text))


async def test_the_password_is_in_no_text(caplog: pytest.LogCaptureFixture) -> None:
    text = f"redis://user:hunter2@127.0.0.1:{free_port()}/1"
    url = parse(text)
    assert "hunter2" not in f"{url} {url!r} {describe(RegistrySettings(registry=SecretStr(text)))}"
    connection = RegistryConnection(url, prefix="p", timeout_s=1)
    with caplog.at_level(logging.DEBUG), pytest.raises(Unavailable) as caught:
        await Registry(connection).look()
    assert "hunter2" not in caplog.text + str(caught.value)
    assert str(url) in caplog.text
    await connection.close()


async def works(url: str) -> None:
    """Register and look through a registry of that address."""
    connection = RegistryConnection(parse(url), prefix="p", timeout_s=10)
    registry = Registry(connection)
    await registry.register(RECORD, 30)
    assert (await registry.look()).records == {RECORD.place: RECORD}
    await connection.close()


async def test_a_password_opens_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    with RedisServer(tmp_path, "--requirepass", "p@ss/word") as server:
        await works(f"redis://:p%40ss%2Fword@127.0.0.1:{server.port}/2")
        await works(f"redis://default:p%40ss%2Fword@127.0.0.1:{server.port}")
        for wrong in ("", ":hunter2@"):
            with pytest.raises(Unavailable) as caught:
                await works(f"redis://{wrong}127.0.0.1:{server.port}")
            assert "hunter2" not in str(caught.value)


async def test_sentinel_finds_the_server(redis_server: RedisServer, tmp_path: Path) -> None:
    port = free_port()
    configuration = tmp_path / "sentinel.conf"
    configuration.write_text(f"sentinel monitor main 127.0.0.1 {redis_server.port} 1\n")
    with RedisServer(tmp_path, str(configuration), "--sentinel", port=port):
        await works(f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{port}/main/3")
        with pytest.raises(Unavailable, match="No master found for 'other'"):
            await works(f"redis+sentinel://127.0.0.1:{port}/other")


async def test_cluster_takes_scripts_with_several_keys(tmp_path: Path) -> None:
    from outrider.routing.redis_store import RedisStore

    with RedisServer(tmp_path, "--cluster-enabled", "yes", "--cluster-port", str(free_port())) as server:
        import redis.asyncio

        async with redis.asyncio.Redis(port=server.port) as admin:
            await admin.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
            async with asyncio.timeout(10):
                while (await admin.cluster("info"))["cluster_state"] != "ok":  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        url = f"redis+cluster://127.0.0.1:{server.port}"
        await works(url)
        connection = RegistryConnection(parse(url), prefix="p", timeout_s=5)
        store = RedisStore(connection, "me", ttl_s=0.3)
        made = [await store.bind(f"s{n}", "a:1", "i", instead_of=None) for n in range(20)]
        renewing = asyncio.create_task(store.run())
        await asyncio.sleep(0.6)  # the time is what is tested: renewal names all keys in one script
        assert [await store.find(f"s{n}") for n in range(20)] == made
        renewing.cancel()
        await connection.close()


async def test_tls_is_checked_against_the_given_ca(redis_server: RedisServer, tmp_path: Path) -> None:
    ca, other = trustme.CA(), trustme.CA()
    for name, authority in (("ca", ca), ("other", other)):
        authority.cert_pem.write_to_path(tmp_path / name)
    async with tls_in_front_of(redis_server.port, ca) as port:
        await works(f"rediss://localhost:{port}/4?ca_file={tmp_path / 'ca'}")
        with pytest.raises(Unavailable, match="certificate verify failed"):
            await works(f"rediss://localhost:{port}/4?ca_file={tmp_path / 'other'}")


@asynccontextmanager
async def tls_in_front_of(port: int, ca: trustme.CA) -> AsyncIterator[int]:
    """A TLS port whose bytes go to the server, which has no TLS itself."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("localhost").configure_cert(context)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_copy(reader, back), _copy(there, writer))

    server = await asyncio.start_server(serve, "localhost", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()
