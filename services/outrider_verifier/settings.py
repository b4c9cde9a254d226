"""Settings of the verifier process."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from outrider.config.model_location import ModelLocation
from outrider.config.replica import ReplicaSettings


class VerifierSettings(ReplicaSettings, env_prefix="OUTRIDER_VERIFIER_"):
    """The verifier holds the target model and judges proposals. It may have a draft of its own, on its device."""

    draft_model: str | None = Field(
        None, description="A draft in this process, for a GPU that holds both; default: the target's, if draft_layers."
    )
    draft_layers: int | None = Field(
        None, ge=1, description="Keep only so many first decoder layers of that draft; without both there is none."
    )
    draft_quantization: Literal["none", "int8", "int4"] = Field("none", description="As quantization, of that draft.")
    draft_kv_tokens: int | None = Field(
        None, ge=16, description="Tokens that draft's KV cache holds; default: what fits into draft_memory_fraction."
    )
    draft_memory_fraction: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="Part of the memory left beside that draft's weights that its KV cache may take; the target, which "
        "is loaded after it, gets memory_fraction of what is left then.",
    )

    def check_files(self) -> None:
        """Raise ConfigError or ModelLoadError if a file that the settings name is not there."""
        super().check_files()
        if self.draft_model is not None:
            ModelLocation.of(self.draft_model, "draft_model")

    def own_draft(self) -> ReplicaSettings | None:
        """What a draft service of its own would be given; None: there is no draft here."""
        if self.draft_model is None and self.draft_layers is None:
            return None
        return self.model_copy(
            update={
                "model": self.draft_model or self.model,
                "revision": self.revision if self.draft_model is None else None,
                "layers": self.draft_layers,
                "quantization": self.draft_quantization,
                "kv_tokens": self.draft_kv_tokens,
                "memory_fraction": self.draft_memory_fraction,
            }
        )
