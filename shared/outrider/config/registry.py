"""Settings of every process that uses the registry."""

from __future__ import annotations

from pydantic import Field, SecretStr, field_validator

from outrider.config.settings import Settings
from outrider.errors import ConfigError
from outrider.routing.connection import RegistryConnection
from outrider.routing.redis_url import FORMS, parse


class RegistrySettings(Settings):
    """Where replicas and coordinators find each other. Without `registry` they know fixed addresses only."""

    registry: SecretStr | None = Field(
        None, description=f"Redis that replicas and coordinators share (docs/routing.md): {FORMS}."
    )
    registry_prefix: str = Field(
        "outrider",
        pattern=r"^[A-Za-z0-9_.:-]{1,64}$",
        description="First part of every key in the registry; one for each target that shares a Redis.",
    )
    registry_timeout_s: float = Field(0.5, gt=0, le=60, description="Longest wait for the registry, in seconds.")
    heartbeat_s: float = Field(
        2.0, gt=0, le=600, description="Seconds between a replica's heartbeats, and between a coordinator's looks."
    )

    @field_validator("registry", mode="after")
    @classmethod
    def _can_be_read(cls, registry: SecretStr | None) -> SecretStr | None:
        if registry is not None:
            try:
                parse(registry.get_secret_value())
            except ConfigError as error:
                raise ValueError(str(error)) from None
        return registry

    def connect_registry(self) -> RegistryConnection | None:
        """A connection to the registry, not tried yet; None without one. Call inside the event loop."""
        if self.registry is None:
            return None
        url = parse(self.registry.get_secret_value())
        return RegistryConnection(url, prefix=self.registry_prefix, timeout_s=self.registry_timeout_s)
