# kvtrace: every target does its own set-up. `make help` lists them.

VENV ?= .venv
PYTHON ?= python3
MODEL ?= Qwen3-14B
BUILD := $(CURDIR)/build/injector
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
INJECTOR := kvtrace_cli/native/libkvtrace_injector.so
NATIVE_SOURCES := $(wildcard injector/src/* injector/device/* injector/include/* injector/Makefile)
CPP_FILES := $(wildcard injector/src/*.cpp injector/src/*.h injector/device/* injector/include/*.h \
                        tests/native/*.cpp tests/native/*.h tests/gpu/*.cu)

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

run: $(INJECTOR) ## Trace one request of $(MODEL) with random weights, and reconcile it
	$(PY) -m kvtrace_cli run --model $(MODEL) --weights dummy

test: lint $(INJECTOR) ## Everything that needs no GPU: lint, types, native and Python tests
	$(PY) -m pytest -q -m "not gpu and not vllm"

lint: $(READY) ## Format and type checks
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/clang-format --dry-run --Werror $(CPP_FILES)
	$(VENV)/bin/shellcheck scripts/*.sh .ci/run

format: $(READY) ## Format everything
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/clang-format -i $(CPP_FILES)

injector: $(INJECTOR) ## Build the injector into the package

wheel: $(INJECTOR) ## Build a wheel that carries the injector
	$(PY) -m pip wheel --quiet --no-deps --wheel-dir dist .

graph-cases: $(INJECTOR) ## Build the small CUDA programs of tests/gpu (run them with scripts/run_graph_cases.py)
	@set -e; vars="$$($(PY) scripts/cuda_toolchain.py --install)"; eval "$$vars"; \
	$$NVCC -std=c++17 -O2 -gencode arch=compute_90,code=sm_90 -gencode arch=compute_90,code=compute_90 \
	    -o build/graph_cases tests/gpu/graph_cases.cu tests/gpu/other_module.cu

clean: ## Remove what was built
	rm -rf build dist $(VENV) $(INJECTOR)

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "kvtrace needs Python 3.10 or newer")'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade "pip>=25.1"
	$(PY) -m pip install --quiet --editable . --group dev
	touch $@

$(INJECTOR): $(READY) $(NATIVE_SOURCES) scripts/cuda_toolchain.py
	@set -e; vars="$$($(PY) scripts/cuda_toolchain.py --install)"; \
	$(MAKE) --no-print-directory -C injector BUILD=$(BUILD) $$vars
	mkdir -p $(@D)
	cp $(BUILD)/libkvtrace_injector.so $@

.PHONY: help run test lint format injector wheel graph-cases clean
