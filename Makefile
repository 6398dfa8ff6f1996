PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
# Makes torch compute as a CPU without vector instructions would: other last digits on the same machine.
OTHER_ARITHMETIC := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2

.PHONY: run check test test-arithmetic test-all test-gpu bench clean

run: .venv/base  ## sets up what a run needs and runs the main job on an embedded data set
	$(BIN)/undergrowth run --method fedavg --rounds 20 --clients 20

check: .venv/dev  ## style and types
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy

test: check  ## sets up everything and passes the tests
	$(PYTEST)

test-arithmetic: .venv/dev  ## the tests of equality once more, with another CPU's rounding
	$(OTHER_ARITHMETIC) $(PYTEST) -m "equality and not slow"

test-all: check  ## all tests, also the slow ones: the full product of methods and engines, Ray, the wheel; with coverage
	$(PYTEST) -m "" --cov --cov-report=term:skip-covered

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

.venv/dev: .venv/base
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch .venv/dev

clean:
	rm -rf .venv
