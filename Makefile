# make help     this list
# make setup    a virtual environment with everything, once
# make demo     compile Inception V3 and write report.html
# make check    format, lint, types, architecture, tests: what CI runs
#               (make format, lint, types, layers or tests: that part alone)
# make test-gpu the tests that need a GPU, several at a time, with the Python at hand (PYTHON, JOBS,
#               SHARD=1/2, LIMIT=600 seconds, OUT=folder): nothing is installed
# make test-oldest  the tests with the oldest torch that is supported, in an environment of its own:
#               several gigabytes, for only builds with CUDA's libraries have its Triton beside them
# make test-ray  the tests of workers with Ray, which is installed for them: a minute more
# make docs     the documentation as a site, build/site/index.html; a warning is an error
# make benchmarks  docs/benchmarks.md, docs/papers.md and the README's table, from the records
# make cover    the tests, and which branches of the package they ran
# make golden   accept the new texts of the golden tests (review the diff)
# make size     lines per room
# make replay   what this branch changes in the plans of the zoo, against main
# make clean    removes what the other commands made, the environment too

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OLDEST := .venv-oldest
READY := $(VENV)/.ready
WORKERS ?= 2
JOBS ?= 8
SHARD ?= 1/1
LIMIT ?= 0

# One thread per test worker: workers that each start a thread per core only wait for each other.
# Bytecode is kept whatever the environment says: tests start processes, and each would compile all
# of our modules first, 0.6 of the 3.2 seconds that it takes to begin.
PYTEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -rfEs

.DEFAULT_GOAL := check
.PHONY: help setup demo test check format lint types layers tests docs benchmarks test-gpu test-oldest ray test-ray golden cover size replay clean

help:
	@sed -n '/^$$/q; s/^# //p' Makefile

setup: $(READY)

# PIP_CONSTRAINT, not --constraint, so that the build of the package itself is pinned as well.
# Without bytecode of all that torch and others bring, which takes a minute: Python compiles what is
# imported, a fifth of it.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make setup PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "no virtual environment: Debian keeps venv in the package python3-venv" >&2; exit 1; }
	@echo "installing into $(VENV): some minutes and some gigabytes the first time"
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --disable-pip-version-check \
		--no-compile --quiet --editable '.[dev]'
	@touch $@

demo: setup
	$(BIN)/anabranch compile zoo:inception_v3 --dtype fp16 --batch 1 \
		--report report.html --json report.json

test: layers tests

check: format lint types layers tests

format: setup
	$(BIN)/ruff format --check

lint: setup
	$(BIN)/ruff check

types: setup
	$(BIN)/mypy

layers: setup
	$(BIN)/lint-imports --no-logo

tests: setup
	$(PYTEST) tests

cover: setup
	$(PYTEST) tests --cov --cov-report=term:skip-covered

test-gpu:
	exec $(PYTHON) tools/gpu_tests.py --jobs $(JOBS) --shard $(SHARD) --limit $(LIMIT) $(if $(OUT),--out "$(OUT)")

# The interpreter of its Triton makes Python's numbers of arrays of one, which later NumPys refuse.
test-oldest:
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --disable-pip-version-check --no-compile --quiet \
		--editable '.[dev]' 'torch==2.11.0' 'numpy<2.4'
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -n $(WORKERS) --dist loadgroup -rfEs tests

ray: setup
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --disable-pip-version-check \
		--no-compile --quiet --editable '.[ray]'

test-ray: ray
	$(PYTEST) -k ray tests/tuning/workers tests/compiled/test_bucket_jobs.py

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

benchmarks: setup
	$(BIN)/python tools/tables.py
	$(BIN)/python tools/papers.py
	$(BIN)/python tools/rule_families.py

golden: setup
	$(PYTEST) tests --update-golden

size:
	@$(PYTHON) tools/size.py

replay: setup
	$(BIN)/python tools/replay.py

clean:
	rm -rf $(VENV) $(OLDEST) build dist out report.html report.json .mypy_cache .ruff_cache \
		.pytest_cache .import_linter_cache .hypothesis
	find src tests tools -name __pycache__ -prune -exec rm -rf {} +
