"""The places settings come from: each yields values by field name, and knows how a field is spelled there."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic_settings import BaseSettings, EnvSettingsSource

from outrider.errors import ConfigError

# Kubernetes (and Docker links) describe a service `outrider-verifier` to every container in such variables.
_SERVICE_VARIABLE = re.compile(r"SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?")


@dataclass(frozen=True, slots=True)
class Layer:
    """Values by field name from one place, and the way that place writes a field's name."""

    values: Mapping[str, Any]
    spell: Callable[[str], str]


def flags_layer(flags: Mapping[str, Any]) -> Layer:
    """Parsed flags."""
    return Layer(flags, flag_name)


def environment_layer(settings: type[BaseSettings]) -> Layer:
    """The variables with the class's prefix; empty ones count as absent. Raises ConfigError for an unknown one."""
    prefix = settings.model_config.get("env_prefix", "").upper()

    def spell(name: str) -> str:
        return f"{prefix}{name}".upper()

    known = [spell(name) for name in settings.model_fields]
    variables = [name for name in os.environ if prefix and name.upper().startswith(prefix)]
    ours = [name for name in variables if not _SERVICE_VARIABLE.fullmatch(name.upper().removeprefix(prefix))]
    _refuse_unknown("environment variable", [name for name in ours if name.upper() not in known], known)
    return Layer(EnvSettingsSource(settings)(), spell)


def file_layer(settings: type[BaseSettings], path: str) -> Layer:
    """The YAML file at `path`, a mapping of field names. Raises ConfigError if it is missing, malformed, or unknown."""
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file {path} is not YAML: {error}") from error
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(f"the configuration file {path} holds no mapping of settings at its top")
    known = list(settings.model_fields)
    _refuse_unknown(f"setting in {path},", [str(name) for name in values if name not in known], known)
    return Layer(values, lambda name: f"{name} in {path}")


def flag_name(field_name: str) -> str:
    """`kv_tokens` as `--kv-tokens`."""
    return "--" + field_name.replace("_", "-")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint at the nearest known name, or "" if none is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def _refuse_unknown(what: str, unknown: Iterable[str], known: Iterable[str]) -> None:
    complaints = [f"unknown {what} {name}{did_you_mean(name, known)}" for name in unknown]
    if complaints:
        raise ConfigError("; ".join(complaints))
