"""A real replica process that serves half of the synthetic pair (tests/benchmarks/synthetic_pair.py):

    python -m tests.benchmarks.synthetic_replica verifier --device cuda:0 --agreement 0.8

The target's damping is searched for until draft and target, with the same noise at temperature 1, choose the same token
at --agreement of the positions of a random text. Prints its address as the real ones do.
"""

from __future__ import annotations

import argparse

from outrider.engine.engine import Engine  # before torch: see outrider.engine

import torch  # isort: skip
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from outrider.engine.options import EngineOptions
from outrider.engine.tokenizer_files import export_tokenizer
from outrider.rpc.server import run_event_loop
from outrider.telemetry.logs import get_logger
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
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--agreement", type=float, default=0.8)
    parser.add_argument("--shape", choices=list(SHAPES), default="8b")
    parser.add_argument("--kv-tokens", type=int, default=160_000)
    arguments = parser.parse_args()
    draft = arguments.role == "draft"
    shape = SHAPES[arguments.shape]
    layers = DRAFT_LAYERS if draft else shape["num_hidden_layers"]
    module = synthetic_model(layers, arguments.device, shape=shape)
    if not draft:
        damp(module, arguments.agreement)
    tokenizer = word_tokenizer(module.config.vocab_size)
    print_ = fingerprint(tokens_by_id(tokenizer.get_vocab()))
    model = loaded(module, arguments.device, print_, export_tokenizer(tokenizer))
    engine = Engine(model, EngineOptions(kv_tokens=arguments.kv_tokens))
    if draft:
        settings = DraftSettings(model="synthetic", device=arguments.device)
        run_event_loop(draft_process.serve(settings, model, engine))
    else:
        run_event_loop(
            verifier_process.serve(VerifierSettings(model="synthetic", device=arguments.device), model, engine)
        )


def word_tokenizer(size: int) -> PreTrainedTokenizerFast:
    """One word for each id."""
    words = Tokenizer(models.WordLevel({f"t{token} ": token for token in range(size)}, unk_token="t0 "))
    return PreTrainedTokenizerFast(tokenizer_object=words)


if __name__ == "__main__":
    torch.set_num_threads(4)
    main()
