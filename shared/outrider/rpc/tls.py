"""TLS of servers and channels. Files are checked at start and read anew without a restart; keys are never shown."""

from __future__ import annotations

import ssl
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import grpc

from outrider.errors import ConfigError
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ServerTls:
    """A server's PEM files. With `client_ca`, only clients whose certificate it signed are served (mutual TLS)."""

    cert: Path  # the server's certificate, then those between it and the CA
    key: Path  # unencrypted
    client_ca: Path | None = None

    def check(self) -> None:
        """Raise ConfigError naming the first setting whose file cannot be used."""
        _read(self.cert, self.key, self.client_ca, ca_setting="tls_client_ca")

    def credentials(self) -> grpc.ServerCredentials:
        """What a port is opened with; gRPC looks at the files again before each handshake. Raise ConfigError."""
        return _Reloading(self).credentials()


@dataclass(frozen=True, slots=True)
class ClientTls:
    """The PEM files of outgoing connections; `cert` and `key` only where the server asks who is calling."""

    ca: Path | None = None  # who signs servers' certificates; None: the CAs that gRPC brings
    cert: Path | None = None
    key: Path | None = None

    def check(self) -> None:
        """Raise ConfigError naming the first setting whose file cannot be used."""
        _read(self.cert, self.key, self.ca, ca_setting="tls_ca")

    def credentials(self) -> grpc.ChannelCredentials:
        """What a channel is opened with, from the files as they are now. Raise ConfigError."""
        files = _read(self.cert, self.key, self.ca, ca_setting="tls_ca")
        return grpc.ssl_channel_credentials(files.ca, files.key, files.chain)


@dataclass(frozen=True, slots=True, repr=False)
class _Files:
    """The files' contents. Without a repr, so that no traceback or log shows a key."""

    chain: bytes | None
    key: bytes | None
    ca: bytes | None


class _Reloading:
    """The configuration of a server's handshakes; `fetch` is called by gRPC before each, on a thread of its own."""

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self._stamps = self._look()
        self._first = self._configuration()

    def credentials(self) -> grpc.ServerCredentials:
        required = self._tls.client_ca is not None
        return grpc.dynamic_ssl_server_credentials(
            self._first,
            self.fetch,  # type: ignore[arg-type]  # None, for "as before", is missing in the stubs
            require_client_authentication=required,
        )

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """The new configuration, or None while the files are as they were, or of no use as they are."""
        stamps = self._look()
        if stamps == self._stamps:
            return None
        self._stamps = stamps
        try:
            configuration = self._configuration()
        except ConfigError as error:  # half of a pair has been replaced: the other half changes the stamps again
            log.warning("TLS files changed and cannot be used yet; the old ones stay in use: %s", error)
            return None
        log.info("TLS files changed: new connections use %s", self._tls.cert)
        return configuration

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        tls = self._tls
        files = _read(tls.cert, tls.key, tls.client_ca, ca_setting="tls_client_ca")
        assert files.key is not None
        assert files.chain is not None
        return grpc.ssl_server_certificate_configuration([(files.key, files.chain)], files.ca)

    def _look(self) -> tuple[object, ...]:
        return tuple(_stamp(path) for path in (self._tls.cert, self._tls.key, self._tls.client_ca) if path is not None)


def _read(cert: Path | None, key: Path | None, ca: Path | None, *, ca_setting: str) -> _Files:
    """The files, checked. Raise ConfigError naming setting and path, never what a file holds."""
    named = [("tls_cert", cert), ("tls_key", key), (ca_setting, ca)]
    contents = [_content(setting, path) for setting, path in named]
    if (cert is None) != (key is None):
        given, lacking = ("tls_cert", "tls_key") if key is None else ("tls_key", "tls_cert")
        raise ConfigError(f"{given} is set but {lacking} is not: they come together")
    if ca is not None:
        _check_certificates(ca_setting, ca)
    if cert is not None and key is not None:
        _check_certificates("tls_cert", cert)
        _check_pair(cert, key)
    # The checks read the files themselves: what they saw must be what is used.
    if contents != [_content(setting, path) for setting, path in named]:
        raise ConfigError(f"{_names(named)} changed while being read")
    return _Files(*contents)


def _content(setting: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{setting}: cannot read {path}: {error.strerror}") from None


def _check_certificates(setting: str, path: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except (ssl.SSLError, OSError):
        raise ConfigError(f"{setting}: {path} holds no PEM certificate") from None


def _check_pair(cert: Path, key: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password="")  # without a password OpenSSL would ask for one
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"tls_key: {key} is not the private key of the certificate in tls_cert, {cert}") from None
        raise ConfigError(f"tls_key: {key} holds no unencrypted PEM private key") from None
    except (OSError, ValueError):
        raise ConfigError(f"tls_key: {key} holds no unencrypted PEM private key") from None
    if key.stat().st_mode & stat.S_IROTH:
        log.warning("tls_key: every user of this machine may read %s; `chmod o= %s` ends that", key, key)


def _stamp(path: Path) -> object:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _names(named: Iterable[tuple[str, Path | None]]) -> str:
    return ", ".join(setting for setting, path in named if path is not None)
