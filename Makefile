# Every target is one command that a newcomer, a developer and CI run alike. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11 python3.10,$(shell \
	$(p) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $(p))))
VENV := .venv
PROFILE := release
BIN := $(VENV)/bin
MADE := target/make
# Data of the measurements; a file system in memory would measure something else.
BENCH_DIR ?= target/bench
ROUNDS ?= 5
FUZZ_S ?= 30
# Only nightly toolchains have Miri.
NIGHTLY ?= nightly
# Crates that move bytes.
MOVING := -p forebay-io -p forebay-storage -p forebay-bench -p forebay-serve -p forebay-training
# What Miri interprets: tests of raw memory that ask the system for little more than threads and clocks.
INTERPRETED := arena::
# What AddressSanitizer watches: the tests that drive real I/O through every engine.
WATCHED := --lib --test contract --test faults
# Whose memory `make memcheck` watches. Not the guarded copy (`copy`, and `feed` and `gateway::dma` over it): it goes on after a
# SIGBUS by the processor's registers, which valgrind doesn't keep; nor the ring, whose waits hold up all threads there.
CHECKED := arena:: client::free worker:: silence source::file source::stripe
# What `make test-dlio` may be told of.
DLIO_NAMES := DLIO_V1 DLIO_V2 MLPERF_STORAGE_V1 MLPERF_STORAGE_V2 MLPERF_STORAGE_REPORT
ARCHS ?= x86_64 aarch64
MOMENTS ?= 100
# Most tests of Python wait for processes that they started: two for each processor keep it busy.
TEST_WORKERS ?= $(shell echo $$(( 2 * $$(nproc) < 8 ? 2 * $$(nproc) : 8 )))
PYTEST := $(BIN)/python -m pytest
STEP := .ci/step
# Of each property a sixteenth of proptest's usual cases; `make soak` and `make fuzz` try more.
RUST_TESTS := env PROPTEST_CASES=16 RUST_TEST_THREADS=$(TEST_WORKERS) .ci/rust-tests
# Those of guests are looked at by mypy; importing them in each worker takes seconds.
PYTHON_TESTS = $(PYTEST) -n $(TEST_WORKERS) --dist worksteal --durations 10 --ignore tests/vm --ignore tests/ml \
	-m "not vm and not wheel and not long and not soak and not ml" $(ARGS)

# One interpreter for every build, or PyO3 is compiled anew at each change between them.
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python
# Paths of the building machine, cut from the wheel's library.
CUT_PATHS = --remap-path-prefix=$(CURDIR)=forebay --remap-path-prefix=$${CARGO_HOME:-$$HOME/.cargo}=cargo
export PIP_DISABLE_PIP_VERSION_CHECK := 1

RUST := $(shell find crates -type f \( -name '*.rs' -o -name Cargo.toml -o -name '*.json' -o -name '*.csv' -o -name '*.toml' \)) Cargo.toml Cargo.lock
PACKAGE := $(shell find python -type f -not -name '*.pyc' -not -name '*.so') pyproject.toml $(wildcard README.md)
# The commit is part of the build.
COMMIT := $(wildcard $(shell git rev-parse --git-path logs/HEAD 2>/dev/null))

.PHONY: help demo test test-long test-vm test-root test-gpu test-ml test-dlio check format bench bench-gpu wheel forebayd dist test-dist soak asan miri memcheck fuzz docs promises clean
help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: | $(MADE)/ready ## Build, install into .venv, and see all of it in a minute (ARGS='--help' lists its flags)
	@[ -e $(MADE)/installed ] || echo 'make demo: builds (2 to 4 minutes on two cores), installs into $(VENV), then measures for a minute'
	@$(MAKE) --no-print-directory $(MADE)/installed
	$(BIN)/forebay demo $(ARGS)

test: ## What decides: installs what it needs, then formats, lints, types, stubs and tests (docs/testing.md)
	@rm -f target/make/steps
	@$(STEP) install env PYTHON=$(PYTHON) .ci/prepare test
	@$(MAKE) --no-print-directory $(QUICK) all-tests

# With one build of everything, in which every overflow and assertion is a failure and every crate is linted while it is
# compiled; in a place of its own, since nobody measures with it. On a machine that others use, more compilers at once
# get a larger share of it.
QUICK := PROFILE=dev VENV=target/tested/venv MADE=target/tested/made
.PHONY: all-tests disturbed python-part
# Each `forebay` that a test runs is started anew; `make test` forks most of them from one that has loaded it.
test-long test-root soak: export FOREBAY_TEST_ANEW = 1
test-long soak: export FOREBAY_TEST_ALL = 1
all-tests disturbed: export CARGO_TARGET_DIR = $(CURDIR)/target/tested
all-tests disturbed: export CARGO_BUILD_JOBS = $(shell echo $$((2 * $$(nproc))))
all-tests disturbed: export CARGO_INCREMENTAL = 0
all-tests disturbed: export CARGO_PROFILE_DEV_DEBUG = 0
all-tests disturbed: export RUSTC_WORKSPACE_WRAPPER = $(if $(wildcard $(shell rustc --print sysroot)/bin/clippy-driver),$(CURDIR)/.ci/lint)
all-tests disturbed: export CLIPPY_ARGS = -D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
# What is imported is compiled at its first import, whatever the caller's setting.
all-tests disturbed: export PYTHONDONTWRITEBYTECODE =
all-tests disturbed: export FOREBAYD = $(CURDIR)/target/tested/debug/forebayd
all-tests:
	@$(STEP) format $(MAKE) --no-print-directory format-check
	@[ -n "$$RUSTC_WORKSPACE_WRAPPER" ] || echo 'skipped: cargo clippy (not installed)'
	@$(STEP) rust-build .ci/cause .ci/rust-tests --build
	# Either waits where the other computes; Python's part takes longer.
	@.ci/beside '$(STEP) rust-tests nice -n 3 $(RUST_TESTS)' '$(MAKE) --no-print-directory $(QUICK) python-part'

python-part:
	@$(STEP) build $(MAKE) --no-print-directory $(MADE)/tested-with
	@.ci/beside '$(STEP) types $(MAKE) --no-print-directory types' '$(STEP) python-tests $(PYTHON_TESTS)'

test-disturbed: ## The tests of `make test` while random threads of theirs are held still for up to 3 s (SEED=N HOLD=6)
	@.ci/last begun $@
	@.ci/prepare test
	@$(MAKE) --no-print-directory $(QUICK) disturbed
	@.ci/last passed $@

disturbed:
	@.ci/rust-tests --build
	@$(MAKE) --no-print-directory $(MADE)/tested-with
	.ci/disturb $(RUST_TESTS)
	.ci/disturb $(PYTHON_TESTS)

test-long: | $(MADE)/ready ## The tests of many processes: several hosts, kills and takeovers under load, whole tours
	@.ci/last begun $@
	@.ci/prepare test
	@$(MAKE) --no-print-directory $(MADE)/tested-with
	$(PYTEST) -n $(TEST_WORKERS) -m "long or (hypothesis and not soak and not ml)" $(ARGS)
	cargo test $(MOVING) -p forebay-nvme --test contract --test faults --test gpu --test pcie --quiet -- --include-ignored
	@.ci/last passed $@

test-vm: | $(MADE)/ready ## The tests with real Linux kernels, in guests of QEMU
	@.ci/last begun $@
	@.ci/prepare vm
	@$(MAKE) --no-print-directory $(MADE)/tested-with
	# Tests of block devices would build these under their own time limit.
	cargo build --quiet -p forebay-serve --example ublk_device
	cargo build --quiet --workspace --bins
	@$(call pytest_marked,vm,no test needs a guest)
	@.ci/last passed $@

test-root: | $(MADE)/ready ## The tests that need root: loop devices, network namespaces (sudo make test-root)
	@.ci/last begun $@
	@[ "$$(id -u)" = 0 ] || { echo 'make test-root: needs root; try: sudo make test-root' >&2; exit 3; }
	@$(MAKE) --no-print-directory $(MADE)/tested-with
	@$(call pytest_marked,root,no test needs root yet)
	@.ci/last passed $@

test-gpu: | $(MADE)/ready ## The tests that need an NVIDIA GPU: what `make test` runs on a stand-in, on the real one
	@.ci/last begun $@
	@[ -e /dev/nvidiactl ] || { echo 'make test-gpu: no NVIDIA GPU here (/dev/nvidiactl is absent)' >&2; exit 3; }
	FOREBAY_TEST_GPU=1 cargo test $(MOVING) --test gpu --test contract --quiet -- --include-ignored
	@$(MAKE) --no-print-directory $(MADE)/tested-with
	@$(call pytest_marked,gpu,no test needs a GPU yet)
	@.ci/last passed $@

test-ml: | $(MADE)/ready ## The tests with real PyTorch on the host, in an environment of their own in target/ml (its first time: 5 GB)
	@.ci/last begun $@
	@$(MAKE) --no-print-directory $(MADE)/tested-with
	@[ -x target/ml/bin/python ] || $(PYTHON) -m venv target/ml
	target/ml/bin/pip install -q torch torchvision transformers accelerate lightning safetensors torch_geometric 'mlperf-logging==4.1.68'
	target/ml/bin/pip install -q "$$(ls -t $(MADE)/wheels/*.whl | head -1)[test]"
	target/ml/bin/pip install -q --force-reinstall --no-deps "$$(ls -t $(MADE)/wheels/*.whl | head -1)"
	target/ml/bin/python -m pytest -m ml tests/ml $(ARGS)
	@.ci/last passed $@

test-dlio: | $(MADE)/ready ## DLIO reads Forebay's data sets and results, and Forebay DLIO's (DLIO_V1=PYTHON DLIO_V2=PYTHON …: docs/building.md)
	@.ci/last begun $@
	@[ -n "$(DLIO_V1)$(DLIO_V2)" ] || { echo 'make test-dlio: no DLIO is named; try: make test-dlio DLIO_V1=PYTHON DLIO_V2=PYTHON' >&2; exit 3; }
	@$(MAKE) --no-print-directory $(MADE)/tested-with
	$(foreach v,$(DLIO_NAMES),$(if $($(v)),$(v)='$($(v))')) $(PYTEST) tests/test_emulate_dlio.py \
	  tests/test_emulate_check.py::test_the_real_report_script_takes_what_was_exported $(ARGS)
	@.ci/last passed $@

check: | $(MADE)/ready ## The fast part of `make test`: format, lint, unit tests, house rules
	@$(MAKE) --no-print-directory format-check clippy deny
	cargo test --workspace --lib --quiet
	@$(MAKE) --no-print-directory $(MADE)/tested-with types
	$(PYTEST) -q tests/test_house*.py $(ARGS)

format: | $(MADE)/ready ## Format Rust and Python in place
	@$(MAKE) --no-print-directory $(MADE)/tools
	cargo fmt --all
	$(BIN)/ruff check --fix python tests bench deploy examples

bench: | $(MADE)/ready ## Side by side with peers, each command of bench/ in turn (ROUNDS=5 BENCH_DIR=… ARGS=--publish)
	@$(MAKE) --no-print-directory $(MADE)/installed
	mkdir -p $(BENCH_DIR) target/bench-results
	for command in direct_read cached_read overlap loop stripe histogram_merge remote_read remote_local \
		remote_many remote_zero_copy gateway_local gateway_remote gateway_queues gateway_guest emulate_dlio emulate_many checkpoint \
		plan plan_simulate decide drives rows_host open_uri kv_simulate iolog; do \
		case $$command in gateway_queues) own='--delay-in drive' ;; *) own= ;; esac; \
		$(BIN)/python bench/$$command.py --dir $(BENCH_DIR) --rounds $(ROUNDS) $$own \
			--json target/bench-results/$$command.json $(ARGS); \
	done

bench-gpu: | $(MADE)/ready ## Every table that ends in a GPU, beside the peers found in .venv (ROUNDS=5 BENCH_DIR=…)
	@[ -e /dev/nvidiactl ] || { echo 'make bench-gpu: no NVIDIA GPU here (/dev/nvidiactl is absent)' >&2; exit 3; }
	@$(MAKE) --no-print-directory $(MADE)/installed
	PYTHON=$(BIN)/python ROUNDS=$(ROUNDS) bench/gpu_all.sh $(BENCH_DIR) target/bench-results

wheel: | $(MADE)/ready ## dist/*.whl for any Linux with glibc 2.28, tried on every Python 3.10 to 3.13 found here
	@.ci/last begun $@
	@$(MAKE) --no-print-directory $(MADE)/tools
	.ci/cause $(BIN)/python -m pip install --quiet 'ziglang>=0.13'
	rm -f dist/*.whl $(MADE)/installed $(MADE)/tested-with
	RUSTFLAGS="$(CUT_PATHS)" PATH="$(CURDIR)/$(BIN):$$PATH" .ci/cause $(BIN)/maturin build --release --locked --zig --compatibility manylinux_2_28 --out dist
	# pytest needs a package to import; no other build than the one that is tried.
	$(BIN)/python -m pip install --quiet --force-reinstall --no-deps dist/*.whl
	$(BIN)/python -m pip install --quiet "$$(echo dist/*.whl)[report,test]"
	$(PYTEST) -m wheel tests/test_wheel.py --wheel dist/*.whl
	@.ci/last passed $@

forebayd: | $(MADE)/ready ## dist/forebayd-ARCH for any Linux with glibc 2.28 (ARCHS='x86_64 aarch64')
	@.ci/last begun $@
	@$(MAKE) --no-print-directory $(MADE)/tools
	.ci/cause $(BIN)/python -m pip install --quiet 'ziglang>=0.13' 'cargo-zigbuild>=0.20,<1'
	mkdir -p dist
	# Without debugging information, which is five times the program and names paths of the building machine.
	for arch in $(ARCHS); do \
		target=$$arch-unknown-linux-gnu; \
		$(call std_of,forebayd); \
		CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_STRIP=debuginfo RUSTFLAGS="$(CUT_PATHS)" PATH="$(CURDIR)/$(BIN):$$PATH" \
			.ci/cause cargo zigbuild --release --locked -p forebayd --target $$target.2.28; \
		install target/$$target/release/forebayd dist/forebayd-$$arch; \
	done
	$(PYTEST) -q tests/test_forebayd_built.py
	@.ci/last passed $@

dist: | $(MADE)/ready ## dist/: source, wheels and forebayd for ARCHS, Debian packages, a list of what is inside, checksums
	@.ci/last begun $@
	@$(MAKE) --no-print-directory $(MADE)/tools
	.ci/cause $(BIN)/python -m pip install --quiet 'ziglang>=0.13'
	rm -rf dist
	$(BIN)/maturin sdist --out dist
	for arch in $(ARCHS); do \
		$(call std_of,dist); \
		RUSTFLAGS="$(CUT_PATHS)" PATH="$(CURDIR)/$(BIN):$$PATH" .ci/cause $(BIN)/maturin build --release --locked --zig \
			--compatibility manylinux_2_28 --target $$arch-unknown-linux-gnu --out dist || exit; \
	done
	# What writes the manual pages is what was just built; another machine's wheel can't.
	rm -f $(MADE)/installed $(MADE)/tested-with
	wheel=$$(ls dist/*_$$(uname -m).whl 2>/dev/null) || exec $(MAKE) --no-print-directory $(MADE)/tested-with; \
	$(BIN)/python -m pip install --quiet --force-reinstall --no-deps "$$wheel" && \
	.ci/cause $(BIN)/python -m pip install --quiet "$$wheel[report,test]"
	$(MAKE) --no-print-directory forebayd
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || echo 0) $(BIN)/python deploy/dist.py dist $(BIN)/forebay
	@.ci/last passed $@

test-dist: | $(BIN)/python ## What make dist made, installed and run on bare Debian 12 and 13 (sudo make test-dist)
	@.ci/last begun $@
	$(BIN)/python deploy/test_dist.py dist target/dist-roots
	@.ci/last passed $@

soak: | $(MADE)/ready ## Signals at hundreds of moments, kills in turn, what a clock judges, long fuzzing (MOMENTS=100)
	@.ci/last begun $@
	@$(MAKE) --no-print-directory $(MADE)/tested-with
	FOREBAY_TEST_MOMENTS=$(MOMENTS) $(PYTEST) -n $(TEST_WORKERS) --dist worksteal --timeout 7200 tests/test_interruptions.py tests/test_interrupted_verbs.py $(ARGS)
	$(PYTEST) -m soak $(ARGS)
	PROPTEST_CASES=2000 cargo test --workspace --quiet -- --include-ignored
	@$(MAKE) --no-print-directory fuzz FUZZ_S=600
	@.ci/last passed $@

asan: | $(MADE)/ready ## The engine's tests of real I/O under AddressSanitizer: no access beyond a buffer, or after its end
	@.ci/last begun $@
	# RUSTC_BOOTSTRAP has the stable compiler take the flag. Memory that the kernel may still write to is kept on purpose: no
	# search for leaks.
	RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=0 CARGO_TARGET_DIR=target/asan \
		CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 cargo test --quiet $(MOVING) \
		--target $$(rustc -vV | sed -n 's/^host: //p') $(WATCHED) -- $(ARGS)
	@echo 'make asan: AddressSanitizer found nothing'
	@.ci/last passed $@

miri: | $(MADE)/ready ## Tests of raw memory under Miri: each pointer stays within what it was made for (a nightly compiler)
	@.ci/last begun $@
	@cargo +$(NIGHTLY) miri --version >/dev/null 2>&1 \
		|| rustup toolchain install $(NIGHTLY) --no-self-update --profile minimal --component miri,rust-src || { echo \
		'make miri: Miri is not here; install rustup (https://rustup.rs), or name a toolchain that has it: make miri NIGHTLY=NAME' >&2; \
		exit 3; }
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=16 CARGO_TARGET_DIR=target/miri CARGO_INCREMENTAL=0 \
		cargo +$(NIGHTLY) miri test --quiet -p forebay-io --lib -- $(INTERPRETED) $(ARGS)
	@echo 'make miri: Miri found nothing'
	@.ci/last passed $@

memcheck: | $(MADE)/ready ## Memory that threads and the kernel write to: its unit tests under valgrind's memcheck
	@.ci/last begun $@
	@command -v valgrind >/dev/null || { echo 'make memcheck: valgrind is not here; try: apt install valgrind' >&2; exit 3; }
	cargo test $(MOVING) --lib --no-run --quiet
	for program in $$(cargo test $(MOVING) --lib --no-run --message-format=json 2>/dev/null \
		| sed -n 's/.*"executable":"\([^"]*\)".*/\1/p'); do \
		valgrind --quiet --fair-sched=yes --error-exitcode=9 "$$program" --test-threads 1 $(CHECKED) $(ARGS) || exit; done
	@echo 'make memcheck: valgrind found nothing'
	@.ci/last passed $@

fuzz: | $(MADE)/ready ## Each fuzz target for FUZZ_S seconds (30)
	@.ci/last begun $@
	@PYTHON=$(PYTHON) .ci/prepare test >/dev/null
	@$(MAKE) --no-print-directory $(MADE)/cargo-fuzz
	FUZZ_S=$(FUZZ_S) PATH="$(CURDIR)/target/tools/bin:$$PATH" fuzz/run $(ARGS)
	@.ci/last passed $@

docs: | $(MADE)/ready ## API pages under target/doc, every link in the Markdown checked
	@$(MAKE) --no-print-directory $(BIN)/python
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --document-private-items
	@$(MAKE) --no-print-directory $(MADE)/tested-with
	$(PYTEST) -q tests/test_house.py tests/test_house_documents.py -k 'link or promise or help'

promises: ## Each promise of SPECIFICATION.md with the tests that hold it
	@$(PYTHON) tests/promises.py

clean: ## Remove what was built (.venv, target, dist)
	rm -rf $(VENV) target dist

# What the targets above are made of ---------------------------------------------------------------

.PHONY: format-check clippy deny types
format-check:
	@if cargo fmt --version >/dev/null 2>&1; then cargo fmt --all --check; else echo 'skipped: cargo fmt (no rustfmt)'; fi

clippy: | $(BIN)/python
	@if cargo clippy --version >/dev/null 2>&1; then cargo clippy --workspace --all-targets --quiet -- -D warnings; \
	else echo 'skipped: cargo clippy (not installed)'; fi

# Its database of advisories comes over the network.
deny:
	@if cargo deny --version >/dev/null 2>&1; then .ci/cause cargo deny check; \
	else echo 'skipped: cargo deny (not installed)'; fi

types:
	$(BIN)/ruff check python tests bench deploy examples
	@if command -v actionlint >/dev/null; then actionlint .github/workflows/*.yml; else echo 'skipped: actionlint (not installed)'; fi
	$(BIN)/mypy
	# The stub imports nothing of the package, which would be read a second time.
	$(BIN)/stubtest forebay._core --mypy-config-file <(printf '[mypy]\nmypy_path = python\nfollow_imports = skip\n')

# Sees to it that the compiler has a standard library for $arch.
std_of = [ -d "$$(rustc --print target-libdir --target $$arch-unknown-linux-gnu)" ] || rustup -q target add $$arch-unknown-linux-gnu \
	|| { echo "make $(1): no standard library of Rust for $$arch-unknown-linux-gnu; try: rustup target add $$arch-unknown-linux-gnu, or: make $(1) ARCHS=$$(uname -m)" >&2; exit 3; }

# Runs the tests of a marker. pytest's exit code 5 means that there are none, which is no failure.
define pytest_marked
status=0; $(PYTEST) -m $(1) $(ARGS) || status=$$?; \
if [ $$status = 5 ]; then echo 'make $@: $(2); nothing ran'; else exit $$status; fi
endef

$(MADE)/ready: .ci/prepare
	@[ -n "$(PYTHON)" ] || { echo 'python3: not found, or older than 3.10; try: apt install python3 python3-venv' >&2; exit 3; }
	@PYTHON=$(PYTHON) .ci/prepare build
	@mkdir -p $(@D) && touch $@

# By uv for tests; what users are told to type is venv and pip.
UV := $(if $(filter dev,$(PROFILE)),.ci/uv,false)
$(BIN)/python:
	@[ -n "$(PYTHON)" ] || { echo 'python3: not found, or older than 3.10; try: apt install python3 python3-venv' >&2; exit 3; }
	$(UV) venv $(PYTHON) $(VENV) || $(PYTHON) -m venv $(VENV)

TOOLS := 'maturin>=1.9,<2' 'ruff>=0.6,<0.18'
$(MADE)/tools: pyproject.toml | $(BIN)/python
	$(UV) install $(VENV) $(TOOLS) || .ci/cause $(BIN)/python -m pip install --quiet $(TOOLS)
	@mkdir -p $(@D) && touch $@

$(MADE)/wheel: $(RUST) $(PACKAGE) $(COMMIT) $(MADE)/tools
	rm -rf $(MADE)/wheels
	.ci/cause $(BIN)/maturin build --profile $(PROFILE) --locked --out $(MADE)/wheels
	@touch $@

$(MADE)/installed: $(MADE)/wheel
	.ci/cause $(BIN)/python -m pip install --quiet --force-reinstall --no-deps $(MADE)/wheels/*.whl
	.ci/cause $(BIN)/python -m pip install --quiet "$$(echo $(MADE)/wheels/*.whl)[report]"
	@touch $@

# What tests need has what users install, too. Compiling all modules of other packages takes 10 s; a fifth of them is imported.
$(MADE)/tested-with: LAZY = $(if $(filter dev,$(PROFILE)),--no-compile)
$(MADE)/tested-with: $(MADE)/wheel
	@wheel=$$(echo $(MADE)/wheels/*.whl); \
	$(UV) install $(VENV) "forebay[report,test,mpi] @ file://$(CURDIR)/$$wheel" || { \
		.ci/cause $(BIN)/python -m pip install --quiet --force-reinstall --no-deps "$$wheel" && \
		if $(BIN)/python -m pip install --quiet $(LAZY) "$$wheel[report,test,mpi]" 2>/dev/null; then exit; fi; \
		.ci/cause $(BIN)/python -m pip install --quiet $(LAZY) "$$wheel[report,test]" && \
		echo "skipped: the tests of several hosts (mpi4py doesn't install here)"; }
	@touch $(MADE)/installed $@

$(MADE)/cargo-fuzz:
	PATH="$(CURDIR)/target/tools/bin:$$PATH" cargo fuzz --version >/dev/null 2>&1 \
		|| cargo install --quiet --locked --root target/tools cargo-fuzz
	@mkdir -p $(@D) && touch $@
