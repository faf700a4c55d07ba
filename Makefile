# make demo   install, export the example models, build a model repository, serve it and verify every endpoint
# make test   install and run the tests (those that need a GPU or a Docker engine have targets of their own)
# make check  what CI asks of a change: format, types, layers, tests with coverage

# The first interpreter that is supported and can make virtual environments.
SUPPORTED := import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))
PYTHON ?= $(shell for python in python3 python3.12 python3.11 python3.10; do \
	$$python -c "$(SUPPORTED)" 2>/dev/null && echo $$python && break; done)
# PyPI's torch brings CUDA, some gigabytes. For the small one: make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
MODELS ?= examples/models
REPOSITORY ?= model_repository
PYTEST_ARGS ?=
# The tests of a file share live servers, so they stay in one process. tests/conftest.py starts the longest files first.
PARALLEL := -n auto --dist loadfile --no-loadscope-reorder --durations=15
# Tests that failed are run once more, one at a time: a server beside other tests may exceed a time limit. Both results are printed.
AGAIN := --last-failed --last-failed-no-failures none
FAST := -m "not slow and not docker and not gpu" $(PYTEST_ARGS)
SLOW := -m "slow and not docker and not gpu" $(PYTEST_ARGS)

BIN := .venv/bin
READY := .venv/.ready
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(PIP_CONSTRAINT)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# One thread a process: the tests and the server's instances share the cores better than torch's pools do.
export OMP_NUM_THREADS ?= 1
# Use huge pages. With small ones, page faults after a fork took a quarter of the CPU time of a small build.
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
# Without cached bytecode, every process that a test starts compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check lint test-slow test-docker test-gpu fuzz hostile lock audit format clean venv

demo: $(READY)
	$(BIN)/python examples/export.py
	$(BIN)/trt-build repo $(MODELS) --out $(REPOSITORY) --write-env
	$(BIN)/trt-build verify $(REPOSITORY) --serve

test: $(READY)
	$(BIN)/python -m pytest $(PARALLEL) $(FAST) || $(BIN)/python -m pytest $(AGAIN) $(FAST)

test-slow: $(READY)
	$(BIN)/python -m pytest $(PARALLEL) $(SLOW) || $(BIN)/python -m pytest $(AGAIN) $(SLOW)

# Random programs, 15 seconds of each kind, other ones in each run; what fails is minimized into
# tests/fuzz/found.
fuzz: $(READY)
	nice $(BIN)/python -m tests.fuzz --seconds 105 --seed $$(date +%Y%m%d%H%M)000

# Hostile archives, manifests, repositories and published files for a minute, other ones every day.
hostile: $(READY)
	nice $(BIN)/python -m tests.hostile --seconds 50 --seed $$(date +%Y%m%d)000

check: lint
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow and not docker and not gpu" --cov --cov-report=term $(PYTEST_ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test-docker: $(READY)
	$(BIN)/python -m pytest tests/docker -m docker $(PYTEST_ARGS)

test-gpu: $(READY)
	$(BIN)/python -m pytest -m gpu $(PYTEST_ARGS)

# Hashes for constraints.txt: pip install --require-hashes -r requirements.lock
lock: $(READY)
	$(BIN)/python -m tests.packaging.lock

# Known vulnerabilities of the locked packages; needs PyPI's advisory database.
audit: $(READY)
	$(BIN)/pip install --quiet pip-audit
	$(BIN)/pip-audit --requirement requirements.lock --disable-pip --strict

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

venv: $(READY)

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.10, 3.11 or 3.12 with venv is needed (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	@test ! -L .venv || { echo ".venv is a link to $$(readlink .venv): remove it, since making an environment clears its target" >&2; exit 1; }
	$(PYTHON) -m venv --clear .venv
	$(BIN)/pip install --quiet $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache dist .env
	rm -f examples/models/*.pt examples/models/*.npz
	find model_repository -mindepth 1 ! -name README.md -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
