"""Which proposed tokens stand. The mathematics is in docs/acceptance.md."""

from __future__ import annotations

from outrider.acceptance.params import Rule
from outrider.acceptance.philox import Domain, uniform
from outrider.acceptance.proposal import Outcome, Proposal, Verdict
from outrider.acceptance.tree import ROOT
from outrider.errors import InternalError


def accept(rule: Rule, proposal: Proposal, verdict: Verdict, *, seed: int, base_length: int) -> Outcome:
    """Decide a round of `proposal` after `base_length` committed tokens.

    Raises InternalError if the verdict cannot belong to the proposal, which is the verifier's fault.
    """
    _check(rule, proposal, verdict)
    return decide(rule, proposal, verdict, seed=seed, base_length=base_length)


def decide(rule: Rule, proposal: Proposal, verdict: Verdict, *, seed: int, base_length: int) -> Outcome:
    """`accept`, by who has made the verdict and needs not check it."""
    if rule is Rule.MATCH:
        accepted = _match(proposal, verdict)
    elif rule is Rule.REJECTION:
        accepted = _rejection(proposal, verdict, seed, base_length)
    else:
        accepted = _block(verdict, seed, base_length)
    last = accepted[-1] if accepted else ROOT
    return Outcome(accepted, verdict.next_tokens[last + 1])


def _match(proposal: Proposal, verdict: Verdict) -> tuple[int, ...]:
    """Walk while some child is the token that the target drew itself."""
    tree, drawn = proposal.tree, verdict.next_tokens
    accepted: list[int] = []
    node = ROOT
    # Children come after their parents: one pass meets each node of the path after the one before it.
    for child, parent in enumerate(tree.parents):
        if parent == node and tree.tokens[child] == drawn[node + 1]:
            accepted.append(child)
            node = child
    return tuple(accepted)


def _rejection(proposal: Proposal, verdict: Verdict, seed: int, base_length: int) -> tuple[int, ...]:
    """Walk down, trying the children of each node in order; stop where all of them fall.

    Leviathan, Kalman & Matias 2023; Chen et al. 2023; siblings as in SpecInfer (Miao et al. 2024).
    """
    accepted: list[int] = []
    node = ROOT
    while True:
        position = base_length + len(accepted)
        for child in proposal.tree.children(node):
            if uniform(seed, Domain.ACCEPT, position, base_length, child) < verdict.thresholds[child]:
                break
        else:
            return tuple(accepted)
        accepted.append(child)
        node = child


def _block(verdict: Verdict, seed: int, base_length: int) -> tuple[int, ...]:
    """The longest prefix whose own threshold passes, whatever happened to shorter ones (Sun et al. 2024)."""
    for node in reversed(range(len(verdict.thresholds))):
        if uniform(seed, Domain.ACCEPT, base_length + node, base_length, node) < verdict.thresholds[node]:
            return tuple(range(node + 1))
    return ()


def _check(rule: Rule, proposal: Proposal, verdict: Verdict) -> None:
    size = len(proposal)
    if len(verdict.next_tokens) != size + 1:
        raise InternalError(f"verdict has {len(verdict.next_tokens)} next tokens, but {size} nodes need {size + 1}")
    wanted = 0 if rule is Rule.MATCH else size
    if len(verdict.thresholds) != wanted:
        raise InternalError(
            f"verdict has {len(verdict.thresholds)} thresholds, but {rule} over {size} nodes has {wanted}"
        )
    if wanted and not all(0.0 <= threshold <= 1.0 for threshold in verdict.thresholds):  # NaN fails too
        raise InternalError(f"verdict has thresholds outside 0 to 1: {verdict.thresholds}")
    if min(verdict.next_tokens) < 0:
        raise InternalError(f"verdict has a negative token id: {verdict.next_tokens}")
    if verdict.logprobs and len(verdict.logprobs) != size + 1:
        raise InternalError(f"verdict has logprobs of {len(verdict.logprobs)} rows, but {size} nodes have {size + 1}")
    if rule is Rule.BLOCK and not proposal.tree.is_chain:
        raise InternalError("a tree with branches was verified under the block rule, which is for chains")
