"""Encrypted ports: who gets in, what is refused at start and how it is said, certificates replaced while serving."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.errors import ConfigError
from outrider.rpc.channel import open_channel
from outrider.rpc.server import Server
from outrider.rpc.tls import ClientTls, ServerTls


@dataclass(frozen=True)
class Party:
    """The files of one party: its certificate, its key, and its CA's certificate."""

    cert: Path
    key: Path
    ca: Path


def issue(ca: trustme.CA, folder: Path) -> Party:
    """Write a certificate for this machine, replacing what is there."""
    folder.mkdir(exist_ok=True)
    issued = ca.issue_cert("127.0.0.1", "localhost")
    party = Party(folder / "cert.pem", folder / "key.pem", folder / "ca.pem")
    party.cert.write_bytes(b"".join(piece.bytes() for piece in issued.cert_chain_pems))
    party.key.write_bytes(issued.private_key_pem.bytes())
    party.key.chmod(0o600)
    party.ca.write_bytes(ca.cert_pem.bytes())
    return party


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server(ca: trustme.CA, tmp_path: Path) -> Party:
    return issue(ca, tmp_path / "server")


@pytest.fixture
def client(ca: trustme.CA, tmp_path: Path) -> Party:
    return issue(ca, tmp_path / "client")


@asynccontextmanager
async def serving(tls: ServerTls | None) -> AsyncIterator[str]:
    running = Server("test", "127.0.0.1:0", tls=tls)
    try:
        yield await running.start()
    finally:
        await running.grpc.stop(0)


async def reached(address: str, tls: ClientTls | None) -> bool:
    """True if a health check gets through on a new connection."""
    async with open_channel(address, tls) as channel:
        try:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE  # noqa: PT017 (a boolean is what is asked for)
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def test_an_encrypted_port_serves_those_who_trust_its_ca(server: Party, tmp_path: Path) -> None:
    stranger = issue(trustme.CA(), tmp_path / "stranger")
    async with serving(ServerTls(server.cert, server.key)) as address:
        assert await reached(address, ClientTls(server.ca))
        assert not await reached(address, ClientTls(stranger.ca))
        assert not await reached(address, None)


async def test_mutual_tls_serves_only_callers_with_a_certificate_of_its_ca(
    server: Party, client: Party, tmp_path: Path
) -> None:
    stranger = issue(trustme.CA(), tmp_path / "stranger")
    async with serving(ServerTls(server.cert, server.key, client.ca)) as address:
        assert await reached(address, ClientTls(server.ca, client.cert, client.key))
        assert not await reached(address, ClientTls(server.ca))
        assert not await reached(address, ClientTls(server.ca, stranger.cert, stranger.key))


async def test_a_replaced_certificate_is_used_without_a_restart(
    ca: trustme.CA, server: Party, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    other = trustme.CA()
    old_ca = tmp_path / "old-ca.pem"
    old_ca.write_bytes(ca.cert_pem.bytes())
    tls = ServerTls(server.cert, server.key)
    async with serving(tls) as address, open_channel(address, ClientTls(old_ca)) as before:
        stub = health_pb2_grpc.HealthStub(before)
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
        fresh = issue(other, tmp_path / "fresh")
        # One file after the other, as a script does it: between the two the old pair stays in use.
        server.cert.write_bytes(fresh.cert.read_bytes())
        assert await reached(address, ClientTls(old_ca))
        assert "cannot be used yet" in caplog.text
        server.key.write_bytes(fresh.key.read_bytes())
        assert await reached(address, ClientTls(fresh.ca))
        assert not await reached(address, ClientTls(old_ca))
        # A connection from before goes on.
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
    assert "new connections use" in caplog.text


async def test_callers_of_a_new_ca_are_served_once_its_file_is_replaced(
    server: Party, client: Party, tmp_path: Path
) -> None:
    newcomer = issue(trustme.CA(), tmp_path / "newcomer")
    async with serving(ServerTls(server.cert, server.key, client.ca)) as address:
        assert not await reached(address, ClientTls(server.ca, newcomer.cert, newcomer.key))
        client.ca.write_bytes(newcomer.ca.read_bytes())
        assert await reached(address, ClientTls(server.ca, newcomer.cert, newcomer.key))
        assert not await reached(address, ClientTls(server.ca, client.cert, client.key))


def test_bad_files_are_named_and_their_contents_are_not(server: Party, client: Party, tmp_path: Path) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("not a certificate")
    missing = tmp_path / "nowhere.pem"
    cases = [
        (ServerTls(missing, server.key), f"tls_cert: cannot read {missing}: No such file"),
        (ServerTls(server.cert, missing), f"tls_key: cannot read {missing}"),
        (ServerTls(server.cert, server.key, missing), f"tls_client_ca: cannot read {missing}"),
        (ServerTls(junk, server.key), f"tls_cert: {junk} holds no PEM certificate"),
        (ServerTls(server.cert, junk), f"tls_key: {junk} holds no unencrypted PEM private key"),
        (ServerTls(server.cert, server.key, junk), f"tls_client_ca: {junk} holds no PEM certificate"),
        (ServerTls(server.cert, client.key), f"tls_key: {client.key} is not the private key of the certificate in"),
        (ClientTls(junk), f"tls_ca: {junk} holds no PEM certificate"),
        (ClientTls(server.ca, client.cert), "tls_cert is set but tls_key is not"),
        (ClientTls(server.ca, None, client.key), "tls_key is set but tls_cert is not"),
    ]
    for tls, words in cases:
        with pytest.raises(ConfigError) as caught:
            tls.check()
        assert words in str(caught.value)
        assert "PRIVATE KEY---" not in str(caught.value)


def test_a_key_with_a_password_is_refused_without_asking_for_it(server: Party, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    plain = serialization.load_pem_private_key(server.key.read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        plain.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(ConfigError, match="holds no unencrypted PEM private key"):
        ServerTls(server.cert, locked).check()


def test_a_key_that_everybody_may_read_is_warned_of(server: Party, caplog: pytest.LogCaptureFixture) -> None:
    ServerTls(server.cert, server.key).check()
    assert caplog.text == ""
    os.chmod(server.key, 0o644)
    ServerTls(server.cert, server.key).check()
    assert f"may read {server.key}" in caplog.text
    assert "PRIVATE KEY" not in caplog.text


@pytest.mark.parametrize("address", ["127.0.0.1:7400", "localhost:7400", "[::1]:7400"])
def test_loopback_is_told_from_what_others_reach(address: str) -> None:
    from outrider.rpc.server import is_loopback

    assert is_loopback(address)
    assert not is_loopback("0.0.0.0:7400")
    assert not is_loopback("[::]:7400")
    assert not is_loopback("gpu-7:7400")
