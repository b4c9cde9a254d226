"""The registry's URL: which Redis, in which form. The only file that knows redis-py's ways of connecting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from outrider.errors import ConfigError

FORMS = (
    "redis://[user:password@]host[:port][/db], redis+sentinel://[user:password@]host[:port],host[:port]/service[/db] "
    "or redis+cluster://[user:password@]host[:port],host[:port]; rediss instead of redis for TLS"
)
_TLS_FILES = {"ca_file": "ssl_ca_certs", "cert_file": "ssl_certfile", "key_file": "ssl_keyfile"}


class Form(StrEnum):
    """How a Redis is reached."""

    SINGLE = "single"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


_SCHEMES = {
    f"redis{tls}{ending}": (form, bool(tls))
    for form, ending in ((Form.SINGLE, ""), (Form.SENTINEL, "+sentinel"), (Form.CLUSTER, "+cluster"))
    for tls in ("", "s")
}
_DEFAULT_PORTS = {Form.SINGLE: 6379, Form.SENTINEL: 26379, Form.CLUSTER: 6379}


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A registry's address, taken apart. `str` of it has no password in it."""

    form: Form
    tls: bool
    hosts: tuple[tuple[str, int], ...]
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    service: str = ""  # the name that sentinels know the servers by
    db: int = 0
    tls_files: Mapping[str, str] = field(default_factory=dict)  # redis-py's name of the option: path
    sentinel_password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        scheme = next(scheme for scheme, meaning in _SCHEMES.items() if meaning == (self.form, self.tls))
        hosts = ",".join(f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in self.hosts)
        parts = [part for part in (self.service, str(self.db) if self.db else "") if part]
        return f"{scheme}://{'/'.join([hosts, *parts])}"


def parse(text: str) -> RedisUrl:
    """Take a URL apart. Raise ConfigError that names the part, its value and what is allowed, never a password."""
    url = _split(text)
    form, tls = _SCHEMES[url.scheme]
    credentials, _, hosts = url.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    service, db = _path(url.path, form)
    options = _options(url.query, form, tls)
    return RedisUrl(
        form=form,
        tls=tls,
        hosts=tuple(_host(host, form) for host in hosts.split(",")),
        username=unquote(username) or None,
        password=unquote(password) or None,
        service=service,
        db=db,
        tls_files={_TLS_FILES[name]: value for name, value in options.items() if name in _TLS_FILES},
        sentinel_password=options.get("sentinel_password"),
    )


def connect(url: RedisUrl, *, timeout_s: float) -> Redis | RedisCluster:
    """A client, not connected yet. No command takes longer than a few `timeout_s` seconds."""
    common: dict[str, Any] = {
        "username": url.username,
        "password": url.password,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "decode_responses": True,
        # One more try at once: a connection that was idle while the server restarted is found dead only by using it.
        "retry": Retry(NoBackoff(), 1),
    }
    tls: dict[str, Any] = {"ssl": True, **url.tls_files} if url.tls else {}
    if url.form is Form.CLUSTER:
        nodes = [ClusterNode(host, port) for host, port in url.hosts]
        return RedisCluster(startup_nodes=nodes, **common, **tls)
    if url.form is Form.SENTINEL:
        own: dict[str, Any] = {
            "password": url.sentinel_password,
            "socket_timeout": timeout_s / len(url.hosts),
            "socket_connect_timeout": timeout_s / len(url.hosts),
            "retry": Retry(NoBackoff(), 0),  # a dead sentinel must not use up the time of the next one
        }
        sentinel = Sentinel(list(url.hosts), sentinel_kwargs=own | tls, **common, **tls)  # type: ignore[no-untyped-call]
        master: Redis = sentinel.master_for(url.service, db=url.db)
        return master
    ((host, port),) = url.hosts
    return Redis(host=host, port=port, db=url.db, **common, **tls)


def _split(text: str) -> SplitResult:
    try:
        url = urlsplit(text)
    except ValueError:  # such as an unclosed bracket; its text may quote the password
        raise _wrong("", "unreadable", FORMS) from None
    if url.scheme not in _SCHEMES:
        raise _wrong(" scheme", url.scheme or "missing", FORMS)
    if "@" in url.path + url.query + url.fragment or url.fragment:
        raise _wrong("", "unreadable", "a URL whose user and password have /, ?, # and @ percent-encoded")
    return url


def _host(text: str, form: Form) -> tuple[str, int]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        colon, port = rest[:1], rest[1:]
        if not bracket or (rest and colon != ":"):
            raise _wrong(" host", text, "[IPv6 address] or [IPv6 address]:port")
    else:
        host, colon, port = text.partition(":")
    if not host:
        raise _wrong(" host", "missing", "host or host:port")
    if not colon:
        return host, _DEFAULT_PORTS[form]
    if not (port.isascii() and port.isdigit()):  # not quoted: with the @ forgotten it is a password
        raise _wrong(" port", "not a number", "a number from 1 to 65535")
    if not 0 < int(port) < 65536:
        raise _wrong(" port", port, "a number from 1 to 65535")
    return host, int(port)


def _path(path: str, form: Form) -> tuple[str, int]:
    """The service's name and the database's number."""
    parts = [unquote(part) for part in path.split("/") if part]
    service = ""
    if form is Form.SENTINEL:
        if not parts:
            raise _wrong(
                " service", "missing", "the name that the sentinels know, as in redis+sentinel://host:port/name"
            )
        service = parts.pop(0)
    if form is Form.CLUSTER and parts:
        raise _wrong(" path", path, "empty: a cluster has one database")
    if len(parts) > 1:
        raise _wrong(" path", path, "a database number alone")
    db = parts[0] if parts else "0"
    if not (db.isascii() and db.isdigit()):
        raise _wrong(" database", db, "a number from 0")
    return service, int(db)


def _options(query: str, form: Form, tls: bool) -> dict[str, str]:
    allowed = [*(_TLS_FILES if tls else ()), *(["sentinel_password"] if form is Form.SENTINEL else ())]
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name, value in options.items():
        if name not in allowed:
            raise _wrong(" option", name, f"one of {', '.join(allowed)}" if allowed else "left out: this form has none")
        if name in _TLS_FILES and not Path(value).is_file():
            raise _wrong(f" {name}", value or "missing", "a file that exists")
    return options


def _wrong(part: str, value: str, allowed: str) -> ConfigError:
    return ConfigError(f"registry{part} is {value}, but must be {allowed}")
