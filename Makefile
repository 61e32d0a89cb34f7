# Every target sets up .venv by itself. TORCH_INDEX_URL, if set, is where a CPU build of torch comes from, e.g.
#   make demo TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
PYTHON ?= python3
FAULT ?= ep_hold_gil
TORCH ?= torch==2.13.0
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install
TORCH_FROM := $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL))

.PHONY: demo test lint check clean
demo: .venv/.run
	$(BIN)/tracelens demo --fault $(FAULT)

test: .venv/.dev
	$(BIN)/python -m pytest

lint: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

check: lint
	$(BIN)/python -m pytest -m "not slow and not record"

.venv/.python:
	$(PYTHON) -c 'import sys; sys.exit("tracelens needs Python 3.11 or newer, this is " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	touch $@

.venv/.run: .venv/.python pyproject.toml
	$(PIP) $(TORCH_FROM) '$(TORCH)'
	$(PIP) --editable '.[record,serving]'
	touch $@

.venv/.dev: .venv/.run
	$(PIP) --editable '.[dev,kernels]' --editable plugins/example
	touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
