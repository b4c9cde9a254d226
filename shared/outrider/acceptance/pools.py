"""What a coordinator's sessions learn together."""

from __future__ import annotations

from outrider.acceptance.consensus import Consensus
from outrider.acceptance.estimate import MODEL_PRIOR, NGRAM_PRIOR, AcceptancePool
from outrider.acceptance.proposal import Source
from outrider.acceptance.siblings import SiblingPool

PRIORS = {Source.NGRAM: NGRAM_PRIOR, Source.MODEL: MODEL_PRIOR}


class Pools:
    """What all sessions of a coordinator have seen of its sources: where a new one starts from."""

    def __init__(self) -> None:
        self.acceptance = {source: AcceptancePool(prior) for source, prior in PRIORS.items()}
        self.siblings = SiblingPool()
        self.ahead_length = 0
        """How many tokens a session last chose to draft ahead, for each outcome: see `choice.ahead_length`."""
        self.consensus = Consensus(self.acceptance[Source.MODEL])
