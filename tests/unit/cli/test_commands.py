"""The commands against a real gRPC server that follows a script (`tests.unit.client.generation_double`)."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from outrider import __version__, errors
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import model_pb2, sampling_pb2
from outrider_cli import chat, serve, terminal
from outrider_cli.main import app
from tests.unit.client.generation_double import WAIT_S, delta, endless, finished, hello
from tests.unit.client.generation_double import serve as serve_double


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, arguments, input=stdin)


# generate


def test_generate_streams_the_answer_to_stdout_and_statistics_to_stderr() -> None:
    with serve_double(hello) as (address, double):
        result = run("generate", "hi there", "--address", address)
    assert (result.exit_code, result.stdout) == (0, "Hello world\n")
    assert result.stderr == "4 tokens in 1.50 s · 2.7 tokens/s · ngram: nothing to guess\n"
    (request,) = double.requests
    assert request.chat == pb.Chat(messages=[pb.ChatMessage(role="user", content="hi there")])
    assert [field.name for field, _ in request.ListFields()] == ["chat"], "options not given are left to the service"


def test_generate_reads_stdin_and_takes_a_system_message() -> None:
    with serve_double(hello) as (address, double):
        result = run("generate", "-", "--system", "Be brief.", "--address", address, stdin="a\nb\n")
    assert result.exit_code == 0
    turns = [(turn.role, turn.content) for turn in double.requests[0].chat.messages]
    assert turns == [("system", "Be brief."), ("user", "a\nb\n")]


def test_every_flag_of_generate_reaches_the_request() -> None:
    flags = shlex.split(
        "--raw --max-tokens 9 --min-tokens 1 --stop END --stop . --stop-token-id 3 --include-stop --ignore-eos "
        "--temperature 0 --top-k 5 --top-p 0.5 --min-p 0.25 --repetition-penalty 1.5 --presence-penalty 0.5 "
        "--frequency-penalty -0.5 --logit-bias 7=-100 --logit-bias 8=2.5 --seed 11 --logprobs 2 --drafter model "
        "--max-draft-tokens 0 --fixed-length --rule block"
    )
    with serve_double(hello) as (address, double):
        result = run("generate", "Once", *flags, "--address", address, "--json")
    assert result.exit_code == 0
    bias = [sampling_pb2.LogitBias(token_id=7, bias=-100), sampling_pb2.LogitBias(token_id=8, bias=2.5)]
    assert double.requests[0] == pb.GenerateRequest(
        text="Once",
        max_tokens=9,
        stop=["END", "."],
        stop_token_ids=[3],
        include_stop=True,
        ignore_eos=True,
        seed=11,
        logprobs=2,
        sampling=sampling_pb2.SamplingParams(
            temperature=0,
            top_k=5,
            top_p=0.5,
            min_p=0.25,
            repetition_penalty=1.5,
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            min_tokens=1,
            logit_bias=bias,
        ),
        speculation=pb.Speculation(
            drafter=pb.DRAFTER_MODEL,
            max_draft_tokens=0,
            rule=sampling_pb2.ACCEPTANCE_RULE_BLOCK,
            fixed_length=True,
        ),
    )


def test_generate_json_is_one_object_with_everything() -> None:
    with serve_double(hello) as (address, _):
        result = run("generate", "hi", "--address", address, "--json")
    assert result.stderr == ""
    answer = json.loads(result.stdout)
    assert (answer["text"], answer["token_ids"]) == ("Hello world", [1, 2, 3, 4])
    assert (answer["finish_reason"], answer["seed"]) == ("stop", 7)
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "cached_tokens": 0}
    assert answer["speculation"]["acceptance_rate"] is None


@pytest.mark.parametrize("arguments", [("generate", "hi"), ("generate", "hi", "--json"), ("info",), ("chat",)])
def test_errors_are_one_line_on_stderr_and_exit_code_1(arguments: tuple[str, ...]) -> None:
    async def refuse(request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        raise errors.ResourceExhausted("no KV blocks left", 2)
        yield finished()

    with serve_double(refuse) as (address, double):
        double.failures = [errors.ResourceExhausted("no KV blocks left", 2)]
        result = run(*arguments, "--address", address)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: no KV blocks left; retry after 2 s\n"


def test_an_unreachable_service_says_what_to_do() -> None:
    result = run("info", "--address", "127.0.0.1:1")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: no answer from 127.0.0.1:1 (")
    assert "`outrider up --model MODEL` starts one" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate",),
        ("generate", "hi", "--temprature", "1"),
        ("generate", "hi", "--drafter", "oracle"),
        ("generate", "hi", "--max-tokens", "many"),
        ("generate", "hi", "--timeout", "0"),
        ("generate", "hi", "--logit-bias", "7"),
        ("generate", "hi", "--raw", "--system", "x"),
        ("up",),
        ("up", "--model", "m", "--drafter", "model"),
        ("serve", "oracle"),
        ("nonsense",),
    ],
)
def test_usage_errors_have_exit_code_2(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_values_that_only_the_wire_refuses_are_errors_too() -> None:
    result = run("generate", "hi", "--seed", "-1")
    assert result.exit_code == 1
    assert result.stderr == "Error: seed is -1, but must be a whole number from 0 to 18446744073709551615\n"


def test_a_terminal_is_protected_from_control_sequences() -> None:
    assert terminal.printable("a\x1b[2Jb\n\tü\u200b") == "a\ufffd[2Jb\n\tü\ufffd"


def test_a_reader_that_goes_away_ends_the_answer_quietly() -> None:
    async def forever(request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        while True:
            yield delta("word ", 1)

    with serve_double(forever) as (address, double):
        command = [sys.executable, "-m", "outrider_cli", "generate", "hi", "--address", address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.read(5) == b"word "
            process.stdout.close()
            assert process.wait(WAIT_S) == 1
            assert process.stderr.read() == b""
        assert double.cancelled.wait(WAIT_S)


# info


def described(double: Any) -> None:
    double.info = pb.GetModelInfoResponse(
        target=model_pb2.ModelInfo(
            name="big", architecture="llama", parameters=135_000_000, dtype="float32", device="cpu", context_length=2048
        ),
        drafts=[model_pb2.ModelInfo(name="small [6]")],
        default_speculation=pb.Speculation(drafter=pb.DRAFTER_MODEL, max_draft_tokens=4),
        version="0.1.0",
    )


def test_info() -> None:
    with serve_double(hello) as (address, double):
        described(double)
        text, as_json = run("info", "--address", address), run("info", "--address", address, "--json")
    assert text.exit_code == 0
    assert text.stdout.splitlines() == [
        f"Outrider 0.1.0 at {address}",
        "target  big (llama): 135 M parameters, float32 on cpu, context 2,048 tokens",
        "draft   small [6] (): 0 M parameters,  on , context 0 tokens",
        "default drafter model, up to 4 tokens a guess, rule match",
    ]
    assert json.loads(as_json.stdout)["drafts"][0]["name"] == "small [6]"


# chat


def test_what_was_kept_of_the_conversation_is_told() -> None:
    async def kept(request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        yield delta("fine", 1)
        end = finished()
        end.finished.usage.cached_tokens = 2
        yield end

    with serve_double(kept) as (address, _):
        assert "2 of 3 prompt tokens kept" in run("chat", "--address", address, stdin="hi\n").stderr


def test_chat_sends_the_whole_conversation_and_resets_it() -> None:
    with serve_double(hello) as (address, double):
        lines = "first\n\nsecond\n/reset\nthird\n/what\n/exit\nnever sent\n"
        result = run("chat", "--system", "Be brief.", "--seed", "5", "--address", address, stdin=lines)
    assert result.exit_code == 0
    assert result.stdout == "Hello world" * 3
    assert "/what is no command" in result.stderr
    turns = [[(turn.role, turn.content) for turn in request.chat.messages] for request in double.requests]
    opening, first = ("system", "Be brief."), [("user", "first"), ("assistant", "Hello world")]
    assert turns == [[opening, first[0]], [opening, *first, ("user", "second")], [opening, ("user", "third")]]
    assert {request.seed for request in double.requests} == {5}
    first_id, second_id, third_id = [request.session_id for request in double.requests]
    assert first_id == second_id != third_id
    assert all(len(each) >= 16 for each in (first_id, third_id))  # nobody else's


def test_chat_goes_on_after_an_error_and_forgets_the_failed_turn() -> None:
    async def fail_once(request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        if request.chat.messages[-1].content == "bad":
            raise errors.InvalidArgument("input", "bad", "good")
        yield delta("fine", 1)
        yield finished()

    with serve_double(fail_once) as (address, double):
        result = run("chat", "--address", address, stdin="bad\ngood\n")
    assert (result.exit_code, result.stdout) == (0, "fine")
    assert "Error: input is 'bad', but must be good" in result.stderr
    assert [turn.content for turn in double.requests[-1].chat.messages] == ["good"]


def test_ctrl_c_in_chat_stops_the_answer_and_keeps_what_was_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(text: str) -> None:
        terminal.write(text)
        raise KeyboardInterrupt

    monkeypatch.setattr(chat, "write", interrupted)
    with serve_double(endless) as (address, double):
        result = run("chat", "--address", address, stdin="go\nagain\n")
        assert double.cancelled.wait(WAIT_S)
    assert result.exit_code == 0
    assert result.stderr.count("stopped") == 2
    turns = [(turn.role, turn.content) for turn in double.requests[-1].chat.messages]
    assert turns == [("user", "go"), ("assistant", "a"), ("user", "again")]


# serve and the root


@pytest.mark.parametrize("role", ["coordinator", "draft", "verifier"])
def test_serve_becomes_the_service_with_the_very_same_flags(monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(serve.os, "execv", lambda program, command: commands.append([program, *command]))
    flags = ["--help", "--model", "a b", "--threads=2", "-x", "positional"]
    assert run("serve", role, *flags).exit_code == 0
    python = serve.sys.executable
    assert commands == [[python, python, "-m", f"outrider_{role}", *flags]]


def test_help_and_version() -> None:
    assert run("--version").stdout == f"outrider {__version__}\n"
    top = run("--help").stdout
    for command in ("up", "generate", "chat", "info", "demo", "bench", "serve"):
        assert f" {command} " in top
        assert run(command, "--help").exit_code == 0
