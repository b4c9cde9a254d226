"""The items of the draft and verifier streams as plain values; `outrider.rpc.convert` maps them to protobuf and back.

Every item carries its `Key`: replies echo it, and a reply whose key is not the one waited for is stale and dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from outrider.acceptance.params import Rule, SamplingParams
from outrider.acceptance.proposal import NO_PROPOSAL, Outcome, Proposal, Verdict
from outrider.acceptance.tally import NO_TALLY, Tally
from outrider.acceptance.tree import ROOT, TokenTree

PROTOCOL_VERSION = 3

MAX_ROUNDS = 64
"""Most rounds that one follow-up is for."""


class Key(NamedTuple):
    """Which session, which opening of it, and how many tokens were committed when the item was made.

    A tuple, since every reply is looked up by it: a dataclass takes three times as long to hash and compare.
    """

    session: int
    epoch: int
    base_length: int


@dataclass(frozen=True, slots=True)
class Open:
    """(Re)open a session from its whole history. `key.base_length == len(tokens)`."""

    key: Key
    tokens: tuple[int, ...]
    prompt_length: int
    max_length: int  # most tokens the session will ever hold, in-flight ones included
    params: SamplingParams
    rule: Rule
    seed: int  # unsigned 64 bits
    logprobs: int | None = None
    stop_token_ids: tuple[int, ...] = ()  # what min_tokens suppresses
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class Advance:
    """The first `keep` committed tokens stay, then `append` follows: `keep + len(append) == key.base_length`."""

    key: Key
    keep: int
    append: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DraftFirst:
    """What a verifier that has a draft of its own is to draft and then to verify; `siblings` as in `Propose`.

    `vote`: how deep the step should be drafted for; `max_tokens` is then the most, if others want more.
    """

    max_tokens: int
    siblings: tuple[int, ...] = ()
    vote: int | None = None


@dataclass(frozen=True, slots=True)
class Verify:
    """Advance, then run the target over the last committed token and every node of the proposal.

    With `draft_first` the replica makes the proposal by itself; the item has none.
    """

    key: Key
    keep: int
    append: tuple[int, ...]
    proposal: Proposal
    draft_first: DraftFirst | None = None


@dataclass(frozen=True, slots=True)
class Foreseen:
    """The proposal for one outcome: the accepted path ends with `node` (`ROOT`: it is empty), `next_token` follows."""

    node: int
    next_token: int
    proposal: Proposal


class FollowUp(NamedTuple):
    """What the verifier begins by itself once the round of `key` has ended; the coordinator decides the same.

    A foreseen outcome is followed by a round with its proposal, another one by a round of what the replica drafts by
    itself if there is `draft_first`, or by a plain round if `plainly`, else by nothing. The round begun so answers with
    its own base length. The same holds for the one after it, and so on, for `rounds` in all.

    With `extends` it is about what follows the rounds of the orders before, the first of which had this key.

    A tuple, which is made faster: there are as many as rounds.
    """

    key: Key
    foreseen: tuple[Foreseen, ...]
    plainly: bool
    draft_first: DraftFirst | None = None
    rounds: int = 1  # more only where nothing is foreseen; at most `MAX_ROUNDS`
    extends: bool = False  # only where nothing is foreseen

    def after(self, outcome: Outcome) -> Proposal | DraftFirst | None:
        """What the round that follows this outcome verifies; None: none follows."""
        node = outcome.accepted[-1] if outcome.accepted else ROOT
        for each in self.foreseen:
            if (each.node, each.next_token) == (node, outcome.next_token):
                return each.proposal
        return self.draft_first or (NO_PROPOSAL if self.plainly else None)

    @property
    def vote(self) -> int | None:
        """For how deep a guess it votes, whatever the outcome; None: that depends on it, or there is no vote."""
        return None if self.draft_first is None or self.foreseen else self.draft_first.vote

    @property
    def is_plain(self) -> bool:
        """True if a plain round follows whatever outcome."""
        return self.plainly and self.draft_first is None and not self.foreseen

    def rest(self) -> tuple[FollowUp, ...]:
        """What is left of it once one more round has begun by it."""
        if self.rounds <= 1:
            return ()
        return (FollowUp(self.key, (), self.plainly, self.draft_first, self.rounds - 1),)


@dataclass(frozen=True, slots=True)
class Propose:
    """Advance, then draft up to `max_tokens` tokens; beside the first `siblings[0]` more for its place, and so on."""

    key: Key
    keep: int
    append: tuple[int, ...]
    max_tokens: int
    siblings: tuple[int, ...] = ()  # at most as many as max_tokens; only under match


@dataclass(frozen=True, slots=True)
class DraftAhead:
    """Advance, then draft up to `max_tokens` tokens for the likely outcomes of the round in flight.

    `branches[n + 1]`: how many next tokens to foresee where the accepted path ends with node n; `[0]`: where none does.
    """

    key: Key
    keep: int
    append: tuple[int, ...]
    in_flight: TokenTree  # what is being verified
    max_tokens: int
    branches: tuple[int, ...]  # [len(in_flight) + 1]
    siblings: tuple[int, ...] = ()  # of each proposal, as in `Propose`


@dataclass(frozen=True, slots=True)
class Close:
    """Forget the session; its full blocks stay in the prefix cache.

    With `keep_s` the blocks, the last one too, are evicted after those of other sessions for so many seconds.
    """

    key: Key
    keep_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Opened:
    """The session is admitted; `cached_tokens` of its history needed no computing."""

    key: Key
    cached_tokens: int


class Step(NamedTuple):
    """The pass that verified a round, with those of the sessions that shared it."""

    rows: int = 0  # one a session, one for each proposed token, and those of others' prompts
    sessions: int = 0
    draft_microseconds: int = 0  # how long the replica drafted for them by itself beforehand
    draft_depth: int = 0  # most tokens, one after another, that it drafted for one of them
    draft_prompt_rows: int = 0  # of the prompts that its draft read meanwhile
    waited: bool = False  # it began late, when the host knew what came of the one before, which is not the rule
    tally: Tally = NO_TALLY  # of the replica's own guesses, of all sessions, since it last told


NO_STEP = Step()


class Verified(NamedTuple):
    """The verdict of one round; with what the replica has drafted for it by itself, if it was told to."""

    key: Key
    verdict: Verdict
    drafted: Proposal = NO_PROPOSAL
    step: Step = NO_STEP


@dataclass(frozen=True, slots=True)
class Drafted:
    """A proposal; possibly `NO_PROPOSAL`."""

    key: Key
    proposal: Proposal


@dataclass(frozen=True, slots=True)
class DraftedAhead:
    """Proposals drafted ahead, the likeliest next token of each node first."""

    key: Key
    foreseen: tuple[Foreseen, ...]


@dataclass(frozen=True, slots=True)
class Closed:
    """The session is gone."""

    key: Key


class FailureCode(StrEnum):
    """Why one item failed, while its stream and its neighbours go on."""

    UNKNOWN_SESSION = "unknown_session"
    STALE_EPOCH = "stale_epoch"
    BASE_LENGTH = "base_length"
    INVALID_ARGUMENT = "invalid_argument"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    CONTEXT_LENGTH = "context_length"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Failed:
    """The item with this key failed."""

    key: Key
    code: FailureCode
    message: str


VerifierRequest = Open | Verify | FollowUp | Advance | Close
VerifierReply = Opened | Verified | Closed | Failed
DraftRequest = Open | Propose | DraftAhead | Advance | Close
DraftReply = Opened | Drafted | DraftedAhead | Closed | Failed


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a replica serves."""

    name: str
    architecture: str
    parameters: int
    dtype: str
    device: str
    context_length: int
    vocabulary_fingerprint: str
    vocabulary_size: int
    eos_token_ids: tuple[int, ...]
    hardware: str = ""  # what computes: replicas that name the same share it
