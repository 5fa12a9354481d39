# Every target does its own set-up in .venv from requirements.lock; `make help` explains them.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# One thread per process: threads of several processes fight for the cores.
SINGLE := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
PYTEST = $(SINGLE) $(BIN)/python -m pytest -n auto --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint bench docs dist clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## Colored MNIST: plain training against Hessian alignment, a few minutes
	$(BIN)/hessalign demo

test: lint ## Lint, types, layers, doctests and the quick tests, in 5 minutes on two cores
	$(PYTEST) -m "not slow"

test-all: lint ## The same with all tests: Ray, kills, examples, benchmarks, full grids
	$(PYTEST)

lint: $(STAMP) ## ruff (lint and format), mypy --strict, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP) ## Measure speed against the released procedure; writes results/bench
	$(SINGLE) $(BIN)/python -m benchmarks

docs: .venv/.installed-docs ## Build the documentation into site/, without a network
	$(BIN)/zensical build --clean --strict

dist: .venv/.installed-release ## Build wheel and sdist into dist/, and try them in empty environments
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python scripts/check_dist.py dist

clean: ## Remove the environment and everything that was built
	rm -rf .venv site .cache build dist outputs .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint requirements.lock torch
	$(BIN)/python -m pip install --quiet --constraint requirements.lock --editable '.[dev]'
	touch $@

.venv/.installed-docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint requirements.lock --editable '.[docs]'
	touch $@

.venv/.installed-release: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint requirements.lock --editable '.[release]'
	touch $@
