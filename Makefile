# `make help` lists what there is. Everything runs in .venv, which is made on the first use.

PYTHON ?= python3
TORCH := torch==2.13.0
BIN := .venv/bin
INSTALLED := .venv/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check
ARGS ?=
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow check proto fmt clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(INSTALLED) ## Plain decoding beside speculation on this machine; fetches about 100 MB once
	$(BIN)/outrider demo $(ARGS)

test: $(INSTALLED) ## The tests that take minutes at most, JOBS=2 files at a time; ARGS="-k name" picks some
	$(BIN)/pytest -m "not slow and not gpu" -n $(JOBS) --dist loadfile $(ARGS)

test-slow: $(INSTALLED) ## The tests that take longer
	$(BIN)/pytest -m "slow and not gpu" $(ARGS)

check: $(INSTALLED) ## Formatting, lint, types, layering, protocol, generated stubs
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy shared services
	$(BIN)/lint-imports
	scripts/check_proto.sh
	$(BIN)/pytest tests/unit/test_structure.py

proto: $(INSTALLED) ## Generate the stubs in shared/outrider/v1 from proto/
	scripts/proto.sh

fmt: $(INSTALLED) ## Format the code and the protocol
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/buf format -w proto

clean: ## Remove .venv, caches and build results
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find shared services tests -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first and alone: it is by far the largest, and whichever build of the pinned version pip is set up to
# find (CPU only, a CUDA version) is then the one that everything else is fitted to.
$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "there is no $(PYTHON) here: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Outrider needs Python 3.11 or newer, but $(PYTHON) is `$(PYTHON) --version 2>&1`: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments: install its venv module (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(PIP) install -c constraints.txt $(TORCH)
	$(PIP) install -c constraints.txt -e '.[engine,dev]'
	@touch $@
