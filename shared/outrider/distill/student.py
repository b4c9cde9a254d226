"""The draft before training: some of the target's layers over some of its vocabulary."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from outrider.corpus import Answer
from outrider.distill.options import DraftOptions
from outrider.engine.draft_vocabulary import DraftVocabulary, most_frequent
from outrider.errors import InvalidArgument, ModelLoadError


def choose_vocabulary(
    answers: Iterable[Answer], target_size: int, size: int | None, always: Sequence[int]
) -> DraftVocabulary | None:
    """The `size` tokens that the target's answers use most, prompts counting a tenth; None: keep all."""
    if size is None or size >= target_size:
        return None
    counts: Counter[int] = Counter()
    for answer in answers:
        counts.update(dict.fromkeys(answer.prompt, 1))
        for token in answer.answer:
            counts[token] += 10
    return most_frequent([counts[token] for token in range(target_size)], size, always)


def make_student(target: PreTrainedModel, options: DraftOptions, vocabulary: DraftVocabulary | None) -> PreTrainedModel:
    """A smaller model of the target's kind, in float32 on the target's device, that starts from its weights.

    Raises InvalidArgument for layers that the target lacks, ModelLoadError for an architecture without the usual
    names (`model.layers`, `model.norm`, gated `mlp`).
    """
    depth = target.config.num_hidden_layers
    layers = (0, depth - 1) if options.layers is None else options.layers
    for layer in layers:
        if not 0 <= layer < depth:
            raise InvalidArgument("draft.layers", layer, f"from 0 to {depth - 1}, the target's layers")
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = len(layers)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[layer] for layer in layers]
    if options.intermediate_size is not None:
        if options.intermediate_size > config.intermediate_size:
            raise InvalidArgument(
                "draft.intermediate_size", options.intermediate_size, f"at most the target's {config.intermediate_size}"
            )
        config.intermediate_size = options.intermediate_size
    if vocabulary is not None:
        config.vocab_size = vocabulary.rows
        config.pad_token_id = None  # an id of the target's
    config.tie_word_embeddings = True
    student = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    try:
        _copy_weights(target, student, layers, vocabulary)
    except AttributeError as error:
        raise ModelLoadError(f"no draft can be made of a {type(target).__name__}: {error}") from error
    student.tie_weights()
    return student.to(target.device)


@torch.no_grad()
def _copy_weights(target: Any, student: Any, layers: Sequence[int], vocabulary: DraftVocabulary | None) -> None:
    student.model.norm.load_state_dict(target.model.norm.state_dict())
    head = target.get_output_embeddings().weight
    student.get_input_embeddings().weight.copy_(head if vocabulary is None else _trim(head, vocabulary))
    for layer, origin in zip(student.model.layers, layers, strict=True):
        state = target.model.layers[origin].state_dict()
        if layer.mlp.down_proj.in_features < target.model.layers[origin].mlp.down_proj.in_features:
            _narrow(state, layer.mlp.down_proj.in_features)
        layer.load_state_dict(state)


def _trim(rows: Tensor, vocabulary: DraftVocabulary) -> Tensor:
    """The vocabulary's rows, then the mean of the others."""
    kept = torch.tensor(vocabulary.token_ids, device=rows.device)
    others = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    others[kept] = False
    rest = rows[others] if bool(others.any()) else rows
    return torch.cat([rows[kept], rest.float().mean(dim=0, keepdim=True).to(rows.dtype)])


def _narrow(state: dict[str, Tensor], size: int) -> None:
    """Keep the `size` neurons of a gated MLP whose weights, in and out, are largest."""
    up, down = state["mlp.up_proj.weight"].float(), state["mlp.down_proj.weight"].float()
    gate = state["mlp.gate_proj.weight"].float()
    weight = up.norm(dim=1) * down.norm(dim=0) * gate.norm(dim=1)
    kept = weight.topk(size).indices.sort().values
    for name, dim in (("gate_proj", 0), ("up_proj", 0), ("down_proj", 1)):
        state[f"mlp.{name}.weight"] = state[f"mlp.{name}.weight"].index_select(dim, kept)
        if (bias := state.get(f"mlp.{name}.bias")) is not None and dim == 0:
            state[f"mlp.{name}.bias"] = bias[kept]


def trainable_parameters(student: nn.Module) -> int:
    """How many weights the draft has; tied ones count once."""
    return sum(parameter.numel() for parameter in student.parameters())
