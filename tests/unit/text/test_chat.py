"""Chat templates: what they may use, what they refuse, and whose fault a failure is."""

from __future__ import annotations

import re
from datetime import datetime

import pytest
from transformers import PreTrainedTokenizerFast

from outrider.errors import FailedPrecondition, InvalidArgument
from outrider.text import Message
from outrider.text.chat import ChatTemplate
from outrider.text.files import export_chat, import_chat
from tests.unit.text.tokenizers_made_here import CHAT_TEMPLATE, fast_tokenizer, tokenizer

CONVERSATION: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  Say <b>hi</b> to 世界 </s> \n"},
    {"role": "assistant", "content": "hi"},
    {"role": "user", "content": "again"},
]


def rendered(source: str, messages: list[Message] | None = None) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages or CONVERSATION)


def test_rendering_and_encoding_equal_those_of_transformers() -> None:
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=fast_tokenizer("byte_level"), bos_token="<s>", eos_token="</s>", chat_template=CHAT_TEMPLATE
    )
    ours = tokenizer("byte_level")
    expected = theirs.apply_chat_template(CONVERSATION, add_generation_prompt=True, tokenize=False)
    assert ours.render_chat(CONVERSATION) == expected
    ids = theirs.apply_chat_template(CONVERSATION, add_generation_prompt=True, return_dict=False)
    assert ours.encode_chat(CONVERSATION) == ids


def test_blocks_leave_no_white_space() -> None:
    assert rendered("{% if true %}\n  {% set x = 1 %}\nx{{ x }}\n{% endif %}\n") == "x1\n"


def test_tojson_leaves_html_and_other_alphabets_alone() -> None:
    assert rendered("{{ messages[1]['content'] | trim | tojson }}") == '"Say <b>hi</b> to 世界 </s>"'
    assert rendered("{{ {'b': [1], 'a': 2} | tojson(indent=1, sort_keys=true) }}") == '{\n "a": 2,\n "b": [\n  1\n ]\n}'


def test_loop_controls_and_generation_blocks_work() -> None:
    assert rendered(
        "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.role }} {% endfor %}"
    ) == ("system user ")
    assert rendered("{% generation %}{{ messages[2].content }}{% endgeneration %}!") == "hi!"


def test_strftime_now_formats_the_present() -> None:
    year = rendered("{{ strftime_now('%Y') }}")
    assert re.fullmatch(r"\d{4}", year)
    assert abs(int(year) - datetime.now().astimezone().year) <= 1


def test_tools_and_documents_are_absent_but_defined() -> None:
    assert (
        rendered("{% if tools is none and documents is none %}none{% endif %}{{ bos_token }}{{ eos_token }}")
        == "none<s>"
    )


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[9].content }}",
        "{{ missing.attribute }}",
        "{{ 1 / 0 }}",
        "{{ ().__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ strftime_now.__globals__['os'] }}",
    ],
)
def test_what_a_template_refuses_is_an_invalid_argument_naming_messages(source: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        rendered(source)
    assert caught.value.field == "messages"


def test_the_templates_own_words_reach_the_caller() -> None:
    with pytest.raises(InvalidArgument, match=r"messages is \['tool'\].*unknown role tool"):
        tokenizer("byte_level").render_chat([{"role": "tool", "content": ""}])


def test_an_empty_conversation_and_a_model_without_template_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="at least one message"):
        tokenizer("byte_level").render_chat([])
    with pytest.raises(InvalidArgument, match="no chat template: send text instead"):
        tokenizer("byte_level", None).encode_chat(CONVERSATION)


def test_case_32_a_template_that_does_not_compile_is_the_models_fault() -> None:
    with pytest.raises(FailedPrecondition, match="does not compile"):
        tokenizer("byte_level", "{% if %}").render_chat(CONVERSATION)


def test_chat_json_round_trips() -> None:
    chat = import_chat(export_chat("{{ x }}世", {"bos_token": "<s>", "eos_token": None, "other_token": "y"}))
    assert chat.template == "{{ x }}世"
    assert chat.special_tokens == {"bos_token": "<s>"}
    assert import_chat(export_chat(None, {})).template is None
