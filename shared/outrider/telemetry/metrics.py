"""Counters of committed work, through OpenTelemetry's API: free until a process installs a meter provider.

Every counter counts tokens that clients receive, never steps: their sums equal the sums of the usage reports.
"""

from __future__ import annotations

from opentelemetry import metrics

_meter = metrics.get_meter("outrider")

requests = _meter.create_counter("outrider.requests", unit="{request}", description="Finished generations, by reason")
prompt_tokens = _meter.create_counter("outrider.tokens.prompt", unit="{token}", description="Prompt tokens")
completion_tokens = _meter.create_counter("outrider.tokens.completion", unit="{token}", description="Emitted tokens")
proposed_tokens = _meter.create_counter("outrider.tokens.proposed", unit="{token}", description="Proposed tokens")
accepted_tokens = _meter.create_counter(
    "outrider.tokens.accepted", unit="{token}", description="Proposed tokens that stand and were emitted"
)
sibling_tokens = _meter.create_counter(
    "outrider.tokens.siblings", unit="{token}", description="Tokens proposed for the same places as others"
)
rounds = _meter.create_counter("outrider.rounds", unit="{round}", description="Verified rounds")
guess_lengths = _meter.create_counter(
    "outrider.guess_lengths", unit="{round}", description="Verified rounds, by source and length of the guess"
)
fallbacks = _meter.create_counter(
    "outrider.fallbacks", unit="{fallback}", description="Times a request went on without its guesses, by cause"
)
look_ups = _meter.create_counter(
    "outrider.look_ahead.lookups", unit="{round}", description="Rounds that had been drafted ahead for: hit or miss"
)
drafted_ahead = _meter.create_counter(
    "outrider.look_ahead.tokens", unit="{token}", description="Tokens drafted ahead, used or not"
)
preemptions = _meter.create_counter(
    "outrider.preemptions", unit="{session}", description="Sessions that gave their KV up for another client's"
)
registry_up = _meter.create_gauge("outrider.registry.up", description="1 while the registry answers, 0 while not")
registry_failures = _meter.create_counter(
    "outrider.registry.failures", unit="{failure}", description="Scripts that the registry did not run"
)
registered_replicas = _meter.create_gauge(
    "outrider.registry.replicas", unit="{replica}", description="Replicas that a coordinator knows of, by role"
)
bindings = _meter.create_counter(
    "outrider.bindings", unit="{binding}", description="Sessions bound to a verifier through the registry, by outcome"
)
