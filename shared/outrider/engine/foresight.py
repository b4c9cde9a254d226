"""Drafting ahead: proposals for the likely outcomes of the round in flight, all of them in one growing token tree.

The first pass runs the rest of the history and the tokens in flight, whose logits say which outcomes are likely. Every
further pass adds one token to each outcome's branch. Accepted nodes are moved into place by the next item, as on the
verifier, so what was drafted ahead costs no second pass.

Under `match` the pass that draws a token also ranks the others of its place. So once all branches are told, a last
pass, for which nobody waits, runs their newest tokens; and if the next round in flight is what one of them proposed,
its outcomes are known, and need no first pass. Where branches grow without the host and the session has the draft to
itself, it drafts on after that pass: for the outcomes of those rounds, if the likeliest branches are what comes. Then
these are told at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from outrider.acceptance.params import Rule
from outrider.acceptance.tree import ROOT, TokenTree
from outrider.engine.batch import Feed
from outrider.engine.branch import Branch, Ranked, likeliest, outcomes
from outrider.engine.guess import DraftSession
from outrider.engine.runner import Growth
from outrider.engine.schedule import Demand
from outrider.protocol.items import DraftAhead, DraftedAhead
from outrider.sampling.draft import DraftedToken, DraftRow
from outrider.sampling.plain import MOST_BESIDE
from outrider.telemetry import metrics

ON_ROWS = 48
"""Most branches that are drafted on: a pass over so many rows takes little longer than one over few."""

NEARLY = 0.75
"""Part of the wanted outcomes that have to have been drafted for to be told without the others."""


class Foresight:
    """Drafting ahead in the making."""

    def __init__(self, item: DraftAhead, session: DraftSession, most_branches: int, *, alone: bool) -> None:
        """`most_branches`: what there is room for. `alone`: no other session is on the draft."""
        self._base = item.key.base_length
        self._in_flight = item.in_flight
        self._wanted = item.branches
        self._siblings = item.siblings
        self._ranks_all = session.sampling.rule is Rule.MATCH
        self._max_tokens = item.max_tokens
        self._most_branches = most_branches
        self._branches: list[Branch] | None = None
        self._growing: list[Branch] = []
        self._told = False
        self._alone = alone
        self._grew_apart = False  # the branches, without the host between their tokens
        self._ending: list[Branch] = []  # those whose last pass is under way
        self._is_due = self._drafts_on = False  # to be drafted on, and begun to be

    @property
    def ranks(self) -> int:
        """In the first pass as many as the widest outcome wants, and those in flight, which are no outcomes there.

        Later as many as kernels name, where they may be of use. All branches are equally long, so each wants the same.
        """
        if self._branches is None:
            return max(self._wanted) + len(self._in_flight)
        return max(self.least_ranks, 1 + MOST_BESIDE) if self._ranks_all else self.least_ranks

    @property
    def least_ranks(self) -> int:
        """In the first pass what each outcome wants, and those in flight after it."""
        if self._branches is not None:
            return 0 if self._told else self._growing[0].growing.ranks
        following = Counter(self._in_flight.parents)
        return max(wanted + following[node] for node, wanted in enumerate(self._wanted, start=ROOT))

    def demand(self, session: DraftSession) -> Demand:
        """The rest of the history and what is in flight; later one node a branch."""
        if self._branches is None:
            return Demand(session.uncomputed, len(self._in_flight))
        return Demand(len(self._growing), 0)

    def feed(self, session: DraftSession) -> Feed:
        """See `demand`."""
        if self._branches is None:
            tokens = session.history[len(session.sequence.cached) :]
            return Feed(session.sequence, tuple(tokens), self._in_flight)
        return self.growth(session).feed(0)

    @property
    def steps_left(self) -> int:
        """How many tokens each growing branch still wants."""
        return self._max_tokens - len(self._growing[0].tokens) if self._growing else 0

    @property
    def most_siblings(self) -> int:
        """Most siblings that a token wants."""
        return max(self._siblings, default=0)

    @property
    def draws_apart(self) -> bool:
        """It is not verified next, but what comes of a round."""
        return False

    def growth(self, session: DraftSession) -> Growth:
        """The branches that grow; all of them have tokens, or none has."""
        newest = tuple(branch.newest for branch in self._growing)
        return Growth(session.sequence, session.sampling, newest, tuple(branch.leaf for branch in self._growing))

    def rows(self, session: DraftSession) -> list[DraftRow]:
        """What may follow the history and each node in flight; later each branch."""
        base = len(session.history)
        if self._branches is None:
            paths = [self._path(node) for node in range(ROOT, len(self._in_flight))]
            return [DraftRow(session.sampling, base, path) for path in paths]
        return [
            DraftRow(session.sampling, base, (*b.path, b.next_token, *b.tokens), ahead=len(b.path) + 1)
            for b in self._growing
        ]

    def positions(self, session: DraftSession) -> list[int]:
        """See `rows`."""
        base = len(session.history)
        if self._branches is None:
            return [base, *(base + depth for depth in self._in_flight.depths())]
        return [base + len(branch.path) + 1 + len(branch.tokens) for branch in self._growing]

    def take_ranked(self, session: DraftSession, ranked: Sequence[Ranked]) -> None:
        """Begin the branches; later one more token for each, with its siblings; at last what follows the newest."""
        if self._branches is None:
            self._begin(session, ranked)
        elif self._told:
            self._rank_last(session, self._growing, ranked)
        else:
            for branch, tokens in zip(self._growing, ranked, strict=True):
                branch.add_ranked(tokens)
            self._grown(session)

    def take(self, session: DraftSession, drafted: Sequence[DraftedToken]) -> None:
        """One more token for each branch."""
        for branch, token in zip(self._growing, drafted, strict=True):
            branch.add(token)
        self._grown(session)

    def ends_alone(self, session: DraftSession) -> bool:
        """The last pass follows the others at once where the session has the draft to itself."""
        left = session.sequence.max_length - len(session.sequence.cached) - len(session.sequence.tree)
        has_room = left >= (self.steps_left + 1) * len(self._growing)
        return self._alone and self._ranks_all and has_room

    def take_grown(self, session: DraftSession, steps: Sequence[Sequence[Ranked]], *, more: bool) -> None:
        """Several tokens for each branch, [steps][branches], each followed by the next likeliest of its place.

        A branch that has ended on the way was run all the same. `more`: the last pass is under way.
        """
        self._grew_apart = True
        self._ending = self._growing if more else []
        size = len(self._growing)
        if self._drafts_on:
            metrics.drafted_on.add(len(steps) * size, {"state": "drawn"})
        first = len(session.sequence.tree) - (len(steps) + more) * size
        for place, (branch, ranked) in enumerate(zip(self._growing, zip(*steps, strict=True), strict=True)):
            taken = branch.add_until(ranked, self._max_tokens, session.stop_token_ids)
            branch.leaf = first + (taken - 1) * size + place
        self._growing = [branch for branch in self._growing if not self._has_ended(branch, session)]

    def reply(self, session: DraftSession) -> DraftedAhead | None:
        """All branches, when none grows any more. After it the last pass, where it can be of use and there is room."""
        if self._branches is None or self._growing or self._told:
            return None
        self._told = True
        if self._ranks_all and not (self._ending or self._is_due):
            last = [branch for branch in self._branches if branch.newest not in session.stop_token_ids]
            taken = len(session.sequence.cached) + len(session.sequence.tree)
            self._growing = last if taken + len(last) <= session.sequence.max_length else []
        return DraftedAhead(session.key, tuple(branch.foreseen for branch in self._branches))

    @property
    def awaited(self) -> bool:
        """Until it is told."""
        return not self._told

    def is_over(self, session: DraftSession) -> bool:
        """After its last pass, and what is drafted on."""
        return self._told and not (self._growing or self._ending or self._is_due)

    @property
    def beyond(self) -> bool:
        """Whether only drafting on is left of it."""
        return self._is_due or self._drafts_on

    def begin_after(self, earlier: Foresight, session: DraftSession) -> bool:
        """Begin the branches by what `earlier` ranked, if this round is what it proposed. All of it is in the cache."""
        committed, in_flight = tuple(session.history[earlier._base :]), list(self._in_flight.tokens)
        for branch in earlier._branches or ():
            ranked = branch.ranked_after(committed, in_flight)
            if ranked is not None:
                if enough := self._knows_enough(ranked):
                    self._begin(session, ranked)
                    if not self._take_over(branch, earlier, session):
                        session.sequence.trim(len(in_flight))
                return enough
        return False

    def _take_over(self, before: Branch, earlier: Foresight, session: DraftSession) -> bool:
        """Take what `earlier` drafted on for this round, which `before` proposed, if it is nearly all that is wanted.

        The rest are the least likely outcomes, which are shared out otherwise from round to round: to tell of them too
        would hold up the others. In the cache it stands after what is in flight. Else nothing is changed.
        """
        size, grown = len(self._in_flight), before.after
        alike = (self._max_tokens, self._siblings) == (earlier._max_tokens, earlier._siblings)
        if not (grown and alike and size == len(before.tokens)):
            return False
        passes, rest = divmod(len(session.sequence.tree) - size, len(grown))
        found = {(each.node, each.next_token): each for each in grown if each.tokens}
        wanted = [(each.node, each.next_token) for each in self._branches or ()]
        there = [found[each] for each in wanted if each in found]
        ranked = passes == self._max_tokens + 1  # what follows the newest tokens too
        if rest or not (ranked or passes == self._max_tokens) or len(there) < NEARLY * len(wanted):
            return False
        for place, each in enumerate(grown, start=size):  # a token of each, then the next of each
            each.leaf = place + (len(each.tokens) - (not ranked)) * len(grown)
        metrics.drafted_on.add(sum(len(each.tokens) for each in there), {"state": "told"})
        self._branches, self._growing = there, []
        self._grew_apart, self._is_due = True, ranked
        return True

    def take_more(self, session: DraftSession, ranked: Sequence[Ranked]) -> None:
        """What the last pass ranked, where it followed the others at once."""
        ending, self._ending = self._ending, []
        self._rank_last(session, ending, ranked)

    def _rank_last(self, session: DraftSession, branches: Sequence[Branch], ranked: Sequence[Ranked]) -> None:
        """What follows the newest tokens of `branches`, which are the last in the cache."""
        first = len(session.sequence.tree) - len(branches)
        for leaf, (branch, tokens) in enumerate(zip(branches, ranked, strict=True), start=first):
            if branch.newest not in session.stop_token_ids:
                branch.leaf = leaf
                branch.ranked.append(tokens)
        self._growing = []
        self._is_due = self._alone and self._grew_apart and not self._drafts_on

    def go_on(self, session: DraftSession) -> None:
        """Draft on, if that is due: begin what the round after this one may come to.

        If that is what one of the likeliest branches proposes; as many outcomes at each place as were wanted in this
        round.
        """
        if not self._is_due:
            return
        self._is_due, self._drafts_on = False, True
        left = session.sequence.max_length - len(session.sequence.cached) - len(session.sequence.tree)
        most, begun, stop_ids = min(ON_ROWS, left // (self._max_tokens + 1)), list[Branch](), session.stop_token_ids
        for branch in likeliest(self._branches or ()) if self._alone else ():
            size = len(branch.tokens)
            if branch.growing.siblings or len(branch.ranked) <= size or len(self._wanted) != size + 1:
                continue
            in_flight = TokenTree.chain(branch.tokens)
            nodes = session.sequence.tree.path(branch.leaf)[-size - 1 :]
            after = outcomes(in_flight, branch.ranked, self._wanted, self._siblings, stop_ids, nodes)
            if len(begun) + len(after) > most:
                break
            branch.after = after
            begun += after
        self._growing = begun

    def _knows_enough(self, ranked: Sequence[Ranked]) -> bool:
        following = Counter(self._in_flight.parents)
        return all(
            not wanted or wanted + following[node] <= len(tokens)
            for node, (tokens, wanted) in enumerate(zip(ranked, self._wanted, strict=True), start=ROOT)
        )

    def _begin(self, session: DraftSession, ranked: Sequence[Ranked]) -> None:
        """At each node its likeliest next tokens that are not in flight already."""
        branches = outcomes(self._in_flight, ranked, self._wanted, self._siblings, session.stop_token_ids)
        # Where there is no room for all, the longest paths stay; they are the likeliest.
        branches.sort(key=lambda branch: len(branch.path))
        self._branches = branches[-self._most_branches :]
        self._growing = list(self._branches)

    def _grown(self, session: DraftSession) -> None:
        """The tokens that the pass ran are in place; which branches go on."""
        first = len(session.sequence.tree) - len(self._growing)
        for leaf, branch in enumerate(self._growing, start=first):
            branch.leaf = leaf
        self._growing = [branch for branch in self._growing if not self._has_ended(branch, session)]

    def _has_ended(self, branch: Branch, session: DraftSession) -> bool:
        return len(branch.tokens) == self._max_tokens or branch.newest in session.stop_token_ids

    def _path(self, node: int) -> tuple[int, ...]:
        return tuple(self._in_flight.tokens[each] for each in self._in_flight.path(node))
