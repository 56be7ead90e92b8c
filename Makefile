# lmx: everything a developer needs. `make` alone lists the targets.

# 3.11 to 3.14. A name on PATH or a full path; by default the first of these that is one of them. The
# last is what `uv venv` has made, which is on no PATH.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11 .venv/bin/python; do \
  $$name deploy/supported.py >/dev/null 2>&1 && { echo $$name; exit; }; done; echo python3)
PORT ?= 8000
MODELS ?=

VENV := .venv
BIN := $(VENV)/bin
SERVES := $(VENV)/.serves
STAMP := $(VENV)/.installed
# mypy and import-linter read the tree through this link, under the names that it installs as.
NAMESPACE := build/ns/lmx
CODE := protocol router supervisor worker tests deploy docs
PACKAGES := $(foreach name,protocol router supervisor worker,-p lmx.$(name))

.DEFAULT_GOAL := help
.PHONY: help install run test test-all tested test-quick conformance models-page reference fuzz walk chaos stalls soak kill-rounds kill-ranks kill-peers kill-batches agents installs clients lm-eval bench bench-memory bench-relay bench-mixed bench-small bench-lanes bench-host bench-start bench-idle bench-device bench-federation bench-peers docs fmt lint types resolve imports check release clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo '  PYTHON=python3.12                  the interpreter that .venv is made with'
	@echo '  PORT=8000 MODELS=source,id=source  what `make run` serves, and where'

install: $(STAMP) $(NAMESPACE) ## make .venv with lmx (editable) and the developers' tools

# Install the lists $(1) into .venv. --no-deps: the lists are whole, and leave out what lmx does not
# need of its dependencies' dependencies. The Python of a .venv may be gone, as after an upgrade of
# the system. Nothing is quiet: a download of minutes shows its progress.
define install_lists
	@if command -v uv >/dev/null 2>&1; then \
	  set -e; \
	  $(BIN)/python -c '' 2>/dev/null || { rm -rf $(VENV); \
	    uv venv --quiet --python "$$(command -v $(PYTHON))" $(VENV); }; \
	  uv pip install --compile-bytecode --python $(BIN)/python -c constraints.txt --no-deps $(1) -e .; \
	else \
	  set -e; \
	  $(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { \
	    echo 'The venv module does not work; on Debian: apt-get install python3-venv' >&2; exit 1; }; \
	  $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt --no-deps $(1) -e .; \
	fi
	@touch $@
endef

# Made again when the dependencies change. The stamp is written last, so that an interrupted
# install is not taken for a finished one.
$(SERVES): pyproject.toml constraints.txt deploy/requirements.txt
	@$(PYTHON) deploy/supported.py
	@echo 'Installing lmx into .venv. It happens once and takes a minute or a few: about 800 MB on the disk.'
	$(call install_lists,-r deploy/requirements.txt)

$(STAMP): $(SERVES) deploy/requirements-dev.txt
	@echo "Installing the developers' tools into .venv."
	$(call install_lists,-r deploy/requirements.txt -r deploy/requirements-dev.txt)

$(NAMESPACE):
	@mkdir -p $(dir $@)
	@ln -sfn ../.. $@

# `exec` leaves no shell between make and lmx, so Ctrl-C and kill reach lmx itself.
run: $(SERVES) ## serve MODELS (default: a small demo model) on PORT
	@if [ -n '$(MODELS)' ]; then \
	  LMX_MODELS='$(MODELS)' exec $(BIN)/lmx serve --port '$(PORT)'; \
	else exec $(BIN)/lmx demo --port '$(PORT)'; fi

# For two processors: two that compute, and four that mostly wait for processes. With four in all,
# nobody computed in a quarter of the time. Each collects the tests of some folders, and takes half a
# GB to 1.5 GB. Which those are, what goes together, and what runs at a time, is in
# tests/support/rigs/file_queue.py. The tests start a thousand processes, which would each compile lmx
# again: they write no compiled code.
JOBS ?= 6
TESTED := not soak and not conformance and not clients
test: install ## run the tests, JOBS files at a time, without those that take long (seven minutes)
	@$(MAKE) --no-print-directory tested TESTED='not long and $(TESTED)'
test-all: install ## run the tests and those that take long: what CI runs (a quarter of an hour)
	@$(MAKE) --no-print-directory tested
tested:
	@$(BIN)/python -m compileall -q -j 0 protocol router supervisor worker tests/support
	@PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -q -n $(JOBS) --dist loadfile --durations 25 -m '$(TESTED)'

# Nothing of MLX, no processes of lmx, no router: for the loop of a person.
QUICK := unit/protocol unit/router/rendering unit/router/schema unit/supervisor unit/worker wire
test-quick: install ## run the tests of single modules (a minute)
	@PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -q -n $(JOBS) --dist loadfile $(QUICK:%=tests/%)

# All of two files, and what `make test-all` leaves out of the others.
CONFORMANCE := tests/engine/model/test_conformance.py tests/engine/media/test_families.py
conformance: install ## every type of models against its library, every combination of features (some minutes)
	@$(BIN)/pytest -q -m 'engine or conformance' $(CONFORMANCE)
	@$(BIN)/pytest -q -m conformance $(CONFORMANCE:%=--ignore=%) tests/engine

models-page: install ## examine every type of models, and write docs/models.md
	@$(BIN)/python -m docs.make.models_page

reference: install ## folders as transformers writes them, against its own logits (minutes; fetches torch the first time)
	@$(BIN)/pytest -q -m soak tests/engine/model/test_transformers.py

fuzz: install ## all examples of all properties; 10,000 model folders, state files and control frames of nonsense (minutes)
	@LMX_TEST_EXAMPLES=whole $(BIN)/pytest -q -m 'hypothesis and not soak and not conformance' tests/unit tests/engine
	@$(BIN)/pytest -q -s -m soak tests/process/faults/test_fuzz.py tests/process/requests/test_hostile_media.py tests/process/requests/test_schemathesis.py

# BUSY other processes compute next to both of them; MINUTES and ROUNDS make them shorter.
BUSY ?= 0
MINUTES ?= 20
walk: install ## every route at its limits: how long the router's event loop is blocked (minutes; use an idle machine)
	@$(BIN)/pytest -q -s -m soak tests/process/router/test_walk.py

chaos: install ## 2,000 requests to a scripted engine, then MINUTES of all families and an operator (half an hour)
	@LMX_TEST_MINUTES=$(MINUTES) LMX_TEST_BUSY=$(BUSY) $(BIN)/pytest -q -s -m soak tests/process/faults/test_chaos.py tests/process/faults/test_long_day.py

TESTS ?= tests/process tests/e2e
SEED ?= 1
stalls: install ## TESTS while their processes are stopped for up to two seconds at random (twice as long as without)
	@$(BIN)/python -m tests.support.faults.stalls $(SEED) $(BIN)/pytest -q -n 3 --dist loadfile $(TESTS)

HOURS ?= 1
soak: install ## the day of `make chaos` for HOURS: does memory grow, do answers stay what they are alone; draws docs/reliability.svg
	@LMX_TEST_MINUTES=$$(awk 'BEGIN {print 60 * $(HOURS)}') LMX_TEST_PLOT=docs/reliability.svg LMX_TEST_BUSY=$(BUSY) $(BIN)/pytest -q -s -m soak tests/process/faults/test_long_day.py

ROUNDS ?= 40
kill-rounds: install ## kill or stop lmx's processes ROUNDS times, with requests of all families under way (half an hour)
	@LMX_TEST_ROUNDS=$(ROUNDS) LMX_TEST_BUSY=$(BUSY) $(BIN)/pytest -q -s -m soak tests/process/faults/test_kill_rounds.py

kill-ranks: install ## kill or stop the processes of a divided model, of one machine and of two, and cut what is between them, ROUNDS times (half an hour)
	@LMX_TEST_ROUNDS=$(ROUNDS) $(BIN)/pytest -q -s -m soak tests/process/faults/test_ranks.py

kill-peers: install ## kill or stop each process of one of three machines that are peers, under load (half an hour)
	@LMX_TEST_ROUNDS=$(ROUNDS) $(BIN)/pytest -q -s -m soak tests/process/faults/test_federation.py tests/e2e/test_peers.py

kill-batches: install ## ROUNDS times a process is killed while a batch is validated, answered, cancelled or written (half an hour)
	@LMX_TEST_ROUNDS=$(ROUNDS) $(BIN)/pytest -q -s -m soak tests/process/requests/test_batches.py

installs: install ## install the wheel by pip, pipx and uv into empty environments, and run the demo in each (minutes)
	@$(BIN)/pytest -q -s -m soak tests/e2e/test_install.py tests/e2e/test_install_script.py

agents: install ## a coding agent's session of 40 turns: what of its prompts is computed again (minutes)
	@$(BIN)/pytest -q -s -m soak tests/e2e/test_agent_session.py

clients: install ## other people's programs, in exact versions, against lmx (minutes; fetches 1.5 GB the first time)
	@$(BIN)/pytest -q -m clients tests/e2e/programs tests/e2e/clients tests/e2e/media

lm-eval: install ## likelihoods as lm-evaluation-harness itself asks for them (minutes the first time)
	@$(BIN)/pytest -q -s -m soak tests/e2e/clients/test_lm_eval.py

bench: install ## measure, and write docs/benchmarks.md (takes minutes; use an idle machine)
	@$(BIN)/python -m tests.bench.run

bench-memory: install ## compare what models take with what they are estimated at, for docs/memory.md (CPU, OpenBLAS)
	@$(BIN)/python -m tests.bench.bench_memory page $(MEMORY_MODELS)

bench-relay: install ## processor time of a token in router and worker; AGAINST=another checkout, in turns
	@$(BIN)/python -m tests.bench.bench_relay $(AGAINST)

bench-mixed: install ## a long conversation, chats and small requests at once; AGAINST=another checkout, in turns
	@$(BIN)/python -m tests.bench.bench_mixed $(AGAINST)

bench-small: install ## small requests while a long prompt is read: processor time of the engine; AGAINST=another checkout, in turns
	@$(BIN)/python -m tests.bench.bench_small $(AGAINST)

bench-lanes: install ## decoding of rows of one length, and of short ones with a long one; AGAINST=another checkout, in turns
	@$(BIN)/python -m tests.bench.bench_lanes $(AGAINST)

bench-start: install ## from the first process to the first answer; AGAINST=another checkout, in turns
	@$(BIN)/python -m tests.bench.bench_start $(AGAINST)

bench-idle: install ## processor time while nobody asks; AGAINST=another checkout, in turns
	@$(BIN)/python -m tests.bench.bench_idle $(AGAINST)

bench-device: install ## compare lmx with mlx_lm.server on a GPU, and write docs/benchmarks-gpu.md (minutes)
	@$(BIN)/python -m tests.bench.bench_device 1b $(or $(OUT),build/bench-device)

bench-federation: install ## simulate 2 to 200 machines, and write the table of docs/scaling.md
	@$(BIN)/python -m tests.bench.bench_federation --write

bench-peers: install ## compare lmx with other servers, and write docs/benchmarks-peers.md (an hour; resumes where it was ended); PEERS=--again starts over
	@$(BIN)/python -m tests.bench.bench_peers $(PEERS)

bench-host: install ## processor time of the engine's thread in a step; AGAINST=another checkout, in turns
	@$(BIN)/python -m tests.bench.bench_host $(AGAINST)

docs: install ## write into the documents what the code says of each field and key
	@$(BIN)/python -m docs.make.generate

fmt: install ## format the code, and fix what ruff can fix
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

lint: install ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: install ## mypy --strict, as on Linux and as on macOS; tsc for the page's scripts
	@$(BIN)/mypy $(PACKAGES)
	@$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin $(PACKAGES)
	@$(BIN)/mypy tests deploy docs
	@$(BIN)/pytest -q tests/e2e/pages/test_page_types.py

resolve: install ## resolve what macOS would install, for each Python (needs uv and a package index)
	@$(BIN)/python deploy/resolve_pins.py

imports: install ## import-linter: who may import whom
	@PYTHONPATH=build/ns $(BIN)/lint-imports

check: lint types imports ## lint, types, imports

# Each step by a make of its own: what comes first must have passed before the next begins.
release: install ## check, test, install, build, and tag the version; DRY=1 tags nothing (half an hour)
	@$(BIN)/python deploy/release.py ready
	@echo make check && $(MAKE) --no-print-directory check
	@echo make test-all && $(MAKE) --no-print-directory test-all
	@echo make installs && $(MAKE) --no-print-directory installs
	@$(BIN)/python deploy/release.py build
	@$(if $(DRY),echo 'Nothing was tagged.',$(BIN)/python deploy/release.py tag)

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
