# Every target does what it says on a clean clone. `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Which build `run`, `bench` and `install` use.
PROFILE ?= release
BIN := target/$(PROFILE)
# The tests' build is of the whole workspace; fewer packages would be another build beside it.
PACKAGES := $(if $(filter ci,$(PROFILE)),--workspace --bins --locked,-p tieline -p tieline-relay --locked)
PREFIX ?= $(if $(filter 0,$(shell id -u)),/usr/local,$(HOME)/.local)
DESTDIR ?=
# Tools that scripts/tools.sh fetched.
export PATH := $(CURDIR)/target/tools/bin:$(PATH)

.PHONY: help
help: ## Lists the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

.PHONY: build
build: ## Builds tieline and tieline-relay (release)
	scripts/tools.sh build
	cargo build --profile $(PROFILE) $(PACKAGES)

.PHONY: run
run: build ## Shows the main job on two nodes on this box; Ctrl-C ends it, ONCE=1 ends after the answer
	BIN=$(BIN) scripts/run.sh

.PHONY: test
test: ## Everything that CI runs
	scripts/test.sh

.PHONY: lint
lint: ## Format, clippy, docs, licences and sources, links of the book
	scripts/tools.sh test
	scripts/lint.sh

.PHONY: bench
bench: ## Measures posts, remote turns, streams and start beside references; table and target/bench.json
	scripts/tools.sh bench
	cargo build --profile $(PROFILE) -p tieline -p tieline-relay -p tieline-tests --bins
	$(BIN)/tieline-bench

.PHONY: soak
soak: ## The kill -9 torture, long: CYCLES=1000
	scripts/tools.sh test
	TIELINE_SOAK=$(or $(CYCLES),1000) cargo nextest run --cargo-profile ci --profile soak -p tieline-tests -E 'test(torture)'

.PHONY: install
install: build ## Installs under PREFIX (~/.local, as root /usr/local)
	BIN=$(BIN) PREFIX=$(PREFIX) DESTDIR=$(DESTDIR) scripts/install.sh install

.PHONY: uninstall
uninstall: ## Removes what install put there; data stays unless PURGE=1
	PREFIX=$(PREFIX) DESTDIR=$(DESTDIR) PURGE=$(PURGE) scripts/install.sh uninstall
