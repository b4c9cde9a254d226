"""A session's state follows its committed history, backwards too."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.acceptance.params import Rule, SamplingParams
from outrider.errors import InvalidArgument
from outrider.protocol.items import Key, Open
from outrider.sampling.state import SamplingState
from tests.unit.sampling.devices import CPU, on_each_device
from tests.unit.sampling.sessions import open_state

tokens = st.lists(st.integers(0, 7), max_size=6)


@on_each_device
@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=4),
    tokens,
    st.lists(st.tuples(st.integers(0, 9), tokens), max_size=5),
)
def test_counts_follow_any_advances(device, prompt, output, steps):
    """Drafting ahead advances and rolls back; counts are always those of a session opened from the history."""
    state = open_state(8, prompt=prompt, output=output, frequency_penalty=1.0, device=device)
    history = [*prompt, *output]
    for keep, append in steps:
        keep = min(len(prompt) + keep, len(history))
        state.advance(keep, append)
        history[keep:] = append
        fresh = open_state(8, prompt=prompt, output=history[len(prompt) :], frequency_penalty=1.0, device=device)
        assert state.length == fresh.length == len(history)
        assert state.counts is not None
        assert fresh.counts is not None
        assert state.counts.output.tolist() == fresh.counts.output.tolist()
        assert state.counts.seen_in_prompt.tolist() == [token in prompt for token in range(8)]


def test_counts_are_kept_only_where_penalties_need_them():
    assert open_state(8).counts is None
    assert open_state(8, min_tokens=3).stop_ids is None
    for options in ({"presence_penalty": 0.1}, {"frequency_penalty": 0.1}, {"repetition_penalty": 1.1}):
        assert open_state(8, **options).counts is not None


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize(("keep", "append"), [(1, ()), (5, ()), (3, (8,)), (3, (-1,))])
def test_impossible_advances_change_nothing(penalty, keep, append):
    state = open_state(8, prompt=(1, 2), output=(3, 3), frequency_penalty=penalty)
    with pytest.raises(InvalidArgument):
        state.advance(keep, append)
    assert state.length == 4
    if state.counts is not None:
        assert state.counts.output.tolist() == [0, 0, 0, 2, 0, 0, 0, 0]


GOOD = Open(Key(1, 0, 3), (1, 2, 3), 2, 99, SamplingParams(), Rule.MATCH, 5)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"prompt_length": 0}, "prompt_length"),
        ({"prompt_length": 4}, "prompt_length"),
        ({"tokens": (1, 2, 8)}, "tokens[2]"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 9}, "logprobs"),
        ({"stop_token_ids": (8,)}, "stop_token_ids[0]"),
        ({"params": SamplingParams(temperature=-1.0)}, "temperature"),
        ({"params": SamplingParams(logit_bias=((8, 1.0),))}, "logit_bias.token_id"),
    ],
)
def test_a_bad_open_names_its_field(change, field):
    assert SamplingState.open(GOOD, 8, CPU).length == 3
    with pytest.raises(InvalidArgument) as caught:
        SamplingState.open(dataclasses.replace(GOOD, **change), 8, CPU)
    assert caught.value.field == field
