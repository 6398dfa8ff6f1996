PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test test-gpu bench clean

run: .venv/base  ## sets up what a run needs and runs the main job on an embedded data set
	$(BIN)/undergrowth run --method fedavg --rounds 20 --clients 20

test: .venv/dev  ## sets up everything and passes the tests
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-gpu: .venv/dev  ## the tests that need a GPU
	$(BIN)/python -m pytest -n 0 -m gpu

bench: .venv/base  ## the benchmarks, each against a reference in the same run; a missed bar does not stop the others
	-$(BIN)/undergrowth bench loop
	-$(BIN)/undergrowth bench clock
	-$(BIN)/undergrowth bench placement
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
