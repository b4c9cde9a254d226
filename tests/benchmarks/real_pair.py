"""The real pair: Qwen2.5-Coder 1.5B with the 0.5B as its draft, on HumanEval and GSM8K prompts, float32, end to end.

    python -m tests.benchmarks.real_pair TARGET.gguf DRAFT.gguf [--prompts 5] [--max-tokens 64] [--device cpu]

Real processes over gRPC. Greedy and sampled; every answer is compared with plain decoding. Speed is not the point on
two cores; acceptance is.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from outrider.client import Client
from outrider_cli.cluster import LocalCluster
from tests.benchmarks.prompts import gsm8k, human_eval
from tests.benchmarks.record import save

LONGEST_GUESS = 4


def main() -> None:
    """Run and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--prompts", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    prompts: dict[str, list[dict[str, Any]]] = {
        "humaneval": [{"prompt": text} for text in human_eval(arguments.prompts)],
        "gsm8k": [{"messages": [{"role": "user", "content": text}]} for text in gsm8k(arguments.prompts)],
    }
    flags = ["--kv-tokens", "4096"]
    with (
        LocalCluster(
            arguments.target,
            draft_model=arguments.draft,
            device=arguments.device,
            verifier_flags=flags,
            draft_flags=flags,
            coordinator_flags=["--draft-timeout-s", "30"],
        ) as cluster,
        Client(cluster.address) as client,
    ):
        rows = [
            answer(client, name, place, request, temperature, arguments.max_tokens)
            for temperature in (0.0, 0.8)
            for name, requests in prompts.items()
            for place, request in enumerate(requests)
        ]
    summary = {
        f"{name} at temperature {temperature:g}": summarize(
            [row for row in rows if row["set"] == name and row["temperature"] == temperature]
        )
        for name in prompts
        for temperature in (0.0, 0.8)
    }
    result = {"seed": 0, "max_tokens": arguments.max_tokens, "guess": LONGEST_GUESS, "summary": summary, "rows": rows}
    print(save(f"real_pair_{arguments.device}", result))
    for name, row in summary.items():
        print(name, row)


def answer(
    client: Client, name: str, place: int, request: dict[str, Any], temperature: float, max_tokens: int
) -> dict[str, Any]:
    """One prompt, plain and with the draft."""
    options: dict[str, Any] = {"temperature": temperature, "seed": place, "max_tokens": max_tokens}
    options |= {"max_draft_tokens": LONGEST_GUESS, "fixed_length": True}
    started = time.perf_counter()
    plain = client.generate(**request, **options, drafter="none")
    middle = time.perf_counter()
    speculative = client.generate(**request, **options, drafter="model")
    ended = time.perf_counter()
    stats = speculative.speculation
    row = {
        "set": name,
        "place": place,
        "temperature": temperature,
        "tokens": len(plain.token_ids),
        "identical": plain.token_ids == speculative.token_ids,
        "proposed": stats.proposed_tokens,
        "accepted": stats.accepted_tokens,
        "rounds": stats.rounds,
        "accepted_length": stats.accepted_length,
        "plain_seconds": middle - started,
        "speculative_seconds": ended - middle,
        "text": speculative.text,
    }
    print({key: value for key, value in row.items() if key != "text"}, flush=True)
    return row


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Acceptance over all tokens of a set."""
    proposed, accepted = sum(row["proposed"] for row in rows), sum(row["accepted"] for row in rows)
    return {
        "answers": len(rows),
        "identical": sum(row["identical"] for row in rows),
        "acceptance_rate": accepted / proposed if proposed else None,
        "accepted_length": sum(row["tokens"] for row in rows) / sum(row["rounds"] for row in rows),
    }


if __name__ == "__main__":
    main()
