"""Locked doors with everything behind them real: encrypted services, API keys, tenants, limits, secrets in no log."""

# ruff: noqa: ASYNC220, ASYNC240 (the files and processes of tests)

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.client import AsyncClient, ClientTls
from outrider.errors import ConfigError, InvalidArgument, ResourceExhausted, Unauthenticated, Unavailable
from outrider.rpc import api_key
from outrider.telemetry import logs
from outrider_verifier.main import main as verifier_main
from tests.cluster import Cluster, running_cluster, start_verifier, until
from tests.conftest import TinyModel
from tests.unit.rpc.test_tls import Party, issue

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = [*range(20, 60)]
OPTIONS: dict[str, Any] = {"temperature": 0.7, "seed": 5, "max_tokens": 8, "ignore_eos": True, "drafter": "none"}


@pytest.fixture(scope="module")
def party(tmp_path_factory: pytest.TempPathFactory) -> Party:
    return issue(trustme.CA(), tmp_path_factory.mktemp("tls") / "all")


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keys: list[dict[str, Any]] = [
        {"name": "alice", "tenant": "acme"},
        {"name": "ann", "tenant": "acme"},
        {"name": "bob"},
        {"name": "small", "max_tokens": 3, "max_concurrent": 1},
        {"name": "rare", "requests_per_minute": 1},
    ]
    path = tmp_path_factory.mktemp("keys") / "keys.yaml"
    path.write_text(json.dumps([key | {"sha256": api_key.digest(key["name"] + "-key")} for key in keys]))
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tiny_model: TinyModel, party: Party, key_file: Path) -> AsyncIterator[Cluster]:
    """Mutual TLS from the client to the replicas, keys at the API, a draft that works."""
    files = {"tls_cert": party.cert, "tls_key": party.key, "tls_client_ca": party.ca}
    async with running_cluster(
        tiny_model("llama"),
        tiny_model("llama", layers=2),
        verifier=files,
        draft=files,
        tls_ca=party.ca,
        api_keys_file=key_file,
        max_prompt_tokens=100,
        max_prompt_bytes=1000,
        max_output_tokens=50,
        max_message_mb=1,
        **files,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def tls(party: Party) -> ClientTls:
    return ClientTls(party.ca, party.cert, party.key)


def client(cluster: Cluster, tls: ClientTls | None, name: str | None) -> AsyncClient:
    return AsyncClient(cluster.address, tls=tls, api_key=f"{name}-key" if name else "", timeout=20)


async def cached(client: AsyncClient, prompt: list[int]) -> int:
    return (await client.generate(token_ids=prompt, **OPTIONS)).usage.cached_tokens


async def test_tokens_are_the_same_through_encrypted_services(
    cluster: Cluster, tls: ClientTls, tiny_model: TinyModel
) -> None:
    async with client(cluster, tls, "alice") as alice, running_cluster(tiny_model("llama")) as plain:
        expected = (await plain.generate(PROMPT, **OPTIONS)).token_ids
        for drafter in ("none", "model"):
            answer = await alice.generate(token_ids=PROMPT, **(OPTIONS | {"drafter": drafter}))
            assert answer.token_ids == expected


async def test_without_a_certificate_nobody_gets_in(cluster: Cluster, party: Party) -> None:
    for files in (None, ClientTls(party.ca)):
        async with client(cluster, files, "alice") as stranger:
            with pytest.raises(Unavailable):
                await stranger.model_info(timeout=5)


async def test_without_a_known_key_only_health_answers(cluster: Cluster, tls: ClientTls) -> None:
    for name in (None, "stranger"):
        async with client(cluster, tls, name) as stranger:
            for call in (
                stranger.generate(token_ids=PROMPT),
                stranger.tokenize("hello"),
                stranger.model_info(),
                stranger.abort("x"),
            ):
                with pytest.raises(Unauthenticated):
                    await call
    async with grpc.aio.secure_channel(cluster.address, tls.credentials()) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_tenants_share_no_cached_prompt(cluster: Cluster, tls: ClientTls) -> None:
    prompt = [*range(100, 150)]
    async with client(cluster, tls, "alice") as alice, client(cluster, tls, "ann") as ann:
        assert await cached(alice, prompt) == 0
        assert await cached(alice, prompt) == 48
        assert await cached(ann, prompt) == 48  # of the same tenant
    async with client(cluster, tls, "bob") as bob:
        assert await cached(bob, prompt) == 0
        assert await cached(bob, prompt) == 48


async def test_tenants_cannot_touch_each_others_requests(cluster: Cluster, tls: ClientTls) -> None:
    long: dict[str, Any] = OPTIONS | {"max_tokens": 50, "request_id": "mine"}
    async with (
        client(cluster, tls, "alice") as alice,
        client(cluster, tls, "bob") as bob,
        alice.stream(token_ids=PROMPT, **long) as stream,
    ):
        await anext(stream)
        assert not await bob.abort("mine")
        assert len((await bob.generate(token_ids=PROMPT, **long)).token_ids) == 50
        assert len((await stream.read()).token_ids) == 50


async def test_a_keys_limits_hold(cluster: Cluster, tls: ClientTls) -> None:
    async with client(cluster, tls, "small") as small:
        with pytest.raises(InvalidArgument, match="max_tokens is 4, but must be at most 3"):
            await small.generate(token_ids=PROMPT, max_tokens=4)
        answer = await small.generate(token_ids=PROMPT, ignore_eos=True)  # the default gives way to the limit
        assert answer.usage.completion_tokens == 3
        asking = [small.generate(token_ids=PROMPT, max_tokens=3) for _ in range(4)]
        results = await asyncio.gather(*asking, return_exceptions=True)
        refused = [result for result in results if isinstance(result, ResourceExhausted)]
        assert 1 <= len(refused) < 4
        assert "max_concurrent is 1" in str(refused[0])
    async with client(cluster, tls, "rare") as rare:
        await rare.tokenize("hello")
        with pytest.raises(ResourceExhausted, match="requests_per_minute, 1") as caught:
            await rare.tokenize("hello")
        assert 50 < caught.value.retry_after_s <= 60


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"token_ids": [7] * 101}, "input is '101 tokens', but must be at most 100 tokens"),
        ({"prompt": "x" * 1001}, "text is '1001 bytes', but must be at most 1000 bytes long"),
        ({"messages": [{"role": "user", "content": "y" * 1000}]}, "must be at most 1000 bytes long"),
        ({"messages": [{"role": "", "content": ""}] * 2049}, "must be at most 2048"),
        ({"token_ids": PROMPT, "max_tokens": 51}, "max_tokens is 51, but must be at most 50"),
        ({"token_ids": PROMPT, "stop": ["s"] * 17}, "stop is '17 strings', but must be at most 16"),
        ({"token_ids": PROMPT, "stop_token_ids": list(range(257))}, "must be at most 256"),
        ({"token_ids": PROMPT, "logit_bias": dict.fromkeys(range(1025), 1.0)}, "must be at most 1024 entries"),
        ({"token_ids": PROMPT, "request_id": "r" * 129}, "must be at most 128 characters long"),
    ],
)
async def test_limits_name_field_value_and_limit(
    cluster: Cluster, tls: ClientTls, options: dict[str, Any], words: str
) -> None:
    async with client(cluster, tls, "alice") as alice:
        with pytest.raises(InvalidArgument) as caught:
            await alice.generate(options.pop("prompt", None), **options)
    assert words in str(caught.value)


async def test_a_message_beyond_the_limit_is_refused_and_the_connection_lives(cluster: Cluster, tls: ClientTls) -> None:
    async with client(cluster, tls, "alice") as alice:
        with pytest.raises(ResourceExhausted, match="larger than max"):
            await alice.generate("z" * (2 << 20))
        assert await alice.tokenize("hello")


async def test_a_key_that_is_added_or_revoked_counts_within_seconds(
    cluster: Cluster, tls: ClientTls, key_file: Path
) -> None:
    before = key_file.read_text()
    entries = json.loads(before)
    new = {"name": "carol", "sha256": api_key.digest("carol-key")}
    try:
        async with client(cluster, tls, "carol") as carol, client(cluster, tls, "bob") as bob:
            key_file.write_text(json.dumps([new, *(entry for entry in entries if entry["name"] != "bob")]))
            await asyncio.sleep(1.05)  # the file is looked at once a second
            await carol.model_info()
            with pytest.raises(Unauthenticated):
                await bob.model_info()
    finally:
        key_file.write_text(before)


async def test_a_coordinator_comes_back_to_replicas_with_new_certificates(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    """The CA and every certificate are replaced while a session's link is up; the next connection reads them anew."""
    party = issue(trustme.CA(), tmp_path / "rotating")
    files = {"tls_cert": party.cert, "tls_key": party.key, "tls_client_ca": party.ca}
    async with (
        running_cluster(tiny_model("llama"), verifier=files, tls_ca=party.ca, start_timeout_s=20, **files) as cluster,
        AsyncClient(cluster.address, tls=ClientTls(party.ca, party.cert, party.key)) as client,
    ):
        expected = (await client.generate(token_ids=PROMPT, **OPTIONS)).token_ids
        issue(trustme.CA(), tmp_path / "rotating")
        assert (await client.generate(token_ids=PROMPT, **OPTIONS)).token_ids == expected  # what is connected stays so
        (link,) = cluster.coordinator.replicas.verifiers
        await cluster.verifiers[0].stop()
        await until(lambda: not link.ready)
        replica, _ = await start_verifier(tiny_model("llama"), listen=link.address, **files)
        cluster.stack.push_async_callback(replica.stop)
        await link.wait_ready(20)
        assert (await client.generate(token_ids=PROMPT, **OPTIONS)).token_ids == expected


async def test_bad_tls_files_end_the_process_before_the_model_loads(
    party: Party, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "configure", lambda level: None)  # the handlers are this process's
    missing = str(tmp_path / "none.pem")
    for flags, words in (
        (["--tls-cert", missing, "--tls-key", str(party.key)], f"tls_cert: cannot read {missing}"),
        (["--tls-cert", str(party.cert)], "tls_cert is set but tls_key is not"),
        (["--tls-client-ca", str(party.ca)], "tls_client_ca is set but tls_cert is not"),
    ):
        assert verifier_main(["--model", "/no/model", *flags]) == 2
        assert words in capsys.readouterr().err


async def test_a_client_with_a_bad_file_is_told_which(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tls_ca: cannot read"):
        AsyncClient("127.0.0.1:1", tls=ClientTls(tmp_path / "none.pem"))


async def test_no_log_of_a_real_process_holds_a_secret(tiny_model: TinyModel, party: Party, tmp_path: Path) -> None:
    """At the most talkative level: not the keys, not their hashes, not private keys, not what was asked."""
    replica, address = await start_verifier(tiny_model("llama"))
    key = api_key.new_key()
    entry = {"name": "alice", "sha256": api_key.digest(key), "tenant": "acme"}
    log = tmp_path / "log"
    flags = ["--verifiers", address, "--listen", "0.0.0.0:0", "--log-level", "debug"]
    flags += ["--tls-cert", str(party.cert), "--tls-key", str(party.key)]
    environment = {**os.environ, "OUTRIDER_COORDINATOR_API_KEYS": json.dumps([entry])}
    prompt = "my password is swordfish"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "outrider_coordinator", *flags], stdout=out, stderr=out, env=environment
        )
        try:
            served = await asyncio.to_thread(_ready_address, process, log)
            port = served.rpartition(":")[2]
            async with AsyncClient(f"127.0.0.1:{port}", tls=ClientTls(party.ca), api_key=key) as client:
                await client.generate(prompt, **OPTIONS)
                with pytest.raises(InvalidArgument):
                    await client.generate(prompt, temperature=-1.0)
            async with AsyncClient(f"127.0.0.1:{port}", tls=ClientTls(party.ca), api_key=key + "x") as client:
                with pytest.raises(Unauthenticated):
                    await client.generate(prompt, **OPTIONS)
            process.terminate()
            await asyncio.to_thread(process.wait, 20)
        finally:
            process.kill()
            process.wait()
            await replica.stop()
    text = log.read_text()
    assert process.returncode == 0, text
    assert 'api_keys="**********"' in text  # the effective settings are there
    secrets = [key, entry["sha256"], "swordfish", *party.key.read_text().splitlines()[1:-1]]
    assert [secret for secret in secrets if secret in text] == []


async def test_an_open_port_is_warned_of(tiny_model: TinyModel, caplog: pytest.LogCaptureFixture) -> None:
    async with running_cluster(tiny_model("llama")):
        assert "no API keys" not in caplog.text
    async with running_cluster(tiny_model("llama"), listen="0.0.0.0:0") as cluster:
        assert "no API keys: whoever reaches 0.0.0.0:0 is served" in caplog.text
        assert f"{cluster.address} is unencrypted and other machines can reach it" in caplog.text


def _ready_address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        if match := re.search(r"^ready coordinator (\S+)", log.read_text(), re.MULTILINE):
            return match[1]
        time.sleep(0.05)
    raise AssertionError(f"the coordinator did not start: {log.read_text()}")
