#!/usr/bin/env bash
# Lint and format of proto/, and whether it still understands what the main branch speaks. Usage: scripts/check_proto.sh
set -euo pipefail
cd "$(dirname "$0")/.."
buf="$(dirname "${PYTHON:-.venv/bin/python}")/buf"
"$buf" lint proto
"$buf" format --diff --exit-code proto
if git cat-file -e main:proto/buf.yaml 2>/dev/null; then
  "$buf" breaking proto --against "$(git rev-parse --path-format=absolute --git-common-dir)#branch=main,subdir=proto"
else
  echo "no main branch with a proto/ here: breaking changes were not looked for"
fi
