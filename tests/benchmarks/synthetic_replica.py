"""A real replica process that serves half of the synthetic pair (tests/benchmarks/synthetic_pair.py), or all of it:

    python -m tests.benchmarks.synthetic_replica verifier --device cuda:0 --agreement 0.8 [--with-draft]

The target's damping is searched for until draft and target, with the same noise at temperature 1, choose the same token
at --agreement of the positions of a random text. Prints its address as the real ones do.
"""

from __future__ import annotations

import argparse
import mmap
import struct
import time
from typing import Any

from outrider.engine.engine import Engine  # before torch: see outrider.engine

import torch  # isort: skip
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from outrider.engine.model import LoadedModel
from outrider.engine.options import EngineOptions
from outrider.engine.replica import Replica
from outrider.engine.tokenizer_files import export_tokenizer
from outrider.rpc.server import run_event_loop
from outrider.telemetry.logs import configure, get_logger
from outrider.text.vocabulary import fingerprint, tokens_by_id
from outrider_draft import process as draft_process
from outrider_draft.settings import DraftSettings
from outrider_verifier import process as verifier_process
from outrider_verifier.settings import VerifierSettings
from tests.benchmarks.synthetic_pair import DRAFT_LAYERS, SHAPES, damp, loaded, synthetic_model

log = get_logger(__name__)


def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["verifier", "draft"])
    parser.add_argument("--with-draft", action="store_true", help="let the verifier have a draft of its own")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--agreement", type=float, default=0.8)
    parser.add_argument("--shape", choices=list(SHAPES), default="8b")
    parser.add_argument("--kv-tokens", type=int, default=160_000)
    parser.add_argument("--busy-file", help="where the verifier counts the seconds that it spends in passes")
    arguments = parser.parse_args()
    configure("info")
    common = {"model": "synthetic", "device": arguments.device}
    run_event_loop(serve(arguments, common))


async def serve(arguments: argparse.Namespace, common: dict[str, Any]) -> None:
    """Serve until a signal."""
    if arguments.role == "draft":
        await draft_process.assemble(DraftSettings(**common), *load(arguments, draft=True)).run()
        return
    own = load(arguments, draft=True)[1] if arguments.with_draft else None
    replica = verifier_process.assemble(VerifierSettings(**common), *load(arguments, draft=False), own)
    if arguments.busy_file:
        count_busy(replica, arguments.busy_file)
    await replica.run()


def count_busy(replica: Replica, path: str) -> None:
    """Let the replica write the seconds that it has spent in passes to a file of one double, after each."""
    core: Any = replica._core
    step, seconds = core.step, 0.0
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 8)

    def counted(*arguments: Any) -> Any:
        nonlocal seconds
        started = time.perf_counter()
        try:
            return step(*arguments)
        finally:
            seconds += time.perf_counter() - started
            memory[:] = struct.pack("d", seconds)

    core.step = counted


def load(arguments: argparse.Namespace, *, draft: bool) -> tuple[LoadedModel, Engine]:
    """The draft or the target."""
    shape = SHAPES[arguments.shape]
    layers = DRAFT_LAYERS if draft else shape["num_hidden_layers"]
    module = synthetic_model(layers, arguments.device, shape=shape)
    if not draft:
        damp(module, arguments.agreement)
    tokenizer = word_tokenizer(module.config.vocab_size)
    print_ = fingerprint(tokens_by_id(tokenizer.get_vocab()))
    model = loaded(module, arguments.device, print_, export_tokenizer(tokenizer))
    return model, Engine(model, EngineOptions(kv_tokens=arguments.kv_tokens))


def word_tokenizer(size: int) -> PreTrainedTokenizerFast:
    """One word for each id."""
    words = Tokenizer(models.WordLevel({f"t{token} ": token for token in range(size)}, unk_token="t0 "))
    return PreTrainedTokenizerFast(tokenizer_object=words)


if __name__ == "__main__":
    torch.set_num_threads(4)
    main()
