# Two commands do everything on a fresh machine: `make demo` and `make test`.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two processes with one thread each: on two cores faster than one process with two. All tests of a file go to one of
# them, so that what they share is made once.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadscope

.PHONY: demo test test-lowest test-full fuzz style check bench figures docs clean

demo: $(VENV)/.installed
	$(BIN)/isthmus demo

# The types are checked meanwhile, by a process that uses one core for more than a minute; what it says comes last, where
# it is seen.
test: style
	$(BIN)/pyright > $(VENV)/types.txt & types=$$!; $(PYTEST); tests=$$?; \
	wait $$types; types=$$?; cat $(VENV)/types.txt; exit $$((tests + types))

# The fast suite with the lowest versions that pyproject.toml allows (of PyTorch the tested one), in an environment of its
# own. Types and docs are those of the newest. Old packages use what new ones they need deprecate: that is not ours.
test-lowest: $(VENV)-lowest/.installed
	OMP_NUM_THREADS=1 $(VENV)-lowest/bin/python -m pytest -n 2 --dist loadscope --ignore tests/test_docs.py -W ignore::DeprecationWarning

$(VENV)-lowest/.installed: pyproject.toml constraints.txt .ci/lowest.py
	$(PYTHON) -m venv $(VENV)-lowest
	$(PYTHON) .ci/lowest.py > $(VENV)-lowest/lowest.txt
	$(VENV)-lowest/bin/python -m pip install --quiet --disable-pip-version-check -c $(VENV)-lowest/lowest.txt -e ".[test]"
	touch $@

# Ten minutes of mutated files, or as long as is said: `make fuzz SECONDS=36000`. What is found is kept in .fuzz/.
fuzz: $(VENV)/.installed-test
	PYTHONPATH=tests $(BIN)/python tests/fuzz.py --seconds $(or $(SECONDS),600)

# The results are kept in git: they take too long to be repeated at every change.
test-full: check
	ISTHMUS_TEST_FULL=1 $(PYTEST) -q -m "slow or not slow" --timeout 3000 --durations 15 | tee docs/test-full.txt

style: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check: style
	$(BIN)/pyright
	$(BIN)/python -m pytest -q tests/test_ladder.py

# In full: benchmarks/RESULTS.md is written. `make bench QUICK=1`: minutes, nothing is written.
bench: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/run_all.py $(if $(QUICK),--quick)

# All figures in full: hours. What is kept in runs/figures is not run again.
figures: $(VENV)/.installed
	$(BIN)/isthmus reproduce all --out runs/figures
	$(BIN)/python docs/_ext/keep_figure.py runs/figures/F-*

docs: $(VENV)/.installed-test
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

# Chromium, for the tests of pages, is Debian's: installed where that is possible, else these tests are skipped.
$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	@command -v chromium > /dev/null || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null && apt-get -qq update && \
	DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core > /dev/null; } || \
	echo "There is no chromium, and it could not be installed: the tests of pages in a browser will be skipped."
	touch $@

$(VENV)/.installed-bench: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[bench]"
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-lowest docs/_build dist
