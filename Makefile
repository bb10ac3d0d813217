# Every target sets up what it needs first; a second call finds the stamps and starts at once.
.DEFAULT_GOAL := help
.NOTPARALLEL:
SHELL := bash
MAKEFLAGS += --no-print-directory
# Tests start hundreds of processes: where this is set, each of them compiles all of the code anew.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
CORES := $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
# More than cores: many tests wait for a service longer than they compute.
JOBS ?= $(shell echo $$(($(CORES) + 1)))
SEEDS ?= 500
FRESH ?= 10000
LOOPS ?= 1
SERVICES ?=
NAME ?= streams
PART ?=
MODULES ?=
ARGS ?=
CODE := $(wildcard src simulator tests benchmarks examples deploy)

INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps
LOCKED := $(INSTALL) --require-hashes --only-binary :all:
# What has no wheel is built with the locked build backends.
BUILT := --no-binary pyftpdlib --no-build-isolation

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- set-up, by stamps

$(VENV)/.base: tools/venv locks/build.txt
	@tools/venv $(VENV)
	@echo "setup: installing the build backend (locks/build.txt)"
	@$(LOCKED) -r locks/build.txt
	@touch $@

$(VENV)/.demo: $(VENV)/.base locks/demo.txt pyproject.toml
	@echo "setup: installing Holdfast and what it needs (locks/demo.txt)"
	@$(LOCKED) -r locks/demo.txt
	@$(BIN)/python -m pip uninstall --quiet --yes holdfast 2>/dev/null # the distribution's name before 0.3.0
	@$(INSTALL) --no-build-isolation --editable .
	@touch $@

$(VENV)/.services: $(VENV)/.demo locks/services.txt
	@echo "setup: installing the clients of PostgreSQL, Redis, SQS, S3 and ZooKeeper (locks/services.txt)"
	@$(LOCKED) -r locks/services.txt
	@touch $@

$(VENV)/.node: $(VENV)/.base locks/node.txt
	@echo "setup: installing Node.js (locks/node.txt)"
	@$(LOCKED) -r locks/node.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.services $(VENV)/.node locks/dev.txt
	@echo "setup: installing test tools and linters (locks/dev.txt)"
	@$(LOCKED) $(BUILT) -r locks/dev.txt
	@touch $@

$(VENV)/.bench: $(VENV)/.services locks/bench.txt
	@echo "setup: installing what the benchmarks compare with (locks/bench.txt)"
	@$(LOCKED) $(BUILT) -r locks/bench.txt
	@touch $@

SERVERS := .cache/servers/.
# The servers of the tests.
SERVED := axe-core chromium debian-python docker-registry fauxqs fish helm helm3 mosquitto pgbouncer postgresql prometheus redis-server skopeo \
    umoci vsftpd zookeeper zsh
# The servers of the benchmarks.
BENCHED := buildah debian-python docker-registry fauxqs helm mosquitto postgresql redis-server

$(SERVERS)%: tools/servers/install tools/apt.sh
	@tools/servers/install $* >/dev/null
	@mkdir -p $(@D) && touch $@

$(SERVERS)helm $(SERVERS)helm3: $(VENV)/.base
$(SERVERS)helm: $(wildcard tools/servers/helm/*)
$(SERVERS)helm3: $(wildcard tools/servers/helm3/*)
$(SERVERS)axe-core $(SERVERS)fauxqs: $(VENV)/.node
$(SERVERS)axe-core: $(wildcard tools/servers/axe-core/*)
$(SERVERS)fauxqs: $(wildcard tools/servers/fauxqs/*)

# --- to use

.PHONY: demo
demo: $(VENV)/.demo ## 12 videos, 3 nodes, one killed, one drained (SERVICES=postgres ARGS="--help")
	@$(BIN)/python -m examples.tracking $(if $(SERVICES),--services $(SERVICES)) $(ARGS)

ifneq ($(SERVICES),)
demo: $(VENV)/.services $(patsubst %,$(SERVERS)%,$(sort \
    $(if $(findstring postgres,$(SERVICES)),postgresql) \
    $(if $(findstring redis,$(SERVICES)),redis-server) \
    $(if $(findstring sqs,$(SERVICES))$(findstring s3,$(SERVICES)),fauxqs) \
    $(if $(findstring zookeeper,$(SERVICES)),zookeeper)))
endif

.PHONY: demo-devices
demo-devices: $(VENV)/.dev $(SERVERS)mosquitto ## 50 terminals that crash and lose messages come to agree with their office
	@$(BIN)/python -m examples.whitelist.demo $(ARGS)

.PHONY: demo-site
demo-site: $(VENV)/.dev $(SERVERS)mosquitto ## cameras, a count of people, alerts, a report and a door hand work to each other
	@$(BIN)/python -m examples.site_demo

.PHONY: bench
bench: $(VENV)/.bench $(SERVERS)redis-server $(SERVERS)fauxqs ## one benchmark (NAME=streams, ARGS="--full")
	@$(BIN)/python -m benchmarks $(NAME) $(ARGS)

ifneq ($(findstring outbox,$(NAME)),)
bench: $(SERVERS)mosquitto $(SERVERS)postgresql
endif
ifneq ($(findstring image,$(NAME)),)
bench: $(VENV)/.dev $(SERVERS)buildah $(SERVERS)debian-python $(SERVERS)docker-registry
endif
ifneq ($(findstring postgres,$(NAME))$(findstring deep,$(NAME)),)
bench: $(SERVERS)postgresql
endif
ifneq ($(findstring rolling,$(NAME)),)
bench: $(VENV)/.dev $(SERVERS)helm $(SERVERS)postgresql
endif

.PHONY: bench-all
bench-all: $(VENV)/.bench $(VENV)/.dev $(patsubst %,$(SERVERS)%,$(BENCHED)) ## all benchmarks, compared with benchmarks/results (ARGS="--keep": keep these)
	@$(BIN)/python -m benchmarks all $(ARGS)

.PHONY: sim
sim: $(VENV)/.demo ## simulate with seeded faults (SEEDS=500, ARGS="--break RULE")
	@$(BIN)/python -m simulator --seeds $(SEEDS) $(ARGS)

# --- to develop

.PHONY: dev
dev: $(VENV)/.dev ## set up .venv for development, and nothing else

PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# The folders of tests with these names, such as "redis" or "services/redis".
folders = $(foreach name,$(1),$(or $(shell find tests -type d -path '*/$(name)'), \
    $(error No folder of tests is called "$(name)": name one below tests, such as services/redis)))

# Pure rules, and services that are in this process.
QUICK := common rules services/memory services/sqlite

.PHONY: test
test: $(VENV)/.dev $(patsubst %,$(SERVERS)%,$(SERVED)) ## run the quick tests (ARGS="-k sequencer"), or what the gate has in some folders (PART="reports redis")
	@$(PYTEST) $(if $(PART),,-m "not slow and not nightly") $(call folders,$(PART)) $(ARGS)

.PHONY: quick
quick: $(VENV)/.dev ## run the tests of rules, memory and SQLite, and 100 simulated seeds, in a minute
	@$(PYTEST) -q -m "not slow and not nightly" $(call folders,$(QUICK)) $(ARGS)
	@$(BIN)/python -m simulator --seeds 100

.PHONY: check
check: lint $(patsubst %,$(SERVERS)%,$(SERVED)) ## the gate, which a change must pass: lint, strict types, layers, and all tests but the nightly ones
	@$(PYTEST) $(ARGS)

.PHONY: lint
lint: $(VENV)/.dev ## the checks that run no code
	@$(BIN)/ruff format --check --quiet --diff .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy $(CODE)
	@$(BIN)/lint-imports --no-logo --no-cache
	@$(BIN)/python tools/prose
	@git ls-files -z '*.py' '*.md' '*.toml' '*.js' '*.proto' '*.lua' '*.html' tools Makefile | xargs -0 $(BIN)/codespell

.PHONY: fmt
fmt: $(VENV)/.dev ## format the code and fix what lint can fix
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format --quiet .

.PHONY: nightly
nightly: ## the rest, in hours: fresh seeds (FRESH=10000), every test (LOOPS=1, CHAOS_MINUTES=2.5), PostgreSQL 18, mutations
	@$(MAKE) --keep-going night-seeds night-tests night-postgresql mutate

WORLDS := streams acting upkeep archiving tasks devices

.PHONY: night-seeds
night-seeds: $(VENV)/.demo
	@failed=0; for world in $(WORLDS); do \
	    $(BIN)/python -m simulator --fresh --world $$world --seeds $(FRESH) \
	        --failures .cache/seeds-that-failed || failed=1; \
	done; exit $$failed

# Seconds after which a test of the night has hung: some take minutes.
NIGHT = $(PYTEST) -q -m "" --timeout 900

.PHONY: night-tests
night-tests: $(VENV)/.dev $(patsubst %,$(SERVERS)%,$(SERVED)) $(SERVERS)buildah
	@for loop in $$(seq $(LOOPS)); do $(NIGHT) $(ARGS) || exit 1; done

.PHONY: night-postgresql
night-postgresql: $(VENV)/.dev $(SERVERS)postgresql18 $(SERVERS)pgbouncer
	@POSTGRESQL_SERVER=postgresql18 $(NIGHT) tests/services/postgres tests/nodes/test_postgres_faults.py

.PHONY: mutate
mutate: $(VENV)/.dev ## change what decides, and list what no test notices (MODULES="holdfast.rules.tasks.rates")
	@tools/mutate $(MODULES)

.PHONY: docs
docs: $(VENV)/.demo ## refresh what the docs, Prometheus' rules and Grafana's board take from the code
	@$(BIN)/python docs/generate.py
	@$(BIN)/python -m deploy.generate

.PHONY: release
release: $(VENV)/.dev ## build the version that is committed into dist/: wheel, source, checksums, notes (ARGS=0.2.0: that version)
	@$(BIN)/python tools/release $(ARGS)

.PHONY: screenshots
screenshots: $(VENV)/.dev $(SERVERS)chromium ## take the pictures of the console that the docs show
	@$(BIN)/python -m docs.screenshots

.PHONY: lock
lock: $(VENV)/.dev ## pin the newest dependencies in locks/
	@tools/lock

.PHONY: clean
clean: ## delete what was built or cached here
	rm -rf $(VENV) .cache .*_cache .hypothesis .coverage* build dist mutants
	find . -name __pycache__ -prune -exec rm -rf {} +
