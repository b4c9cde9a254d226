"""The base of every process's settings, and how they are loaded, checked and described."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Any, Literal, TypeVar, get_origin

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from outrider.config.fields import is_secret
from outrider.config.flags import parse_flags
from outrider.config.layers import Layer, environment_layer, file_layer, flags_layer
from outrider.errors import ConfigError

CONFIG_VARIABLE = "OUTRIDER_CONFIG"

S = TypeVar("S", bound="Settings")


class Settings(BaseSettings):
    """A frozen value, made from keywords alone; only `load` looks at flags, environment and file.

    A process declares its own as `class VerifierSettings(Settings, env_prefix="OUTRIDER_VERIFIER_")`, with a
    `Field(description=...)` for each setting, which is its help text. Lists are written `a,b` outside of YAML.
    """

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, env_ignore_empty=True, enable_decoding=False, protected_namespaces=()
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severity that is logged."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Keywords only, so that making a value never depends on the environment."""
        return (init_settings,)

    @field_validator("*", mode="before")
    @classmethod
    def _split_lists(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[info.field_name or ""].annotation
        if get_origin(annotation) in (list, tuple) and isinstance(value, str):
            return [item.strip() for item in value.split(",") if item.strip()]
        return value


def load(settings: type[S], argv: Sequence[str], prog: str) -> S:
    """The settings of one process: flags (`argv`, without the program's name) > environment > YAML file > defaults.

    The file is what `--config` or OUTRIDER_CONFIG names. Raises ConfigError that names every unknown key, with the
    nearest known one, or every wrong value, with the place it came from. `--help` prints and exits.
    """
    flags = parse_flags(settings, argv, prog)
    path = flags.pop("config", None) or os.environ.get(CONFIG_VARIABLE)
    layers = [file_layer(settings, path)] if path else []
    layers += [environment_layer(settings), flags_layer(flags)]
    merged: dict[str, Any] = {}
    for layer in layers:
        merged |= layer.values
    try:
        return settings(**merged)
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(settings, problem, layers) for problem in error.errors())) from None


def describe(settings: Settings) -> str:
    """The effective configuration in one line for the log: `name=value`, values as JSON, secrets hidden."""
    values = settings.model_dump(mode="json")
    return " ".join(f"{name}={_without_passwords(json.dumps(value))}" for name, value in values.items())


def _explain(settings: type[Settings], problem: Any, layers: Sequence[Layer]) -> str:
    message = problem["msg"].removeprefix("Value error, ")
    if not problem["loc"]:
        return str(message)
    name = str(problem["loc"][0])
    if problem["type"] == "missing":
        places = f"{flags_layer({}).spell(name)} or {environment_layer(settings).spell(name)}"
        return f"{name} is required: set it with {places}"
    for layer in reversed(layers):
        if name in layer.values:
            hidden = is_secret(settings.model_fields[name])
            value = "a secret" if hidden else _without_passwords(repr(layer.values[name]))
            return f"{layer.spell(name)} is {value}: {message}"
    return f"{name}: {message}"


def _without_passwords(text: str) -> str:
    """`text` with the user:password part of every URL hidden."""
    return re.sub(r"(?<=://)[^/@\s\"']*@", "***@", text)
