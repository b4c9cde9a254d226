"""Settings that a draft and a verifier process share."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from outrider.config.tls import ServerTlsSettings


class ReplicaSettings(ServerTlsSettings):
    """One model on one device."""

    model: str = Field(description="Hugging Face hub id, directory, or .gguf file of the model.")
    layers: int | None = Field(None, ge=1, description="Keep only so many first decoder layers (an early-exit draft).")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Number format of the weights; auto is float32 on a CPU, the checkpoint's own on a GPU."
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
    lease_s: float = Field(300.0, gt=0, description="Seconds after which a session that nobody names is freed.")
    grace_s: float = Field(10.0, ge=0, description="Seconds that running work may take to end after SIGTERM.")
