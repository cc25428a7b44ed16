# Each target sets up all it needs in .venv from a bare Python 3.11 or newer: PYTHON=python3.12 make test

PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup demo test test-fast check typed bench pictures clean

help:
	@echo "make setup      a virtual environment in $(VENV) with the package and its tools"
	@echo "make demo       sweep scenarios/quickstart.yaml: a table, results/quickstart.nc and results/quickstart.png"
	@echo "make test       the tests, in two processes (WORKERS=4: in four; 3 GB of memory each)"
	@echo "make test-fast  the quick ones among them (90 s)"
	@echo "make check      formatting, lint and types"
	@echo "make typed      write evaluator/typed.py anew, after a change of the scenario's keys"
	@echo "make bench      the benchmarks (minutes)"
	@echo "make pictures   the pictures of scenarios/ anew (some 15 minutes; NAMES=\"policies.png kv-storage.png\": those)"
	@echo "make clean      remove what the targets made, .venv and results included"

setup: $(READY)

# The stamp is written last, so that an interrupted set-up is done again.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: Python 3.11 or newer is needed; $(PYTHON) is `$(PYTHON) --version 2>&1`." \
		"Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
		{ echo "error: $(PYTHON) has no venv module (Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/evaluator sweep scenarios/quickstart.yaml --out results/quickstart.nc --plot results/quickstart.png

# Each process starts with its half of the tests in their order, so that tests of one file share compiled programs; the
# one that is done first takes some from the other's end.
PYTEST = $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

test: $(READY)
	$(PYTEST)

test-fast: $(READY)
	$(PYTEST) -m "not slow"

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

typed: $(READY)
	@mkdir -p .cache
	$(BIN)/python -m evaluator.scenario.python_types | $(BIN)/ruff format - > .cache/typed.py
	mv .cache/typed.py evaluator/typed.py

bench: $(READY)
	$(BIN)/python -m tests.benchmarks

pictures: $(READY)
	$(BIN)/python -m tests.benchmarks.pictures $(NAMES)

clean:
	rm -rf $(VENV) build dist .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache results/*.nc results/*.png results/*.html results/*.chunks
	find evaluator tests -name __pycache__ -type d -prune -exec rm -rf {} +
