# Every way to build, check, measure and show Bramble. `make test` installs what it needs.

CARGO ?= cargo
PYTHON ?= python3
BRAMBLE ?= $(CURDIR)/target/release/bramble
VENV := $(CURDIR)/.venv
BENCH_ARGS ?=
# Two tests at once, since most of them wait: for deadlines, for a link of 1 Gbit/s, for somebody who is silent.
TEST_ARGS ?= -n 2 --dist worksteal
RUNS ?= 1000000
TARGETS ?= $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))
FUZZ_MANIFEST := --manifest-path fuzz/Cargo.toml --locked

.PHONY: help build aarch64 macos check test lint doc unit fuzz-replay fuzz mutants end-to-end libraries deny bench demo clean
.DELETE_ON_ERROR:
.NOTPARALLEL:

help:
	@echo 'make build   the release binary, target/release/bramble'
	@echo 'make aarch64 a worker for 64-bit ARM boards, which tests/test_aarch64.py runs under QEMU'
	@echo 'make macos   whether the program (not its tests) fits macOS: types and lints, nothing is linked'
	@echo 'make check   the fast part of the tests: format, lints, documentation, unit tests'
	@echo 'make test    everything that has to pass before a change lands'
	@echo 'make fuzz    hostile bytes for every parser, RUNS inputs each (fuzz/README.md)'
	@echo 'make mutants breaks the schedule by hand, way after way, and wants the simulator to notice'
	@echo 'make bench   compares with NumPy, Dask and MPI (BENCH_ARGS=--quick for a short look)'
	@echo 'make demo    multiplies the word vectors of a language model and asks for neighbours'
	@echo 'make clean   removes what was built'

build:
	$(CARGO) build --release --locked

# Needs `rustup target add aarch64-unknown-linux-gnu` and, of Debian, gcc-aarch64-linux-gnu; its test qemu-user-static.
aarch64:
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$${LINKER:-aarch64-linux-gnu-gcc} \
		$(CARGO) build --release --locked -p bramble --target aarch64-unknown-linux-gnu

# Needs `rustup target add aarch64-apple-darwin` and no SDK: nothing of C is compiled. So in a folder of its own.
macos:
	@if rustup target list --installed 2>/dev/null | grep -q aarch64-apple-darwin; then \
		CC_aarch64_apple_darwin=$(CURDIR)/tests/no-sdk/cc AR_aarch64_apple_darwin=$(CURDIR)/tests/no-sdk/ar \
		$(CARGO) clippy --target aarch64-apple-darwin --workspace --locked --target-dir target/no-sdk -- -D warnings; \
	else echo 'the target aarch64-apple-darwin is not installed: whether the code fits macOS is not checked'; \
		[ -z "$$BRAMBLE_MACOS_REQUIRED" ]; fi

check: lint doc unit

test: libraries lint macos doc deny unit fuzz-replay build end-to-end

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(CARGO) clippy $(FUZZ_MANIFEST) --all-targets -- -D warnings

doc:
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --locked

unit:
	$(CARGO) test --workspace --locked --no-fail-fast

# Outside the workspace, so with a folder of its own for what is built.
fuzz-replay:
	$(CARGO) test $(FUZZ_MANIFEST)

# Needs a nightly compiler and cargo-fuzz.
fuzz:
	$(CARGO) run $(FUZZ_MANIFEST) --example corpus -- unpack $(TARGETS)
	@for target in $(TARGETS); do \
		set -- $$($(CARGO) run --quiet $(FUZZ_MANIFEST) --example corpus -- list $$target); \
		$(CARGO) +nightly fuzz run -s none $$target -- -runs=$(RUNS) -max_len=$$2 -timeout=5 -rss_limit_mb=1024 \
			-verbosity=1 -print_final_stats=1 || exit 1; \
	done

# Minutes: each is built, and tried until the first violation.
mutants:
	$(PYTHON) sim/mutants.py

end-to-end: build $(VENV)/tests.stamp
	$(CARGO) build --release --locked -p bramble-link --example attacker
	BRAMBLE=$(BRAMBLE) $(VENV)/bin/python -m pytest $(TEST_ARGS) tests

# Licences and sources of every dependency, where the tool for it is at hand.
deny:
	@if command -v cargo-deny >/dev/null; then cargo-deny --all-features check; \
	else echo 'cargo-deny is not installed: licences and sources are not checked'; fi

# BLAS and MPI libraries are opened at run time: without them Bramble works, but their tests are skipped.
libraries:
	@missing=; \
	for pair in libopenblas.so.0:libopenblas0-pthread libblis.so.4:libblis4-pthread \
			libmpi.so.40:openmpi-bin libmpich.so.12:mpich; do \
		ldconfig -p 2>/dev/null | grep -q "$${pair%%:*}" || missing="$$missing $${pair##*:}"; \
	done; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y $$missing >/dev/null \
		|| echo "could not install$$missing: their tests are skipped"; \
	else echo "not installed:$$missing: their tests are skipped"; fi

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/tests.stamp: tests/requirements.txt | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

$(VENV)/bench.stamp: bench/requirements.txt | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

bench: build $(VENV)/bench.stamp
	@for script in numpy_product local_workers integers kernels startup memory encrypted_link light_transport; do \
		$(VENV)/bin/python bench/$$script.py --bramble $(BRAMBLE) $(BENCH_ARGS) || exit 1; \
	done

demo: build | $(VENV)/bin/python
	BRAMBLE=$(BRAMBLE) $(VENV)/bin/python examples/words.py

clean:
	$(CARGO) clean
	rm -rf $(VENV) demo
