"""What happens to a generation when something around it goes away. Under `match` the client sees the same answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outrider.client import AsyncClient
from outrider.errors import InvalidArgument, ResourceExhausted, Unavailable
from tests.cluster import Cluster, running_cluster, start_draft, start_verifier, until
from tests.conftest import TinyModel

PROMPT = "again and again and again"
# A fixed length keeps the drafts at work, whatever they are worth on this machine.
OPTIONS: dict[str, Any] = {"temperature": 0.8, "seed": 21, "max_tokens": 60, "ignore_eos": True, "fixed_length": True}


def free_tokens(cluster: Cluster) -> list[int]:
    """KV tokens that new sessions could take, on every replica."""
    return [
        replica._worker._core.engine.available_tokens  # type: ignore[attr-defined]
        for replica in (*cluster.verifiers, *cluster.drafts)
    ]


async def test_case_23_the_draft_dies_mid_stream(tiny_model: TinyModel) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, target, draft={"layers": 2}, draft_retry_s=0.1) as cluster:
        expected = await cluster.generate(PROMPT, drafter="none", **OPTIONS)
        text, chunks = "", 0
        async with cluster.client.stream(PROMPT, drafter="model", **OPTIONS) as stream:
            async for chunk in stream:
                text, chunks = text + chunk.text, chunks + 1
                if chunks == 5:
                    await cluster.drafts[0].stop()
        assert stream.result.token_ids == expected.token_ids
        assert text == expected.text
        assert stream.result.speculation.proposed_tokens > 0
        assert stream.result.speculation.fallback_reason


async def test_case_23_a_draft_that_comes_back_is_used_again(tiny_model: TinyModel) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, target, draft={"layers": 2}, draft_retry_s=0.1) as cluster:
        options = OPTIONS | {"max_tokens": 200}
        expected = await cluster.generate(PROMPT, drafter="none", **options)
        address = cluster.coordinator.replicas.drafts[0].address
        chunks, proposed_before = 0, 0
        async with cluster.client.stream(PROMPT, drafter="model", request_id="r", **options) as stream:
            async for _ in stream:
                chunks += 1
                if chunks == 5:
                    await cluster.drafts[0].stop()
                    replica, _ = await start_draft(target, layers=2, listen=address)
                    cluster.stack.push_async_callback(replica.stop)
                    session = cluster.coordinator.generations._running["", "r"]
                    proposed_before = chunks
                    assert session is not None
        assert stream.result.token_ids == expected.token_ids
        again = await cluster.generate(PROMPT, drafter="model", **options)
        assert again.speculation.proposed_tokens > proposed_before > 0
        assert again.token_ids == expected.token_ids


async def test_the_verifier_dies_mid_stream_and_another_goes_on(tiny_model: TinyModel) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, verifiers=2) as cluster:
        expected = await cluster.generate(PROMPT, drafter="ngram", **OPTIONS)
        text, chunks = "", 0
        async with cluster.client.stream(PROMPT, drafter="ngram", **OPTIONS) as stream:
            async for chunk in stream:
                text, chunks = text + chunk.text, chunks + 1
                if chunks == 5:
                    (bound,) = cluster.coordinator.replicas._on_verifiers.loads()
                    place = [link.address for link in cluster.coordinator.replicas.verifiers].index(bound)
                    await cluster.verifiers[place].stop()
        assert stream.result.token_ids == expected.token_ids
        assert text == expected.text


async def test_the_only_verifier_restarts_mid_stream(tiny_model: TinyModel) -> None:
    target = tiny_model("llama")
    async with running_cluster(target) as cluster:
        expected = await cluster.generate(PROMPT, drafter="none", **OPTIONS)
        address = cluster.coordinator.replicas.verifiers[0].address
        chunks = 0
        async with cluster.client.stream(PROMPT, drafter="none", **OPTIONS) as stream:
            async for _ in stream:
                chunks += 1
                if chunks == 5:
                    await cluster.verifiers[0].stop()
                    replica, _ = await start_verifier(target, listen=address)
                    cluster.stack.push_async_callback(replica.stop)
        assert stream.result.token_ids == expected.token_ids


async def test_without_any_verifier_the_client_hears_unavailable(tiny_model: TinyModel) -> None:
    async with running_cluster(tiny_model("llama"), failover_s=0.3) as cluster:
        await cluster.verifiers[0].stop()
        await until(lambda: not cluster.coordinator.replicas.verifiers[0].ready)
        with pytest.raises(Unavailable, match="no verifier is connected"):
            await cluster.generate(PROMPT, **OPTIONS)


async def test_case_25_a_client_that_leaves_frees_everything(tiny_model: TinyModel) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, target, draft={"layers": 2}) as cluster:
        whole = free_tokens(cluster)
        options = OPTIONS | {"max_tokens": 200}
        for drafter in ("none", "model"):
            async with cluster.client.stream(PROMPT, drafter=drafter, **options) as stream:
                await anext(stream)
                await anext(stream)
            await until(lambda: free_tokens(cluster) == whole)
            assert cluster.coordinator.generations.admission.running == 0
        await cluster.generate(PROMPT, drafter="model", **OPTIONS)
        await until(lambda: free_tokens(cluster) == whole)


async def test_abort_ends_a_generation_with_what_it_has(tiny_model: TinyModel) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, target, draft={"layers": 2}) as cluster:
        whole = free_tokens(cluster)
        options = OPTIONS | {"max_tokens": 200}
        expected = await cluster.generate(PROMPT, drafter="none", **options)
        async with cluster.client.stream(PROMPT, drafter="model", request_id="mine", **options) as stream:
            chunks = 0
            async for _ in stream:
                chunks += 1
                if chunks == 3:
                    assert await cluster.client.abort("mine")
        result = stream.result
        assert result.finish_reason == "abort"
        assert 0 < len(result.token_ids) < 200
        assert result.token_ids == expected.token_ids[: len(result.token_ids)]
        assert result.usage.completion_tokens == len(result.token_ids)
        assert not await cluster.client.abort("mine")
        assert not await cluster.client.abort("never heard of")
        await until(lambda: free_tokens(cluster) == whole)


async def test_a_running_request_id_cannot_be_taken(tiny_model: TinyModel) -> None:
    async with running_cluster(tiny_model("llama")) as cluster:
        async with cluster.client.stream(PROMPT, request_id="mine", **(OPTIONS | {"max_tokens": 200})) as stream:
            await anext(stream)
            with pytest.raises(InvalidArgument) as caught:
                await cluster.generate(PROMPT, request_id="mine", **OPTIONS)
        assert caught.value.field == "request_id"


async def test_a_full_house_is_refused_with_a_hint(tiny_model: TinyModel) -> None:
    async with running_cluster(tiny_model("llama"), max_sessions=1, max_waiting=0) as cluster:
        async with cluster.client.stream(PROMPT, **(OPTIONS | {"max_tokens": 200})) as stream:
            await anext(stream)
            with pytest.raises(ResourceExhausted) as caught:
                await cluster.generate(PROMPT, **OPTIONS)
        assert caught.value.retry_after_s > 0


async def test_no_room_on_the_verifier_is_refused_with_a_hint(tiny_model: TinyModel) -> None:
    async with running_cluster(tiny_model("llama"), verifier={"kv_tokens": 224}, queue_timeout_s=0) as cluster:
        async with cluster.client.stream(PROMPT, **(OPTIONS | {"max_tokens": 190})) as stream:
            await anext(stream)
            with pytest.raises(ResourceExhausted):
                await cluster.generate(PROMPT, **OPTIONS)
        assert (await cluster.generate(PROMPT, **OPTIONS)).usage.completion_tokens == 60


async def test_case_20_another_vocabulary_is_refused_by_its_first_different_id(
    tiny_model: TinyModel, tmp_path: Any
) -> None:
    """The draft stays unused, and the answer is the target's."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target = tiny_model("llama")
    tokenizer = AutoTokenizer.from_pretrained(target)
    state = tokenizer.backend_tokenizer.to_str()
    swapped = tokenizer.backend_tokenizer.from_str(
        state.replace('"Ġand":', '"@@":').replace('"Ġthe":', '"Ġand":').replace('"@@":', '"Ġthe":')
    )
    vocabulary = tokenizer.get_vocab()
    first = min(vocabulary["Ġand"], vocabulary["Ġthe"])
    tokenizer._tokenizer = swapped
    tokenizer.save_pretrained(tmp_path)
    AutoModelForCausalLM.from_pretrained(target).save_pretrained(tmp_path)
    async with running_cluster(target, tmp_path, wait_for_drafts=False) as cluster:
        link = cluster.coordinator.replicas.drafts[0]
        await until(lambda: link.refusal is not None)
        assert f"token {first} is" in str(link.refusal)
        answer = await cluster.generate(PROMPT, drafter="model", **OPTIONS)
        assert answer.speculation.proposed_tokens == 0
        assert answer.speculation.fallback_reason
        assert answer.token_ids == (await cluster.generate(PROMPT, drafter="none", **OPTIONS)).token_ids


async def test_case_21_a_short_draft_context_stops_speculation_not_the_answer(tiny_model: TinyModel) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, target, draft={"kv_tokens": 32}) as cluster:
        expected = await cluster.generate(PROMPT, drafter="none", **OPTIONS)
        answers = await asyncio.gather(*(cluster.generate(PROMPT, drafter="model", **OPTIONS) for _ in range(2)))
        assert [answer.token_ids for answer in answers] == [expected.token_ids] * 2


async def test_replicas_that_take_short_proposals_get_short_ones(tiny_model: TinyModel) -> None:
    """A longer one that the request would allow was an internal error once."""
    target, options = tiny_model("llama"), OPTIONS | {"max_draft_tokens": 20}
    async with running_cluster(target, target, verifier={"max_proposal": 7}, look_ahead="on") as cluster:
        expected = await cluster.generate(PROMPT, drafter="none", **options)
        for drafter in ("ngram", "model", "auto"):
            answer = await cluster.generate(PROMPT, drafter=drafter, **options)
            assert answer.token_ids == expected.token_ids
            assert answer.speculation.proposed_tokens > 0


@pytest.fixture(scope="module")
def reader() -> Any:
    """Reads the metrics of this process, which has one meter provider for good."""
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    made = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([made]))
    return made


async def test_case_29_metric_sums_equal_usage_sums(tiny_model: TinyModel, reader: Any) -> None:
    target = tiny_model("llama")
    async with running_cluster(target, target, draft={"layers": 2}) as cluster:
        requests = [
            {"drafter": drafter, "seed": seed} for seed, drafter in enumerate(("none", "ngram", "model", "auto") * 2)
        ]
        before = _sums(reader)
        answers = await asyncio.gather(*(cluster.generate(PROMPT, **(OPTIONS | request)) for request in requests))
        grown = {name: value - before.get(name, 0) for name, value in _sums(reader).items()}
    assert grown["outrider.tokens.completion"] == sum(answer.usage.completion_tokens for answer in answers)
    assert grown["outrider.tokens.prompt"] == sum(answer.usage.prompt_tokens for answer in answers)
    assert grown["outrider.tokens.cached"] == sum(answer.usage.cached_tokens for answer in answers)
    assert grown["outrider.tokens.proposed"] == sum(answer.speculation.proposed_tokens for answer in answers)
    assert grown["outrider.tokens.accepted"] == sum(answer.speculation.accepted_tokens for answer in answers)
    assert grown["outrider.guess_lengths"] == grown["outrider.rounds"]
    assert grown["outrider.rounds"] == sum(answer.speculation.rounds for answer in answers)
    assert grown["outrider.requests"] == len(answers)


async def test_levels_tell_what_runs_waits_and_is_held_and_come_back(tiny_model: TinyModel, reader: Any) -> None:
    names = ("outrider.requests.running", "outrider.requests.waiting", "outrider.kv.blocks")

    def levels() -> list[int]:
        sums = _sums(reader)
        return [sums.get(name, 0) for name in names]

    async with running_cluster(tiny_model("llama"), max_sessions=1) as cluster:
        long, whole = [*range(20, 60)], free_tokens(cluster)
        await cluster.generate(long, **OPTIONS)
        await until(lambda: free_tokens(cluster) == whole)
        before = levels()  # blocks that other tests' replicas held when they ended stay counted
        cached_before = _sums(reader)["outrider.tokens.cached"]
        async with cluster.client.stream(token_ids=long, **(OPTIONS | {"max_tokens": 190})) as stream:
            await anext(stream)
            waiting = asyncio.create_task(cluster.generate(PROMPT, **OPTIONS))
            await until(lambda: cluster.coordinator.generations.admission.waiting == 1)
            # 40 + 190 tokens in blocks of 16, those found in the cache included.
            assert [now - then for now, then in zip(levels(), before, strict=True)] == [1, 1, 15]
            answer = await stream.read()
        await waiting
        await until(lambda: levels() == before)
        assert answer.usage.cached_tokens == 32
        assert _sums(reader)["outrider.tokens.cached"] == cached_before + 32 + (await waiting).usage.cached_tokens


def _sums(reader: Any) -> dict[str, int]:
    data = reader.get_metrics_data()
    return {
        metric.name: sum(point.value for point in metric.data.data_points)
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


async def test_health_turns_serving_and_reflection_lists_the_services(tiny_model: TinyModel) -> None:
    import grpc.aio
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    async with running_cluster(tiny_model("llama")) as cluster, grpc.aio.insecure_channel(cluster.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "outrider.v1.GenerationService"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        names = [service.name async for reply in call for service in reply.list_services_response.service]
        assert "outrider.v1.GenerationService" in names


async def test_an_idle_client_survives(tiny_model: TinyModel) -> None:
    """A second client, its own channel, sees the same service."""
    async with running_cluster(tiny_model("llama")) as cluster, AsyncClient(cluster.address) as other:
        assert (await other.model_info()).target.vocabulary_size == 512
        assert await other.tokenize("again") == await cluster.client.tokenize("again")
