# `make` lists the targets. `make demo` and `make test` are the whole set-up: they make .venv
# with pip and the exact versions of constraints.txt, and do so again only when
# pyproject.toml or constraints.txt changed. Another Python: make test PYTHON=python3.13

PYTHON ?= python3
# For two cores: some tests wait for other processes.
PYTEST_ARGS ?= -n 3 --dist worksteal
FRAMES ?= 100000
KILLS ?= 20
BIN := .venv/bin

# What the caller's shell has active is not ours.
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH

# The test environment holds all that the demo needs; where it exists, use it.
DEMO_READY := $(if $(wildcard .venv/.ready-test),.venv/.ready-test,.venv/.ready-all)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test unit slow rounding processors newest lint docs wheel reproduce trust clean browser federation

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(DEMO_READY)  ## Fit a small network of nodes and write a report
	$(BIN)/fedmixtures demo
	@echo "For your own table: $(BIN)/fedmixtures fit (source $(BIN)/activate puts fedmixtures on the path)"

test: .venv/.ready-test browser  ## Everything that must pass: import contracts, ruff, types, all tests
	$(BIN)/lint-imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "not silos and not slow"
	$(MAKE) --no-print-directory rounding

# The tests of the report page need a real browser.
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	{ apt-get update -qq; apt-get install -y -qq chromium >/dev/null; }; } || \
	echo "note: Chromium is missing, so the tests of the report page are skipped." \
	"Install the package 'chromium' to run them."

unit: .venv/.ready-test  ## The tests that need no other program: no browser, no sites
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "not slow and not silos and not deployed"

slow: .venv/.ready-test  ## The long tests that `make test` leaves out
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "slow and not silos"

# Both at once, on one thread each; types are checked by the run of all tests.
# as_processor.sh holds XLA (--xla_cpu_max_isa), NumPy and OpenBLAS back to an instruction set.
ROUNDING = $(BIN)/python -m pytest -q -n 0 -m rounding -o addopts="-ra --import-mode=importlib" \
	$$(grep -rl --include="test_*.py" mark.rounding tests)

rounding: .venv/.ready-test  ## Choices between equals, as on older processors
	@grep -q -m1 sse4_2 /proc/cpuinfo || { echo "note: not an x86 processor, nothing to hold back"; exit 0; }; \
	tests/as_processor.sh SSE4_2 1 $(ROUNDING) & first=$$!; \
	FIRST_CORE=1 tests/as_processor.sh AVX2 1 $(ROUNDING) & second=$$!; \
	wait $$first && wait $$second

ISAS = SSE4_2 AVX2 $(shell grep -q -m1 avx512f /proc/cpuinfo && echo AVX512)

processors: .venv/.ready-test browser  ## All tests under every instruction set, on one and two threads (an hour)
	@for isa in $(ISAS); do for threads in 1 2; do \
	tests/as_processor.sh $$isa $$threads $(BIN)/python -m pytest $(PYTEST_ARGS) -m "not silos" || exit 1; \
	tests/as_processor.sh $$isa $$threads $(BIN)/python -m benchmarks.same_numbers .venv/$$isa-$$threads.npz \
	--against .venv/SSE4_2-1.npz --tolerance 1e-8 || exit 1; done; done

# Each in an environment of its own, without constraints.txt: what pip installs today.
NEWEST ?= python3.12 python3.13

newest: browser  ## All tests on newer Pythons with the newest libraries; NEWEST="python3.13 ..."
	@for name in $(NEWEST); do \
	python=$$(command -v $$name || ls -d $$HOME/.pyenv/versions/$${name#python}*/bin/python 2>/dev/null | tail -1); \
	[ -n "$$python" ] || { echo "note: $$name is not installed here, left out" >&2; continue; }; \
	folder=.venv/newest-$${name#python}; \
	"$$python" -m venv $$folder && $$folder/bin/python -m pip install --quiet --disable-pip-version-check \
	--upgrade --upgrade-strategy eager -e ".[test]" && \
	$$folder/bin/python -c 'import sys, jax, numpy; print("Python", sys.version.split()[0], "JAX", jax.__version__, "NumPy", numpy.__version__)' && \
	$$folder/bin/python -m pytest $(PYTEST_ARGS) -m "not silos" || exit 1; done

# One test: make federation ONLY=test_what_four_sites_cost. Types are not checked at run time here,
# as they are not where silos run.
federation: .venv/.ready-test  ## Real silos on this machine: faults, intruders, costs
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

# From the source distribution, so that it is whole; nothing of this checkout is seen by the trial.
wheel:  ## Build source and wheel into dist/, and try the wheel in an empty environment
	@$(call check_python,$(PYTHON))
	rm -rf dist build/wheel && $(PYTHON) -m venv build/wheel/builder && $(PYTHON) -m venv build/wheel/empty
	build/wheel/builder/bin/python -m pip install --quiet --disable-pip-version-check build
	build/wheel/builder/bin/python -m build --outdir dist .
	build/wheel/empty/bin/python -m pip install --quiet --disable-pip-version-check "$$(ls dist/*.whl)[all]"
	cd build/wheel && empty/bin/python -W error -c 'import fedmixtures as f; assert "empty" in f.__file__, f.__file__' && \
	empty/bin/fedmixtures --version && empty/bin/fedmixtures methods >/dev/null && \
	empty/bin/fedmixtures demo --out trial && test -s trial/report.html

reproduce: $(DEMO_READY)  ## All tables and figures of the paper, 20 seeds, into results/
	$(BIN)/python -m reproduction all
	$(BIN)/python -m reproduction.page docs/results/reproduction.md results

TRUST := trust-sbm trust-robust trust-digits trust-ablation trust-cost

trust: $(DEMO_READY)  ## Trust-then-Pool against everything else, 20 seeds, into results/
	$(BIN)/python -m reproduction $(TRUST)
	$(BIN)/python -m reproduction.before
	$(BIN)/python -m reproduction.page docs/results/trust.md results

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
