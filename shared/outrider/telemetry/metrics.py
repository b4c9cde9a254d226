"""Counters of committed work and levels of what is held, through OpenTelemetry's API.

Free until a process installs a meter provider. Every counter of tokens counts those that clients receive, never steps:
their sums equal the sums of the usage reports. A level is back where it was when nothing runs any more.
"""

from __future__ import annotations

from opentelemetry import metrics

_meter = metrics.get_meter("outrider")

requests = _meter.create_counter("outrider.requests", unit="{request}", description="Finished generations, by reason")
prompt_tokens = _meter.create_counter("outrider.tokens.prompt", unit="{token}", description="Prompt tokens")
cached_tokens = _meter.create_counter(
    "outrider.tokens.cached", unit="{token}", description="Prompt tokens whose KV was there already"
)
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
drafted_on = _meter.create_counter(
    "outrider.look_ahead.drafted_on",
    unit="{token}",
    description="Tokens that a draft drew before it was asked for them: drawn, and of these told later",
)
preemptions = _meter.create_counter(
    "outrider.preemptions", unit="{session}", description="Sessions that gave their KV up for another client's"
)
running = _meter.create_up_down_counter(
    "outrider.requests.running", unit="{request}", description="Generations that have a place now"
)
waiting = _meter.create_up_down_counter(
    "outrider.requests.waiting", unit="{request}", description="Generations that wait for a place now"
)
kv_blocks = _meter.create_up_down_counter(
    "outrider.kv.blocks", unit="{block}", description="KV blocks that a replica's open sessions hold now"
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
