"""Precedence, refusals and the effective configuration."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import pytest
from pydantic import Field, SecretStr, ValidationError, model_validator

from outrider.config import Settings, describe, load
from outrider.errors import ConfigError


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class DemoSettings(Settings, env_prefix="OUTRIDER_DEMO_"):
    """Settings of a process made up for these tests."""

    model: str = Field(description="Model to serve, 100% of it.")
    kv_tokens: int | None = Field(None, gt=0, description="KV-cache slots.")
    verifiers: tuple[str, ...] = Field((), description="Addresses of verifiers.")
    fraction: float = Field(0.5, description="A share.")
    colour: Colour = Field(Colour.RED, description="Which colour.")
    remote: bool = Field(False, description="Whether to go far.")
    token: SecretStr | None = Field(None, min_length=4, description="A shared secret.")
    store: str = Field("memory://", description="Where state is kept.")

    @model_validator(mode="after")
    def _blue_is_far(self) -> DemoSettings:
        if self.colour is Colour.BLUE and not self.remote:
            raise ValueError("blue needs remote")
        return self


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTRIDER_CONFIG", raising=False)


def settings_of(*argv: str) -> DemoSettings:
    return load(DemoSettings, argv, "demo")


def test_flags_win_over_environment_over_file_over_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "demo.yaml"
    file.write_text("model: from-file\nkv_tokens: 1\nfraction: 0.25\n")
    monkeypatch.setenv("OUTRIDER_DEMO_KV_TOKENS", "2")
    monkeypatch.setenv("OUTRIDER_DEMO_MODEL", "from-environment")
    settings = settings_of("--config", str(file), "--model", "from-flag")
    assert (settings.model, settings.kv_tokens, settings.fraction) == ("from-flag", 2, 0.25)
    assert settings.colour is Colour.RED


def test_the_file_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "demo.yaml"
    file.write_text("model: m\nverifiers: [a:1, b:2]\ncolour: blue\nremote: true\n")
    monkeypatch.setenv("OUTRIDER_CONFIG", str(file))
    settings = settings_of()
    assert settings.verifiers == ("a:1", "b:2")
    assert settings.colour is Colour.BLUE
    assert settings.remote is True


@pytest.mark.parametrize("argv", [["--verifiers", "a:1, b:2"], ["--verifiers", "a:1", "--verifiers=b:2"]])
def test_lists_are_comma_separated_or_repeated(argv: list[str]) -> None:
    assert settings_of("--model", "m", *argv).verifiers == ("a:1", "b:2")


def test_lists_in_the_environment_are_comma_separated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_DEMO_VERIFIERS", "a:1,b:2,")
    assert settings_of("--model", "m").verifiers == ("a:1", "b:2")


def test_both_spellings_of_a_flag_and_both_states_of_a_switch() -> None:
    settings = settings_of("--model=m_x", "--kv_tokens=7", "--remote")
    assert (settings.model, settings.kv_tokens, settings.remote) == ("m_x", 7, True)
    assert settings_of("--model", "m", "--no-remote").remote is False


def test_an_empty_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_DEMO_KV_TOKENS", "")
    assert settings_of("--model", "m").kv_tokens is None


def test_case_30_an_unknown_flag_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"^unknown flag --kv-token; did you mean --kv-tokens\?$"):
        settings_of("--model", "m", "--kv-token", "3")
    with pytest.raises(ConfigError, match=r"^unexpected argument 'extra'$"):
        settings_of("--model", "m", "extra")


def test_case_30_an_abbreviated_flag_is_unknown() -> None:
    with pytest.raises(ConfigError, match="unknown flag --mod; did you mean --model"):
        settings_of("--mod", "m")


def test_case_30_an_unknown_variable_is_refused_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_DEMO_VERIFIER", "a:1")
    with pytest.raises(ConfigError, match="OUTRIDER_DEMO_VERIFIER; did you mean OUTRIDER_DEMO_VERIFIERS"):
        settings_of("--model", "m")


def test_case_30_an_unknown_key_in_the_file_is_refused_with_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "demo.yaml"
    file.write_text("model: m\ncolor: red\n17: x\n")
    with pytest.raises(ConfigError, match=r"color; did you mean colour\?; unknown setting in .*, 17$"):
        settings_of("--config", str(file))


def test_variables_kubernetes_makes_for_a_service_of_that_name_are_not_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_GRPC", "PORT", "PORT_50051_TCP", "PORT_50051_TCP_ADDR"):
        monkeypatch.setenv(f"OUTRIDER_DEMO_{name}", "tcp://10.0.0.1:50051")
    assert settings_of("--model", "m").model == "m"


def test_a_missing_setting_says_how_to_give_it() -> None:
    with pytest.raises(ConfigError, match=r"^model is required: set it with --model or OUTRIDER_DEMO_MODEL$"):
        settings_of()


def test_a_wrong_value_is_named_with_its_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "demo.yaml"
    file.write_text("fraction: much\n")
    monkeypatch.setenv("OUTRIDER_DEMO_COLOUR", "green")
    with pytest.raises(ConfigError) as caught:
        settings_of("--config", str(file), "--model", "m", "--kv-tokens", "-1")
    for part in (
        "--kv-tokens is '-1': Input should be greater than 0",
        "OUTRIDER_DEMO_COLOUR is 'green'",
        f"fraction in {file} is 'much'",
    ):
        assert part in str(caught.value)


def test_a_rule_over_several_settings_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"^blue needs remote$"):
        settings_of("--model", "m", "--colour", "blue")


def test_a_flag_without_its_value_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="--model: expected one argument"):
        settings_of("--model")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"[1, 2]", "no mapping"), (b"model: [", "not YAML"), (b"\xff\xfe\x00", "not YAML"), (None, "cannot read")],
)
def test_a_bad_file_is_named(tmp_path: Path, content: bytes | None, complaint: str) -> None:
    file = tmp_path / "demo.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=complaint) as caught:
        settings_of("--config", str(file))
    assert str(file) in str(caught.value)


def test_describe_shows_everything_but_secrets() -> None:
    settings = settings_of("--model", "m", "--token", "hunter2", "--store", "redis://user:hunter2@host:6379/0")
    line = describe(settings)
    assert "hunter2" not in line
    assert line.startswith('log_level="info" model="m" kv_tokens=null verifiers=[] fraction=0.5 colour="red"')
    assert "redis://***@host:6379/0" in line


def test_a_wrong_secret_is_not_repeated() -> None:
    with pytest.raises(ConfigError, match="--token is a secret") as caught:
        settings_of("--model", "m", "--token", "pw1")
    assert "pw1" not in str(caught.value)


def test_help_shows_description_default_and_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        settings_of("--help")
    assert exit_.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--model TEXT Model to serve, 100% of it. (required) [OUTRIDER_DEMO_MODEL]" in text
    assert "--colour {red,blue} Which colour. (default: red) [OUTRIDER_DEMO_COLOUR]" in text
    assert "--remote, --no-remote" in text


def test_values_made_from_keywords_ignore_the_environment_and_are_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_DEMO_KV_TOKENS", "2")
    settings = DemoSettings(model="m")
    assert settings.kv_tokens is None
    with pytest.raises(ValidationError):
        settings.model = "other"  # type: ignore[misc]
