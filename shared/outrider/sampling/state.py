"""What sampling must know of a session besides its logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from outrider.acceptance.params import Rule, SamplingParams, validate_params
from outrider.acceptance.philox import MASK
from outrider.errors import InvalidArgument
from outrider.protocol.items import Open

MAX_SEED = 2**64 - 1


@dataclass(slots=True)
class TokenCounts:
    """How often each token stands in a session's committed history; kept only where penalties ask for it."""

    prompt_length: int
    tokens: list[int]
    seen_in_prompt: Tensor  # [V] bool
    output: Tensor  # [V] float32, occurrences in the output

    @classmethod
    def of(cls, tokens: Sequence[int], prompt_length: int, vocabulary_size: int, device: torch.device) -> TokenCounts:
        """Count a whole history."""
        counts = cls(
            prompt_length,
            list(tokens[:prompt_length]),
            torch.zeros(vocabulary_size, dtype=torch.bool, device=device),
            torch.zeros(vocabulary_size, dtype=torch.float32, device=device),
        )
        counts.seen_in_prompt[_ids(counts.tokens, device)] = True
        counts.replace(prompt_length, tokens[prompt_length:])
        return counts

    def replace(self, keep: int, append: Sequence[int]) -> None:
        """Make the history its first `keep` tokens followed by `append`."""
        dropped = self.tokens[keep:]
        del self.tokens[keep:]
        self.tokens.extend(append)
        self._add(dropped, -1.0)
        self._add(append, 1.0)

    def _add(self, tokens: Sequence[int], weight: float) -> None:
        if tokens:
            ids = _ids(tokens, self.output.device)
            self.output.index_add_(0, ids, torch.full_like(ids, weight, dtype=torch.float32))


@dataclass(slots=True)
class SamplingState:
    """One session's sampling parameters, seed and counts, on the device of its logits."""

    params: SamplingParams
    rule: Rule
    seed: int  # unsigned 64 bits
    prompt_length: int
    length: int  # committed tokens
    vocabulary_size: int
    logprobs: int | None = None
    counts: TokenCounts | None = None
    stop_ids: Tensor | None = None  # [n] int64, what min_tokens suppresses
    bias: tuple[Tensor, Tensor] | None = None  # [n] int64 ids, [n] float32 biases
    plain: bool = field(init=False)  # the scores are the logits over the temperature: nothing else shapes them
    drawn_plainly: bool = field(init=False)  # and its draws are those of the rule match
    key: tuple[int, int, int, int] = field(init=False)  # for `outrider.sampling.device_draw`: see KEY_WORDS there

    def __post_init__(self) -> None:
        params = self.params
        truncated = params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0
        shaped = self.counts is not None or self.stop_ids is not None or self.bias is not None
        self.plain = not shaped and (params.greedy or not truncated)
        self.drawn_plainly = self.plain and (params.greedy or self.rule is Rule.MATCH)
        temperature = np.array(params.temperature, np.float32).view(np.uint32)
        self.key = (self.seed & MASK, self.seed >> 32, self.vocabulary_size, int(temperature))

    @classmethod
    def open(cls, item: Open, vocabulary_size: int, device: torch.device) -> SamplingState:
        """The state of a newly (re)opened session; InvalidArgument names what `item` has wrong.

        Ids are checked here because one out of range would end the process on a CUDA device.
        """
        params = item.params
        validate_params(params, vocabulary_size=vocabulary_size)
        _check_open(item, vocabulary_size)
        counts = stop_ids = bias = None
        if params.penalized:
            counts = TokenCounts.of(item.tokens, item.prompt_length, vocabulary_size, device)
        if params.min_tokens > 0 and item.stop_token_ids:
            stop_ids = _ids(item.stop_token_ids, device)
        if params.logit_bias:
            values = torch.tensor([value for _, value in params.logit_bias], dtype=torch.float32, device=device)
            bias = (_ids([token for token, _ in params.logit_bias], device), values)
        length = len(item.tokens)
        return cls(
            params,
            item.rule,
            item.seed,
            item.prompt_length,
            length,
            vocabulary_size,
            item.logprobs,
            counts,
            stop_ids,
            bias,
        )

    def advance(self, keep: int, append: Sequence[int]) -> None:
        """Follow the committed history: its first `keep` tokens stay, then `append` follows.

        Raises InvalidArgument, and changes nothing, if that is not a continuation of the session's prompt.
        """
        if not self.prompt_length <= keep <= self.length:
            raise InvalidArgument("keep", keep, f"from {self.prompt_length}, the prompt, to {self.length}, the history")
        _check_ids("append", append, self.vocabulary_size)
        self.length = keep
        self.go_on(append)

    def go_on(self, append: Sequence[int]) -> None:
        """Follow the committed history, which goes on with `append`: tokens of the vocabulary."""
        if self.counts is not None:
            self.counts.replace(self.length, append)
        self.length += len(append)


def _check_open(item: Open, vocabulary_size: int) -> None:
    if not 0 < item.prompt_length <= len(item.tokens):
        raise InvalidArgument("prompt_length", item.prompt_length, f"from 1 to {len(item.tokens)}, the tokens given")
    if not 0 <= item.seed <= MAX_SEED:
        raise InvalidArgument("seed", item.seed, "an unsigned 64-bit integer")
    if item.logprobs is not None and not 0 <= item.logprobs <= vocabulary_size:
        raise InvalidArgument("logprobs", item.logprobs, f"from 0 to {vocabulary_size}")
    _check_ids("tokens", item.tokens, vocabulary_size)
    _check_ids("stop_token_ids", item.stop_token_ids, vocabulary_size)


def _check_ids(field_name: str, tokens: Sequence[int], vocabulary_size: int) -> None:
    if tokens and not (min(tokens) >= 0 and max(tokens) < vocabulary_size):
        index = next(i for i, token in enumerate(tokens) if not 0 <= token < vocabulary_size)
        raise InvalidArgument(f"{field_name}[{index}]", tokens[index], f"a token id below {vocabulary_size}")


def _ids(tokens: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(tokens, dtype=torch.int64, device=device)
