"""API keys: what a file may say, when it is read again, and what a key's limits admit."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest
import yaml
from pydantic import SecretStr
from typer.testing import CliRunner

from outrider.errors import ConfigError, InvalidArgument, ResourceExhausted, Unauthenticated
from outrider.rpc import api_key
from outrider_cli.main import app
from outrider_coordinator.guard import ANYBODY, Caller, KeyGuard, current_caller
from outrider_coordinator.keys import ApiKey, KeyFile, find, known_keys, parse

GENERATE = "/outrider.v1.GenerationService/Generate"
TOKENIZE = "/outrider.v1.GenerationService/Tokenize"
ABORT = "/outrider.v1.GenerationService/Abort"


class Clock:
    """Time that tests move."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def entry(key: str, **more: object) -> ApiKey:
    return ApiKey.model_validate({"name": "alice", "sha256": api_key.digest(key)} | more)


def guard(*entries: ApiKey, clock: Clock | None = None) -> KeyGuard:
    return KeyGuard(lambda: entries, clock or Clock())


# Keys


def test_keys_are_long_random_and_recognisable() -> None:
    keys = {api_key.new_key() for _ in range(50)}
    assert len(keys) == 50
    assert all(key.startswith("outrider_") and len(key) >= 50 for key in keys)


@pytest.mark.parametrize("key", ["with space", "line\nbreak", "ümlaut", "x" * 300])
def test_a_key_that_no_header_can_carry_is_refused_unshown(key: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        api_key.to_metadata(key)
    assert key not in str(caught.value)


def test_a_key_comes_out_of_the_header_it_was_put_into() -> None:
    assert api_key.from_metadata(api_key.to_metadata("abc")) == "abc"
    assert api_key.from_metadata((("authorization", "bearer abc"),)) == "abc"
    assert api_key.from_metadata((("authorization", "Basic abc"), ("x", "Bearer abc"))) is None
    assert api_key.from_metadata((("authorization", b"Bearer abc"),)) is None
    assert api_key.from_metadata(None) is None


def test_only_the_very_key_is_found() -> None:
    alice, bob = entry("one"), entry("two", name="bob")
    assert find((alice, bob), "two") is bob
    for wrong in ("", "tw", "two ", "TWO", alice.sha256):
        assert find((alice, bob), wrong) is None


# The file


def test_what_the_command_prints_is_an_entry_of_the_file() -> None:
    limits = ["--tenant", "acme", "--max-concurrent", "2", "--max-tokens", "64", "--requests-per-minute", "30"]
    for options, more in (([], {}), (limits, {"tenant": "acme", "max_concurrent": 2, "max_tokens": 64})):
        run = CliRunner().invoke(app, ["keys", "new", "alice", *options])
        assert run.exit_code == 0, run.output
        (made,) = parse(run.stdout, "stdout")
        key = run.stderr.strip().splitlines()[-1]
        assert key not in run.stdout
        assert find((made,), key) is made
        assert made.model_dump(include=more.keys()) == more


@pytest.mark.parametrize("name", ["", "a b", "a\nb", '"', "x" * 65])
def test_names_that_would_break_the_file_are_refused(name: str) -> None:
    assert CliRunner().invoke(app, ["keys", "new", "--", name]).exit_code == 2


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"keys": []}, "its top level"),
        ([{"name": "a"}], "0.sha256: Field required"),
        ([{"name": "a", "sha256": "abc"}], "0.sha256"),
        ([{"name": "a", "sha256": "a" * 64, "max_token": 3}], "0.max_token: Extra inputs"),
        ([{"name": "a", "sha256": "a" * 64, "max_tokens": 0}], "0.max_tokens"),
        ([{"name": "a b", "sha256": "a" * 64}], "0.name"),
        ([{"name": "a", "sha256": "a" * 64}, {"name": "a", "sha256": "b" * 64}], "same name"),
        ([{"name": "a", "sha256": "a" * 64}, {"name": "b", "sha256": "a" * 64}], "same sha256"),
    ],
)
def test_a_wrong_file_is_explained_without_its_values(entries: object, words: str) -> None:
    for text in (json.dumps(entries), yaml.safe_dump(entries)):
        with pytest.raises(ConfigError) as caught:
            parse(text, "keys.yaml")
        assert "keys.yaml" in str(caught.value)
        assert words in str(caught.value)
        assert "aaaaaaaa" not in str(caught.value)


def test_a_file_that_is_no_yaml_is_explained(tmp_path: Path) -> None:
    for content in (b"a: [", b"\xff\xfe\x00", b"[" * 100_000):
        path = tmp_path / "keys.yaml"
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="not YAML or JSON"):
            KeyFile(path)


def test_keys_come_from_one_place(tmp_path: Path) -> None:
    assert known_keys(None, None) is None
    text = SecretStr(json.dumps([{"name": "a", "sha256": "a" * 64}]))
    known = known_keys(None, text)
    assert known is not None
    assert [key.name for key in known()] == ["a"]
    with pytest.raises(ConfigError, match="both set"):
        known_keys(tmp_path / "keys.yaml", text)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        known_keys(tmp_path / "keys.yaml", None)


def test_a_changed_file_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, clock = tmp_path / "keys.yaml", Clock()

    def write(text: str) -> None:
        fresh = tmp_path / "fresh"
        fresh.write_text(text)
        os.replace(fresh, path)

    def names() -> list[str]:
        clock.now += 2
        return [key.name for key in known()]

    write(json.dumps([{"name": "a", "sha256": "a" * 64}]))
    known = KeyFile(path, clock)
    assert names() == ["a"]
    write(json.dumps([{"name": "b", "sha256": "b" * 64}]))
    assert [key.name for key in known()] == ["a"]  # not looked at more often than once a second
    assert names() == ["b"]
    write("- name: [")
    assert names() == ["b"]
    assert "the old ones stay in force" in caplog.text
    path.unlink()
    assert names() == ["b"]
    write("[]")  # the last key is revoked: nobody is served, rather than everybody
    assert names() == []
    assert "nobody is served" in caplog.text


# Limits


def test_calls_without_a_known_key_are_refused() -> None:
    for key in (None, "", "wrong"):
        with pytest.raises(Unauthenticated) as caught, guard(entry("right")).admitted(ABORT, key):
            pass
        assert "wrong" not in str(caught.value)


def test_the_caller_is_known_during_the_call_only() -> None:
    assert current_caller() == ANYBODY
    with guard(entry("k", tenant="acme", max_tokens=5)).admitted(GENERATE, "k"):
        assert current_caller() == Caller("tenant:acme", 5)
    assert current_caller() == ANYBODY


def test_a_key_without_a_tenant_is_not_the_tenant_of_its_name() -> None:
    assert entry("k", name="acme").owner != entry("k", tenant="acme").owner


def test_max_concurrent_counts_answers_in_progress() -> None:
    keys = guard(entry("k", max_concurrent=1), entry("j", name="bob", max_concurrent=1))
    with keys.admitted(GENERATE, "k"):
        with pytest.raises(ResourceExhausted, match="alice has 1 answers in progress; max_concurrent is 1"):
            keys.admitted(GENERATE, "k").__enter__()
        with keys.admitted(ABORT, "k"), keys.admitted(TOKENIZE, "k"), keys.admitted(GENERATE, "j"):
            pass
    with pytest.raises(KeyError), keys.admitted(GENERATE, "k"):
        raise KeyError  # an answer that fails gives its place back
    with keys.admitted(GENERATE, "k"):
        pass


def test_requests_per_minute_come_back_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    clock = Clock()
    keys = guard(entry("k", requests_per_minute=3), clock=clock)

    def ask(method: str = GENERATE) -> float:
        try:
            with keys.admitted(method, "k"):
                return 0.0
        except ResourceExhausted as error:
            return error.retry_after_s

    assert [ask(), ask(TOKENIZE), ask()] == [0, 0, 0]
    assert ask() == pytest.approx(20)
    assert ask(ABORT) == 0
    clock.now += 15
    assert ask() == pytest.approx(5)
    clock.now += 5
    assert ask() == 0
    assert ask() == pytest.approx(20)
    clock.now += 3600  # an idle hour saves up no more than the limit
    assert [ask(), ask(), ask()] == [0, 0, 0]
    assert ask() > 0
