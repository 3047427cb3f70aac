# Two commands: `make quickstart` and `make test`. `make help` lists the rest.
# Everything set-up writes lies in .venv; delete that folder to undo it.

# The maintained forks of OpenMMLab, or for `make test-originals` the originals: the two have the same
# modules and exclude each other.
VENV = .venv
RUN = $(VENV)/bin/python
ORIGINALS := setup-originals test-originals test-slow-originals
$(ORIGINALS): VENV = .venv-originals

# PYTHON names the interpreter that .venv is made from. Without it, the one that .venv has,
# else the first of these that is of a supported version.
ifdef PYTHON
CHOSEN := --chosen
else
PYTHON = $(shell for p in ./$(RUN) python3 python3.12 python3.11 python3.10; do \
    if "$$p" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' \
    2>/dev/null; then echo "$$p"; break; fi; done)
endif

# A folder of COCO form (see README.md); without it, scenes of handwritten digits are made.
DATA ?=
OUT ?= out/quickstart
# More arguments of tools/quickstart.py, such as ARGS="--classes person --weights FILE".
ARGS ?=
# Two processes with a thread each: small models gain nothing from more threads, and wait for each
# other on a busy machine. A file stays in one process, so that what it prepares is made once.
PYTEST_ARGS ?= -n 2 --dist loadfile

# Caches that libraries would otherwise lay into the home folder.
export MPLCONFIGDIR ?= $(CURDIR)/$(VENV)/cache/matplotlib
export TORCH_HOME ?= $(CURDIR)/$(VENV)/cache/torch
export TORCHINDUCTOR_CACHE_DIR ?= $(CURDIR)/$(VENV)/cache/inductor
export TRITON_CACHE_DIR ?= $(CURDIR)/$(VENV)/cache/triton

# Variables that set-up found necessary on this machine (see tools/setup/steps.py).
RUN_ENV = env $$(cat $(VENV)/run.env)
TEST_ENV = $(RUN_ENV) OMP_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help setup quickstart test test-slow docs lint clean clean-env $(ORIGINALS)

help:
	@echo 'make quickstart   train a small Mask R-CNN with efficient attention, show it in $(OUT)'
	@echo '                  DATA=<COCO folder>: on your data   OUT=<folder>: results elsewhere'
	@echo '                  ARGS="...": more arguments, see tools/quickstart.py --help'
	@echo 'make test         the tests that take a few minutes (PYTEST_ARGS=... goes to pytest)'
	@echo 'make test-slow    the tests that take longer'
	@echo 'make test-originals   the tests with the original OpenMMLab packages, in .venv-originals'
	@echo '                  (make test-slow-originals: the longer ones)'
	@echo 'make docs         the pages of docs/ as HTML in out/docs/html'
	@echo 'make setup        only the environment in .venv (the others do that by themselves)'
	@echo '                  PYTHON=<interpreter 3.10 to 3.12>   KRONATTN_TORCH_INDEX=<index with'
	@echo '                  other builds of torch>   PIP_FIND_LINKS=<folder with an mmcv wheel>'
	@echo 'make lint         ruff: rules and format'
	@echo 'make clean        remove what builds and tests left; make clean-env removes .venv and'
	@echo '                  .venv-originals'

setup-originals: ALSO := --stack originals
setup setup-originals:
ifeq ($(strip $(PYTHON)),)
	@echo 'No Python 3.10, 3.11 or 3.12 was found on the PATH. Install one' \
	  '(Debian, Ubuntu: sudo apt-get install python3 python3-venv) or name it:' \
	  'make setup PYTHON=/path/to/python3.11' >&2; exit 1
else
	@command -v "$(PYTHON)" > /dev/null || { \
	  echo 'PYTHON=$(PYTHON): there is no such program' >&2; exit 1; }
	@"$(PYTHON)" tools/setup/prepare.py $(CHOSEN) $(ALSO)
endif

quickstart: setup
	@$(RUN_ENV) $(RUN) tools/quickstart.py $(if $(DATA),--data "$(DATA)") --out "$(OUT)" $(ARGS)

test: setup
	@$(TEST_ENV) $(RUN) -m pytest -m 'not slow' $(PYTEST_ARGS)

test-slow: setup
	@$(TEST_ENV) $(RUN) -m pytest -m slow $(PYTEST_ARGS)

test-originals: setup-originals
	@$(TEST_ENV) $(RUN) -m pytest -m 'not slow' $(PYTEST_ARGS)

test-slow-originals: setup-originals
	@$(TEST_ENV) $(RUN) -m pytest -m slow $(PYTEST_ARGS)

# What the pages are built with is installed by this target alone.
docs: ALSO := --docs
docs: setup
	@$(TEST_ENV) $(RUN) -m pytest -q tests/test_docs/test_doctests.py
	@$(TEST_ENV) $(RUN) -m sphinx -M html docs out/docs --fail-on-warning --keep-going
	@echo 'open out/docs/html/index.html'

lint: setup
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check --quiet .

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -path "./.venv*" -prune -o -name __pycache__ -type d -exec rm -rf {} +

clean-env:
	rm -rf .venv .venv-originals
