"""A coordinator that records its traffic, and a distillation that learns from it."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from outrider.corpus import read_answers
from outrider.engine.model import load_model
from outrider.engine.options import ModelOptions
from tests.cluster import running_cluster, until
from tests.conftest import TinyModel


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines())


async def test_recorded_answers_are_what_clients_got(tiny_model: TinyModel, tmp_path: Path) -> None:
    target, path = tiny_model("llama"), tmp_path / "traffic.jsonl"
    async with running_cluster(target, record_to=path, record_share=1.0) as cluster:
        answers = [await cluster.generate([5, 6, 7 + n], temperature=0.5, seed=n, max_tokens=9) for n in range(4)]
        await until(lambda: lines_of(path) >= 5)
    fingerprint = load_model(ModelOptions(str(target))).info.vocabulary_fingerprint
    recorded = list(read_answers(path, fingerprint))
    assert [(a.prompt, a.answer, a.temperature, a.seed) for a in recorded] == [
        ((5, 6, 7 + n), tuple(answer.token_ids), 0.5, n) for n, answer in enumerate(answers)
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_the_file_stops_at_its_limit_and_the_answers_go_on(tiny_model: TinyModel, tmp_path: Path) -> None:
    target, path = tiny_model("llama"), tmp_path / "traffic.jsonl"
    path.write_text("x" * 999_500 + "\n")
    async with running_cluster(target, record_to=path, record_share=1.0, record_max_mb=1) as cluster:
        for n in range(6):
            await cluster.generate([5, 6, n], temperature=0.0, max_tokens=8)
        cluster.coordinator.generations.recorder.stop()
    assert 999_501 < path.stat().st_size <= 1_000_000
    assert json.loads(path.read_text().splitlines()[-1])


async def test_a_line_that_a_crash_cut_short_is_dropped(tiny_model: TinyModel, tmp_path: Path) -> None:
    target, path = tiny_model("llama"), tmp_path / "traffic.jsonl"
    for seed in range(2):
        async with running_cluster(target, record_to=path, record_share=1.0) as cluster:
            await cluster.generate([5, 6, 7], temperature=0.5, seed=seed, max_tokens=4)
            cluster.coordinator.generations.recorder.stop()
        with path.open("a") as file:
            file.write('{"key": "half')
    fingerprint = load_model(ModelOptions(str(target))).info.vocabulary_fingerprint
    assert [answer.seed for answer in read_answers(path, fingerprint)] == [0, 1]


async def test_a_share_of_the_answers_is_recorded(tiny_model: TinyModel, tmp_path: Path) -> None:
    path = tmp_path / "traffic.jsonl"
    async with running_cluster(tiny_model("llama"), record_to=path, record_share=0.5) as cluster:
        for n in range(24):
            await cluster.generate([5, 6, n], request_id=f"request {n}", temperature=0.0, max_tokens=2)
        await until(lambda: lines_of(path) >= 5)
    assert 4 <= lines_of(path) - 1 <= 20
