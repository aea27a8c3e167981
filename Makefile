.DEFAULT_GOAL := help
.PHONY: help build test purego generate race openblas fuzz lint bench eval ci clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/gradpress, pure Go
	CGO_ENABLED=0 go build -o bin/gradpress ./cmd/gradpress

test: ## run all tests, as the README says
	go test ./...

purego: ## test what has assembly without it
	go test -tags purego ./kernels ./compress/... ./dgc ./powersgd ./quant ./hooks

generate: ## write the assembly anew, after its generators in kernels/_generate
	go generate ./kernels

race: ## run the concurrent packages under the race detector
	go test -race ./compress/... ./ddp/... ./collective/... ./hooks/... ./transport/...

openblas: ## test and build with OpenBLAS (Debian: libopenblas-dev)
	go test -tags openblas ./eval/... && go build -tags openblas -o bin/gradpress ./cmd/gradpress

# A count and not a time: at the end of a time Go's fuzzing can fail with nothing found (golang/go#75804).
FUZZTIME ?= 300000x
fuzz: ## fuzz every decoder and parser, FUZZTIME each
	@set -e; for pkg in $$(go list ./...); do \
		for f in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "$$pkg $$f"; go test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1000x $$pkg; done; done

lint: ## gofmt, vet and golangci-lint
	@test -z "$$(gofmt -l .)" || { gofmt -l .; exit 1; }
	go vet ./...
	golangci-lint run

bench: ## run all benchmarks once, briefly
	go test -run '^$$' -bench . -benchtime 3x ./...

eval: ## the first command: both built-in tasks with dense, topk and dgc
	go run ./cmd/gradpress eval

ci: ## what the gate runs
	bash .ci/run

clean: ## remove what was built
	rm -rf bin out
