# atewf: plan and run rolling upgrades of Agent Substrate as Argo Workflows.
# `make help` lists the targets. What is built for tests is kept outside the checkout, in $(CACHE).

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

CACHE   ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/atewf
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
IMAGE   ?= docker.io/atewf/atewf-steps:$(VERSION)
ARCH    ?= $(shell go env GOARCH)
BED     := test/bed/bed

# The same sources give the same bytes: no paths, no build ids, no version control stamps of the day.
BUILD   := CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X github.com/atewf/atewf/internal/build.version=$(VERSION)"
TOOL    := go tool -modfile=$(CURDIR)/test/tools/go.mod
GOTEST  := $(TOOL) gotestsum --format pkgname-and-test-fails --hide-summary=output

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

## Set-up

.PHONY: deps
deps: ## install what Debian has of what the test bed needs (root)
	$(BED) deps

.PHONY: setup
setup: build bed ## build everything: the programs, the images, the test bed

.PHONY: build
build: ## build the programs into bin/
	$(BUILD) -o bin/atewf ./cmd/atewf
	$(BUILD) -o bin/atewf-steps ./steps-image

.PHONY: image
image: ## build the image of the steps into dist/, without a container engine
	@mkdir -p dist
	GOOS=linux GOARCH=$(ARCH) $(BUILD) -o dist/linux-$(ARCH)/atewf-steps ./steps-image
	cd steps-image/image && go run . -tag $(IMAGE) -out $(CURDIR)/dist/atewf-steps-$(ARCH).tar linux/$(ARCH)=$(CURDIR)/dist/linux-$(ARCH)/atewf-steps

.PHONY: bed
bed: ## build the test bed: Kubernetes, Argo, the simulated Substrate
	$(BED) build

## The main job

.PHONY: demo
demo: ## roll three real nodes from one version to another (root; INTERACTIVE=1 asks before each node)
	CACHE="$(CACHE)" VERSION="$(VERSION)" test/demo/demo

## Tests

.PHONY: check
check: ## formatting, vet, staticcheck, generated files
	@out=$$(gofmt -l $$(git ls-files '*.go')); [[ -z "$$out" ]] || { echo "not formatted, run gofmt -w on: $$out"; exit 1; }
	go vet ./...
	cd test && go vet ./...
	cd steps-image/image && go vet ./...
	$(TOOL) staticcheck ./...
	cd test && $(TOOL) staticcheck ./...

.PHONY: test-fast
test-fast: ## the inner circle: vet and the tests that need nothing but Go
	go vet ./...
	go test ./...

.PHONY: test
test: ## everything: checks, unit tests, tests against a real API server, a real cluster and a real Argo (root)
	@CACHE="$(CACHE)" VERSION="$(VERSION)" test/all

.PHONY: race
race: ## the plain tests and the simulator's under the race detector
	go test -race ./...
	cd test && go test -race ./substrate/...

.PHONY: golden
golden: ## rewrite the expected Workflows after a change that was meant
	go test ./gen/... -update

.PHONY: bench
bench: ## measure: the generator, sizes, the step binary
	CACHE="$(CACHE)" test/bench/run

.PHONY: guards
guards: ## take each guard of a promise out in turn and see a test fail
	cd test && go run ./guards ..

.PHONY: vuln
vuln: ## look for known vulnerabilities in what is built
	$(TOOL) govulncheck ./...

.PHONY: clean
clean: ## remove what was built in the checkout
	rm -rf bin dist
