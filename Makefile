PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
# Python keeps the byte code of this package and its tests, also where the environment says otherwise: many tests start
# processes, and each would compile it again.
export PYTHONDONTWRITEBYTECODE :=

# Makes torch compute as a CPU without vector instructions would: other last digits on the same machine.
OTHER_ARITHMETIC := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2

# Tests that are skipped in .venv, which does not have these libraries.
EXTRAS_TESTS := tests/data/loaders/test_table.py tests/data/loaders/test_hugging_face.py tests/report/test_export.py \
	tests/callbacks/test_trackers.py tests/models/test_hugging_face.py tests/data/loaders/test_operanet.py

# The lowest versions of pyproject.toml. Of torch, only newer builds for the CPU are on PyPI; click is of the time of this typer.
LOWEST := click==8.1.7 $(shell sed -n '/^dependencies/,/^]/s/^ *"\([^">]*\)>=\([0-9.]*\)",/\1==\2/p' pyproject.toml)

.PHONY: run check test pytest test-arithmetic test-all test-extras test-lowest test-gpu bench clean

run: .venv/base  ## sets up what a run needs and runs the main job on an embedded data set
	$(BIN)/undergrowth run --method fedavg --rounds 20 --clients 20

check: .venv/dev  ## style and types
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy

test: .venv/dev  ## sets up everything and passes the tests
	$(MAKE) --no-print-directory --jobs 2 check pytest

pytest: .venv/dev
	$(PYTEST)

test-arithmetic: .venv/dev  ## the tests of equality once more, with another CPU's rounding
	$(OTHER_ARITHMETIC) $(PYTEST) -m "equality and not slow"

test-all: check .venv/slow test-extras test-lowest  ## all tests, also the slow ones: the full product of methods and engines, Ray, the wheel; with coverage
	$(PYTEST) -m "" --cov --cov-report=term:skip-covered

test-extras: .venv-extras/ready  ## the tests that need the libraries of optional extras: Parquet, Hugging Face, pandas, trackers
	.venv-extras/bin/python -m pytest -m "" -rs $(EXTRAS_TESTS)

test-lowest: .venv-lowest/ready  ## the tests with the lowest versions of all dependencies but torch
	.venv-lowest/bin/python -m pytest -n 2 --dist worksteal

test-gpu: .venv/dev  ## the tests that need a GPU
	$(BIN)/python -m pytest -n 0 -m gpu

bench: .venv/base  ## the benchmarks, each against a reference in the same run; a missed bar does not stop the others
	-$(BIN)/undergrowth bench loop
	-$(BIN)/undergrowth bench clock
	-$(BIN)/undergrowth bench placement
	-$(BIN)/undergrowth bench start
	-$(BIN)/undergrowth bench engines

.venv/base: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable .
	touch .venv/base

.venv/dev: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch .venv/base .venv/dev

.venv/slow: .venv/dev
	$(BIN)/pip install --quiet --editable ".[slow]"
	touch .venv/slow

.venv-extras/ready: pyproject.toml
	$(PYTHON) -m venv .venv-extras
	.venv-extras/bin/pip install --quiet --editable ".[extras]"
	touch .venv-extras/ready

.venv-lowest/ready: pyproject.toml
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/pip install --quiet --editable ".[dev]" $(LOWEST)
	touch .venv-lowest/ready

clean:
	rm -rf .venv .venv-extras .venv-lowest
