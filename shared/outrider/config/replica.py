"""Settings that a draft and a verifier process share."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from outrider.config.model_location import ModelLocation
from outrider.config.registry import RegistrySettings
from outrider.config.tls import ServerTlsSettings


class ReplicaSettings(RegistrySettings, ServerTlsSettings):
    """One model on one device."""

    model: str = Field(description="Hugging Face hub id, directory, or .gguf file of the model.")
    layers: int | None = Field(None, ge=1, description="Keep only so many first decoder layers (an early-exit draft).")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Number format of the weights; auto is float32 on a CPU, the checkpoint's own on a GPU."
    )
    quantization: Literal["none", "int8", "int4"] = Field(
        "none",
        description="Hold the weights of linear layers in 8 or 4 bits, by torchao (the extra quantized); int4 needs "
        "CUDA and dtype bfloat16.",
    )
    device: str = Field("auto", description="cpu, cuda, cuda:1, ...; auto is cuda if there is one.")
    revision: str | None = Field(None, description="Revision of a hub model.")
    trust_remote_code: bool = Field(
        False, description="Run Python code that the model brings. Off: refuse such models."
    )
    threads: int | None = Field(None, ge=1, description="CPU threads for tensor work; default: as many as cores.")
    listen: str = Field("127.0.0.1:0", description="Address to serve on, host:port; port 0 picks a free one.")
    kv_tokens: int | None = Field(
        None, ge=16, description="Tokens the KV cache holds; default: what fits into memory_fraction."
    )
    memory_fraction: float = Field(
        0.85, gt=0, le=1, description="Part of the device memory left beside the weights that the KV cache may take."
    )
    block_size: int = Field(16, ge=1, le=1024, description="Tokens a KV block.")
    max_batch_tokens: int = Field(2048, ge=128, description="Most tokens in one forward pass.")
    max_proposal: int = Field(63, ge=1, le=127, description="Most proposed tokens in one round of one session.")
    prefix_cache: bool = Field(True, description="Reuse the KV of prompts that begin alike.")
    fused: bool = Field(
        True,
        description="On a GPU, run the model families that it knows on the fused path, which is faster.",
    )
    exact: bool = Field(
        True,
        description="On the fused path, give a token the same bits however it is computed. Off, passes of more than 64 "
        "tokens (prefill, large batches) take the library's matrix products, which are faster.",
    )
    lease_s: float = Field(300.0, gt=0, description="Seconds after which a session that nobody names is freed.")
    grace_s: float = Field(10.0, ge=0, description="Seconds that running work may take to end after SIGTERM.")
    advertise: str | None = Field(
        None,
        pattern=r"^\S+:\d{1,5}$",
        description="Address that coordinators connect to, host:port; default: the one served on.",
    )
    registry_ttl_s: float = Field(
        10.0, gt=0, le=3600, description="Seconds after its last heartbeat that a replica stays in the registry."
    )

    def check_files(self) -> None:
        """Raise ConfigError or ModelLoadError if a file that the settings name is not there."""
        super().check_files()
        ModelLocation.of(self.model)

    @model_validator(mode="after")
    def _can_be_found(self) -> Self:
        if self.registry_ttl_s < 2 * self.heartbeat_s:
            raise ValueError(
                f"registry_ttl_s is {self.registry_ttl_s:g}, but must be at least {2 * self.heartbeat_s:g}, "
                "twice heartbeat_s"
            )
        if self.registry is not None and self.advertise is None and self.listen.rpartition(":")[0] in _EVERYWHERE:
            raise ValueError(f"advertise is required with registry: nobody can connect to {self.listen}")
        return self


_EVERYWHERE = ("", "0.0.0.0", "[::]", "*")  # noqa: S104 (compared with, not bound to)
