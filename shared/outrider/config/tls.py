"""Settings about encryption that processes share."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from outrider.config.settings import Settings
from outrider.rpc.tls import ClientTls, ServerTls


class ServerTlsSettings(Settings):
    """A process that serves; unencrypted unless `tls_cert` and `tls_key` are set."""

    tls_cert: Path | None = Field(None, description="PEM file with this process's certificate; serve encrypted.")
    tls_key: Path | None = Field(None, description="PEM file with the private key of tls_cert, without a password.")
    tls_client_ca: Path | None = Field(
        None, description="PEM file with the CAs of callers' certificates; refuse callers without one (mutual TLS)."
    )

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            given, lacking = ("tls_cert", "tls_key") if self.tls_key is None else ("tls_key", "tls_cert")
            raise ValueError(f"{given} is set but {lacking} is not: they come together")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca is set but tls_cert is not: callers' certificates need an encrypted port")
        return self

    @property
    def server_tls(self) -> ServerTls | None:
        """The files to serve with, or None for an unencrypted port."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return ServerTls(self.tls_cert, self.tls_key, self.tls_client_ca)

    def check_files(self) -> None:
        """Raise ConfigError naming the first setting whose file cannot be used."""
        if self.server_tls is not None:
            self.server_tls.check()


class TlsSettings(ServerTlsSettings):
    """A process that serves and also calls other services; it shows them `tls_cert` if they ask who is calling."""

    tls_ca: Path | None = Field(
        None, description="PEM file with the CAs of the replicas' certificates; connect to them encrypted."
    )

    @property
    def client_tls(self) -> ClientTls | None:
        """The files to call with, or None for unencrypted connections."""
        return ClientTls(self.tls_ca, self.tls_cert, self.tls_key) if self.tls_ca is not None else None

    def check_files(self) -> None:
        """Raise ConfigError naming the first setting whose file cannot be used."""
        super().check_files()
        if self.client_tls is not None:
            self.client_tls.check()
