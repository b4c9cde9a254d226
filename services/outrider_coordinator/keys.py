"""The API keys a coordinator knows: from a file, read again when it changes, or from the environment."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, StringConstraints, TypeAdapter, ValidationError

from outrider.errors import ConfigError
from outrider.rpc import api_key
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)

CHECK_PERIOD_S = 1.0
"""How often the file is looked at, at most, in seconds."""

MAX_FILE_BYTES = 4 << 20

_Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


class ApiKey(BaseModel):
    """One entry of the key file: whose the key is, its hash, and what it may do. Absent limits are no limits."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    name: _Name
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]  # `outrider.rpc.api_key.digest`
    tenant: _Name | None = None  # keys of one tenant share cached prompts; None: a tenant of its own
    max_concurrent: int | None = Field(None, ge=1)  # answers in progress
    max_tokens: int | None = Field(None, ge=1)  # output tokens of a request
    requests_per_minute: int | None = Field(None, ge=1)  # of Generate and Tokenize

    @property
    def owner(self) -> str:
        """The tenant; its first letter keeps tenants apart from keys without one that have the same name."""
        return f"key:{self.name}" if self.tenant is None else f"tenant:{self.tenant}"


_ENTRIES = TypeAdapter(list[ApiKey])


def parse(text: str, origin: str) -> tuple[ApiKey, ...]:
    """The entries of a YAML or JSON list. Raise ConfigError naming origin, entry and field, but no value."""
    try:
        entries = _ENTRIES.validate_python(yaml.safe_load(text) or [])
    except (yaml.YAMLError, RecursionError):
        raise ConfigError(f"{origin} is not YAML or JSON") from None
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(origin, problem) for problem in error.errors())) from None
    for field in ("name", "sha256"):
        values = [getattr(entry, field) for entry in entries]
        if len(set(values)) < len(values):
            raise ConfigError(f"{origin}: two entries have the same {field}")
    if not entries:
        log.warning("%s holds no key: nobody is served", origin)
    return tuple(entries)


def _explain(origin: str, problem: object) -> str:
    assert isinstance(problem, dict)
    place = ".".join(str(part) for part in problem["loc"])
    return f"{origin}: {place or 'its top level'}: {problem['msg']}"


def find(entries: Sequence[ApiKey], key: str) -> ApiKey | None:
    """The entry of a key. Every entry is compared, each in constant time: how long it takes tells nothing."""
    digest = api_key.digest(key)
    found = None
    for entry in entries:
        if hmac.compare_digest(entry.sha256, digest):
            found = entry
    return found


def known_keys(file: Path | None, text: SecretStr | None) -> Callable[[], Sequence[ApiKey]] | None:
    """Gives the keys in force at each call; None where there are to be no keys. Raise ConfigError."""
    if file is not None and text is not None:
        raise ConfigError("api_keys_file and api_keys are both set: one of them holds the keys")
    if file is not None:
        return KeyFile(file)
    if text is not None:
        entries = parse(text.get_secret_value(), "api_keys")
        return lambda: entries
    return None


class KeyFile:
    """The keys of a file. What cannot be read at start is a ConfigError; later the old keys stay in force."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._stamp = self._look()
        self._entries = self._read()
        self._checked = clock()

    def __call__(self) -> tuple[ApiKey, ...]:
        """The keys in force now."""
        now = self._clock()
        if now - self._checked >= CHECK_PERIOD_S:
            self._checked = now
            self._refresh()
        return self._entries

    def _refresh(self) -> None:
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._entries = self._read()
        except ConfigError as error:
            log.error("the API keys changed and cannot be used; the old ones stay in force: %s", error)
        else:
            log.info("%d API keys are in force", len(self._entries))

    def _read(self) -> tuple[ApiKey, ...]:
        origin = f"api_keys_file {self._path}"
        try:
            with self._path.open(encoding="utf-8") as file:
                text = file.read(MAX_FILE_BYTES + 1)
        except UnicodeDecodeError:
            raise ConfigError(f"{origin} is not YAML or JSON") from None
        except OSError as error:
            raise ConfigError(f"{origin} cannot be read: {error.strerror}") from None
        if len(text) > MAX_FILE_BYTES:
            raise ConfigError(f"{origin} is more than {MAX_FILE_BYTES} characters long")
        return parse(text, origin)

    def _look(self) -> object:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size
