# Few targets; `make run` and `make test` are the two that a newcomer needs.

export CGO_ENABLED ?= 0
BIN := bin/patchbay
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)

.PHONY: run build test lint pages inits ci-long race fuzz kill browser screenshots conformance bus large faults sample bench eval deps clean

# Builds, and starts everything with a demo server. Needs Go, make and git.
run: build
	$(BIN) serve --demo

build:
	go build -trimpath -ldflags "$(LDFLAGS)" -o $(BIN) ./cmd/patchbay

# All tests but the long ones. Installs what they need first.
test: deps lint
	go test -parallel 6 -timeout 280s ./...

lint:
	@test -z "$$(gofmt -l cmd internal test bench *.go | tee /dev/stderr)"
	go vet -tags long ./...
	go tool staticcheck -tags long ./...

# Writes the pages' Go from their templates; the result is checked in.
pages:
	go tool templ generate -path internal/web

# Builds process 1 of the sandbox for every machine; the result is checked in, and a test
# holds it to its source.
INIT_FLAGS := -trimpath -buildvcs=false -ldflags "-s -w -buildid="
inits:
	@for arch in amd64 arm64; do GOOS=linux GOARCH=$$arch go build $(INIT_FLAGS) -o bin/init-$$arch ./internal/sandbox/init && gzip -9nc bin/init-$$arch >internal/sandbox/inits/$$arch.gz; done

# What takes minutes: the race detector, fuzzing, kills, a browser, the official
# suites.
ci-long: race fuzz kill browser conformance bus large sample

RACED := ./internal/plane ./internal/secret ./internal/netguard ./internal/mcp ./internal/policy ./internal/oauth ./internal/connect ./internal/consent ./internal/authn ./internal/authserver ./internal/catalog ./internal/bridge ./internal/registry ./internal/egress ./internal/vault ./internal/sandbox ./internal/upstream
race: deps
	@command -v gcc >/dev/null || { apt-get update -q && apt-get install -y -q gcc libc6-dev; }
	CGO_ENABLED=1 go test -race -timeout 280s $(RACED)

# So many runs each, about 20 s of two cores; not a time, because Go's fuzzer may
# call the end of a time a failure of the target (golang.org/issue/75804).
fuzz: deps
	go test -run '^$$$$' -fuzz '^FuzzSSE$$$$' -fuzztime 220000x -fuzzminimizetime 500x ./internal/mcp
	go test -run '^$$$$' -fuzz '^FuzzMessage$$$$' -fuzztime 8000x -fuzzminimizetime 500x ./internal/mcp
	go test -run '^$$$$' -fuzz '^FuzzAgainstNode$$$$' -fuzztime 16000x -fuzzminimizetime 500x ./internal/mcp
	go test -run '^$$$$' -fuzz '^FuzzAlias$$$$' -fuzztime 90000x -fuzzminimizetime 500x ./internal/bridge
	go test -run '^$$$$' -fuzz '^FuzzProject$$$$' -fuzztime 35000x -fuzzminimizetime 500x ./internal/bridge
	go test -run '^$$$$' -fuzz '^FuzzSearch$$$$' -fuzztime 36000x -fuzzminimizetime 500x ./internal/bridge
	go test -run '^$$$$' -fuzz '^FuzzGrade$$$$' -fuzztime 35000x -fuzzminimizetime 500x ./internal/catalog
	go test -run '^$$$$' -fuzz '^FuzzClip$$$$' -fuzztime 40000x -fuzzminimizetime 500x ./internal/bridge
	go test -run '^$$$$' -fuzz '^FuzzVisible$$$$' -fuzztime 70000x -fuzzminimizetime 500x ./internal/bridge
	go test -run '^$$$$' -fuzz '^FuzzCheckURL$$$$' -fuzztime 280000x -fuzzminimizetime 500x ./internal/netguard
	go test -run '^$$$$' -fuzz '^FuzzChallenges$$$$' -fuzztime 280000x -fuzzminimizetime 500x ./internal/oauth
	go test -run '^$$$$' -fuzz '^FuzzRedirect$$$$' -fuzztime 60000x -fuzzminimizetime 500x ./internal/authserver
	go test -run '^$$$$' -fuzz '^FuzzWords$$$$' -fuzztime 14000x -fuzzminimizetime 500x ./internal/command
	go test -run '^$$$$' -fuzz '^FuzzParse$$$$' -fuzztime 8000x -fuzzminimizetime 500x ./internal/registry
	go test -run '^$$$$' -fuzz '^FuzzHead$$$$' -fuzztime 200000x -fuzzminimizetime 500x ./internal/egress
	go test -run '^$$$$' -fuzz '^FuzzImport$$$$' -fuzztime 100000x -fuzzminimizetime 500x ./internal/registry

KILLS ?= 20
kill: deps
	@command -v strace >/dev/null || { apt-get update -q && apt-get install -y -q strace; }
	KILLS=$(KILLS) go test -tags long -count=1 -timeout 40m -v ./test/kill

# Signing in at authorization servers that nobody here wrote, with Chromium.
browser: deps
	@command -v chromium >/dev/null || { apt-get update -q && apt-get install -y -q chromium; }
	go test -tags long -count=1 -timeout 10m -run '^TestSignIn' ./test/e2e

# Pictures of every page in both themes, for the docs.
screenshots: deps
	@command -v chromium >/dev/null || { apt-get update -q && apt-get install -y -q chromium; }
	@mkdir -p docs/img
	SCREENSHOTS=$(CURDIR)/docs/img go test -tags long -count=1 -timeout 10m -run '^TestSignInAndLookAtEveryPage$$$$' ./test/e2e

# Random schedules of kills, pauses, lost connections and slow answers, on both
# databases; ci-long plays a sample of them.
SCHEDULES ?= 1000
SAMPLE ?= 60
faults: build deps
	go run ./test/faults -bin $(BIN) -schedules $(SCHEDULES) -v
sample: build deps
	go run ./test/faults -bin $(BIN) -schedules $(SAMPLE) -v

conformance: build deps
	go build -o bin/conformance-client ./test/conformance/client
	go run ./test/conformance/run bin/conformance-client bin/patchbay

# The bus at a NATS server of its own, and three replicas on it.
bus: deps
	go test -tags long -count=1 -timeout 10m -run '^(TestTheBusOutside|TestThreeReplicasAnswerOnce)$$$$' ./internal/app

# 10 GB each way through the credential gateway, and clients that never read.
large:
	go test -tags long -count=1 -timeout 10m -v -run '^(TestMuchGoesThrough|TestAClientThatNeverReads)$$$$' ./internal/app

# How well tool search finds, on data that lies beside a checkout of the repository.
eval:
	go run ./bench/eval

bench: build deps
	go build -o bench/out/ ./bench/...
	bench/out/bench

# PostgreSQL, the sandbox and the npm peers, where they are missing.
deps: test/peers/node_modules/.installed
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { apt-get update -q && apt-get install -y -q postgresql; }
	@command -v bwrap >/dev/null || { apt-get update -q && apt-get install -y -q bubblewrap; }
	@command -v git >/dev/null && command -v curl >/dev/null && command -v python3 >/dev/null || { apt-get update -q && apt-get install -y -q git curl python3; }

test/peers/node_modules/.installed: test/peers/package-lock.json
	@command -v npm >/dev/null || { apt-get update -q && apt-get install -y -q nodejs npm; }
	cd test/peers && npm ci --ignore-scripts --no-audit --no-fund
	@touch $@

clean:
	rm -rf bin bench/out
