"""What an engine admits and refuses, and that a refusal leaves everything as it was."""

from __future__ import annotations

import pytest
import torch

from outrider.acceptance.tree import TokenTree
from outrider.engine.engine import Engine, Feed
from outrider.engine.kv import KvStore
from outrider.engine.options import EngineOptions
from outrider.errors import InvalidArgument, ModelLoadError, ResourceExhausted
from tests.conftest import TinyModel
from tests.tiny_models import CONTEXT_LENGTH
from tests.unit.engine.engines import (
    assert_close,
    loaded_model,
    make_engine,
    on_each_device,
    random_tokens,
    reference_logits,
)


@pytest.fixture
def engine(tiny_model: TinyModel) -> Engine:
    return make_engine(tiny_model("llama"), kv_tokens=128)


def test_sessions_are_admitted_until_their_worst_cases_fill_the_cache(engine: Engine) -> None:
    assert engine.capacity_tokens == 128
    sessions = [engine.open([seed], 40) for seed in (1, 2, 3)]
    assert engine.available_tokens == 8
    with pytest.raises(ResourceExhausted, match="1 of 16 blocks left, but 5 are needed"):
        engine.open([4], 40)
    engine.close(sessions[0])
    engine.open([4], 40)


def test_what_was_admitted_runs_to_its_end(engine: Engine) -> None:
    texts = [random_tokens(40, seed=seed) for seed in (1, 2, 3)]
    sessions = [engine.open(text, 40) for text in texts]
    for start in range(0, 40, 5):
        engine.forward(
            [Feed(*pair) for pair in zip(sessions, (text[start : start + 5] for text in texts), strict=True)]
        )
    assert [session.cached for session in sessions] == texts


def test_a_closed_session_frees_everything(engine: Engine) -> None:
    for seed in range(20):
        text = random_tokens(100, seed=seed)
        sequence = engine.open(text, 120)
        engine.forward([Feed(sequence, text, TokenTree.chain([5, 6]))])
        engine.close(sequence)
        assert engine.available_tokens == 128
        assert not sequence.blocks


def test_no_session_is_longer_than_the_context_or_the_cache(tiny_model: TinyModel, engine: Engine) -> None:
    assert engine.info.context_length == 128
    with pytest.raises(InvalidArgument, match="max_length is 129, but must be from 1 to 128"):
        engine.open([1], 129)
    with pytest.raises(InvalidArgument, match="tokens is 9, but must be from 1 to max_length, 8, many"):
        engine.open([1] * 9, 8)
    with pytest.raises(InvalidArgument, match="tokens is 0"):
        engine.open([], 8)
    assert make_engine(tiny_model("llama"), kv_tokens=4096).info.context_length == CONTEXT_LENGTH


def test_more_tokens_than_reserved_are_refused_before_the_pass(engine: Engine) -> None:
    first, second = engine.open([1, 2, 3], 8), engine.open([4, 5], 8)
    with pytest.raises(InvalidArgument, match="at most max_length, 8"):
        engine.forward([Feed(second, [4, 5]), Feed(first, [1, 2, 3], TokenTree.chain([1] * 6))])
    assert first.cached == second.cached == []


def test_salts_share_no_prefix(engine: Engine) -> None:
    text = random_tokens(20)
    mine = engine.open(text, 24, salt="mine")
    engine.forward([Feed(mine, text)])
    assert engine.open(text, 24, salt="mine").cached == text[:16]
    assert engine.open(text, 24, salt="yours").cached == []


def test_the_prefix_cache_can_be_off(tiny_model: TinyModel) -> None:
    engine = make_engine(tiny_model("llama"), prefix_cache=False)
    text = random_tokens(20)
    sequence = engine.open(text, 24)
    engine.forward([Feed(sequence, text)])
    engine.close(sequence)
    assert engine.open(text, 24).cached == []


@on_each_device
def test_going_back_before_a_shared_prefix_does_not_touch_the_other_session(tiny_model: TinyModel, device: str) -> None:
    directory = tiny_model("llama")
    engine = make_engine(directory, device)
    text = random_tokens(30)
    first = engine.open(text, 64)
    engine.forward([Feed(first, text)])
    second = engine.open(text, 64)
    assert second.cached == text[:24]
    other = [*text[:11], *random_tokens(30, seed=1)]
    second.align(other, 0)
    engine.forward([Feed(second, other[11:])])
    for sequence, history in ((first, [*text, 7]), (second, [*other, 7])):
        logits = engine.forward([Feed(sequence, [7])])
        assert_close(logits[-1], reference_logits(directory, history, device)[-1])


@on_each_device
def test_a_device_without_memory_refuses_the_pass_and_changes_nothing(
    tiny_model: TinyModel, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tiny_model("llama")
    engine = make_engine(directory, device)
    text = random_tokens(30)
    sequence = engine.open(text, 64)
    engine.forward([Feed(sequence, text[:20])])

    def run_out(*arguments: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_run", run_out)
        with pytest.raises(ResourceExhausted, match="ran out of memory over 10 tokens"):
            engine.forward([Feed(sequence, text[20:])])
    assert sequence.cached == text[:20]
    logits = engine.forward([Feed(sequence, text[20:])])
    assert_close(logits[-1], reference_logits(directory, text, device)[-1])


def test_a_pass_without_logits_returns_no_rows(engine: Engine) -> None:
    sequence = engine.open([1, 2], 8)
    assert engine.forward([Feed(sequence, [1, 2], want_logits=False)]).shape == (0, 512)


def test_logits_are_as_wide_as_the_model_makes_them(tiny_model: TinyModel) -> None:
    engine = make_engine(tiny_model("qwen2"))
    assert engine.forward([Feed(engine.open([1], 8), [1])]).shape == (1, 576)


def test_a_cache_without_a_block_is_refused(tiny_model: TinyModel) -> None:
    with pytest.raises(ModelLoadError, match="no room for a KV cache of a single block"):
        make_engine(tiny_model("llama"), kv_tokens=7)


def test_a_cache_that_does_not_fit_is_refused(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(*arguments: object) -> None:
        raise MemoryError("too much")

    monkeypatch.setattr("outrider.engine.kv.numpy.zeros", run_out)
    with pytest.raises(ModelLoadError, match=r"a KV cache of 1024 tokens takes 0\.\d GiB: too much"):
        make_engine(tiny_model("llama"))


@on_each_device
def test_the_cache_takes_a_share_of_the_memory_by_default(
    tiny_model: TinyModel, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.engine.memory.free_bytes", lambda device: 1_000_000)
    engine = Engine(loaded_model(tiny_model("llama"), device), EngineOptions(memory_fraction=0.5))
    token_bytes = 3 * 2 * (12 + 12) * 4  # layers, KV heads, key and value, float32
    assert engine.capacity_tokens == 500_000 // token_bytes // 16 * 16


def test_a_cpu_cache_takes_no_memory_before_it_is_used() -> None:
    from outrider.engine.kv import LayerShape

    store = KvStore({0: LayerShape(8, 128, 128)}, 1 << 22, dtype=torch.float32, device=torch.device("cpu"))
    keys = store.layers[0].keys
    assert keys.shape == (1 << 22, 8, 128)  # 16 GiB, as much as the values
    assert keys[123].count_nonzero() == 0


def test_no_room_to_compute_in_is_told_at_start_up(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(*arguments: object, **options: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr("outrider.engine.engine.make_runner", run_out)
    with pytest.raises(ModelLoadError, match=r"cpu has no room to compute passes of 77 tokens; lower memory_fraction"):
        make_engine(tiny_model("llama"), max_batch_tokens=77)
