"""The demo's arithmetic and wording, and the command with a scripted service in place of the cluster."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from outrider.client import Chunk, Client, Drafter
from outrider.client.convert import completion_from_proto
from outrider.v1 import generation_pb2 as pb
from outrider_cli import demo
from outrider_cli.comparison import Comparison, Run, compare, timed, verdicts
from outrider_cli.main import app
from outrider_cli.prompts import PROMPTS
from tests.unit.client.generation_double import Script, delta, finished, serve

NAMES = {pb.DRAFTER_NONE: "none", pb.DRAFTER_NGRAM: "ngram", pb.DRAFTER_MODEL: "model", pb.DRAFTER_AUTO: "auto"}


@pytest.fixture(autouse=True)
def _cache_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))


def a_run(drafter: Drafter, seconds: float, token_ids: tuple[int, ...] = tuple(range(11))) -> Run:
    end = finished().finished
    end.speculation.wire_bytes = 110
    completion = completion_from_proto([Chunk("text", token_ids)], end)
    return Run(drafter, completion, first_chunk_s=1.0, first_chunk_tokens=1, total_s=1.0 + seconds)


def a_comparison(name: str, plain: float, ngram: float, model: float) -> Comparison:
    times = ((Drafter.NONE, plain), (Drafter.NGRAM, ngram), (Drafter.MODEL, model))
    return Comparison(name, "prompt", tuple(a_run(drafter, seconds) for drafter, seconds in times))


def test_speed_leaves_the_prompt_and_the_first_chunk_out() -> None:
    run = a_run(Drafter.NONE, 2.0)
    assert run.tokens_per_second == 5.0  # 10 of 11 tokens in 2 s
    assert run.wire_bytes_per_token == 10.0
    assert a_run(Drafter.NONE, 0.0, (1,)).tokens_per_second == 0.0


def test_speed_is_the_median_of_the_repeats() -> None:
    runs = (*(a_run(Drafter.NONE, seconds) for seconds in (1.0, 2.0, 10.0)), a_run(Drafter.NGRAM, 1.0))
    comparison = Comparison("copy", "prompt", runs)
    assert comparison.speed(Drafter.NONE) == 5.0
    assert comparison.speedup(Drafter.NGRAM) == 2.0


def test_every_run_must_give_the_plain_answer() -> None:
    same, other = a_run(Drafter.NGRAM, 1.0), a_run(Drafter.NGRAM, 1.0, (*range(10), 99))
    plain = a_run(Drafter.NONE, 1.0)
    assert Comparison("copy", "prompt", (plain, same, same)).identical(Drafter.NGRAM)
    assert not Comparison("copy", "prompt", (plain, same, other)).identical(Drafter.NGRAM)


def test_the_verdict_says_faster_slower_and_no_difference() -> None:
    comparisons = [a_comparison("copy", 4.0, 1.0, 8.0), a_comparison("code", 4.0, 4.0, 4.0)]
    assert verdicts(comparisons) == [
        "n-gram: 2.00 times as fast as plain decoding (copy 4.00x, code 1.00x)",
        "draft model: slower than plain decoding here, 0.71 times its speed (copy 0.50x, code 1.00x)",
    ]
    assert verdicts([a_comparison("copy", 4.0, 4.1, 0.0)]) == [
        "n-gram: as fast as plain decoding here (copy 0.98x)",
        "draft model: too few tokens to tell (copy 0.00x)",
    ]


def test_drafters_take_turns_on_the_same_request() -> None:
    with serve(answering()) as (address, double), Client(address) as client:
        reports: list[str] = []
        comparison = compare(
            client, "copy", "Say A.", {"seed": 3, "max_tokens": 5}, repeats=2, timeout=20, progress=reports.append
        )
        run = timed(client, "Say A.", {"drafter": "ngram"}, timeout=20)
    asked = [NAMES[request.speculation.drafter] for request in double.requests]
    assert asked == [*["none", "ngram", "model", "auto"] * 2, "ngram"]
    assert {request.chat.messages[0].content for request in double.requests} == {"Say A."}
    assert {request.seed for request in double.requests[:8]} == {3}
    assert reports == ["copy: plain", "copy: n-gram", "copy: draft model", "copy: auto"] * 2
    assert all(comparison.identical(drafter) for drafter in Drafter)
    assert run.first_chunk_tokens == 2
    assert 0 < run.first_chunk_s <= run.total_s


def answering(**other_answers: str) -> Script:
    """A service that answers "A." whichever drafter is asked for, but for `other_answers`."""

    async def script(request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        drafter = NAMES[request.speculation.drafter]
        yield delta(other_answers.get(drafter, "A"), 1, 2)
        yield delta(".", 3)
        end = finished()
        end.finished.speculation.fallback_reason = "too slow" if drafter == "model" else ""
        yield end

    return script


@pytest.fixture
def run_demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Runs `outrider demo` against a scripted service: weights and cluster are replaced."""

    def run(script: Script, *flags: str) -> Any:
        with serve(script) as (address, double):

            class ScriptedCluster:
                def __init__(self, model: str, **flags: Any) -> None:
                    self.address = address

                def __enter__(self) -> ScriptedCluster:
                    return self

                def __exit__(self, *error: object) -> None:
                    pass

            double.info.target.name, double.info.target.parameters = "SmolLM2", 135_000_000
            monkeypatch.setattr(demo, "LocalCluster", ScriptedCluster)
            monkeypatch.setattr(demo, "demo_model_directory", lambda progress: tmp_path)
            monkeypatch.setattr(demo, "demo_draft_directory", lambda target, progress: tmp_path / "draft")
            return CliRunner().invoke(app, ["demo", *flags])

    return run


def test_the_demo_shows_answers_table_and_verdict(run_demo: Callable[..., Any]) -> None:
    result = run_demo(answering())
    assert result.exit_code == 0
    for name in PROMPTS:
        assert name in result.stdout
    assert "tokens/s" in result.stdout
    assert "draft model: trained for it" in result.stdout
    assert "All answers are identical with and without speculation." in result.stdout
    assert "draft model: speculation stopped during the answer: too slow" in result.stdout


def test_the_demo_as_json(run_demo: Callable[..., Any]) -> None:
    result = run_demo(answering(), "--json", "--repeats", "2", "--seed", "4")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert (report["identical"], report["model"], report["request"]["seed"]) == (True, "SmolLM2", 4)
    assert {"outrider", "python", "grpcio"} <= report["versions"].keys()
    assert report["hardware"]["cores"] >= 1
    assert [prompt["name"] for prompt in report["prompts"]] == list(PROMPTS)
    for prompt in report["prompts"]:
        assert (prompt["answer"], len(prompt["runs"])) == ("A.", 8)
        assert all(run["total_s"] >= run["first_chunk_s"] > 0 for run in prompt["runs"])


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_the_demo_fails_if_speculation_changes_an_answer(run_demo: Callable[..., Any], flags: tuple[str, ...]) -> None:
    result = run_demo(answering(ngram="B"), *flags)
    assert result.exit_code == 1
    assert ('"identical": false' if flags else "Answers differ") in result.stdout


def test_the_draft_can_be_the_first_layers(run_demo: Callable[..., Any]) -> None:
    result = run_demo(answering(), "--draft-layers", "24")
    assert "draft model: its first 24 layers" in result.stdout
