"""What every acceptance rule must do, written down a second time: slowly, in plain Python, over whole distributions.

Works in `Fraction`s, where equality is equality, and in floats. A distribution is a list over the vocabulary. All
that is drawn at random is enumerated, so what comes out is the exact distribution of a round, not a sample of it.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

from outrider.acceptance.params import Rule, SamplingParams
from outrider.acceptance.tree import ROOT, TokenTree

Number = Fraction | float
Distribution = list[Number]
Path = tuple[int, ...]
Model = Callable[[Path], Distribution]
"""The distribution of the next token after a path of in-flight tokens."""

Judgement = tuple[list[Number], list[Distribution]]
"""Thresholds of the nodes, and for each row the distribution of the token that is emitted if the walk ends there."""

Case = tuple[TokenTree, list[Distribution], list[Distribution]]
"""A tree, p of each row and q of each node."""

Judge = Callable[[Sequence[Case]], list[Judgement]]
"""A rule, asked about many trees at once, as real implementations are."""


def target_distribution(
    logits: Sequence[float],
    params: SamplingParams,
    *,
    prompt: Sequence[int],
    output: Sequence[int],
    stop_ids: Sequence[int] = (),
    vocabulary_size: int | None = None,
) -> list[float]:
    """p after every sampling parameter, in float64, one token and one step at a time."""
    scores = [float(x) for x in logits[: vocabulary_size or len(logits)]]
    for token, bias in params.logit_bias:
        scores[token] += bias
    for token in set(prompt) | set(output):
        repetition = params.repetition_penalty
        scores[token] = scores[token] / repetition if scores[token] > 0 else scores[token] * repetition
    for token in set(output):
        scores[token] -= params.frequency_penalty * list(output).count(token) + params.presence_penalty
    if len(output) < params.min_tokens:
        for token in stop_ids:
            scores[token] = -math.inf
    if params.temperature == 0:
        return [float(token == scores.index(max(scores))) for token in range(len(scores))]
    best = max(scores)
    weights = [math.exp((score - best) / params.temperature) for score in scores]
    weights = [weight if weight >= params.min_p else 0.0 for weight in weights]
    if params.top_k:
        least = sorted(weights, reverse=True)[: params.top_k][-1]
        weights = [weight if weight >= least else 0.0 for weight in weights]
    if params.top_p < 1:
        reached, wanted = 0.0, params.top_p * math.fsum(weights)
        for least in sorted(weights, reverse=True):
            reached += least
            if reached >= wanted:
                break
        weights = [weight if weight >= least else 0.0 for weight in weights]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def one_hot(token: int, size: int) -> Distribution:
    return [Fraction(int(other == token)) for other in range(size)]


def residual(p: Distribution, q: Distribution, weight: Number = Fraction(1)) -> Distribution:
    """max(0, weight * p - q), normalised; p itself where that is empty."""
    left = [max(weight * a - b, 0 * a) for a, b in zip(p, q, strict=True)]
    total = sum(left)
    return [mass / total for mass in left] if total > 0 else list(p)


def judge_match(tree: TokenTree, p: list[Distribution], q: list[Distribution]) -> Judgement:
    return [], p


def judge_rejection(tree: TokenTree, p: list[Distribution], q: list[Distribution]) -> Judgement:
    """Leviathan et al. 2023; siblings one after the other against what is left (Miao et al. 2024)."""
    thresholds: list[Number] = []
    left = [list(row) for row in p]
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        thresholds.append(min(Fraction(1), left[parent + 1][token] / q[node][token]))
        left[parent + 1] = residual(left[parent + 1], q[node])
    return thresholds, left


def judge_block(tree: TokenTree, p: list[Distribution], q: list[Distribution]) -> Judgement:
    """Sun et al. 2024, for chains."""
    weights: list[Number] = [Fraction(1)]
    for node, token in enumerate(tree.tokens):
        weights.append(min(Fraction(1), weights[node] * p[node][token] / q[node][token]))
    thresholds: list[Number] = []
    for weight, p_next, q_next in zip(weights[1:], p[1:], [*q[1:], None][: len(tree)], strict=True):
        if q_next is None or weight == 1:
            thresholds.append(weight)
        else:
            mass = sum(max(weight * a - b, 0 * a) for a, b in zip(p_next, q_next, strict=True))
            thresholds.append(mass / (mass + 1 - weight))
    rows = [residual(p[node], q[node], weights[node]) for node in range(len(tree))]
    return thresholds, [*rows, p[-1]]


JUDGES = {Rule.MATCH: judge_match, Rule.REJECTION: judge_rejection, Rule.BLOCK: judge_block}


def walks(rule: Rule, tree: TokenTree, thresholds: Sequence[Number]) -> Iterator[tuple[Path, Number]]:
    """Every set of accepted nodes under `rejection` or `block`, with its probability."""
    if rule is Rule.BLOCK:
        longer_fell: Number = Fraction(1)
        for size in range(len(tree), 0, -1):
            yield tuple(range(size)), longer_fell * thresholds[size - 1]
            longer_fell *= 1 - thresholds[size - 1]
        yield (), longer_fell
    else:
        yield from _walks_from(ROOT, (), Fraction(1), tree, thresholds)


def _walks_from(
    node: int, accepted: Path, weight: Number, tree: TokenTree, thresholds: Sequence[Number]
) -> Iterator[tuple[Path, Number]]:
    for child in tree.children(node):
        yield from _walks_from(child, (*accepted, child), weight * thresholds[child], tree, thresholds)
        weight *= 1 - thresholds[child]
    yield accepted, weight


def matched_walks(tree: TokenTree, p: Sequence[Distribution], node: int = ROOT) -> Iterator[tuple[Path, int, Number]]:
    """Every (accepted nodes, next token) under `match`, with its probability."""
    for token, weight in enumerate(p[node + 1]):
        child = next((c for c in tree.children(node) if tree.tokens[c] == token), None)
        if child is None:
            yield (), token, weight
        else:
            for accepted, last, rest in matched_walks(tree, p, child):
                yield (child, *accepted), last, weight * rest


def outcomes(rule: Rule, tree: TokenTree, judgement: Judgement) -> Iterator[tuple[Path, Path, Number]]:
    """Every (accepted nodes, committed tokens) of one round over a given tree, with its probability."""
    thresholds, rows = judgement
    if rule is Rule.MATCH:
        for accepted, last, weight in matched_walks(tree, rows):
            yield accepted, (*(tree.tokens[node] for node in accepted), last), weight
        return
    for accepted, weight in walks(rule, tree, thresholds):
        row = accepted[-1] + 1 if accepted else 0
        for token, chance in enumerate(rows[row]):
            yield accepted, (*(tree.tokens[node] for node in accepted), token), weight * chance


def drafted_trees(parents: Path, drafter: Model) -> Iterator[tuple[TokenTree, list[Distribution], Number]]:
    """Every tree of this shape with the q of its nodes and its probability; siblings are drawn independently."""
    size = len(drafter(()))
    for tokens in itertools.product(range(size), repeat=len(parents)):
        tree = TokenTree(tokens, parents)
        q = [drafter(path_tokens(tree, parent)) for parent in parents]
        weight = math.prod((q[node][token] for node, token in enumerate(tokens)), start=Fraction(1))
        if weight > 0:
            yield tree, q, weight


def path_tokens(tree: TokenTree, node: int) -> Path:
    return tuple(tree.tokens[above] for above in tree.path(node))


def rows_of(tree: TokenTree, target: Model) -> list[Distribution]:
    """p of the root and of every node."""
    return [target(path_tokens(tree, node)) for node in range(ROOT, len(tree))]


def round_distribution(
    rule: Rule, parents: Path, target: Model, drafter: Model, judge: Judge | None = None
) -> tuple[dict[Path, Number], Number]:
    """The distribution of the tokens that a round commits, and the expected number of accepted ones."""
    drafts = list(drafted_trees(parents, drafter))
    cases = [(tree, rows_of(tree, target), q) for tree, q, _ in drafts]
    judgements = judge(cases) if judge else [JUDGES[rule](*case) for case in cases]
    committed: defaultdict[Path, Number] = defaultdict(Fraction)
    accepted_tokens: Number = Fraction(0)
    for (tree, _, drafted), judgement in zip(drafts, judgements, strict=True):
        for accepted, tokens, weight in outcomes(rule, tree, judgement):
            committed[tokens] += drafted * weight
            accepted_tokens += drafted * weight * len(accepted)
    return dict(committed), accepted_tokens


def completed(committed: dict[Path, Number], target: Model, length: int) -> dict[Path, Number]:
    """What stands after `length` tokens if plain sampling from the target goes on where the round ended."""
    whole: defaultdict[Path, Number] = defaultdict(Fraction)
    for tokens, weight in committed.items():
        for full, chance in continued(tokens, target, length):
            whole[full] += weight * chance
    return dict(whole)


def continued(tokens: Path, target: Model, length: int) -> Iterator[tuple[Path, Number]]:
    """Every continuation of `tokens` to `length` under plain sampling, with its probability."""
    if len(tokens) == length:
        yield tokens, Fraction(1)
        return
    for token, chance in enumerate(target(tokens)):
        if chance > 0:
            for full, rest in continued((*tokens, token), target, length):
                yield full, chance * rest


def total_variation(one: dict[Path, Number], other: dict[Path, Number]) -> Number:
    return sum((abs(one.get(key, 0) - other.get(key, 0)) for key in one.keys() | other.keys()), start=Fraction(0)) / 2


def error_of_round(rule: Rule, parents: Path, target: Model, drafter: Model, judge: Judge | None = None) -> Number:
    """Total variation between a round, completed by plain sampling, and plain sampling alone."""
    length = max(TokenTree((0,) * len(parents), parents).depths(), default=0) + 1
    committed, _ = round_distribution(rule, parents, target, drafter, judge)
    return total_variation(completed(committed, target, length), dict(continued((), target, length)))
