# make demo | tools | test | test-experiments | fuzz | lint | clean. PYTHON names the interpreter, VENV the environment's folder:
#     make PYTHON=python3.12 demo
# On a machine without a GPU, torch's CPU build saves some gigabytes: TORCH_OPTIONS takes options of
# pip for torch, such as the --index-url that pytorch.org names for it.
# Arguments pass through: make demo ARGS="seed=2", make test ARGS="-k decoder".

PYTHON ?= python3
VENV ?= .venv
TORCH_OPTIONS ?=
ARGS ?=
# Tests run in so many processes, a file in one of them. Files come in the order of their names: the
# fuzzers, which take longest, are the first.
PROCESSES ?= 2
# One that dies, or waits for ever, is not begun again, with the same test.
parallel = -n $(PROCESSES) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

python := $(VENV)/bin/python
pip := $(python) -m pip --disable-pip-version-check
install := $(pip) install --no-compile -c constraints.txt
torch := $(shell grep '^torch==' constraints.txt)
# One stamp a step: what is installed is not installed again until one of these files changes.
environment := $(VENV)/.stamp-environment
package := $(VENV)/.stamp-package
tools := $(VENV)/.stamp-tools
oracle := $(VENV)/.stamp-oracle
empty := $(VENV)/wheel/.stamp

.PHONY: demo tools oracle test test-experiments wheel empty-environment boundscheck fuzz kills lint format clean
.DELETE_ON_ERROR:
# Two installations at once into one environment would break it.
.NOTPARALLEL:

demo: $(package)
	$(python) train.py $(ARGS)

# What tests, types and the wheel need.
tools: $(tools)
oracle: $(oracle)

# pip need not compile ten thousand modules of which hundreds are imported: Python does it as it
# goes, and would each time where the environment forbids to keep what it compiled.
export PYTHONDONTWRITEBYTECODE :=
# What commands import is compiled as they are installed: so it is kept for those without make, too.
cli := torchtune_smt.cli
imports := $(cli).train, $(cli).tune, $(cli).translate, $(cli).analyse, $(cli).plot, \
  numba, sacremoses, torch.utils.tensorboard

test: $(tools) $(oracle)
	$(python) -m pytest $(parallel) --ignore=tests/experiments $(ARGS)

# Those of scripts/experiments: they matter to who repeats a table of the documentation.
test-experiments: $(tools)
	$(python) -m pytest $(parallel) tests/experiments $(ARGS)

# The package as others install it: its wheel with what that requires, and nothing else, in an
# environment of its own.
wheel: $(tools) $(empty)
	@rm $(empty)
	$(pip) wheel -q --no-deps --no-build-isolation -w $(VENV)/wheel .
	$(VENV)/wheel/env/bin/pip install --no-compile -q -c constraints.txt $(VENV)/wheel/*.whl
	$(VENV)/wheel/env/bin/python scripts/dev/wheel_check.py
	rm -rf $(VENV)/wheel

# The tests once with numba's bounds checks. Kernels compiled so have a cache folder of their own.
boundscheck: $(tools)
	NUMBA_BOUNDSCHECK=1 $(python) -m pytest $(ARGS)

# Damaged inputs without end, once with bounds checks and then until interrupted;
# ARGS="TARGET --cases 20000" chooses.
fuzz: $(tools)
	NUMBA_BOUNDSCHECK=1 $(python) tests/fuzz/run.py --cases 1000 $(ARGS)
	$(python) tests/fuzz/run.py $(ARGS)

# Runs and builds killed at random moments and taken up again; ARGS="KIND --kills 1000" chooses.
kills: $(package)
	$(python) tests/fuzz/kills.py $(ARGS)

lint: $(tools)
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	$(python) -m mypy --strict torchtune_smt
	$(python) -m mypy --strict train.py scripts/*.py scripts/experiments/reproduce/*.py

format: $(tools)
	$(python) -m ruff check --fix .
	$(python) -m ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find torchtune_smt tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +

# The empty environment, with what the wheel will require, while another make installs the tools.
empty-environment: $(empty)
$(empty): constraints.txt pyproject.toml
	rm -rf $(VENV)/wheel && mkdir -p $(VENV)/wheel
	$(PYTHON) -m venv $(VENV)/wheel/env
	$(VENV)/wheel/env/bin/pip install --no-compile -q -c constraints.txt $(TORCH_OPTIONS) $(torch)
	$(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' \
	  >$(VENV)/wheel/requirements.txt
	$(VENV)/wheel/env/bin/pip install --no-compile -q -c constraints.txt -r $(VENV)/wheel/requirements.txt
	@touch $@

$(environment):
	@command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) is not installed: name a Python 3.11 or newer, for example" \
	       "'make PYTHON=python3.12 demo'" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is $$($(PYTHON) --version 2>&1), and Python 3.11 or newer is needed: name" \
	       "one, for example 'make PYTHON=python3.12 demo'" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot create virtual environments: install its venv package (on Debian and" \
	       "Ubuntu 'apt install python3-venv')" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# torch comes first and by its exact version, so that nothing else asks for a newer one. The
# build backend is installed from the constraints, too, and no isolated build is needed.
$(package): $(environment) pyproject.toml constraints.txt
	$(install) $(TORCH_OPTIONS) $(torch)
	$(install) hatchling editables
	$(install) --no-build-isolation -e .
	$(python) -c 'import $(imports)'
	@touch $@

$(tools): $(package)
	$(install) --no-build-isolation -e '.[test]'
	@touch $@

# kenlm is only an oracle of some tests and does not build everywhere.
$(oracle): $(environment) constraints.txt
	$(install) kenlm >$(VENV)/kenlm.log 2>&1 || echo "kenlm could not be \
	installed ($(VENV)/kenlm.log): the tests that compare with it will be skipped"
	@touch $@
