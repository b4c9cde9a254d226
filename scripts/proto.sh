#!/usr/bin/env bash
# Generate the checked-in stubs from proto/ into shared/outrider/v1. Usage: scripts/proto.sh [OUTPUT_ROOT]
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-shared}
mkdir -p "$out/outrider/v1"
python=${PYTHON:-.venv/bin/python}
PATH="$(dirname "$python"):$PATH" "$python" -m grpc_tools.protoc -I proto \
  --python_out="$out" --grpc_python_out="$out" --mypy_out="quiet:$out" --mypy_grpc_out="quiet:$out" \
  proto/outrider/v1/*.proto
