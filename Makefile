# `make` lists the targets. `make demo` and `make test` are the whole set-up: they make .venv
# with pip and the exact versions of constraints.txt, and do so again only when
# pyproject.toml or constraints.txt changed. Another Python: make test PYTHON=python3.13

PYTHON ?= python3
PYTEST_ARGS ?= -n 2 --dist worksteal
FRAMES ?= 100000
KILLS ?= 20
BIN := .venv/bin

# What the caller's shell has active is not ours.
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH

# The test environment holds all that the demo needs; where it exists, use it.
DEMO_READY := $(if $(wildcard .venv/.ready-test),.venv/.ready-test,.venv/.ready-all)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test unit lint docs reproduce trust clean browser federation

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(DEMO_READY)  ## Fit a small network of nodes and write a report
	$(BIN)/fedmixtures demo

test: .venv/.ready-test browser  ## Everything that must pass: import contracts, ruff, all tests
	$(BIN)/lint-imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "not silos"

# The tests of the report page need a real browser.
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	{ apt-get update -qq; apt-get install -y -qq chromium >/dev/null; }; } || \
	echo "note: Chromium is missing, so the tests of the report page are skipped." \
	"Install the package 'chromium' to run them."

unit: .venv/.ready-test  ## The fast tests only
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "not slow and not silos"

# One test: make federation ONLY=test_what_four_sites_cost. Types are not checked at run time here,
# as they are not where silos run.
federation: .venv/.ready-test .venv/.ready-nvflare  ## Real silos on this machine: faults, intruders, costs
	FEDERATION_RESULTS=results/federation FEDERATION_FRAMES=$(FRAMES) FEDERATION_KILLS=$(KILLS) \
	tests/federation/alone.sh $(BIN)/python -m pytest tests/federation -m silos -n 0 -v \
	-o addopts="-ra --import-mode=importlib" -p no:cacheprovider $(if $(ONLY),-k $(ONLY))

lint: .venv/.ready-test  ## Ruff, types and import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright
	$(BIN)/lint-imports

docs: .venv/.ready-docs  ## Build the documentation into docs/_build/html
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

reproduce: $(DEMO_READY)  ## All tables and figures of the paper, 20 seeds, into results/
	$(BIN)/python -m reproduction all
	$(BIN)/python -m reproduction.page docs/reproduction.md results

TRUST := trust-sbm trust-robust trust-digits trust-ablation trust-cost

trust: $(DEMO_READY)  ## Trust-then-Pool against everything else, 20 seeds, into results/
	$(BIN)/python -m reproduction $(TRUST)
	$(BIN)/python -m reproduction.page docs/trust.md results

clean:  ## Remove caches and build products (.venv stays)
	rm -rf build dist htmlcov docs/_build docs/auto_examples docs/generated
	rm -rf .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

# .venv/.ready-EXTRA: the project is installed with that extra of pyproject.toml.
.venv/.ready-%: pyproject.toml constraints.txt | .venv/bin/python
	@$(call check_python,$(BIN)/python)
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip --upgrade
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$*]"
	@touch $@

.venv/bin/python:
	@$(call check_python,$(PYTHON))
	$(PYTHON) -m venv .venv

check_python = command -v "$(1)" >/dev/null || \
	{ echo "error: '$(1)' not found. Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }; \
	"$(1)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "error: fedmixtures needs Python 3.11 or newer, but '$(1)' is $$("$(1)" --version 2>&1)." \
	"$(if $(filter .venv/%,$(1)),Remove .venv and run make again.,Name a newer one: make PYTHON=/path/to/python3)" >&2; exit 1; }; \
	"$(1)" -c 'import venv, ensurepip' 2>/dev/null || \
	{ echo "error: '$(1)' lacks venv or ensurepip (on Debian and Ubuntu: the package python3-venv)." >&2; exit 1; }
