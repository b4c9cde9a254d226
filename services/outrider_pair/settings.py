"""Settings of the pair's process."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from outrider.config.replica import ReplicaSettings


class PairSettings(ReplicaSettings, env_prefix="OUTRIDER_PAIR_"):
    """The settings of a verifier, those of its draft under draft_; the draft has the others too."""

    draft_model: str | None = Field(None, description="The draft's model; default: the target's, see draft_layers.")
    draft_layers: int | None = Field(None, ge=1, description="Keep only so many first decoder layers of the draft.")
    draft_quantization: Literal["none", "int8", "int4"] = Field("none", description="As quantization, of the draft.")
    draft_listen: str = Field(
        "127.0.0.1:0", description="Address to serve the draft on, host:port; port 0: a free one."
    )
    draft_advertise: str | None = Field(
        None, pattern=r"^\S+:\d{1,5}$", description="As advertise, of the draft; default: the one served on."
    )
    draft_kv_tokens: int | None = Field(
        None, ge=16, description="Tokens the draft's KV cache holds; default: what fits into draft_memory_fraction."
    )
    draft_memory_fraction: float = Field(
        0.1, gt=0, lt=1, description="Part of the memory left beside the draft's weights that its KV cache may take; "
        "the target is loaded after it."
    )  # fmt: skip

    def draft(self) -> ReplicaSettings:
        """What a draft of its own would be given."""
        own = {name: getattr(self, f"draft_{name}") for name in _OWN}
        return self.model_copy(update=own | {"model": self.draft_model or self.model, "revision": self._draft_revision})

    @property
    def _draft_revision(self) -> str | None:
        return self.revision if self.draft_model is None else None


_OWN = ("layers", "quantization", "listen", "advertise", "kv_tokens", "memory_fraction")
