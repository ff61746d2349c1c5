# `make` lists what there is. Every target makes its own environment in .venv the first time and again when
# pyproject.toml or constraints.txt change. Nothing here needs root, Docker, Java or an installed PostgreSQL;
# `make test` also needs Dovecot, which it installs when it may (root or sudo) and otherwise asks for.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST_ARGS ?=
STACK ?= .local
export PYTHONUNBUFFERED := 1

FUZZ_SECONDS ?= 60

.PHONY: help venv check schemas test unit bench demo storm storm-selftest soak fuzz stack dovecot cyrus faketime clean

help: ## this list
	@awk 'BEGIN {FS = ":.*## "; print "mailstreams\n"} /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## make or refresh the environment in .venv

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "python3 >= 3.11 is needed; set PYTHON=/path/to/python3.11" >&2; exit 2; }
	@[ -x $(BIN)/python ] || { echo "[venv] creating $(VENV)"; $(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "python3-venv is needed: apt-get install python3-venv" >&2; exit 2; }; }
	@echo "[venv] installing the pinned packages (first time: 1-3 minutes)"
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --progress-bar on \
	  --constraint constraints.txt --editable '.[dev]'
	@touch $@
	@echo "[venv] ready"

check: $(STAMP) ## the quick gate: format, lint, types, layers, generated files, unit and contract tests
	@bin/check $(BIN)

schemas: $(STAMP) ## write schemas/ anew from the records
	$(BIN)/python -m streams.contracts.schemas

unit: $(STAMP) ## unit and contract tests only: no services
	$(BIN)/python -m pytest tests/unit tests/contract $(PYTEST_ARGS)

test: $(STAMP) dovecot cyrus faketime ## every test, on real Kafka, PostgreSQL and Dovecot
	@# once before they start side by side: the first start of Kafka on a machine fetches jars and trains its JVM
	$(BIN)/python -m tests.fixtures.rehearsal
	$(BIN)/python -m pytest -n 4 --dist loadfile $(PYTEST_ARGS)

dovecot: # what the tests require and pip cannot bring
	@bin/ensure-dovecot

faketime: # storms do without where it cannot be had
	@bin/ensure-faketime

cyrus: # for one compatibility run, where it can be had
	@bin/ensure-cyrus

bench: $(STAMP) dovecot ## measure; figures as ratios, one JSON line each
	$(BIN)/python -m tests.bench $(BENCH_ARGS)

demo: $(STAMP) ## real mail flowing from a mail server into the log and the database (Ctrl-C ends it; DEMO_SECONDS=30)
	@exec $(BIN)/python -m streams.local.demo

stack: $(STAMP) ## Kafka, PostgreSQL and a mail server in the foreground, their data kept in .local (STACK=directory)
	@exec $(BIN)/python -m streams.local --keep $(STACK)

storm: $(STAMP) dovecot faketime ## faults at random under load, with an independent checker
	$(BIN)/python -m tests.storm $(STORM_ARGS)

storm-selftest: $(STAMP) dovecot cyrus ## proof that the checker of `storm` finds what is broken on purpose
	$(BIN)/python -m tests.storm --selftest $(STORM_ARGS)

soak: $(STAMP) dovecot ## the worker for long, with memory and sockets watched
	$(BIN)/python -m tests.storm.soak

fuzz: $(STAMP) ## coverage-guided fuzzing of parsers (FUZZ_SECONDS=60), and their property tests with many more examples
	$(BIN)/python -m pip install --quiet atheris
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)
	MAILSTREAMS_HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest tests/unit -k "fuzz or property" --timeout 3600 $(PYTEST_ARGS)

clean: ## remove the environment and every cache of this tree (not the downloaded jars)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist *.egg-info
	find streams tests -name __pycache__ -type d -prune -exec rm -rf {} +
