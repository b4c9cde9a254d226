"""Requests and responses as pure functions."""

import pytest

from outrider.acceptance.params import Rule
from outrider.client import Chunk, Drafter, FinishReason, RequestOptions, SourceStats
from outrider.client.collector import Collector
from outrider.client.convert import completion_from_proto, generate_request, service_info_from_proto, tokenize_request
from outrider.errors import InternalError, InvalidArgument
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import model_pb2, sampling_pb2
from tests.unit.client.generation_double import delta, finished

EVERY_OPTION: RequestOptions = {
    "max_tokens": 5,
    "stop": ["a", "b"],
    "stop_token_ids": [9],
    "include_stop": True,
    "ignore_eos": True,
    "temperature": 0.0,
    "top_k": 3,
    "top_p": 0.5,
    "min_p": 0.25,
    "repetition_penalty": 1.5,
    "presence_penalty": -1.0,
    "frequency_penalty": 2.0,
    "logit_bias": {4: -100.0},
    "min_tokens": 2,
    "seed": 2**64 - 1,
    "logprobs": 2,
    "drafter": "ngram",
    "max_draft_tokens": 0,
    "fixed_length": True,
    "rule": Rule.BLOCK,
    "request_id": "mine",
    "session_id": "ours",
}


def test_every_option_reaches_its_field() -> None:
    request = generate_request("hi", EVERY_OPTION)
    assert request == pb.GenerateRequest(
        request_id="mine",
        session_id="ours",
        text="hi",
        sampling=sampling_pb2.SamplingParams(
            temperature=0.0,
            top_k=3,
            top_p=0.5,
            min_p=0.25,
            repetition_penalty=1.5,
            presence_penalty=-1.0,
            frequency_penalty=2.0,
            logit_bias=[sampling_pb2.LogitBias(token_id=4, bias=-100.0)],
            min_tokens=2,
        ),
        max_tokens=5,
        stop=["a", "b"],
        stop_token_ids=[9],
        ignore_eos=True,
        include_stop=True,
        seed=2**64 - 1,
        logprobs=2,
        speculation=pb.Speculation(
            drafter=pb.DRAFTER_NGRAM,
            max_draft_tokens=0,
            rule=sampling_pb2.ACCEPTANCE_RULE_BLOCK,
            fixed_length=True,
        ),
    )


def test_every_declared_option_is_tested_above() -> None:
    assert EVERY_OPTION.keys() | {"token_ids", "messages"} == RequestOptions.__annotations__.keys()


def test_left_out_options_stay_absent_so_that_the_service_decides() -> None:
    request = generate_request("hi", {})
    assert [field.name for field, _ in request.ListFields()] == ["text"]
    assert not request.HasField("max_tokens")
    assert not request.HasField("seed")
    assert not request.HasField("logprobs")


def test_the_other_inputs() -> None:
    assert list(generate_request(None, {"token_ids": [1, 2]}).token_ids.ids) == [1, 2]
    chat = generate_request(None, {"messages": [{"role": "user", "content": "hi"}]}).chat
    assert chat == pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")])
    assert generate_request("", {}).WhichOneof("input") == "text"
    assert generate_request(None, {"token_ids": []}).WhichOneof("input") == "token_ids"


def test_one_stop_string_is_not_taken_apart() -> None:
    assert list(generate_request("hi", {"stop": "END"}).stop) == ["END"]


@pytest.mark.parametrize(
    ("options", "field", "limit"),
    [
        ({"max_tokens": -1}, "max_tokens", "a whole number from 0 to 4294967295"),
        ({"max_tokens": 2**32}, "max_tokens", "a whole number from 0 to 4294967295"),
        ({"max_tokens": 1.5}, "max_tokens", "a whole number from 0 to 4294967295"),
        ({"seed": -1}, "seed", "a whole number from 0 to 18446744073709551615"),
        ({"temperature": "hot"}, "temperature", "a number"),
        ({"stop": [1]}, "stop", "a list in which each is valid Unicode text"),
        ({"stop": "\ud800"}, "stop", "a list in which each is valid Unicode text"),
        ({"stop_token_ids": "12"}, "stop_token_ids", "a list in which each is a whole number from 0 to 4294967295"),
        ({"stop_token_ids": 12}, "stop_token_ids", "a list in which each is a whole number from 0 to 4294967295"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias.token_id", "a whole number from 0 to 4294967295"),
        ({"logit_bias": {1: "x"}}, "logit_bias.bias", "a number"),
        ({"drafter": "oracle"}, "drafter", "one of none, ngram, model, auto"),
        ({"rule": "vibes"}, "rule", "one of match, rejection, block"),
        ({"max_draft_tokens": -2}, "max_draft_tokens", "a whole number from 0 to 4294967295"),
        ({"token_ids": [1]}, "input", "exactly one of prompt, token_ids and messages"),
    ],
)
def test_bad_options_name_field_and_limit(options: RequestOptions, field: str, limit: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        generate_request("hi", options)
    assert (caught.value.field, caught.value.limit) == (field, limit)


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        (["hi"], "messages[0]"),
        ([{"role": "user", "content": "a"}, {"role": "user"}], "messages[1]"),
        ([{"role": "user", "content": "a", "name": "x"}], "messages[0]"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": 3, "content": "a"}], "messages[0].role"),
    ],
)
def test_bad_messages_name_the_message(messages: list, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        generate_request(None, {"messages": messages})
    assert caught.value.field == field


def test_no_input_and_an_unknown_option() -> None:
    with pytest.raises(InvalidArgument, match="one of prompt, token_ids and messages"):
        generate_request(None, {})
    with pytest.raises(TypeError, match="'temprature'"):
        generate_request("hi", {"temprature": 1.0})  # type: ignore[typeddict-unknown-key]


def test_tokenize_takes_exactly_one_input() -> None:
    assert tokenize_request("hi", None).text == "hi"
    assert tokenize_request(None, [{"role": "user", "content": "a"}]).chat.messages[0].content == "a"
    for text, messages in ((None, None), ("hi", [])):
        with pytest.raises(InvalidArgument, match="exactly one of text and messages"):
            tokenize_request(text, messages)


def test_completion_puts_every_chunk_together() -> None:
    end = finished(reason=pb.FINISH_REASON_LENGTH).finished
    end.speculation.acceptance_rate = 0.75
    end.speculation.wire_bytes = 99
    end.speculation.plain_rounds = 4
    end.speculation.sources.add(source=pb.DRAFTER_MODEL, rounds=3, proposed_tokens=8, accepted_tokens=6)
    completion = completion_from_proto([Chunk("a", (1, 2)), Chunk("b", (3,))], end)
    assert (completion.text, completion.token_ids) == ("ab", (1, 2, 3))
    assert completion.finish_reason is FinishReason.LENGTH
    assert completion.stop is None
    assert completion.speculation.acceptance_rate == 0.75
    assert completion.speculation.wire_bytes == 99
    assert completion.speculation.drafter is Drafter.NGRAM
    assert completion.speculation.plain_rounds == 4
    assert completion.speculation.sources == (SourceStats(Drafter.MODEL, 3, 8, 6),)
    assert (completion.timings.first_token_s, completion.timings.total_s) == (0.25, 1.5)
    assert (completion.seed, completion.request_id) == (7, "r1")


def test_what_stopped_the_answer() -> None:
    assert completion_from_proto([], finished(stop_text="END").finished).stop == "END"
    assert completion_from_proto([], finished(stop_token_id=2).finished).stop == 2


def test_case_29_the_acceptance_rate_is_absent_when_nothing_was_proposed() -> None:
    assert completion_from_proto([], finished().finished).speculation.acceptance_rate is None


def test_an_unknown_finish_reason_is_the_services_fault() -> None:
    with pytest.raises(InternalError, match="unknown finish reason, 99"):
        completion_from_proto([], pb.Finished(reason=99))  # type: ignore[arg-type]


def test_service_info() -> None:
    response = pb.GetModelInfoResponse(
        target=model_pb2.ModelInfo(name="big", vocabulary_size=10, eos_token_ids=[2]),
        drafts=[model_pb2.ModelInfo(name="small")],
        default_speculation=pb.Speculation(drafter=pb.DRAFTER_AUTO, max_draft_tokens=4, fixed_length=True),
        version="1",
    )
    info = service_info_from_proto(response)
    assert (info.target.name, info.target.eos_token_ids) == ("big", (2,))
    assert [draft.name for draft in info.drafts] == ["small"]
    assert info.default_speculation.drafter is Drafter.AUTO
    assert info.default_speculation.fixed_length
    assert info.default_speculation.max_draft_tokens == 4
    assert info.default_speculation.rule is Rule.MATCH


def test_the_collector_refuses_a_stream_without_an_end_and_one_that_goes_on() -> None:
    collector = Collector()
    collector.feed(delta("a", 1))
    with pytest.raises(InternalError, match="ended before the answer did"):
        collector.end()
    with pytest.raises(RuntimeError, match="end of the stream"):
        _ = collector.completion
    assert collector.feed(finished()) is None
    with pytest.raises(InternalError, match="more after the end"):
        collector.feed(delta("b", 2))
