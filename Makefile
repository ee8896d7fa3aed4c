# What a person runs. Each target says what it does; `make help` lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help

IDE_IMAGE := codehub/ide:latest
WORKSPACE_IMAGE := codehub/workspace:latest
SLIM_IMAGE := codehub/workspace-slim:latest
TEST_IMAGE := codehub/testserver:latest
AGENT := internal/runtime/agent/program/codehub-agent.gz
VERSION := $(patsubst v%,%,$(shell git describe --tags --always --dirty 2>/dev/null || echo dev))
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# The version is set below; asking git again only fails in a checkout of somebody else's.
# The same flags everywhere, so that the build, the checks and the tests share what is compiled.
# Without debug information, which is not in what make build makes, they compile faster.
export GOFLAGS := $(strip $(GOFLAGS) -buildvcs=false -trimpath -gcflags=all=-dwarf=false)
# Where the end-to-end tests and the benchmarks find what they run.
export CODEHUB_TEST_BINARY := $(CURDIR)/bin/codehub
export CODEHUB_TEST_IDE_IMAGE := $(IDE_IMAGE)
export CODEHUB_TEST_WORKSPACE_IMAGE := $(WORKSPACE_IMAGE)
export CODEHUB_TEST_SLIM_IMAGE := $(SLIM_IMAGE)
export CODEHUB_TEST_IMAGE := $(TEST_IMAGE)

# More flags for go test, say TESTFLAGS='-run TestWake -v', and the packages to test:
# those that take longest come first, so that nothing is left waiting for them.
TESTFLAGS ?=
PACKAGES ?= ./internal/runtime/docker ./internal/web/proxy ./internal/archive ./internal/web/dashboard ./internal/runtime/kube ./internal/storage/bucket ./...

release: ## images, programs, packages and the chart of the last commit, in dist/
	@scripts/setup.sh release
	@scripts/with-docker.sh scripts/release-images.sh $(VERSION)
	@scripts/release.sh $(VERSION)

packages: ## tests the packages in a bare Debian with systemd
	@scripts/setup.sh packages
	@scripts/package-test.sh

.PHONY: help run release packages check test verify fuzz quota soak bench build image images docs screenshots lint clean images-now

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## installs what is missing, builds codehub, and serves on http://codehub.localhost:8080
	@scripts/run.sh $(VERSION)
	@exec scripts/with-docker.sh bin/codehub serve --build-images=images/build.sh

check: ## formatting, vet, staticcheck, tests without Docker and Chromium
	@scripts/setup.sh check
	@scripts/check.sh $(STATICCHECK) "$(PACKAGES)" $(TESTFLAGS)

test: ## installs what the tests need, builds all, checks, and tests the product
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory build
	@scripts/with-docker.sh $(MAKE) --no-print-directory images-now
	@scripts/lint.sh $(STATICCHECK) quick
	@scripts/with-docker.sh scripts/test.sh test "$(PACKAGES)" $(TESTFLAGS)

verify: ## runs every test there is, for hours (SHARD=1/6: one of six parts)
	@scripts/setup.sh verify
	@$(MAKE) --no-print-directory build
	@scripts/with-docker.sh $(MAKE) --no-print-directory images-now
	@scripts/with-docker.sh scripts/verify.sh "$(SHARD)" $(TESTFLAGS)

# For how long each fuzz target runs.
FUZZ_SECONDS ?= 3

fuzz: ## runs each fuzz target for a few seconds; CI does so after make test
	@scripts/setup.sh check
	@scripts/fuzz.sh $(FUZZ_SECONDS) ./...

quota: ## tests project quotas of XFS and ext4 in a virtual machine
	@scripts/setup.sh quota
	@scripts/project-quota.sh

# How many rounds of each fault (docs/testing.md), on how many machines at a time, and for how
# long three servers are in chaos; SEED=… repeats the choices of an earlier run.
SOAK_CUTS ?= 200
SOAK_KILLS ?= 500
SOAK_RESTARTS ?= 100
SOAK_CLOCK ?= 40
SOAK_ROLLBACKS ?= 20
SOAK_MACHINES ?= 6
SOAK_CHAOS ?= 10m

soak: ## power cuts, kills, restarts, clock jumps, rollbacks, chaos
	@scripts/setup.sh verify
	@$(MAKE) --no-print-directory build
	@scripts/with-docker.sh $(MAKE) --no-print-directory images-now
	@SOAK_CUTS=$(SOAK_CUTS) SOAK_KILLS=$(SOAK_KILLS) SOAK_RESTARTS=$(SOAK_RESTARTS) SOAK_CLOCK=$(SOAK_CLOCK) SOAK_ROLLBACKS=$(SOAK_ROLLBACKS) \
		scripts/with-docker.sh go test -count=1 -timeout 0 -parallel $(SOAK_MACHINES) -v -run '^TestSoak$$' $(TESTFLAGS) ./internal/testing/soak
	@SOAK_RESTARTS=$(SOAK_RESTARTS) scripts/with-docker.sh go test -count=1 -timeout 0 -run '^TestHomesSurviveDockerRestarts$$' ./internal/runtime/docker
	@SOAK_CHAOS=$(SOAK_CHAOS) scripts/with-docker.sh go test -count=1 -timeout 0 -v -run '^Test(KilledAtEveryStep|.*FullDisk|Chaos|Kubernetes)$$' $(TESTFLAGS) ./internal/testing/e2e

bench: ## runs the benchmarks and prints one line for each figure
	@scripts/setup.sh bench
	@$(MAKE) --no-print-directory build
	@scripts/with-docker.sh $(MAKE) --no-print-directory images-now
	@scripts/with-docker.sh go run ./bench

build: ## bin/codehub, static, with the agent of workspaces in it
	@scripts/setup.sh build
	@scripts/build.sh $(VERSION)

image: ## the IDE and the workspace images (FORCE=1: even if nothing changed, SUDO=1: with sudo)
	@scripts/setup.sh image
	@images/build.sh show

images: ## those and the test image
	@scripts/setup.sh image
	@scripts/with-docker.sh $(MAKE) --no-print-directory images-now

images-now:
	@images/testserver/build.sh $(TEST_IMAGE)
	@images/build.sh show

docs: ## regenerates docs/cli.md, docs/database.md and the types in api/openapi.json
	@scripts/setup.sh build
	@go test -count=1 -run '^TestReferenceIsCurrent$$' ./cmd/codehub -update
	@go test -count=1 -run '^TestDatabasePageIsCurrent$$' ./internal/postgres -update
	@go test -count=1 -run '^TestDocumentIsCurrent$$' ./internal/web/httpapi -update

screenshots: ## takes pictures of every page (test-output/screenshots), and those of the README again
	@scripts/setup.sh test
	@CODEHUB_SCREENSHOTS=$(CURDIR)/test-output/screenshots go test -count=1 -timeout 20m -run '^Test(PagesOnEveryScreen|ReadmePictures|PasskeyInBrowser|RequiredPasskeyInBrowser|SignInInBrowser|ProgramLoginInBrowser)$$' ./internal/web/dashboard
	@echo "The pictures are in $(CURDIR)/test-output/screenshots/index.html."

lint: ## vet, staticcheck, formatting, shell scripts, import graph, words, commits
	@scripts/setup.sh lint
	@scripts/lint.sh $(STATICCHECK)

clean: ## removes what was built here (images and volumes stay)
	rm -rf bin dist test-output $(AGENT)
