"""Checks on proposals that came over the wire: whether a target can verify them."""

from __future__ import annotations

from outrider.acceptance.params import Rule
from outrider.acceptance.proposal import Proposal, SparseQ
from outrider.acceptance.tree import validate_tree
from outrider.errors import InvalidArgument

MAX_Q_ENTRIES = 256
"""Most entries of one sparse draft distribution."""

SUM_TOLERANCE = 1e-3
"""How far a draft distribution's sum may be from 1; what is within is normalised."""


def validate_proposal(proposal: Proposal, rule: Rule, *, vocabulary_size: int, max_nodes: int = 1024) -> None:
    """Raise InvalidArgument unless `proposal` can be verified under `rule`.

    A drafted token must be possible under its own q, and q must be a distribution: an all-zero q, which some systems
    send for "nothing drafted", would be accepted whatever the target thinks.
    """
    validate_tree(proposal.tree, vocabulary_size=vocabulary_size, max_nodes=max_nodes)
    if rule is Rule.BLOCK and not proposal.tree.is_chain:
        raise InvalidArgument("proposal.tree", proposal.tree.parents, "a chain under the block rule")
    if not proposal.q:
        return
    if len(proposal.q) != len(proposal):
        raise InvalidArgument("proposal.q", len(proposal.q), f"empty or one for each of {len(proposal)} nodes")
    for node, (token, q) in enumerate(zip(proposal.tree.tokens, proposal.q, strict=True)):
        _validate_q(f"proposal.q[{node}]", q, token, vocabulary_size)


def _validate_q(field: str, q: SparseQ, token: int, vocabulary_size: int) -> None:
    ids, probabilities = q.token_ids, q.probabilities
    if not 0 < len(ids) <= MAX_Q_ENTRIES:
        raise InvalidArgument(f"{field}.token_ids", len(ids), f"from 1 to {MAX_Q_ENTRIES} long")
    if len(ids) != len(probabilities):
        raise InvalidArgument(f"{field}.probabilities", len(probabilities), f"as many as token_ids, {len(ids)}")
    if not (min(ids) >= 0 and max(ids) < vocabulary_size):
        raise InvalidArgument(f"{field}.token_ids", ids, f"token ids below {vocabulary_size}")
    if len(set(ids)) != len(ids):
        raise InvalidArgument(f"{field}.token_ids", ids, "different from each other")
    total = sum(probabilities)
    if not abs(total - 1.0) <= SUM_TOLERANCE:  # written so that NaN fails
        raise InvalidArgument(f"{field}.probabilities", probabilities, f"a distribution, but they sum to {total:g}")
    if min(probabilities) < 0.0:
        raise InvalidArgument(f"{field}.probabilities", min(probabilities), "from 0 to 1")
    if token not in ids or probabilities[ids.index(token)] == 0.0:
        raise InvalidArgument(f"{field}.token_ids", ids, f"a distribution that can draw its node's token {token}")
