"""Settings of the coordinator process."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator

from outrider.acceptance.params import Rule
from outrider.config.registry import RegistrySettings
from outrider.config.tls import TlsSettings
from outrider_coordinator.request import MAX_DRAFT_TOKENS, DrafterKind, Limits, LookAheadMode, Speculation, TreeMode


class CoordinatorSettings(RegistrySettings, TlsSettings, env_prefix="OUTRIDER_COORDINATOR_"):
    """The coordinator owns each generation, decides which guessed tokens stand, and streams them to the client."""

    listen: str = Field(
        "127.0.0.1:7400", description="Address to serve clients on, host:port; port 0 picks a free one."
    )
    verifiers: list[str] = Field(
        [], description="Addresses of verifiers, host:port, beside those that the registry lists."
    )
    drafts: list[str] = Field([], description="Addresses of drafts, host:port, beside those that the registry lists.")
    binding_ttl_s: float = Field(
        30.0, ge=1, le=3600, description="Seconds after which the bindings of a coordinator that died are forgotten."
    )
    conversation_lease_s: float = Field(
        300.0,
        ge=0,
        le=86_400,
        description="Seconds that a conversation's KV is kept for its next turn while other idle KV can be evicted.",
    )
    drafter: DrafterKind = Field(
        DrafterKind.AUTO,
        description="Where guesses come from unless a request says otherwise; auto: what is expected to be fastest.",
    )
    max_draft_tokens: int = Field(
        4, ge=0, le=MAX_DRAFT_TOKENS, description="Longest guess per round; 0 switches it off."
    )
    fixed_length: bool = Field(
        False, description="Guess that much in every round, whether it pays or not, unless a request says otherwise."
    )
    fallback_window: int = Field(
        200, ge=1, description="Guessed tokens by which a request's guesses are judged; see fallback_acceptance."
    )
    fallback_acceptance: float = Field(
        0.5, ge=0, le=1, description="A request of whose tried tokens fewer stand goes on without guesses; 0: never."
    )
    trees: TreeMode = Field(
        TreeMode.AUTO,
        description="Propose the draft's next choices beside its guess, under match; auto: where that is expected to "
        "be faster; on: max_siblings in every guess.",
    )
    max_siblings: int = Field(8, ge=0, le=63, description="Most tokens beside the guess of a round; 0: none.")
    look_ahead: LookAheadMode = Field(
        LookAheadMode.AUTO,
        description="Draft for the likely outcomes of a round while it is verified; auto: if the draft's device is "
        "none of a verifier's.",
    )
    look_ahead_branches: int = Field(8, ge=1, le=63, description="Most outcomes of a round that are drafted ahead for.")
    rule: Rule = Field(
        Rule.MATCH,
        description="How guesses are accepted; under match the answer depends on target, request and seed alone.",
    )
    record_to: Path | None = Field(
        None, description="File that answers are recorded to, prompts included, for `outrider distill --from-log`."
    )
    record_share: float = Field(0.1, gt=0, le=1, description="Part of the answers that record_to gets.")
    record_max_mb: int = Field(64, ge=1, description="Size at which record_to stops to grow, in MB.")
    api_keys_file: Path | None = Field(
        None, description="YAML or JSON file of API keys, read again when it changes; without keys everybody is served."
    )
    api_keys: SecretStr | None = Field(None, description="The text of such a file, in its place.")
    max_prompt_bytes: int = Field(1 << 20, ge=1, description="Most bytes of a prompt's text.")
    max_prompt_tokens: int | None = Field(
        None, ge=1, description="Most tokens of a prompt; default: what the target's context holds."
    )
    max_output_tokens: int | None = Field(
        None, ge=1, description="Most output tokens that a request may ask for; default: no limit of its own."
    )
    max_message_mb: int = Field(8, ge=1, le=32, description="Largest message that a client may send, in MiB.")
    max_streams: int = Field(256, ge=1, description="Calls in progress on one client connection; more wait there.")
    default_max_tokens: int = Field(1024, ge=1, description="Most output tokens of a request that sets no limit.")
    max_sessions: int = Field(1024, ge=1, description="Generations that run at the same time.")
    max_waiting: int = Field(1024, ge=0, description="Requests that wait for one to end; more are refused.")
    max_waiting_each: int = Field(
        256, ge=0, description="Those of one client: one API key's tenant or, without keys, one machine."
    )
    queue_timeout_s: float = Field(
        30.0, ge=0, description="Longest wait in that queue, and then for room in a verifier's KV cache, in seconds."
    )
    verify_timeout_s: float = Field(
        120.0, gt=0, description="Longest wait for a verdict, prefill included, in seconds."
    )
    failover_s: float = Field(30.0, gt=0, description="Longest time a session waits for a verifier, in seconds.")
    replica_silence_s: float = Field(
        15.0, ge=0.1, le=600, description="Seconds without a sign of life after which a replica counts as lost."
    )
    draft_timeout_s: float = Field(2.0, gt=0, description="Longest wait for a model's guess, in seconds.")
    draft_retry_s: float = Field(5.0, gt=0, description="Pause before a lost or late draft is asked again, in seconds.")
    start_timeout_s: float = Field(300.0, gt=0, description="Longest wait for the first verifier at start, in seconds.")
    grace_s: float = Field(30.0, ge=0, description="Seconds that running generations may take to end after SIGTERM.")

    @model_validator(mode="after")
    def _can_find_replicas(self) -> Self:
        if not self.verifiers and self.registry is None:
            raise ValueError("verifiers is required without registry: set it with --verifiers")
        return self

    @property
    def limits(self) -> Limits:
        """How much a request may ask for."""
        return Limits(self.max_prompt_bytes, self.max_prompt_tokens, self.max_output_tokens)

    @property
    def speculation(self) -> Speculation:
        """What a request without wishes gets."""
        return Speculation(self.drafter, self.max_draft_tokens, self.rule, self.fixed_length)
