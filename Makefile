# `make train` and `make test` need python3 (3.11 or newer) and nothing else: they set up .venv first.
PYTHON ?= python3
BIN := .venv/bin
BUDGET ?= 1200
SEED ?= 0
DGL_TESTS := tests/data/dgl tests/models/gnn/test_own_layer.py
# What the examples of a loop of one's own are made with. torchrec asks for fbgemm's build for CUDA, which brings a GPU's
# libraries; fbgemm-gpu-cpu 1.8 is the one for torch 2.13. fuxictr 2.3.10 needs ray.
LOOPS := lightning torch_geometric torchdata fuxictr tensordict torchmetrics pyre-extensions
# What trackers are tested with.
LOOPS += tensorboard mlflow-skinny sqlalchemy alembic
# In the order of tests/costs.py: the dearest files first.
BY_FILE := --dist loadfile --no-loadscope-reorder
# Each process that the tests start would else compile all modules anew where bytecode is not to be kept.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -q -n 2 $(BY_FILE)

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */make \1\t/' | expand -t 18

setup: .venv/installed  ## a virtual environment in .venv, and nothing more

.venv/installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/tested: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

train: .venv/installed  ## train the embedded graph, CoDEx-S, into runs/codex-s (goes on where it is there already)
	@if [ -d runs/codex-s ]; then $(BIN)/marius-oac resume runs/codex-s; \
	else $(BIN)/marius-oac train examples/codex-s.yaml --out runs/codex-s; fi

test: .venv/tested  ## the tests, less than ten minutes on two cores
	$(PYTEST)

# `numba>=0.61` in setup.cfg is numba==0.61 here.
.venv-lowest/installed: setup.cfg
	rm -rf .venv-lowest
	$(PYTHON) -m venv .venv-lowest
	sed -n 's/^ \+\([A-Za-z0-9]\+\)>=\([0-9.]\+\)$$/\1==\2/p' setup.cfg > .venv-lowest/constraints.txt
	.venv-lowest/bin/pip install --quiet --disable-pip-version-check -c .venv-lowest/constraints.txt -e '.[test]'
	touch $@

test-lowest: .venv-lowest/installed  ## the tests, with every dependency as old as setup.cfg permits (Python 3.11)
	$(subst $(BIN),.venv-lowest/bin,$(PYTEST))

# dgl has wheels for Python 3.11 and older alone, and needs packages that nothing else here does.
.venv-dgl/installed: .venv/tested constraints.txt
	rm -rf .venv-dgl
	$(BIN)/python -m venv .venv-dgl
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'), '$(CURDIR)', sep='\\n')" \
	  > $$(.venv-dgl/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/marius_oac.pth
	.venv-dgl/bin/pip install --quiet --disable-pip-version-check -c constraints.txt dgl packaging pandas
	touch $@

test-dgl: .venv/tested  ## the tests that need dgl, in an environment of its own (Python 3.11)
	@if $(BIN)/python -c "import sys; sys.exit(sys.version_info < (3, 12))"; then \
	  echo 'test-dgl: SKIPPED, as dgl 1.1.3 has no wheels for this Python'; \
	elif ! $(MAKE) --no-print-directory .venv-dgl/installed; then \
	  echo 'test-dgl: SKIPPED, as dgl and what it needs can not be installed here'; \
	else .venv-dgl/bin/python -m pytest -q -m 'slow or not slow' $(DGL_TESTS); fi

.venv-loops/installed: .venv/tested constraints.txt
	rm -rf .venv-loops
	$(BIN)/python -m venv .venv-loops
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'), '$(CURDIR)', sep='\\n')" \
	  > $$(.venv-loops/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/marius_oac.pth
	.venv-loops/bin/pip install --quiet --disable-pip-version-check -c constraints.txt $(LOOPS)
	.venv-loops/bin/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps torchrec fbgemm-gpu-cpu
	touch $@

test-loops: .venv/tested  ## the examples with Lightning, TorchRec, FuxiCTR and PyG, in an environment of their own
	@if ! $(MAKE) --no-print-directory .venv-loops/installed; then \
	  echo 'test-loops: SKIPPED, as what the examples need can not be installed here'; \
	else .venv-loops/bin/python -m pytest -q -n 2 -m 'slow or not slow' tests/examples tests/runs/test_tracking.py; fi

.venv-ray/installed: .venv/tested constraints.txt
	rm -rf .venv-ray
	$(BIN)/python -m venv .venv-ray
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'), '$(CURDIR)', sep='\\n')" \
	  > $$(.venv-ray/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/marius_oac.pth
	.venv-ray/bin/pip install --quiet --disable-pip-version-check -c constraints.txt 'ray[default]' pandas
	touch $@

test-ray: .venv/tested  ## the tests of runs on Ray, in an environment of its own
	@if ! $(MAKE) --no-print-directory .venv-ray/installed; then \
	  echo 'test-ray: SKIPPED, as Ray can not be installed here'; \
	else .venv-ray/bin/python -m pytest -q -m slow tests/nodes/test_on_ray.py; fi

# As `docs` in setup.cfg.
.venv-docs/installed: .venv/tested constraints.txt
	rm -rf .venv-docs
	$(BIN)/python -m venv .venv-docs
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'), '$(CURDIR)', sep='\\n')" \
	  > $$(.venv-docs/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/marius_oac.pth
	.venv-docs/bin/pip install --quiet --disable-pip-version-check -c constraints.txt \
	  ipykernel jupytext 'mkdocs<2' mkdocs-material 'mkdocstrings[python]' nbclient rich
	touch $@

# With mkdocs' --quiet warnings would not be counted, and end nothing.
docs: .venv/tested  ## the site of the docs, in site, with its notebooks executed; any warning ends it
	@if ! $(MAKE) --no-print-directory .venv-docs/installed; then \
	  echo 'docs: SKIPPED, as what the site needs can not be installed here'; \
	else .venv-docs/bin/python -m docs.making.notebooks && NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict; fi

# The Triton of an older torch, for which kernels are compiled, too.
.venv-triton/installed: .venv/tested
	rm -rf .venv-triton
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target .venv-triton triton==3.6.0
	touch $@

test-triton: .venv/tested  ## compiles the GPU's kernels by an older Triton
	@if ! $(MAKE) --no-print-directory .venv-triton/installed; then \
	  echo 'test-triton: SKIPPED, as Triton 3.6.0 can not be installed here'; \
	else $(BIN)/python -m pytest -q -m slow tests/kernels/test_gpu_compiled.py -k 3.6.0; fi

# The slow tests often wait, for processes that they start and for the disk: a third worker and what is beside them fill
# the processors meanwhile. TURN=1: of the tests, those that tests/turns.py chooses, as in `.ci/run`.
test-slow: .venv/tested  ## all tests, including the slow ones
	$(PYTEST) -n 3 -m 'slow or not slow' $(if $(TURN),--turn slow)

test-others: .venv/tested
	@for each in $(OTHERS); do $(MAKE) --no-print-directory $$each || exit; done

everything: lint  ## all tests, in all environments, and the sweeps (SEED=N; BUDGET=SECONDS of chaos)
	@$(MAKE) --no-print-directory --jobs 2 test-slow test-others \
	  OTHERS='test-dgl test-loops test-ray docs test-triton fuzz chaos'

chaos: .venv/tested  ## crashes, failing system calls, flipped bits, made-up files: sweeps of 20 minutes (BUDGET=SECONDS SEED=N)
	$(BIN)/python -m tests.chaos --budget $(BUDGET) --seed $(SEED)

fuzz: .venv/tested  ## the property tests with examples drawn at random; `make fuzz SEED=N` draws those of N again
	@seed=$${SEED:-$$(od -An -N3 -tu4 /dev/urandom | tr -d ' ')}; echo "make fuzz SEED=$$seed"; \
	$(PYTEST) -m hypothesis --hypothesis-profile=random --hypothesis-seed=$$seed $(if $(TURN),--turn hypothesis)

mutants: .venv/tested  ## small changes of the code that some test should see (BUDGET=SECONDS SEED=N); docs/mutants.md
	$(BIN)/python -m tests.mutants --budget $(BUDGET) --seed $(SEED) --work build/mutants

# Of a lent GPU's machine: Python 3.12 on x86-64, and Triton 3.6.0, which comes with torch 2.11.
FOR_GPU := $(BIN)/pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
  --implementation cp $(foreach each,2_28 2_27 2_26 2_17,--platform manylinux_$(each)_x86_64) --platform manylinux2014_x86_64

gpu-wheels: .venv/installed  ## what a lent GPU's machine needs beside torch, in build/gpu-wheels (benchmarks/gpu/README.md)
	rm -rf build/gpu-wheels
	$(FOR_GPU) -d build/gpu-wheels -r benchmarks/gpu/requirements.txt

gpu-cache: .venv-triton/installed  ## its kernels, compiled beforehand, in build/gpu-triton-cache.tar.xz: ten minutes of processor time
	rm -rf build/gpu-triton
	$(FOR_GPU) -d build/gpu-triton triton==3.6.0
	PYTHONPATH=.venv-triton $(BIN)/python -m benchmarks.gpu.warm --out build/gpu-triton-cache.tar.xz --hashed build/gpu-triton/*.whl

wheel: .venv/installed  ## a wheel of the package, in dist
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

lint: .venv/tested  ## style, types, and the size of each folder
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/python -m tests.size --check

clean:  ## remove .venv and caches; runs stay
	rm -rf .venv .venv-dgl .venv-docs .venv-loops .venv-lowest .venv-ray .venv-triton build site *.egg-info .pytest_cache .hypothesis .ruff_cache .mypy_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

.PHONY: help setup train test test-lowest test-dgl test-loops test-ray docs test-triton test-slow test-others everything chaos fuzz mutants gpu-wheels gpu-cache wheel lint clean
