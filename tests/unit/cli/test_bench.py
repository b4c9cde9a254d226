"""`outrider bench` against a service that follows a script, and against a real one with tiny models."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from outrider import errors
from outrider.bench import plot
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import model_pb2, sampling_pb2
from outrider_cli.main import app
from tests.cluster import running_cluster
from tests.conftest import TinyModel
from tests.unit.client.generation_double import GenerationDouble, Script, delta, finished, hello
from tests.unit.client.generation_double import serve as serve_double


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments])


def bench(script: Script, *arguments: str, drafts: int = 1) -> tuple[Result, GenerationDouble]:
    """Run the command against the double, which has one draft."""
    with serve_double(script) as (address, double):
        double.info = pb.GetModelInfoResponse(
            target=model_pb2.ModelInfo(name="big", dtype="float32", device="cpu"),
            drafts=[model_pb2.ModelInfo(name="small")] * drafts,
            default_speculation=pb.Speculation(drafter=pb.DRAFTER_MODEL, rule=sampling_pb2.ACCEPTANCE_RULE_MATCH),
            version="0.1.0",
        )
        return run("--address", address, *arguments), double


def counted(double: GenerationDouble) -> list[tuple[int, int]]:
    """Drafter and seed of each request."""
    return [(request.speculation.drafter, request.seed) for request in double.requests]


PLAIN, AUTO = pb.DRAFTER_NONE, pb.DRAFTER_AUTO


def test_both_modes_take_turns_with_the_same_requests_after_a_warm_up() -> None:
    result, double = bench(hello, "--concurrency", "1", "--requests", "4", "--warm-up", "1", "--seed", "10", "--json")
    assert result.exit_code == 0, result.output
    warm_up = [(PLAIN, 9), (AUTO, 9)]
    first = [(PLAIN, 10), (PLAIN, 11), (AUTO, 10), (AUTO, 11)]
    second = [(AUTO, 12), (AUTO, 13), (PLAIN, 12), (PLAIN, 13)]
    assert counted(double) == warm_up + first + second
    texts = {(request.seed, request.chat.messages[0].content) for request in double.requests}
    assert len(texts) == 5, "a request is the same in both modes"
    (point,) = json.loads(result.stdout)["points"]
    assert [turn["mode"] for turn in point["turns"]] == ["none", "auto", "auto", "none"]
    assert {mode: summary["requests"] for mode, summary in point["modes"].items()} == {"none": 4, "auto": 4}
    assert point["over_plain"]["auto"]["identity"] == {"compared": 4, "differing": []}


def test_every_option_reaches_the_requests(tmp_path: Path) -> None:
    prompts = tmp_path / "p.txt"
    prompts.write_text("one\ntwo\n")
    flags = shlex.split(
        "--concurrency 1 --requests 2 --warm-up 0 --max-tokens 9 --ignore-eos --temperature 0.5 --top-k 5 --top-p 0.5 "
        "--seed 3 --drafter ngram,model --max-draft-tokens 2 --fixed-length --rule block --timeout 5"
    )
    result, double = bench(hello, "--prompts", str(prompts), *flags, "--json")
    assert result.exit_code == 0, result.output
    assert Counter(request.speculation.drafter for request in double.requests) == {
        pb.DRAFTER_NONE: 2, pb.DRAFTER_NGRAM: 2, pb.DRAFTER_MODEL: 2,
    }  # fmt: skip
    assert {request.chat.messages[0].content for request in double.requests} == {"one", "two"}
    (request,) = (each for each in double.requests if (each.speculation.drafter, each.seed) == (pb.DRAFTER_MODEL, 4))
    assert (request.max_tokens, request.ignore_eos) == (9, True)
    assert (request.sampling.temperature, request.sampling.top_k, request.sampling.top_p) == (0.5, 5, 0.5)
    assert (request.speculation.max_draft_tokens, request.speculation.fixed_length) == (2, True)
    assert request.speculation.rule == sampling_pb2.ACCEPTANCE_RULE_BLOCK
    assert double.remaining_s is not None
    assert 4 < double.remaining_s < 6
    assert json.loads(result.stdout)["points"][0]["over_plain"]["model"]["identity"] is None


def test_a_closed_loop_keeps_as_many_in_flight_as_asked_and_no_more() -> None:
    running, most = 0, 0

    async def meet(request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        """Answers only once three are there, so with fewer in flight it would never end."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        async with asyncio.timeout(20):
            while most < 3:  # noqa: ASYNC110 (the double has no event for its own callers)
                await asyncio.sleep(0.005)
        yield delta("a", 1)
        running -= 1
        yield finished()

    result, _ = bench(meet, "--concurrency", "3", "--requests", "6", "--warm-up", "0", "--json")
    assert result.exit_code == 0, result.output
    assert most == 3


def test_an_open_loop_does_not_wait_for_answers() -> None:
    arrived = 0

    async def wait_for_all(request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        """The first answers of a turn of three end only when the third request is there."""
        nonlocal arrived
        arrived += 1
        turn_end = -(-arrived // 3) * 3
        async with asyncio.timeout(20):
            while arrived < turn_end:  # noqa: ASYNC110 (the double has no event for its own callers)
                await asyncio.sleep(0.005)
        yield delta("a", 1)
        yield finished()

    flags = ("--request-rate", "50", "--requests", "6", "--warm-up", "0", "--json")
    result, _ = bench(wait_for_all, *flags)
    assert result.exit_code == 0, result.output
    (point,) = json.loads(result.stdout)["points"]
    by_mode: dict[str, list[list[float]]] = {"none": [], "auto": []}
    for turn in point["turns"]:
        due = [sample["scheduled_s"] for sample in turn["samples"]]
        assert due[0] == 0
        assert due == sorted(due)
        for sample in turn["samples"]:
            assert sample["sent_s"] >= sample["scheduled_s"] - 0.002, "the clock of asyncio is that coarse"
        by_mode[turn["mode"]].append(due)
    assert sorted(by_mode["none"]) == sorted(by_mode["auto"]), "both modes get the same arrivals"


def test_refused_requests_are_counted_and_no_failure() -> None:
    async def refuse_some(request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        if request.seed == 1:
            raise errors.ResourceExhausted("no KV blocks left", 2)
        yield delta("a", 1)
        yield finished()

    result, _ = bench(refuse_some, "--concurrency", "1", "--requests", "2", "--warm-up", "0")
    assert result.exit_code == 0, result.output
    assert "1/2" in result.stdout
    assert "1 at once, plain: 1 of 2 requests were refused" in result.stdout
    assert "1 x ResourceExhausted: no KV blocks left" in result.stdout
    assert "requests completed." not in result.stdout


def test_a_failed_request_makes_the_exit_code_1_and_the_rest_is_still_measured() -> None:
    async def fail_some(request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        yield delta("a", 1)
        if request.seed == 1 and request.speculation.drafter == AUTO:
            raise errors.Unavailable("the verifier has gone")
        yield finished(reason=pb.FINISH_REASON_ABORT if request.seed == 2 else pb.FINISH_REASON_STOP)

    result, _ = bench(fail_some, "--concurrency", "1", "--requests", "4", "--warm-up", "0", "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    modes = report["points"][0]["modes"]
    assert (report["failed"], modes["none"]["failed"], modes["auto"]["failed"]) == (3, 1, 2)
    assert modes["auto"]["errors"] == {"Unavailable: the verifier has gone": 1, "the answer was aborted": 1}
    assert modes["auto"]["completed"] == 2


def test_answers_that_speculation_changed_make_the_exit_code_1() -> None:
    async def unlike(request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        yield delta("a", 2 if (request.seed, request.speculation.drafter) == (1, AUTO) else 1)
        yield finished()

    flags = ("--concurrency", "1", "--requests", "2", "--warm-up", "0")
    result, _ = bench(unlike, *flags)
    assert result.exit_code == 1
    assert "auto: 1 of 2 answers are not those of plain decoding (requests 1)" in result.stdout
    assert bench(unlike, *flags, "--rule", "rejection")[0].exit_code == 0, "rejection does not promise it"


def test_a_warm_up_that_fails_ends_the_run_before_anything_is_measured() -> None:
    async def refuse(request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        raise errors.InvalidArgument("max_tokens", 9, "at most 8")
        yield finished()

    result, double = bench(refuse, "--concurrency", "1", "--requests", "4")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "a warm-up request failed: InvalidArgument: max_tokens is" in result.stderr
    assert len(double.requests) == 1


def test_a_draft_that_is_not_there_is_an_error_and_not_a_slow_benchmark() -> None:
    result, double = bench(hello, "--drafter", "model", drafts=0)
    assert result.exit_code == 1
    assert "--drafter model needs a draft" in result.stderr
    assert double.requests == []


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("--concurrency", "1", "--request-rate", "2"), 2, "--request-rate"),
        (("--concurrency", "one"), 1, "concurrency is 'one', but must be whole numbers"),
        (("--drafter", "none"), 1, "drafter is ['none'], but must be"),
        (("--concurrency", "8", "--requests", "8"), 1, "requests is 8, but must be at least 16"),
        (("--prompts", "/no/such/file"), 1, "prompts is '/no/such/file', but must be a readable"),
        (("--address", "127.0.0.1:1"), 1, "no answer from 127.0.0.1:1"),
    ],
)
def test_what_is_refused_says_why(arguments: tuple[str, ...], code: int, named: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert named in result.stderr


def test_the_directory_has_every_sample_and_a_hint_where_no_picture_can_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda name: None)
    out = tmp_path / "a" / "b"
    flags = ("--concurrency", "1,2", "--requests", "4", "--warm-up", "0", "--gpus", "2", "--slo-ttft-ms", "60000")
    result, _ = bench(hello, *flags, "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "pip install 'outrider[plot]'" in result.stderr
    assert [path.name for path in out.iterdir()] == ["bench.json"]
    report = json.loads((out / "bench.json").read_text())
    assert report["client"]["hardware"]["cores"] >= 1
    assert report["service"]["target"]["name"] == "big"
    assert report["client"]["versions"].keys() >= {"outrider", "python", "grpcio"}
    assert report["options"]["request"]["max_tokens"] == 128
    assert [point["concurrency"] for point in report["points"]] == [1, 2]
    for point in report["points"]:
        samples = [sample for turn in point["turns"] for sample in turn["samples"]]
        assert len(samples) == 8
        assert all([tokens for _, tokens in sample["chunks"]] == [2, 2] for sample in samples)
        plain = point["modes"]["none"]
        assert plain["goodput_per_s"] == plain["requests_per_s"] > 0
        assert plain["gpu_tokens_per_s"] == plain["output_tokens_per_s"] / 2


def test_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result, _ = bench(hello, "--request-rate", "50", "--requests", "4", "--warm-up", "0", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


async def test_a_real_cluster_is_measured_and_says_the_same_with_and_without_speculation(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "Name three rivers.", "category": "x"}\n{"raw": "a b a b a b a b"}\n')
    flags = shlex.split(
        "--concurrency 1,3 --requests 6 --max-tokens 12 --temperature 0.7 --drafter model,ngram --ignore-eos "
        "--max-draft-tokens 3 --fixed-length"
    )
    model = tiny_model("llama")
    async with running_cluster(model, model) as cluster:
        result = await asyncio.to_thread(
            run, "--address", cluster.address, "--prompts", str(prompts), *flags, "--json", "--out", str(tmp_path)
        )
        assert cluster.coordinator.generations.admission.running == 0
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    for point in report["points"]:
        for mode, summary in point["modes"].items():
            assert (summary["completed"], summary["failed"], summary["refused"]) == (6, 0, 0)
            assert summary["output_tokens"] == 6 * 12
            assert summary["wire_bytes_per_token"] > 4
            if mode == "none":
                assert (summary["acceptance_rate"], summary["accepted_length"]) == (None, 1.0)
            for kind in ("ttft", "tpot", "latency", "chunk_gap"):
                assert 0 < summary[kind]["p50"] <= summary[kind]["p90"] <= summary[kind]["p99"]
        # The target drafts for itself with the same noise, so nearly everything stands.
        assert point["modes"]["model"]["acceptance_rate"] > 0.9
        assert point["modes"]["model"]["accepted_length"] > 1.5
        assert point["over_plain"]["model"]["identity"] == {"compared": 6, "differing": []}
        assert point["over_plain"]["ngram"]["identity"] == {"compared": 6, "differing": []}
        categories = Counter(sample["category"] for turn in point["turns"] for sample in turn["samples"])
        assert categories == {"x": 9, "": 9}
