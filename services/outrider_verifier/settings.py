"""Settings of the verifier process."""

from __future__ import annotations

from outrider.config.replica import ReplicaSettings


class VerifierSettings(ReplicaSettings, env_prefix="OUTRIDER_VERIFIER_"):
    """The verifier holds the target model and judges proposals."""
