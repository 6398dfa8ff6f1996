PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test check bench clean

run: .venv/ready  ## sets up everything and runs the main job on an embedded data set
	$(BIN)/undergrowth run --method fedavg --rounds 20 --clients 20

test: .venv/ready  ## sets up everything and passes the tests
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: test

bench: .venv/ready  ## the benchmarks, each against a reference in the same run
	$(BIN)/undergrowth bench loop
	$(BIN)/undergrowth bench clock

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch .venv/ready

clean:
	rm -rf .venv
