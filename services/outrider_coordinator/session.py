"""The state of one generation: the committed tokens, what was emitted of them, and the counts. No I/O."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from outrider.acceptance.accept import accept
from outrider.acceptance.proposal import Outcome, Proposal, RowLogprobs, Source, Verdict
from outrider.acceptance.stopping import Detokenizer, Emission, Finish, Stopper
from outrider_coordinator.conversation import name_of
from outrider_coordinator.request import Request


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The target's unprocessed logprob of one emitted token, and of the likeliest ones at its place."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Delta(NamedTuple):
    """What one round adds to the answer. A tuple, which is made faster."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    accepted: int = 0  # proposed tokens among them


@dataclass(slots=True)
class SourceCounts:
    """What came from one source of guesses."""

    rounds: int = 0
    proposed: int = 0  # places that something was proposed for: the length of a chain, the depth of a tree
    accepted: int = 0
    siblings: int = 0  # further tokens for the same places


@dataclass(slots=True)
class Counts:
    """What a generation did. Every count ends with the last emitted token, as usage does."""

    rounds: int = 0
    by_source: dict[Source, SourceCounts] = field(default_factory=dict)  # of rounds with a proposal
    lengths: Counter[tuple[Source, int]] = field(default_factory=Counter)  # rounds, by source and proposed tokens
    cached_tokens: int = 0
    wire_bytes: int = 0
    look_ups: int = 0  # rounds that something had been drafted ahead for
    hits: int = 0  # those whose outcome was foreseen
    drafted_ahead: int = 0  # tokens, most of them for outcomes that did not come

    @property
    def proposed(self) -> int:
        """Proposed tokens, one a place."""
        return sum(of.proposed for of in self.by_source.values())

    @property
    def siblings(self) -> int:
        """Tokens proposed beside those, for the same places."""
        return sum(of.siblings for of in self.by_source.values())

    @property
    def accepted(self) -> int:
        """Proposed tokens that stand, siblings included."""
        return sum(of.accepted for of in self.by_source.values())

    @property
    def plain_rounds(self) -> int:
        """Rounds without a proposal."""
        return self.rounds - sum(of.rounds for of in self.by_source.values())

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / proposed; None where nothing was proposed."""
        return self.accepted / self.proposed if self.proposed else None


@dataclass(slots=True)
class Clock:
    """When things happened, in time.monotonic seconds."""

    arrived: float = field(default_factory=time.monotonic)
    admitted: float | None = None
    first_token: float | None = None


class Session:
    """One generation. `committed` is the only truth; replicas hold copies of it."""

    def __init__(self, number: int, request: Request, detokenizer: Detokenizer, *, keep_s: float = 0.0) -> None:
        """`number` is unique in this process and names the session on its replicas' streams.

        `keep_s`: seconds for which its replicas keep the KV for the conversation's next turn.
        """
        self.number = number
        self.keep_s = keep_s
        self.request = request
        self.committed: list[int] = list(request.prompt)
        self.counts = Counts()
        self.clock = Clock()
        self._stopper = Stopper(request.conditions, detokenizer, prompt_length=len(request.prompt))

    @property
    def conversation(self) -> str:
        """The name of the conversation that this is a turn of; empty: of none."""
        return name_of(self.request.tenant, self.request.session_id) if self.request.session_id else ""

    @property
    def finish(self) -> Finish | None:
        """Why the generation ended, once it has."""
        return self._stopper.finish

    @property
    def completion_tokens(self) -> int:
        """Tokens emitted so far."""
        return self._stopper.emitted

    @property
    def draft_budget(self) -> int:
        """Most tokens worth proposing now: a round emits one more than it accepts."""
        return self.draft_budget_after(0) or 0

    def node_budget_after(self, count: int) -> int:
        """Most tokens that a proposal may have on all its branches by then: what its replicas keep room for."""
        return self._stopper.remaining - count

    def draft_budget_after(self, count: int) -> int | None:
        """The same once the round in flight has committed `count` tokens; None if that ends the answer."""
        remaining = self._stopper.remaining - count
        return min(self.request.speculation.max_draft_tokens, remaining - 1) if remaining > 0 else None

    def commit(self, proposal: Proposal, verdict: Verdict) -> Delta:
        """Decide the round, take in the tokens that stand, and say what the client gets of them."""
        request = self.request
        outcome = accept(
            request.speculation.rule, proposal, verdict, seed=request.seed, base_length=len(self.committed)
        )
        emission = self._stopper.push(outcome.tokens(proposal.tree))
        self.committed.extend(emission.token_ids)
        accepted = min(len(outcome.accepted), len(emission.token_ids))
        self._count(proposal, accepted, emission)
        return Delta(emission.text, emission.token_ids, self._logprobs(outcome, emission, verdict), accepted)

    def abort(self) -> Delta:
        """End now; the text held back so far comes out."""
        return Delta(self._stopper.abort().text, (), ())

    def _count(self, proposal: Proposal, accepted: int, emission: Emission) -> None:
        emitted = len(emission.token_ids)
        self.counts.rounds += 1
        depth = proposal.tree.depth
        self.counts.lengths[proposal.source, depth] += 1
        if depth:
            of = self.counts.by_source.setdefault(proposal.source, SourceCounts())
            of.rounds += 1
            # What would stand after the end of the answer was never in question; what fell was. Of a tree one token a
            # place counts, for only one could stand.
            of.proposed += depth if emission.finish is None else min(depth, emitted)
            of.accepted += accepted
            of.siblings += len(proposal) - depth
        if emitted and self.clock.first_token is None:
            self.clock.first_token = time.monotonic()

    def _logprobs(self, outcome: Outcome, emission: Emission, verdict: Verdict) -> tuple[TokenLogprobs, ...]:
        if self.request.logprobs is None:
            return ()
        # The token after row r was chosen at row r: the root's row first, then each accepted node's.
        rows = (0, *(node + 1 for node in outcome.accepted))
        return tuple(
            _token_logprobs(token, verdict.logprobs[row], self.request.logprobs)
            for token, row in zip(emission.token_ids, rows, strict=False)
        )


def _token_logprobs(token: int, row: RowLogprobs, top: int) -> TokenLogprobs:
    pairs = tuple(zip(row.token_ids, row.logprobs, strict=True))
    return TokenLogprobs(token, dict(pairs)[token], pairs[:top])
