"""Request parameters through the whole path: speculative and plain decoding agree, and every count ends together."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import torch

from outrider.client import Completion
from outrider.errors import InvalidArgument
from tests.cluster import Cluster, running_cluster
from tests.conftest import TinyModel
from tests.reference import load_reference

PROMPT = "again and again and again and again"
DRAFTERS = ["none", "ngram", "model", "auto"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tiny_model: TinyModel) -> AsyncIterator[Cluster]:
    target = tiny_model("llama")
    # The draft has the target's own weights: chunks are as long as they get.
    async with running_cluster(target, target) as running:
        yield running


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def answers(cluster: Cluster, prompt: str = PROMPT, **options: Any) -> list[Completion]:
    """The same request with every drafter, five tokens at a time, so that everything happens inside chunks."""
    options = {"temperature": 0, "max_draft_tokens": 5, "fixed_length": True, "max_tokens": 24} | options
    return [await cluster.generate(prompt, drafter=drafter, **options) for drafter in DRAFTERS]


@pytest.mark.parametrize(
    "options",
    [
        {"frequency_penalty": 2.0},
        {"frequency_penalty": -2.0},
        {"presence_penalty": 1.5},
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.7, "temperature": 0.9, "seed": 4},
        {"top_k": 5, "temperature": 1.5, "seed": 1},
        {"top_p": 0.6, "temperature": 1.5, "seed": 2},
        {"min_p": 0.2, "temperature": 1.5, "seed": 3},
        {"logit_bias": {17: 50.0, 30: -100.0}, "temperature": 0.7, "seed": 3},
        {"min_tokens": 12, "stop_token_ids": [17, 30, 99], "temperature": 1.0, "seed": 8},
        {"ignore_eos": True, "temperature": 3.0, "seed": 8},
    ],
    ids=str,
)
async def test_case_10_speculation_changes_no_parameters_effect(cluster: Cluster, options: dict[str, Any]) -> None:
    plain, *others = await answers(cluster, **options)
    assert [other.token_ids for other in others] == [plain.token_ids] * len(others)
    assert [other.text for other in others] == [plain.text] * len(others)


async def test_case_10_penalties_of_opposite_sign_differ(cluster: Cluster) -> None:
    more = await answers(cluster, frequency_penalty=-2.0)
    less = await answers(cluster, frequency_penalty=2.0)
    assert more[0].token_ids != less[0].token_ids


async def test_case_11_min_tokens_counts_tokens_not_rounds(cluster: Cluster) -> None:
    free = (await answers(cluster, ignore_eos=True, max_tokens=20))[0].token_ids
    # A token that comes both early and late: as a stop id it must be impossible early and end the answer later.
    stop = free[7]
    for answer in await answers(cluster, min_tokens=10, stop_token_ids=[stop], max_tokens=40):
        assert stop not in answer.token_ids[:10]
        assert answer.token_ids[-1] == stop or answer.finish_reason == "length"
        assert len(answer.token_ids) > 10 or answer.token_ids[-1] == stop


async def test_case_12_and_13_a_stop_string_ends_text_ids_logprobs_and_usage_together(cluster: Cluster) -> None:
    free = (await answers(cluster, max_tokens=24))[0]
    for start, size in ((3, 4), (len(free.text) // 2, 5), (len(free.text) - 6, 3)):
        stop = free.text[start : start + size]
        place = free.text.find(stop)
        for answer in await answers(cluster, max_tokens=24, stop=[stop, "never to be seen"], logprobs=1):
            assert answer.text == free.text[:place]
            assert answer.finish_reason == "stop"
            ids = answer.token_ids
            assert ids == free.token_ids[: len(ids)]
            # The answer's last token completes the stop string: one token less has not got it all.
            assert stop in await text_of(cluster, ids)
            assert stop not in await text_of(cluster, ids[:-1])
            assert len(answer.logprobs) == len(ids) == answer.usage.completion_tokens
        kept = await answers(cluster, max_tokens=24, stop=[stop], include_stop=True)
        assert {answer.text for answer in kept} == {free.text[:place] + stop}


@pytest.mark.parametrize("max_tokens", [1, 2, 7, 8])
async def test_case_14_max_tokens_is_exact(cluster: Cluster, max_tokens: int) -> None:
    for answer in await answers(cluster, ignore_eos=True, max_tokens=max_tokens):
        assert len(answer.token_ids) == answer.usage.completion_tokens == max_tokens
        assert answer.finish_reason == "length"


async def test_case_15_no_counter_exceeds_the_answer(cluster: Cluster) -> None:
    free = (await answers(cluster, ignore_eos=True, max_tokens=24))[0].token_ids
    for answer in await answers(cluster, stop_token_ids=[free[9]], ignore_eos=True):
        assert answer.token_ids == free[: free.index(free[9]) + 1]
        assert answer.finish_reason == "stop"
        assert answer.usage.completion_tokens == len(answer.token_ids)
        stats = answer.speculation
        assert stats.accepted_tokens + stats.rounds >= len(answer.token_ids) >= stats.accepted_tokens
        assert stats.accepted_tokens <= stats.proposed_tokens
        assert stats.accepted_length == pytest.approx(len(answer.token_ids) / stats.rounds)


async def test_case_16_logprobs_are_the_targets_own(cluster: Cluster, tiny_model: TinyModel) -> None:
    model, tokenizer = load_reference(tiny_model("llama"))
    for temperature in (0, 0.9):
        for answer in await answers(cluster, logprobs=2, temperature=temperature, seed=5, repetition_penalty=1.2):
            ids = tokenizer(PROMPT)["input_ids"] + list(answer.token_ids)
            with torch.inference_mode():
                expected = model(torch.tensor([ids], device=model.device)).logits[0].log_softmax(-1)
            first = len(ids) - len(answer.token_ids)
            for place, (token, entry) in enumerate(zip(answer.token_ids, answer.logprobs, strict=True)):
                row = expected[first + place - 1]
                assert entry.token_id == token
                assert entry.logprob == pytest.approx(row[token].item(), abs=1e-4)
                top = row.topk(2)
                assert [pair.token_id for pair in entry.top] == top.indices.tolist()
                assert [pair.logprob for pair in entry.top] == pytest.approx(top.values.tolist(), abs=1e-4)


async def test_logprobs_under_rejection_belong_to_the_emitted_tokens(cluster: Cluster, tiny_model: TinyModel) -> None:
    model, tokenizer = load_reference(tiny_model("llama"))
    for rule in ("rejection", "block"):
        answer = await cluster.generate(
            PROMPT, drafter="model", rule=rule, temperature=1.0, seed=9, logprobs=0, max_tokens=24, fixed_length=True
        )
        ids = tokenizer(PROMPT)["input_ids"] + list(answer.token_ids)
        with torch.inference_mode():
            expected = model(torch.tensor([ids], device=model.device)).logits[0].log_softmax(-1)
        first = len(ids) - len(answer.token_ids)
        own = [expected[first + i - 1, token].item() for i, token in enumerate(answer.token_ids)]
        assert [entry.logprob for entry in answer.logprobs] == pytest.approx(own, abs=1e-4)


async def test_case_28_the_stream_joined_is_the_whole_answer(cluster: Cluster) -> None:
    """High temperature gives bytes that are no text; the stream must hold them back and flush the tail."""
    for seed in range(6):
        options = {"temperature": 2.0, "seed": seed, "max_tokens": 30, "drafter": "model", "fixed_length": True}
        whole = await cluster.generate(PROMPT, **options)
        text, ids = "", []
        async with cluster.client.stream(PROMPT, **options) as stream:
            async for chunk in stream:
                text += chunk.text
                ids += chunk.token_ids
        assert text == whole.text == await text_of(cluster, whole.token_ids)
        assert tuple(ids) == whole.token_ids


async def test_case_29_rate_is_absent_when_nothing_was_drafted(cluster: Cluster) -> None:
    plain, ngram, model, auto = await answers(cluster)
    assert plain.speculation.acceptance_rate is None
    assert plain.speculation.proposed_tokens == 0
    assert plain.speculation.accepted_length == 1.0
    assert plain.speculation.plain_rounds == plain.speculation.rounds
    assert model.speculation.acceptance_rate == 1.0
    assert auto.speculation.proposed_tokens > 0
    assert ngram.speculation.proposed_tokens == 0 or ngram.speculation.acceptance_rate is not None


async def test_case_22_proposals_stop_at_the_end_of_the_context(cluster: Cluster) -> None:
    """The tiny models hold 256 tokens."""
    for drafter in DRAFTERS:
        answer = await cluster.generate(
            [5, 6, 7, 8] * 63,
            drafter=drafter,
            max_draft_tokens=9,
            max_tokens=50,
            temperature=0,
            ignore_eos=True,
            fixed_length=True,
        )
        assert answer.usage.prompt_tokens == 252
        assert answer.usage.completion_tokens == 4
        assert answer.finish_reason == "length"


async def test_concurrent_mixed_requests_equal_their_solo_runs(cluster: Cluster) -> None:
    requests: list[dict[str, Any]] = [
        {"temperature": 0.0, "frequency_penalty": 1.0},
        {"temperature": 0.9, "seed": 1, "top_k": 4},
        {"temperature": 0.9, "seed": 2, "min_tokens": 9, "stop_token_ids": [3, 4]},
        {"temperature": 1.4, "seed": 3, "stop": ["e"]},
        {"temperature": 0.0, "logprobs": 3},
    ]
    common = {"drafter": "model", "max_tokens": 20, "fixed_length": True}
    solo = [await cluster.generate(PROMPT, **common, **request) for request in requests]
    together = await asyncio.gather(*(cluster.generate(PROMPT, **common, **request) for request in requests))
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in solo]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": 1e-6}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"min_p": 2.0}, "min_p"),
        ({"presence_penalty": 9.0}, "presence_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"logit_bias": {70000: 1.0}}, "logit_bias.token_id"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 20, "max_tokens": 10}, "min_tokens"),
        ({"stop": ["x" * 300]}, "stop[0]"),
        ({"stop_token_ids": [99999]}, "stop_token_ids"),
        ({"logprobs": 21}, "logprobs"),
        ({"max_draft_tokens": 1000}, "speculation.max_draft_tokens"),
        ({"request_id": "x" * 200}, "request_id"),
    ],
    ids=str,
)
async def test_bad_input_is_named_and_harms_nobody(cluster: Cluster, options: dict[str, Any], field: str) -> None:
    neighbour = asyncio.create_task(cluster.generate(PROMPT, temperature=0, max_tokens=24))
    with pytest.raises(InvalidArgument) as caught:
        await cluster.generate(PROMPT, **options)
    assert caught.value.field == field
    assert (await neighbour).usage.completion_tokens > 0


async def test_bad_prompts_are_named(cluster: Cluster) -> None:
    for prompt, field in (([], "input"), ([1] * 256, "input"), ([1, 9999], "token_ids[1]")):
        with pytest.raises(InvalidArgument) as caught:
            await cluster.generate(prompt)
        assert caught.value.field == field


async def text_of(cluster: Cluster, ids: tuple[int, ...]) -> str:
    """What the target's tokenizer makes of ids."""
    return cluster.coordinator.replicas.known_target.tokenizer.decode(ids)
