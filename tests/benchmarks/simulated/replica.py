"""A simulated replica process, which stands in for a real one:

    python -m tests.benchmarks.simulated.replica verifier --step-ms 10 [--row-ms 0.02] [--acceptance 0.8]
    python -m tests.benchmarks.simulated.replica verifier --slower 8 [--acceptance 0.8]

The second takes for everything so many times what an H200 was measured to take, and tells of it as real ones do.
Listens on a free port of loopback and prints it as the real ones do. Its tokens are arbitrary.
"""

from __future__ import annotations

import argparse
import asyncio
from functools import partial
from typing import Any

from outrider.engine.tokenizer_files import export_tokenizer
from outrider.engine.worker import DeviceWorker
from outrider.protocol.items import ModelInfo
from outrider.rpc import codec
from outrider.rpc.replica_server import ModelServicer, ReplicaInfo, ReplicaStreams
from outrider.rpc.server import Server, run_event_loop
from outrider.text.vocabulary import fingerprint, tokens_by_id
from outrider.v1 import model_pb2, model_pb2_grpc
from outrider.v1.draft_pb2_grpc import add_DraftServiceServicer_to_server
from outrider.v1.verifier_pb2_grpc import add_VerifierServiceServicer_to_server
from outrider_draft.servicer import DraftServicer
from outrider_verifier.servicer import VerifierServicer
from tests.benchmarks.simulated.card_verifier import CardVerifier
from tests.benchmarks.simulated.cores import SimulatedCore, SimulatedDraft, SimulatedVerifier, StepTime
from tests.benchmarks.simulated.text import Text
from tests.tiny_models import build_tokenizer

CONTEXT_LENGTH = 1 << 20


def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["verifier", "draft"])
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--row-ms", type=float, default=0.0)
    parser.add_argument("--acceptance", type=float, default=0.8)
    parser.add_argument("--own-draft-ms", type=float, help="a token's, of a verifier that drafts by itself")
    parser.add_argument("--slower", type=float, help="a card that drafts by itself, so many times slower than it is")
    parser.add_argument("--tells", action="store_true", help="what its passes take, as real ones do")
    run_event_loop(serve(parser.parse_args()))


async def serve(arguments: argparse.Namespace) -> None:
    """The real server over a simulated core."""
    verifier = arguments.role == "verifier"
    text = Text(arguments.acceptance)
    core = core_of(arguments, text)
    step_times, draft_step_times = core.told()
    tokenizer = build_tokenizer()
    server = Server(arguments.role, "127.0.0.1:0")
    worker: DeviceWorker[Any, Any] = DeviceWorker(core)
    info = ReplicaInfo(
        model=ModelInfo(
            name="simulated",
            architecture="none",
            parameters=0,
            dtype="none",
            device="none",
            context_length=CONTEXT_LENGTH,
            vocabulary_fingerprint=fingerprint(tokens_by_id(tokenizer.get_vocab())),
            vocabulary_size=len(tokenizer),
            eos_token_ids=(0,),
            hardware=f"simulated {arguments.role}",
        ),
        role=model_pb2.ReplicaRole.Value(f"REPLICA_ROLE_{arguments.role.upper()}"),
        capacity_tokens=1 << 40,
        max_proposal=63,
        drafts=core.drafts,
        step_times=step_times,
        draft_step_times=draft_step_times,
    )
    streams: ReplicaStreams[Any, Any] = ReplicaStreams(codec.VERIFIER if verifier else codec.DRAFT, worker, info)
    if verifier:
        register = partial(add_VerifierServiceServicer_to_server, VerifierServicer(streams))
    else:
        register = partial(add_DraftServiceServicer_to_server, DraftServicer(streams))
    server.add(f"outrider.v1.{'Verifier' if verifier else 'Draft'}Service", register)
    servicer = ModelServicer(info, export_tokenizer(tokenizer))
    server.add("outrider.v1.ModelService", partial(model_pb2_grpc.add_ModelServiceServicer_to_server, servicer))
    worker.start()
    try:
        await server.run(streams.drained, grace_s=0.2)
    finally:
        await asyncio.to_thread(worker.stop)


def core_of(arguments: argparse.Namespace, text: Text) -> SimulatedCore:
    """What runs on the device thread."""
    step_time = StepTime(arguments.step_ms, arguments.row_ms)
    if arguments.role == "draft":
        return SimulatedDraft(text, step_time, arguments.tells)
    if arguments.slower is not None:
        return CardVerifier(text, step_time, slower=arguments.slower)
    own = None if arguments.own_draft_ms is None else StepTime(arguments.own_draft_ms, 0.0)
    return SimulatedVerifier(text, step_time, arguments.tells, draft_time=own)


if __name__ == "__main__":
    main()
