"""A draft with quantized weights guesses a little otherwise, and the answers are the same."""

from __future__ import annotations

from tests.cluster import running_cluster
from tests.conftest import TinyModel
from tests.reference import greedy, load_reference
from tests.tiny_models import TEXTS


async def test_answers_do_not_depend_on_the_drafts_weights(tiny_model: TinyModel) -> None:
    target = tiny_model("llama")
    _, tokenizer = load_reference(target)
    prompts = [tokenizer(text)["input_ids"] for text in TEXTS[:3]]
    async with running_cluster(target, target, draft={"quantization": "int8"}) as cluster:
        (model,) = (link.model for link in cluster.coordinator.replicas.drafts)
        assert model is not None
        assert model.dtype == "float32 with int8 weights"
        proposed = accepted = 0
        for prompt in prompts:
            options = {"drafter": "model", "fixed_length": True}
            done = await cluster.generate(prompt, temperature=0, max_tokens=24, **options)
            assert list(done.token_ids) == greedy(target, prompt, 24)
            proposed += done.speculation.proposed_tokens
            accepted += done.speculation.accepted_tokens
            sampled = [
                (await cluster.generate(prompt, temperature=0.8, seed=3, max_tokens=24, **(options | other))).token_ids
                for other in ({}, {"drafter": "none"})
            ]
            assert sampled[0] == sampled[1]
        assert accepted > 0.8 * proposed > 0, "good guesses all the same"
