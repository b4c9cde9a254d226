"""The draft's rounds: guess tokens one after another, all sessions side by side, now or ahead of the verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from itertools import accumulate

import torch

from outrider.acceptance.guesses import validate_wish
from outrider.acceptance.proposal import NO_PROPOSAL
from outrider.acceptance.tree import validate_tree
from outrider.engine.batch import Feed
from outrider.engine.chains import NOBODY, Ahead, ChainsUnderWay, stem_of
from outrider.engine.core import Launched, ReplicaCore
from outrider.engine.drawn import Drawn
from outrider.engine.engine import Engine
from outrider.engine.foresight import Foresight
from outrider.engine.grower import Grower, replies_of, stop
from outrider.engine.guess import Drafting, DraftSession, Growing, Guess
from outrider.engine.laps import Span
from outrider.engine.schedule import Demand
from outrider.engine.sequence import NO_TREE
from outrider.engine.session_rows import by_session, of_sessions
from outrider.engine.sessions import ItemRefused, ReplicaPeer, Reply, Request
from outrider.engine.worker import nothing
from outrider.errors import InvalidArgument
from outrider.protocol.items import DraftAhead, Drafted, DraftedAhead, DraftFirst, FailureCode, Key, Propose, Verify
from outrider.sampling.distribution import UnusableLogits
from outrider.sampling.draft import draft_rows
from outrider.sampling.plain import MOST_BESIDE, is_plain
from outrider.sampling.ranking import rank_rows
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)


class DraftCore(ReplicaCore[Drafting]):
    """A session's work is its guess, or its proposals drafted ahead, so far."""

    def __init__(self, engine: Engine, *, max_proposal: int, lease_s: float) -> None:
        """See ReplicaCore."""
        super().__init__(engine, max_proposal=max_proposal, lease_s=lease_s)
        engine.prepare_chains()
        self.on_chains: Callable[[ChainsUnderWay], None] = lambda chains: None
        """Called while chains are drawn without the host between."""
        self._grower = Grower(engine, self.fail)
        self._ahead = NOBODY  # while their pass is launched
        self.span = Span(engine.device)
        """Of the last pass, and the chains drawn after it, if there were."""

    def handle(self, peer: ReplicaPeer, item: Request) -> Reply | None:
        """See `ReplicaCore`."""
        self._grower.collect()
        return super().handle(peer, item)

    def start_round(self, session: DraftSession, item: Verify | Propose | DraftAhead) -> Reply | None:
        """Begin to guess; the proposal comes from a later step."""
        assert not isinstance(item, Verify)
        self._check(session, item.max_tokens, item.siblings)
        if isinstance(item, DraftAhead):
            return self._look_ahead(session, item)
        return self._guess(session, item.max_tokens, item.siblings)

    def guess_on(self, session: DraftSession, append: Sequence[int], wanted: DraftFirst) -> Reply | None:
        """What `handle` does with a Propose after all that is committed and `append`, known to be of the vocabulary."""
        base = len(session.history) + len(append)
        try:
            session.work = None
            self.sessions.go_on(session, append)
            self._check(session, wanted.max_tokens, wanted.siblings)
            return self._guess(session, wanted.max_tokens, wanted.siblings)
        except Exception as error:
            return self.refusal(Key(session.number, session.epoch, base), error)

    @property
    def awaited(self) -> bool:
        """See `Core`. Without a round its KV is awaited: it will have one."""
        return any(session.work is None or session.work.awaited for session in self.sessions.waiting())

    def step(self, meanwhile: Callable[[], None] = nothing) -> Sequence[tuple[ReplicaPeer, Reply]]:
        """See `Core`; as many passes as tokens are wanted, where nobody waits for anything but branches to grow."""
        self._grower.collect()
        if self.awaited:
            stop(self.sessions)
        else:
            self._grower.go_on(self.sessions)
            if not self.busy:
                return []
        if growing := self._growing_alone():
            meanwhile()
            try:
                replies = self._grower.grow(growing)
            except Exception as error:
                return self.fail_all(growing, error)
            if replies or not self.awaited:
                return replies
            meanwhile = nothing
        return super().step(meanwhile)

    def _growing_alone(self) -> list[DraftSession]:
        """The sessions whose branches grow, if nobody waits for anything else."""
        growing = []
        for session in self.sessions.waiting():
            if isinstance(session.work, Foresight) and session.work.steps_left:
                growing.append(session)
            elif session.work is None or session.work.awaited:
                return []
        return growing

    def launch(self, drawn: Drawn | None = None, without: Container[DraftSession] = ()) -> Launched[Drafting]:
        """See `ReplicaCore`."""
        self.span.begin()
        return super().launch(drawn, without)

    def demand(self, session: DraftSession) -> Demand:
        """What the work wants; without a round, all committed tokens but the last."""
        if (feed := self._ahead.get(session)) is not None:
            return Demand(len(feed), 0)
        return session.work.demand(session) if session.work else Demand(session.uncomputed - 1, 0)

    def last_feed(self, session: DraftSession) -> Feed:
        """What the work wants."""
        assert session.work is not None
        return self._ahead.get(session) or session.work.feed(session)

    def finish_step(
        self, sessions: Sequence[DraftSession], works: Sequence[Drafting], logits: torch.Tensor
    ) -> list[tuple[ReplicaPeer, Reply]]:
        """One more token for each guess and each branch, or many at once; reply for those that have enough."""
        if (chains := self._chains(sessions, works, logits)) is not None:
            self.on_chains(chains)
            self.overlap()
            return self.take_chains(chains)
        self.overlap()
        ranked = self._ranked(sessions, works, logits)
        left = [index not in ranked for index in range(len(sessions))]
        rows = [work.rows(session) for session, work in zip(sessions, works, strict=True)] if any(left) else []
        most = max((work.ranks for work, its in zip(works, left, strict=True) if its), default=0)
        ranking = [its and work.ranks > 0 for work, its in zip(works, left, strict=True)]
        ranked |= by_session(partial(rank_rows, most=most), ranking, rows, logits)
        drafted = by_session(draft_rows, [index not in ranked for index in range(len(sessions))], rows, logits)
        replies: list[tuple[ReplicaPeer, Reply]] = []
        for index, (session, work) in enumerate(zip(sessions, works, strict=True)):
            if index in ranked:
                work.take_ranked(session, ranked[index])
            else:
                work.take(session, drafted[index])
            replies += replies_of(session, work)
        return replies + self._grower.grow([each for each in sessions if each.work and each.work.awaited])

    def _ranked(
        self, sessions: Sequence[DraftSession], works: Sequence[Drafting], logits: torch.Tensor
    ) -> dict[int, list[tuple[int, ...]]]:
        """The likeliest tokens of each row of the plain sessions, by session, where kernels can tell them.

        Raises UnusableLogits.
        """
        chosen = [
            is_plain(session.sampling) and work.least_ranks <= 1 + MOST_BESIDE
            for session, work in zip(sessions, works, strict=True)
        ]
        if not any(chosen):
            return {}
        positions = [work.positions(session) for session, work in zip(sessions, works, strict=True)]
        owners = [index for index, each in enumerate(chosen) if each]
        found = self.engine.rank(
            of_sessions(logits, chosen, [len(each) for each in positions]),
            [sessions[index].sampling for index in owners],
            [positions[index] for index in owners],
        )
        if found is None:
            return {}
        ((scores,), (tokens,)) = found.scores, found.ranked
        ends = accumulate(len(positions[index]) for index in owners)
        rows = {index: slice(end - len(positions[index]), end) for index, end in zip(owners, ends, strict=True)}
        bad = [index for index, own in rows.items() if not all(map(math.isfinite, scores[own]))]
        if bad:
            raise UnusableLogits(bad)
        return {index: tokens[own] for index, own in rows.items()}

    def _chains(
        self,
        sessions: Sequence[DraftSession],
        works: Sequence[Drafting],
        logits: torch.Tensor,
        ahead: Ahead | None = None,
        backs: torch.Tensor | None = None,
    ) -> ChainsUnderWay | None:
        """As many tokens for each session as any of them wants, without the host between; None if that cannot be.

        Who wants fewer is done after the same passes, and goes on together with the others. `ahead`, `backs`: see
        `draft_ahead`.
        """
        guesses = [work for work in works if isinstance(work, Guess)]
        states = [each.sampling for each in sessions]
        if len(guesses) < len(sessions) or not all(map(is_plain, states)):
            return None
        stems = [stem_of(session, (ahead or NOBODY).get(session)) for session in sessions]
        room = self.engine.info.context_length - max([stem.length for stem in stems])
        steps = min(max([guess.steps_left for guess in guesses]), room + 1)  # the last token needs none
        beside = max([guess.most_siblings for guess in guesses])
        if steps < 1 or beside > MOST_BESIDE:
            return None
        drawing = self.engine.chains(stems, states, logits, steps, beside, backs)
        self.span.end()
        return None if drawing is None else ChainsUnderWay(list(sessions), guesses, ahead, steps, drawing)

    def take_chains(self, chains: ChainsUnderWay) -> list[tuple[ReplicaPeer, Reply]]:
        """Wait for them; the replies of the rounds that are done.

        Raises UnusableLogits before it changes anything, but where rounds were begun ahead: those sessions fail.
        """
        found = chains.drawing.collected()
        bad = found.unusable()
        if bad and chains.ahead is None:
            raise UnusableLogits(bad)
        replies: list[tuple[ReplicaPeer, Reply]] = []
        ranked, tokens = zip(*found.ranked, strict=True), zip(*found.tokens, strict=True)
        for row, (session, work, its, drawn) in enumerate(
            zip(chains.sessions, chains.guesses, ranked, tokens, strict=True)
        ):
            if session not in self.sessions or session.work is not work:
                continue  # closed, or told of something else meanwhile
            if row in bad:
                replies.append(self.fail(session, UnusableLogits([row])))
                continue
            sequence = session.sequence
            if chains.ahead and session in chains.ahead:  # what the first pass ran is known now
                sequence.extend(session.history[len(sequence.cached) :], NO_TREE)
            if chains.steps > 1:
                sequence.extend(drawn[:-1][: sequence.max_length - len(sequence.cached)], NO_TREE)
            work.take_chain(session, its)
            replies += replies_of(session, work)
        return replies

    def draft_ahead(self, feeds: Ahead, guesses: Mapping[DraftSession, Guess], drawn: Drawn) -> ChainsUnderWay | None:
        """Begin rounds, and those of all who wait, before the host knows after what some of them guess.

        `feeds`: the tokens that those have no KV of, at a place known on the device; `drawn` tells. Who gets to know
        the outcome tells of it with `follow`. None if it cannot be: then nothing is under way.
        """
        self._ahead = feeds
        for session, guess in guesses.items():
            session.work = guess
        try:
            launched = self.launch(drawn)
        finally:
            self._ahead = NOBODY
            for session in guesses:
                session.work = None
        if isinstance(launched.logits, Exception):
            return None
        self.pass_rows, self.prompt_rows = launched.rows, launched.prompt_rows
        ours = {session: feed for session, feed in feeds.items() if session in launched.finishing}
        chains = None
        try:
            if launched.finishing:
                chains = self._chains(launched.finishing, launched.works, launched.logits, ours, drawn.backs)
        except Exception:
            log.exception("%d guesses could not be begun ahead", len(launched.finishing))
            self.engine.check_device()
        if chains is None:
            for session in set(launched.finishing).difference(ours):
                session.sequence.align(session.history, 0)  # its last token is computed again
        return chains

    def follow(self, session: DraftSession, append: Sequence[int], guess: Guess) -> Reply | None:
        """The outcome after which `guess` is under way: what `guess_on` does with a guess that it begins."""
        base = len(session.history) + len(append)
        try:
            session.work = None
            self.sessions.go_on(session, append, ())
            session.work = guess
        except Exception as error:
            return self.refusal(Key(session.number, session.epoch, base), error)
        return None

    def _check(self, session: DraftSession, max_tokens: int, siblings: tuple[int, ...]) -> None:
        """Raise InvalidArgument for a wish that cannot be met, ItemRefused where there is no more context."""
        validate_wish(max_tokens, siblings, session.sampling.rule, most=self.max_proposal)
        if len(session.history) >= self.engine.info.context_length:
            raise _outgrown(session)

    def _guess(self, session: DraftSession, max_tokens: int, siblings: tuple[int, ...]) -> Reply | None:
        # The KV of all guessed tokens but the last is written.
        room = session.sequence.max_length - len(session.history) + 1
        if room < 1:
            raise _outgrown(session)
        if max_tokens == 0:
            return Drafted(session.key, NO_PROPOSAL)
        session.work = Guess(min(max_tokens, room), Growing(siblings))
        return None

    def _look_ahead(self, session: DraftSession, item: DraftAhead) -> Reply | None:
        size = len(item.in_flight)
        validate_tree(item.in_flight, vocabulary_size=session.sampling.vocabulary_size, max_nodes=self.max_proposal)
        if len(item.branches) != size + 1:
            raise InvalidArgument("draft_ahead.branches", len(item.branches), f"{size + 1} numbers, one an outcome")
        if sum(item.branches) > self.max_proposal:
            raise InvalidArgument("draft_ahead.branches", sum(item.branches), f"at most {self.max_proposal} in all")
        # Outcomes that leave no room to guess are not worth foreseeing.
        room = session.sequence.max_length - len(session.history) - size
        branches = min(sum(item.branches), room // max(item.max_tokens, 1))
        if item.max_tokens == 0 or branches < 1:
            return DraftedAhead(item.key, ())
        session.work = work = Foresight(item, session, branches, alone=len(self.sessions) == 1)
        if not session.uncomputed:  # what is in flight was drafted ahead: all of it is in the cache
            earlier = session.foresaw
            if not (isinstance(earlier, Foresight) and work.begin_after(earlier, session)):
                session.sequence.align(session.history, len(session.sequence.cached))
        return next((reply for _, reply in replies_of(session, work)), None)  # there may be nothing to draft for


def _outgrown(session: DraftSession) -> ItemRefused:
    return ItemRefused(
        FailureCode.CONTEXT_LENGTH,
        f"{len(session.history)} tokens fill the draft's context of {session.sequence.max_length}",
    )
