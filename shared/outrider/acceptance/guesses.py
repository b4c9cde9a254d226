"""Whether a draft can be asked for a guess, and whether what it answered is that: one that is not must reach nobody.

A verifier would refuse it, and both sides would have to agree on what else is not as it should be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from outrider.acceptance.choice import Choice
from outrider.acceptance.params import Rule
from outrider.acceptance.proposal import Proposal, Source
from outrider.acceptance.tree import ROOT, TokenTree, chain_parents
from outrider.acceptance.validate import validate_proposal
from outrider.errors import InvalidArgument


def validate_wish(max_tokens: int, siblings: tuple[int, ...], rule: Rule, *, most: int) -> None:
    """Raise InvalidArgument unless a draft can be asked for `max_tokens`, and `siblings` beside them: `most` in all."""
    if max_tokens > most:
        raise InvalidArgument("max_tokens", max_tokens, f"at most {most}")
    if siblings:
        if rule is not Rule.MATCH:
            raise InvalidArgument("siblings", siblings, f"empty under the {rule} rule")
        if len(siblings) > max_tokens:
            raise InvalidArgument("siblings", len(siblings), f"at most max_tokens, {max_tokens}, numbers")
        if (nodes := max_tokens + sum(siblings)) > most:
            raise InvalidArgument("max_tokens and siblings", nodes, f"at most {most} in all")


def validate_guess(guess: Proposal, asked: Choice, rule: Rule, *, vocabulary_size: int) -> None:
    """Raise InvalidArgument unless a draft may answer so where it was asked for `asked` under `rule`.

    `vocabulary_size`: of the target. Less than what was asked for is allowed, also nothing.
    """
    validate_proposal(guess, rule, vocabulary_size=vocabulary_size, max_nodes=asked.length + sum(asked.siblings))
    if not guess:
        return
    if guess.source is not Source.MODEL:
        raise InvalidArgument("proposal.source", guess.source.value, Source.MODEL.value)
    if guess.q and rule is Rule.MATCH:
        raise InvalidArgument("proposal.q", len(guess.q), f"empty under the {rule} rule")
    _check_shape(guess.tree, asked)


def validate_foreseen(
    foreseen: Collection[tuple[int, int, Proposal]],
    in_flight: TokenTree,
    most: int,
    asked: Choice,
    rule: Rule,
    *,
    vocabulary_size: int,
) -> None:
    """The same for guesses ahead of the round of `in_flight`, `most` at most: last accepted node, next token, guess.

    Two for one outcome would have verifier and coordinator go on with different ones.
    """
    if len(foreseen) > most:
        raise InvalidArgument("foreseen", len(foreseen), f"at most {most} long")
    if len({(node, token) for node, token, _ in foreseen}) < len(foreseen):
        raise InvalidArgument("foreseen", "two guesses for one outcome", "one guess an outcome")
    for node, token, guess in foreseen:
        if not ROOT <= node < len(in_flight):
            raise InvalidArgument("foreseen.node", node, f"from -1 to {len(in_flight) - 1}")
        if not 0 <= token < vocabulary_size:
            raise InvalidArgument("foreseen.next_token", token, f"a token id below {vocabulary_size}")
        validate_guess(guess, asked, rule, vocabulary_size=vocabulary_size)


def _check_shape(tree: TokenTree, asked: Choice) -> None:
    """A chain, and beside its tokens so many leaves as were asked for at most."""
    length = len(tree)
    if not tree.is_chain:
        length = tree.depth
        beside = Counter(tree.parents[length:])
        wanted = Counter({depth - 1: count for depth, count in enumerate(asked.siblings)})
        if tree.parents[:length] != chain_parents(length) or not beside <= wanted:
            limit = f"a chain with {asked.siblings} siblings" if asked.siblings else "a chain"
            raise InvalidArgument("proposal.tree.parents", tree.parents, limit)
    if length > asked.length:
        raise InvalidArgument("proposal.tree.depth", length, f"at most {asked.length}")
