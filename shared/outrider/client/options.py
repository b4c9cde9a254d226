"""The keyword arguments of `generate` and `stream`, in one place for the sync and the async client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from outrider.acceptance.params import Rule
from outrider.client.results import Drafter


class ChatMessage(TypedDict):
    """One turn of a conversation; `role` is system, user or assistant, as the model's chat template knows them."""

    role: str
    content: str


class RequestOptions(TypedDict, total=False):
    """Options of one request; what is left out takes the service's default.

    The input is exactly one of the positional prompt, `token_ids` and `messages`. The sampling parameters have the
    meaning vLLM and OpenAI give them (`outrider.acceptance.params.SamplingParams`).
    """

    token_ids: Sequence[int]
    messages: Sequence[ChatMessage]

    max_tokens: int
    stop: str | Sequence[str]  # the answer ends before the first of these
    stop_token_ids: Sequence[int]  # the answer ends with the first of these
    include_stop: bool  # keep the stop string in the text
    ignore_eos: bool

    temperature: float  # 0: greedy
    top_k: int  # 0: all
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    min_tokens: int
    seed: int  # unsigned 64 bits; left out: the service draws one and reports it

    logprobs: int  # report each token's logprob and this many alternatives

    drafter: Drafter | Literal["none", "ngram", "model", "auto"]
    max_draft_tokens: int  # longest guess a round; 0: plain decoding
    fixed_length: bool  # guess that much in every round, whether it pays or not
    rule: Rule | Literal["match", "rejection", "block"]

    request_id: str  # to `abort` with; left out: the service chooses one
    session_id: str  # the same in every turn of a conversation, which then computes only what is new in each
