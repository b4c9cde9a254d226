"""Settings of the draft process."""

from __future__ import annotations

from outrider.config.replica import ReplicaSettings


class DraftSettings(ReplicaSettings, env_prefix="OUTRIDER_DRAFT_"):
    """The draft holds a draft model and guesses tokens."""
