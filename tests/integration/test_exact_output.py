"""The answer is the target's own, whatever guesses: against transformers, and against itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.cluster import Cluster, running_cluster
from tests.conftest import TinyModel
from tests.reference import greedy, load_reference
from tests.tiny_models import TEXTS

ARCHITECTURES = ["llama", "qwen2", "gemma2", "gpt2"]
DRAFTERS = ["none", "ngram", "model", "auto"]
CASES = [
    *(pytest.param(name, True, id=f"fixed-{name}") for name in ARCHITECTURES),
    *(pytest.param(name, False, id=f"adaptive-{name}") for name in ("llama", "gemma2")),
    # How long guesses are has nothing to do with the architecture.
    *(pytest.param(name, False, id=f"adaptive-{name}", marks=pytest.mark.slow) for name in ("qwen2", "gpt2")),
]
LENGTHS = {"none": [8], "ngram": [0, 1, 2, 4, 8], "model": range(9), "auto": [1, 3, 8]}
"""Most tokens of a guess. That of the model is as long as allowed, so it is tried with each; nobody's is nothing."""


def prompts(directory: Path) -> list[list[int]]:
    _, tokenizer = load_reference(directory)
    texts = [*TEXTS, "again and again and again and again", "x = 1; y = 2; x = 1; y ="]
    return [tokenizer(text)["input_ids"] for text in texts]


@pytest.mark.parametrize("guesser", ["own layers", "noise"])
@pytest.mark.parametrize(("architecture", "fixed_length"), CASES)
async def test_greedy_equals_transformers(
    tiny_model: TinyModel, architecture: str, guesser: str, fixed_length: bool
) -> None:
    target = tiny_model(architecture)
    # A draft of other random weights guesses noise: nearly everything it proposes is wrong.
    draft, settings = (target, {"layers": 2}) if guesser == "own layers" else (tiny_model(architecture, seed=7), {})
    expected = [greedy(target, prompt, 16) for prompt in prompts(target)]
    options = {"temperature": 0, "fixed_length": fixed_length, "max_tokens": 16}
    async with running_cluster(target, draft, draft=settings) as cluster:
        for number, drafter in enumerate(DRAFTERS if guesser == "own layers" else ["model", "auto"]):
            # A prompt of its own for each alone, and all of them together.
            alone = await ids(cluster, prompts(target)[number], drafter=drafter, **options)
            assert alone == expected[number], drafter
            together = await asyncio.gather(*(ids(cluster, p, drafter=drafter, **options) for p in prompts(target)))
            assert list(together) == expected, drafter


@pytest.mark.parametrize("fixed_length", [True, False], ids=["fixed", "adaptive"])
async def test_sampled_output_does_not_depend_on_the_drafter(tiny_model: TinyModel, fixed_length: bool) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, target, draft={"layers": 2}) as cluster:
        first, *others = prompts(target)
        expected = await ids(cluster, first, drafter="none", temperature=0.8, seed=11)
        assert await ids(cluster, first, drafter="none", temperature=0.8, seed=12) != expected
        for drafter in DRAFTERS:
            for longest in LENGTHS[drafter]:
                options = {"drafter": drafter, "temperature": 0.8, "seed": 11, "max_draft_tokens": longest}
                options |= {"fixed_length": fixed_length}
                assert await ids(cluster, first, **options) == expected, (drafter, longest)
            among = await asyncio.gather(
                ids(cluster, first, drafter=drafter, temperature=0.8, seed=11, fixed_length=fixed_length),
                *(ids(cluster, p, drafter=drafter, temperature=1.2, seed=5) for p in others),
            )
            assert among[0] == expected, drafter


async def test_case_05_a_draft_with_the_targets_weights_is_always_right(tiny_model: TinyModel) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, target) as cluster:
        for temperature in (0.0, 0.9):
            for prompt in prompts(target)[:4]:
                done = await cluster.generate(
                    prompt, drafter="model", fixed_length=True, temperature=temperature, seed=3, ignore_eos=True
                )
                assert done.speculation.proposed_tokens > 0
                assert done.speculation.accepted_tokens == done.speculation.proposed_tokens


async def test_case_06_concurrent_requests_equal_their_solo_runs(tiny_model: TinyModel) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, target, draft={"layers": 2}) as cluster:
        requests = [
            (
                prompt,
                {
                    "drafter": "model",
                    "max_draft_tokens": index % 6,
                    "temperature": 0.7,
                    "seed": index,
                    "fixed_length": True,
                },
            )
            for index, prompt in enumerate(prompts(target))
        ]
        solo = [await ids(cluster, prompt, **options) for prompt, options in requests]
        assert await asyncio.gather(*(ids(cluster, prompt, **options) for prompt, options in requests)) == solo


async def test_case_04_greedy_and_sampled_requests_share_a_batch(tiny_model: TinyModel) -> None:
    target = tiny_model("qwen2")
    async with running_cluster(target, target, draft={"layers": 2}) as cluster:
        prompt = prompts(target)[1]
        expected = greedy(target, prompt, 20)
        answers = await asyncio.gather(
            *(
                ids(
                    cluster,
                    prompt,
                    drafter="model",
                    temperature=0.8 * (index % 2),
                    seed=index,
                    max_tokens=20,
                    fixed_length=True,
                )
                for index in range(8)
            )
        )
        # At temperature 0 the seed does not matter.
        assert [answer for index, answer in enumerate(answers) if index % 2 == 0] == [expected] * 4


async def test_case_19_padding_ids_are_never_proposed_or_emitted(tiny_model: TinyModel) -> None:
    """Qwen2 here has 64 more logits than its tokenizer has ids."""
    target = tiny_model("qwen2")
    async with running_cluster(target, target, draft={"layers": 1}) as cluster:
        for rule in ("match", "rejection", "block"):
            options = {"ignore_eos": True, "fixed_length": True}
            answers = await asyncio.gather(
                *(
                    ids(cluster, prompt, drafter="model", rule=rule, temperature=20.0, seed=seed, **options)
                    for seed, prompt in enumerate(prompts(target))
                )
            )
            assert max(token for answer in answers for token in answer) < 512


async def ids(cluster: Cluster, prompt: list[int], *, max_tokens: int = 24, **options: object) -> list[int]:
    """The output ids of one request."""
    return list((await cluster.generate(prompt, max_tokens=max_tokens, **options)).token_ids)
