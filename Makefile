# What a person runs. Each target says what it does; `make help` lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help

WORKSPACE_IMAGE := codehub/workspace:latest
TEST_IMAGE := codehub/testserver:latest
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# The version is set below; asking git again only fails in a checkout of somebody else's.
export GOFLAGS := $(strip $(GOFLAGS) -buildvcs=false)
# Where the end-to-end tests and the benchmarks find what they run.
export CODEHUB_TEST_BINARY := $(CURDIR)/bin/codehub
export CODEHUB_TEST_WORKSPACE_IMAGE := $(WORKSPACE_IMAGE)
export CODEHUB_TEST_IMAGE := $(TEST_IMAGE)

# More flags for go test, say TESTFLAGS='-run TestWake -v', and the packages to test:
# those that take longest come first, so that nothing is left waiting for them.
TESTFLAGS ?=
PACKAGES ?= ./internal/e2e ./internal/proxy ./internal/runtime/docker ./internal/dashboard ./...

.PHONY: help run test soak bench build image images lint clean images-now

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## installs what is missing, builds all, and serves on http://localhost:8080
	@scripts/setup.sh run
	@$(MAKE) --no-print-directory build
	@scripts/with-docker.sh images/workspace/build.sh $(WORKSPACE_IMAGE)
	@exec scripts/with-docker.sh bin/codehub serve

test: ## installs what the tests need, builds all, and runs every test
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory build
	@scripts/with-docker.sh $(MAKE) --no-print-directory images-now
	@echo "test: go test -race $(PACKAGES)"
	@scripts/with-docker.sh go test -race -count=1 -timeout 30m -p 2 $(TESTFLAGS) $(PACKAGES)

# How many random lives of workspaces, and for how long three servers are in
# chaos; SEED=… repeats the choices of an earlier run.
SOAK ?= 500
SOAK_CHAOS ?= 10m

soak: ## crashes, outages, SOAK=500 random lives of workspaces, SOAK_CHAOS=10m of chaos
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory build
	@scripts/with-docker.sh $(MAKE) --no-print-directory images-now
	@SOAK=$(SOAK) SOAK_CHAOS=$(SOAK_CHAOS) scripts/with-docker.sh go test -count=1 -timeout 0 -v -run '^Test(RandomLives|KilledAt|Job|Bucket|.*FullDisk|Chaos)' $(TESTFLAGS) ./internal/e2e

bench: ## prints the benchmarks, one line a figure
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory build
	@scripts/with-docker.sh $(MAKE) --no-print-directory images-now
	@scripts/with-docker.sh go run ./bench

build: ## bin/codehub, static
	@scripts/setup.sh build
	@echo "build: bin/codehub $(VERSION)"
	@CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/codehub ./cmd/codehub

image: ## the workspace image codehub/workspace:latest (FORCE=1: even if nothing changed)
	@scripts/setup.sh image
	@scripts/with-docker.sh images/workspace/build.sh $(WORKSPACE_IMAGE)

images: ## that and the test image
	@scripts/setup.sh image
	@scripts/with-docker.sh $(MAKE) --no-print-directory images-now

images-now:
	@images/testserver/build.sh $(TEST_IMAGE)
	@images/workspace/build.sh $(WORKSPACE_IMAGE)

lint: ## vet, staticcheck, formatting, the shell scripts, the import graph
	@scripts/setup.sh lint
	@scripts/lint.sh $(STATICCHECK)

clean: ## removes what was built here (images and volumes stay)
	rm -rf bin test-output
