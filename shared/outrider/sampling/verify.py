"""What the target says of proposals: one verdict each, from the logits of one forward pass over all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.acceptance.params import Rule
from outrider.acceptance.philox import Domain
from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, RowLogprobs, Verdict
from outrider.acceptance.tree import ROOT
from outrider.acceptance.validate import validate_proposal
from outrider.sampling.distribution import Row, UnusableLogits, scores_of
from outrider.sampling.draw import draw
from outrider.sampling.host import to_host
from outrider.sampling.logprobs import LogprobsRequest, assemble, logprobs_of
from outrider.sampling.noise import noise_keys
from outrider.sampling.plain import draw_plain
from outrider.sampling.residual import JUDGES, ProposalAt
from outrider.sampling.state import SamplingState


@dataclass(slots=True)
class VerifyRows:
    """One session's part of a batch: 1 + n consecutive rows of logits, the root's first, then each node's.

    Raises InvalidArgument if the proposal cannot be verified, so a bad message ends here and not in a shared batch.
    Never changed once its place is known; not frozen, as each round makes one and frozen ones take three times as long.
    """

    state: SamplingState
    base_length: int
    proposal: Proposal
    known: bool = False  # to be one that can be verified

    def __post_init__(self) -> None:
        if not self.known and self.proposal is not NO_PROPOSAL:
            validate_proposal(self.proposal, self.state.rule, vocabulary_size=self.state.vocabulary_size)
        assert self.state.counts is None or self.state.length == self.base_length, "the state was not advanced"

    def __len__(self) -> int:
        return 1 + len(self.proposal.tree.tokens)

    def positions(self) -> Sequence[int]:
        """Of the tokens that the rows decide about, in their order."""
        tree, base = self.proposal.tree, self.base_length
        if tree.is_chain:
            return range(base, base + 1 + len(tree.tokens))
        return [base, *(base + depth for depth in tree.depths())]

    def rows(self) -> list[Row]:
        """The rows in the order of the logits."""
        tree = self.proposal.tree
        rows = [Row(self.state, self.base_length, ())]
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            rows.append(Row(self.state, self.base_length, (*rows[parent + 1].path, token)))
        return rows


class Judging:
    """Verdicts of some work, under way where the device needs no more for them."""

    def __init__(self, logits: Tensor, work: Sequence[VerifyRows]) -> None:
        """`work`, not empty: its rows follow each other in `logits` [R, W] of any floating type."""
        positions = [entry.positions() for entry in work]
        total = sum(map(len, positions))
        assert total == len(logits), f"{total} rows of work, but {len(logits)} of logits"
        self._logits, self._work, self._drawing = logits, work, None
        if all(entry.state.logprobs is None for entry in work):
            self._drawing = draw_plain(logits, [entry.state for entry in work], positions)

    @property
    def drawn(self) -> Tensor | None:
        """[R] int32, on the device: the rows' next tokens, where they will be known there before they are here."""
        return None if self._drawing is None else self._drawing.tokens

    def verdicts(self) -> list[Verdict]:
        """Wait for them. Raises UnusableLogits, naming the entries, if the model's output allows no token at a row."""
        if self._drawing is None:
            return _judged(self._logits, self._work)
        tokens, scores = self._drawing.collected()
        _check_usable(self._work, scores)
        return _verdicts(self._work, tokens, [0.0] * len(tokens), {})


def verify_rows(logits: Tensor, work: Sequence[VerifyRows]) -> list[Verdict]:
    """Verdicts of `work`, whose rows follow each other in `logits` [R, W] of any floating type.

    Raises UnusableLogits, naming the entries, if the model's output allows no token at some row.
    """
    return Judging(logits, work).verdicts() if work else []


def _judged(logits: Tensor, work: Sequence[VerifyRows]) -> list[Verdict]:
    requests = list(_logprobs_requests(work))
    rows = [row for entry in work for row in entry.rows()]
    decision = _decide(logits, rows, work)
    wanted = logprobs_of(logits, requests, decision.tokens) if requests else []
    chosen, scores, thresholds, *tables = to_host([decision.tokens, decision.scores, decision.thresholds, *wanted])
    _check_usable(work, scores)
    logprobs = assemble(requests, tables)
    return _verdicts(work, [int(token) for token in chosen], thresholds, logprobs)


@dataclass(frozen=True, slots=True)
class _Decision:
    tokens: Tensor  # [R] next tokens
    scores: Tensor  # [R] their scores, not finite where nothing can be chosen
    thresholds: Tensor  # [R] of the nodes that the rows follow; 0 at roots, and where the rule has none


def _decide(logits: Tensor, rows: Sequence[Row], work: Sequence[VerifyRows]) -> _Decision:
    """Greedy rows need an argmax and nothing else; the rest are judged and drawn."""
    greedy = [i for i, row in enumerate(rows) if row.state.params.greedy]
    if len(greedy) == len(rows):
        return _decide_greedy(logits, rows)
    if not greedy:
        return _decide_sampled(logits, rows, work)
    sampled = [i for i, row in enumerate(rows) if not row.state.params.greedy]
    parts = torch.tensor(greedy + sampled, device=logits.device)
    one = _decide_greedy(logits[parts[: len(greedy)]], [rows[i] for i in greedy])
    entries = [entry for entry in work if not entry.state.params.greedy]
    other = _decide_sampled(logits[parts[len(greedy) :]], [rows[i] for i in sampled], entries)
    back = parts.argsort()
    return _Decision(
        torch.cat((one.tokens, other.tokens))[back],
        torch.cat((one.scores, other.scores))[back],
        torch.cat((one.thresholds, other.thresholds))[back],
    )


def _decide_greedy(logits: Tensor, rows: Sequence[Row]) -> _Decision:
    scores, tokens = scores_of(logits, rows).max(dim=1)
    scores = scores.to(torch.float32)
    return _Decision(tokens, scores, torch.zeros_like(scores))


def _decide_sampled(logits: Tensor, rows: Sequence[Row], work: Sequence[VerifyRows]) -> _Decision:
    scores = scores_of(logits, rows)
    thresholds = scores.new_zeros(len(rows))
    for rule, judge in JUDGES.items():
        if proposals := _proposals_under(rule, work):
            thresholds += judge(scores, proposals)
    tokens = draw(scores, noise_keys((_key(row) for row in rows), scores.device))
    return _Decision(tokens, scores.gather(1, tokens.unsqueeze(1)).squeeze(1), thresholds)


def _proposals_under(rule: Rule, work: Sequence[VerifyRows]) -> list[ProposalAt]:
    """The proposals of `work` that need thresholds under `rule`, with the rows of their roots."""
    found: list[ProposalAt] = []
    row = 0
    for entry in work:
        if entry.state.rule is rule and len(entry.proposal):
            found.append(ProposalAt(entry.proposal, row))
        row += len(entry)
    return found


def _key(row: Row) -> tuple[int, int, int, Domain]:
    domain = Domain.MATCH if row.state.rule is Rule.MATCH else Domain.RESIDUAL
    return row.state.seed, row.position, row.base_length, domain


def _logprobs_requests(work: Sequence[VerifyRows]) -> Iterator[LogprobsRequest]:
    index = 0
    for entry in work:
        if entry.state.logprobs is not None:
            tree = entry.proposal.tree
            for node in range(ROOT, len(tree)):
                children = tuple(tree.tokens[child] for child in tree.children(node))
                yield LogprobsRequest(index + 1 + node, entry.state.logprobs, entry.state.vocabulary_size, children)
        index += len(entry)


def _check_usable(work: Sequence[VerifyRows], scores: Sequence[float]) -> None:
    if all(map(math.isfinite, scores)):
        return
    bad: list[int] = []
    row = 0
    for index, entry in enumerate(work):
        if not all(math.isfinite(score) for score in scores[row : row + len(entry)]):
            bad.append(index)
        row += len(entry)
    raise UnusableLogits(bad)


def _verdicts(
    work: Sequence[VerifyRows], tokens: Sequence[int], thresholds: Sequence[float], logprobs: Mapping[int, RowLogprobs]
) -> list[Verdict]:
    """Cut the batch's results into the entries' own."""
    verdicts: list[Verdict] = []
    row = 0
    for entry in work:
        end = row + 1 + len(entry.proposal.tree.tokens)
        drawn = tuple(tokens[row:end])
        if entry.state.rule is Rule.MATCH:
            own: tuple[float, ...] = ()
        elif entry.state.params.greedy:
            own = _greedy_thresholds(entry, drawn)
        else:
            own = tuple(thresholds[row + 1 : end])
        asked = tuple(logprobs[i] for i in range(row, end) if i in logprobs) if logprobs else ()
        verdicts.append(Verdict(drawn, own, asked))
        row = end
    return verdicts


def _greedy_thresholds(entry: VerifyRows, tokens: Sequence[int]) -> tuple[float, ...]:
    """The rules' limit at temperature 0, where p is one-hot: a node stands if it is the likeliest token."""
    tree = entry.proposal.tree
    stands = [tokens[parent + 1] == token for token, parent in zip(tree.tokens, tree.parents, strict=True)]
    if entry.state.rule is Rule.BLOCK:  # a block's threshold speaks of its whole prefix
        stands = [all(stands[: node + 1]) for node in range(len(stands))]
    return tuple(float(stand) for stand in stands)
