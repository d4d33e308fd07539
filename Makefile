# Two commands for a fresh machine: `make demo` and `make test`. Everything is built in .venv of this checkout.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
PYTHON := $(shell for p in python3.12 python3.13 python3.14 python3 $$HOME/.pyenv/versions/3.1[2-9]*/bin/python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && echo $$p && break; done)
# uv caches its downloads in the home folder; without write access there, for this one call only.
UV := $(BIN)/uv $(shell cache="$${UV_CACHE_DIR:-$${XDG_CACHE_HOME:-$$HOME/.cache}/uv}"; \
	mkdir -p "$$cache" 2>/dev/null && test -w "$$cache" || echo --no-cache)
SOURCES := launcher tests benchmarks slurm
export HYDRA_FULL_ERROR =
# Bytecode is kept even if the environment disables it: compiling torch again takes longer than many tests, and the tests
# start about three hundred processes that import it.
export PYTHONDONTWRITEBYTECODE =
# Tests of a file share training results, so a file stays on one worker. Two workers fill two cores (three are no
# faster).
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder --durations 20
# `make test ARGS="-k word"` runs a part.
ARGS ?=
THOROUGH = thorough and not matrix

.PHONY: demo test test-ci test-all test-thorough test-matrix test-slurm chromium test-oldest lint types style bench gpu-wheels slurm-demo lock clean

demo: $(VENV)/.built-demo ## build the environment and train a small model on this machine
	$(BIN)/launch model=tiny parallel=fsdp

# Pytest exits with 5 if the selection is empty.
test: $(VENV)/.built-test ## build what the tests need and run them, or some: make test ARGS="-k word"
	@command -v git >/dev/null || { echo "the tests need git: install it, for example by 'apt-get install git'." >&2; exit 1; }
	$(PYTEST) -n 2 -m "not thorough" $(ARGS) || test $$? = 5

test-ci: ## run what continuous integration runs beside `make test` and `make lint`: `make test-all` without the tests marked `full`
	$(MAKE) --no-print-directory test-all THOROUGH="$(THOROUGH) and not full"

# Slurm's tests wait two thirds of their time, so the others run beside them at low priority: Slurm's clocks (time
# limits, margins) keep running while others use the CPUs. Each prints its output at its end.
test-all: $(VENV)/.built-test ## run the tests that `make test` leaves out: equal maths, real Slurm (as root), a browser, the tools in benchmarks/
	$(MAKE) --no-print-directory --output-sync -j 2 test-slurm test-thorough

test-thorough: $(VENV)/.built-test chromium
	nice -n 15 $(PYTEST) -n 2 -m "$(THOROUGH)" --ignore=tests/slurm $(ARGS) || test $$? = 5

# Before a release, and whenever a formula, an engine or a library's version changes.
test-matrix: $(VENV)/.built-test ## run the cases of each matrix that `make test-all` leaves out
	$(PYTEST) -n 2 -m matrix $(ARGS) || test $$? = 5

# They mostly wait, so each of the seven long files has a worker.
test-slurm: $(VENV)/.built-test
	$(PYTEST) -n 7 -m "$(THOROUGH)" tests/slurm $(ARGS) || test $$? = 5

# The browser is part of the system and not of .venv, so no file here records it: it is looked for each time.
chromium: $(VENV)/.built-test ## install the browser for tests/browser if permitted; else these are skipped
	@$(BIN)/python -m benchmarks.report.browser

# The lowest version of every range in pyproject.toml, in its own environment; not part of `make test`.
test-oldest: $(VENV)/.uv ## train, resume and export every engine with the oldest packages that are supported
	$(UV) venv -q --clear --python $(BIN)/python $(VENV)-oldest
	DS_BUILD_OPS=0 $(UV) pip install --quiet --python $(VENV)-oldest/bin/python --resolution lowest-direct -e '.[deepspeed,megatron]'
	$(VENV)-oldest/bin/python -m benchmarks.versions --keep

# mypy takes half of the time, on one CPU.
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

lock: $(VENV)/.uv ## regenerate requirements/ from pyproject.toml
	$(UV) pip compile -q --no-header --no-annotate --python-version 3.12 --extra fsdp --extra report -o requirements/demo.txt pyproject.toml
	$(UV) pip compile -q --no-header --no-annotate --python-version 3.12 --extra deepspeed --extra megatron --extra trl --extra dev -o requirements/test.txt pyproject.toml

$(VENV)/.uv:
	@test -n "$(PYTHON)" || { echo "launch needs Python 3.12 or later and found none: install one, for example by" \
		"'apt-get install python3.12 python3.12-venv', 'brew install python@3.12' or 'pyenv install 3.12'." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(shell sed -n 's/^uv==//p' requirements/tools.txt)
	@touch $@

# DS_BUILD_OPS=0: DeepSpeed compiles nothing at installation. Our own modules are compiled to bytecode, as pip does for a
# wheel; otherwise the first `launch` would do it, or every one without write access: half of a check's time.
$(VENV)/.built-%: $(VENV)/.uv requirements/%.txt pyproject.toml
	DS_BUILD_OPS=0 $(UV) pip install --quiet --python $(BIN)/python -r requirements/$*.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --editable .
	$(BIN)/python -m compileall -q launcher
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-oldest .mypy_cache .ruff_cache .pytest_cache .hypothesis
