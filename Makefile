# Fencepost. `make` lists the targets.

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
PACKAGE_VERSION ?= $(shell git describe --tags --match 'v[0-9]*' 2>/dev/null || echo 0.0.0-$(VERSION))
BUILD   := go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)"
FUZZTIME ?= 1000000x
SCALE ?= full
DURATION ?= 20m
STORE ?= redis
ROUNDS ?= 3
FLAKES ?= 30

.PHONY: help
help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

.PHONY: run
run: build ## start the gateway on its embedded store, http://127.0.0.1:8080
	@exec bin/gateway

.PHONY: demo
demo: build ## two clients and a file: what fencing tokens are for, in less than 15 seconds
	@go run ./demo

.PHONY: build
build: ## build bin/gateway and bin/lockctl
	CGO_ENABLED=0 $(BUILD) -o bin/ ./cmd/gateway ./cmd/lockctl

.PHONY: check
check: lint test ## all that has to pass before a commit: lint, and the tests

# Three tiers: test is what every change has to pass, in minutes; test-system has the tests whose names begin with TestSystem
# (whole processes, fail-overs, large numbers), and those of verify; verify has what throws dice or is judged by the clock.
.PHONY: test
test: deps ## the tests that every change has to pass; the first time it compiles for minutes
	$(call run-parts,testing (what is not compiled yet is compiled first),test-race test-plain test-simulated,2)

.PHONY: test-system
test-system: deps ## the tests that take longer: whole processes, fail-overs, the page with 100,000 locks
	$(call run-parts,testing the system,system-race system-plain system-simulated system-verify system-alone,1)

# Two parts of test at a time; of test-system one, for its tests are of processes that ask each other and give up after seconds.
define run-parts
@rm -rf bin/tests
@began=$$(date +%s); scripts/goes-on "$(1)" $(MAKE) --no-print-directory --keep-going -j $(3) $(2); status=$$?; \
	scripts/test-summary $$began; exit $$status
endef

# Tests have much garbage and little to keep: collecting it a quarter as often saves a third of the CPU of some.
test-% system-%: export GOGC ?= 400

# RACE has the packages in which goroutines of this module race. The tests of all others drive a browser, a database, a
# script or whole processes, or have one goroutine: they are built without the race detector, as what they start is.
# Those that take longest come first.
RACE := ./internal/redis ./internal/sql ./internal/http ./internal/raft ./internal/quorum ./client ./internal/raft/cluster ./internal/embedded ./internal/wal ./internal/watchdog ./internal/session \
	./internal/raft/peer ./internal/auth ./internal/datadir ./internal/observe ./fence

# SIMULATED has those of them with tests that one goroutine plays, or that are too slow with the race detector, and which these
# are: they run without it. A test of the module compares them with the files that say so.
SIMULATED := ./client ./internal/watchdog ./internal/session ./internal/quorum ./internal/embedded ./internal/wal
PLAYED := (Simulat|Planted|Shrink|Defective|PowerLoss|EveryDamage|ATornTail)

# Two packages at a time, in test beside two of another part: with more a core is waited for longer than tests allow. No result of an
# earlier run counts: go test does not know of which sources the gateways are that tests build and start.
LIMITS := -count 1 -p 2 -parallel 4 -timeout 60m

# The packages that are neither in RACE nor below verify; those that take longest come first, here too.
plain = $$(echo ./web ./cmd/gateway $$(echo "$$all" | grep -v '^fencepost/verify' | grep -vxF "$$(go list $(RACE) ./web ./cmd/gateway)"))
list  = all=$$(go list ./...) || exit

.PHONY: test-race test-plain test-simulated
test-race:
	@scripts/test race "$(RACE)" -race $(LIMITS) -skip '^TestSystem'
test-plain:
	@$(list); scripts/test plain "$(plain)" $(LIMITS) -skip '^TestSystem'
test-simulated:
	@scripts/test simulated "$(SIMULATED)" $(LIMITS) -run '^Test$(PLAYED)'

TIMED = ^(TestRounds|TestLanguages)$$

.PHONY: system-race system-plain system-simulated system-verify system-alone
system-race:
	@scripts/test system-race "$(RACE)" -race $(LIMITS) -run '^TestSystem'
system-plain:
	@$(list); scripts/test system-plain "$(plain)" $(LIMITS) -run '^TestSystem'
system-simulated:
	@scripts/test system-simulated "$(SIMULATED)" $(LIMITS) -run '^TestSystem$(PLAYED)'
system-verify:
	@$(list); scripts/test system-verify "$$(echo $$(echo "$$all" | grep '^fencepost/verify' | grep -v '/verify/members$$'))" $(LIMITS) -skip '$(TIMED)'
system-alone: system-race system-plain system-simulated system-verify # clusters elect nobody beside so many others, and these are judged by the clock
	@scripts/test system-members ./verify/members -count 1 -parallel 1 -timeout 60m
	@scripts/test system-rounds ./verify/clients -count 1 -parallel 1 -run '$(TIMED)'

.PHONY: flakes
flakes: deps ## each package's tests FLAKES times (30), the slowest a third as often, some of it beside a load: how many runs were red; hours
	@scripts/flakes $(FLAKES) $(shell expr \( $(FLAKES) + 2 \) / 3)

.PHONY: test-long
test-long: deps ## the minute of two gateways on one Redis, long random histories, the page with 100,000 locks
	FENCEPOST_LONG=1 go test -race -timeout 30m -count 1 ./internal/... ./cmd/...
	FENCEPOST_LONG=1 go test -timeout 30m -count 1 -v -run 'TestManyLocksAndChanges|TestOthersBesideThePage|TestWhatTheTabCosts|TestAStuckLockIsBrokenWithNotice' ./web

.PHONY: test-axe
test-axe: deps ## every view of the page under axe-core, which npm fetches
	npm ci --prefix web --ignore-scripts --no-audit --no-fund
	go test -count 1 -timeout 10m -tags axe -run '^TestAxe' ./web

.PHONY: test-storage
test-storage: ## what docs/storage says, on real databases; ROUNDS (3) stopped holders each
	@./scripts/deps storage
	cd verify/storage && go vet . && go tool -modfile=../../tools/go.mod staticcheck . && FENCEPOST_ROUNDS=$(ROUNDS) go test -count 1 -timeout 40m .

.PHONY: test-deploy
test-deploy: ## deploy/ against the tools that read it: Docker, Compose, Helm, Kubernetes, Prometheus, systemd, dpkg
	@./scripts/deps deploy
	cd deploy/validate && go vet . && go test -count 1 -timeout 15m .

.PHONY: package
package: build ## bin/*.deb and bin/*.rpm of this machine's architecture, with an SBOM (CycloneDX)
	go tool -modfile=tools/go.mod cyclonedx-gomod bin -json -output bin/fencepost.cdx.json bin/gateway
	for format in deb rpm; do VERSION=$(PACKAGE_VERSION) GOARCH=$$(go env GOARCH) \
		go tool -modfile=tools/go.mod nfpm package -f deploy/package/nfpm.yaml -p $$format -t bin/ || exit; done

.PHONY: verify
verify: deps ## crowds, faults, attacks, histories, trials: an hour and a half on two cores; writes VERIFICATION.md (SCALE=part: minutes)
	@if [ "$(SCALE)" = full ]; then ./scripts/deps verify; fi
	go run ./verify -scale $(SCALE)

.PHONY: soak
soak: deps ## a fault every 5 s for DURATION (20m) on STORE (redis; sentinel, cluster, quorum, embedded, raft, postgres, mariadb)
	go run ./verify -only soak-$(STORE) -soak $(DURATION)

.PHONY: lint
lint: ## gofmt, vet, staticcheck
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$unformatted" || { echo "not gofmt-ed: $$unformatted"; exit 1; }
	@scripts/goes-on "go vet" go vet ./...
	@scripts/goes-on "staticcheck" go tool -modfile=tools/go.mod staticcheck ./...

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (default: a million executions each)
	./scripts/fuzz $(FUZZTIME)

.PHONY: bench
bench: deps ## measure against the baselines, and etcd; prints tables and writes BENCHMARKS.md
	@./scripts/deps bench
	go run ./bench

.PHONY: deps
deps: ## install what the tests need (Debian, as root), or say what is missing
	@./scripts/deps

.PHONY: clean
clean: ## remove what was built
	rm -rf bin
