# Two commands for a fresh machine: `make demo` and `make test`. Everything is built in .venv of this checkout.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
PYTHON := $(shell for p in python3.12 python3.13 python3.14 python3 $$HOME/.pyenv/versions/3.1[2-9]*/bin/python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && echo $$p && break; done)
# uv keeps what it has fetched in the home folder, or for this one call alone where nothing may be written there.
UV := $(BIN)/uv $(shell cache="$${UV_CACHE_DIR:-$${XDG_CACHE_HOME:-$$HOME/.cache}/uv}"; \
	mkdir -p "$$cache" 2>/dev/null && test -w "$$cache" || echo --no-cache)
SOURCES := launcher tests benchmarks slurm
export HYDRA_FULL_ERROR =
# Bytecode is kept even where the environment says otherwise: to compile torch anew takes longer than many a test, and
# the tests start some three hundred processes that import it.
export PYTHONDONTWRITEBYTECODE =
# A file's tests share what they have trained, so a file stays on one worker; two are what two cores take (with three it
# takes as long).
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder --durations 20
# `make test ARGS="-k word"` runs a part.
ARGS ?=

.PHONY: demo test test-all test-thorough test-matrix test-slurm chromium test-oldest lint types style bench gpu-wheels slurm-demo lock clean

demo: $(VENV)/.built-demo ## build the environment and train a small model on this machine
	$(BIN)/launch model=tiny parallel=fsdp

# Status 5 is pytest's for a selection that leaves nothing.
test: $(VENV)/.built-test ## build what the tests need and run them, or a part: make test ARGS="-k word"
	@command -v git >/dev/null || { echo "the tests need git: install it, for example by 'apt-get install git'." >&2; exit 1; }
	$(PYTEST) -n 2 -m "not thorough" $(ARGS) || test $$? = 5

# Slurm's tests wait two thirds of their time, so the others run beside them, in what they leave of the processors:
# Slurm's clocks (time limits, margins) go on while other work has these. What each says is printed at its end.
test-all: $(VENV)/.built-test ## run what `make test` leaves out: equal maths, real Slurm (as root), a browser, the tools in benchmarks/
	$(MAKE) --no-print-directory --output-sync -j 2 test-slurm test-thorough

test-thorough: $(VENV)/.built-test chromium
	nice -n 15 $(PYTEST) -n 2 -m "thorough and not matrix" --ignore=tests/slurm $(ARGS) || test $$? = 5

# Not part of .ci/run: before a release, and whenever a formula, an engine or a library's version changes.
test-matrix: $(VENV)/.built-test ## run the cases of each matrix that `make test-all` leaves out
	$(PYTEST) -n 2 -m matrix $(ARGS) || test $$? = 5

# They wait more than they compute, so each of the seven long files has a worker.
test-slurm: $(VENV)/.built-test
	$(PYTEST) -n 7 tests/slurm $(ARGS) || test $$? = 5

# It belongs to the system and not to .venv, so that no file here can say whether it is there: it is looked for each time.
chromium: $(VENV)/.built-test ## install the browser of tests/browser where this may be done; else they are skipped
	@$(BIN)/python -m benchmarks.report.browser

# The lowest version of every range in pyproject.toml, in an environment of its own; no part of `make test`.
test-oldest: $(VENV)/.uv ## train, resume and export every engine with the oldest packages that are supported
	$(UV) venv -q --clear --python $(BIN)/python $(VENV)-oldest
	DS_BUILD_OPS=0 $(UV) pip install --quiet --python $(VENV)-oldest/bin/python --resolution lowest-direct -e '.[deepspeed,megatron]'
	$(VENV)-oldest/bin/python -m benchmarks.versions --keep

# Half of it is mypy's, which takes one processor.
lint: $(VENV)/.built-test
	$(MAKE) --no-print-directory --output-sync -j 2 types style

types:
	$(BIN)/mypy

style:
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/lint-imports --no-cache
	$(BIN)/yamllint --strict conf recipes

bench: $(VENV)/.built-test ## measure start-up, overhead and throughput; writes benchmarks/results
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.throughput

gpu-wheels: $(VENV)/.built-demo ## a folder of wheels for a bare machine with a GPU: build/gpu-wheels
	$(BIN)/python -m benchmarks.gpu.wheelhouse build/gpu-wheels

slurm-demo: $(VENV)/.built-demo ## a real Slurm on this machine: a run on two nodes, requeued and resumed (needs root)
	$(BIN)/python -m slurm.dev_cluster run bash slurm/demo.sh

lock: $(VENV)/.uv ## write requirements/ anew from pyproject.toml
	$(UV) pip compile -q --no-header --no-annotate --python-version 3.12 --extra fsdp --extra report -o requirements/demo.txt pyproject.toml
	$(UV) pip compile -q --no-header --no-annotate --python-version 3.12 --extra deepspeed --extra megatron --extra trl --extra dev -o requirements/test.txt pyproject.toml

$(VENV)/.uv:
	@test -n "$(PYTHON)" || { echo "launch needs Python 3.12 or later and found none: install one, for example by" \
		"'apt-get install python3.12 python3.12-venv', 'brew install python@3.12' or 'pyenv install 3.12'." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(shell sed -n 's/^uv==//p' requirements/tools.txt)
	@touch $@

# DS_BUILD_OPS=0: DeepSpeed compiles nothing at installation. Our own modules are compiled to bytecode as pip does with a
# wheel's, or else the first `launch` would do it, and where nothing may be written each one: half of a check's time.
$(VENV)/.built-%: $(VENV)/.uv requirements/%.txt pyproject.toml
	DS_BUILD_OPS=0 $(UV) pip install --quiet --python $(BIN)/python -r requirements/$*.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --editable .
	$(BIN)/python -m compileall -q launcher
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-oldest .mypy_cache .ruff_cache .pytest_cache .hypothesis
