# Every target makes its own .venv when it is missing, so any of them is the first command.
#   PYTHON=python3.12 make test            chooses another interpreter for it
#   make gpu READY= BIN=/path/to/venv/bin  uses an environment that is there already (stub too)
# gpu and gpu-all do so by themselves where there is no .venv and python3 has torch.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test corpus lint check format bench gpu gpu-all stub clean

BIN := .venv/bin
# A process for each core and one more, as a test that waits for a job leaves a core idle; up to
# four, as each of them loads torch. SPREAD= runs one after another.
# The files that take longest come first; TIMES=--write-seconds records anew what each takes.
SPREAD := -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder -p tests.schedule
# The corpus runs its programs on all cores by itself.
CORPUS := tests/test_corpus.py
# RERUNS="--reruns 1" runs a test that failed once more, and lists it as rerun.
RERUNS :=
READY := .venv/.ready
OUT ?= gpu-results
PARTS :=

# A machine with a GPU may have a Python with torch and no network to make a .venv from.
GPU_PYTHON := $(BIN)/python
GPU_READY := $(READY)
ifneq ($(filter gpu gpu-all,$(MAKECMDGOALS)),)
ifeq ($(origin READY) $(origin BIN)$(wildcard .venv/bin/python),file file)
ifeq ($(shell python3 -c 'import importlib.util as u; print(bool(u.find_spec("torch")))'),True)
GPU_PYTHON := python3
GPU_READY :=
endif
endif
endif
gpu gpu-all stub: export PYTHONPATH := $(CURDIR):$(CURDIR)/cli:$(CURDIR)/dashboards:$(PYTHONPATH)

help:  ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' Makefile

demo: $(READY)  ## Record the training of a small GPT and report where its memory went
	$(BIN)/memprof run -o demo-run.json docs/examples/train_gpt.py
	$(BIN)/memprof report demo-run.json -o demo-report.html

# The tests' tensors are small: threads of their own would only get in one another's way.
test corpus: export OMP_NUM_THREADS ?= 1
test: export PYTEST_XDIST_AUTO_NUM_WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# Hundreds of processes import memprof: each would compile it anew.
test corpus: export PYTHONDONTWRITEBYTECODE :=

test: $(READY)  ## Run the tests, all but the corpus
	$(BIN)/python -m pytest $(SPREAD) $(RERUNS) $(TIMES) --ignore $(CORPUS)

corpus: $(READY)  ## Judge the programs of reported bugs, where they lie in ../shared
	$(BIN)/python -m pytest $(RERUNS) $(CORPUS)

lint: $(READY)  ## Look at format, lint, types and layers
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test corpus  ## Run all of these, as CI does

format: $(READY)  ## Rewrite the code in the house format, with the safe fixes of the linter
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(READY)  ## Measure the cost of memprof beside what it is compared with
	@set -e; for file in tests/benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python $$file; done

gpu: $(GPU_READY)  ## Run the tests that need a CUDA device
	$(GPU_PYTHON) -m pytest tests/gpu

gpu-all: $(GPU_READY)  ## All that is wanted of a GPU in ten minutes, into OUT; PARTS=bench the rest
	$(GPU_PYTHON) tests/gpu/everything.py $(OUT) $(PARTS)

stub: $(READY)  ## Run them in a dry run, where torch was built with CUDA and there is no GPU
	$(BIN)/python -m memprof_cli dry-run --gpu 8GiB --gpus 2 --no-record $(BIN)/python -m pytest tests/gpu

clean:  ## Remove the environment and everything that is made
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -f demo-run.json demo-report.html

# torch comes first and alone, at the tested version, so that no other package chooses a build.
$(READY): pyproject.toml constraints.txt memprof/record/startup.pth
	@test -x $(BIN)/python || .ci/make-venv
	$(BIN)/python -m pip install -q --disable-pip-version-check torch==2.13.0 -c constraints.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch $@
