"""Every rule over whole generations: what many sessions emit is distributed as the target's own tokens.

120,000 tokens a test are enough to see a total-variation error of 0.01 a step; the first test shows it.
"""

from __future__ import annotations

import pytest
import torch

from outrider.acceptance.params import Rule
from outrider.acceptance.proposal import NO_PROPOSAL
from outrider.acceptance.tree import ROOT
from tests.unit.sampling.devices import on_each_device
from tests.unit.sampling.simulation import (
    SIGNIFICANCE,
    assert_follows,
    chains,
    coupled_forks,
    independent_trees,
    pair_p_value,
    random_pair,
    simulate,
    triple_p_value,
)

SESSIONS, TOKENS = 12_000, 10
PAIR = random_pair()


def plain_chain(table: torch.Tensor, seed: int) -> torch.Tensor:
    """Ordinary sampling from a Markov chain by torch, without any of our code."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.zeros(SESSIONS, 1, dtype=torch.int64)
    for _ in range(TOKENS):
        tokens = torch.cat((tokens, torch.multinomial(table[tokens[:, -1]], 1, generator=generator)), dim=1)
    return tokens[:, 1:]


@pytest.mark.parametrize("seed", range(5))
def test_the_check_sees_a_total_variation_error_of_one_percent(seed):
    assert_follows(plain_chain(PAIR.target, seed), PAIR.target)
    # The direction in which an error of a given size is hardest to see: in proportion to p.
    more = torch.tensor([True, False, True])
    share = (PAIR.target * more).sum(1, keepdim=True)
    change = torch.where(more, 0.01 / share, -0.01 / (1 - share)) * PAIR.target
    assert (change.abs().sum(1) / 2).tolist() == pytest.approx([0.01] * 3)
    with pytest.raises(AssertionError, match="steps"):
        assert_follows(plain_chain(PAIR.target + change, seed), PAIR.target)


@on_each_device
@pytest.mark.parametrize(
    ("rule", "propose"),
    [
        pytest.param(Rule.MATCH, chains(3), id="match-chains"),
        pytest.param(Rule.MATCH, coupled_forks, id="match-siblings"),
        pytest.param(Rule.REJECTION, chains(3), id="rejection-chains"),
        pytest.param(Rule.REJECTION, independent_trees((ROOT, ROOT, 0, 0)), id="rejection-siblings"),
        pytest.param(Rule.BLOCK, chains(3), id="block-chains"),
    ],
)
def test_generations_follow_the_target(rule, propose, device):
    assert_follows(simulate(PAIR, rule, propose, sessions=SESSIONS, tokens=TOKENS, device=device), PAIR.target)


@on_each_device
@pytest.mark.parametrize("rule", Rule)
def test_plain_decoding_follows_the_target(rule, device):
    """What is left of a rule where nothing was proposed; a third as many tokens, for the code is nearly all shared."""
    tokens = simulate(
        PAIR, rule, lambda _, sessions: [NO_PROPOSAL] * len(sessions), sessions=SESSIONS, tokens=3, device=device
    )
    assert_follows(tokens, PAIR.target)


def test_the_checks_see_dependence_between_rounds():
    """The same noise at every position is right at each of them alone: only the three-step check can tell."""
    memoryless = PAIR.target[:1].expand(3, 3)
    repeated = plain_chain(memoryless, 1)[:, :1].expand(SESSIONS, 9)
    assert pair_p_value(repeated[:, :1], memoryless) > SIGNIFICANCE
    assert triple_p_value(repeated, memoryless) < SIGNIFICANCE
