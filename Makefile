# Every way to build, check, measure and show Bramble. `make test` installs what it needs.

CARGO ?= cargo
PYTHON ?= python3
BRAMBLE ?= $(CURDIR)/target/release/bramble
VENV := $(CURDIR)/.venv
BENCH_ARGS ?=

.PHONY: help build check test lint doc unit end-to-end libraries deny bench demo clean
.DELETE_ON_ERROR:
.NOTPARALLEL:

help:
	@echo 'make build   the release binary, target/release/bramble'
	@echo 'make check   the fast part of the tests: format, lints, documentation, unit tests'
	@echo 'make test    everything that has to pass before a change lands'
	@echo 'make bench   compares with NumPy, Dask and MPI (BENCH_ARGS=--quick for a short look)'
	@echo 'make demo    multiplies the word vectors of a language model and asks for neighbours'
	@echo 'make clean   removes what was built'

build:
	$(CARGO) build --release --locked

check: lint doc unit

test: libraries lint doc deny unit build end-to-end

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

doc:
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --locked

unit:
	$(CARGO) test --workspace --locked --no-fail-fast

end-to-end: build $(VENV)/tests.stamp
	BRAMBLE=$(BRAMBLE) $(VENV)/bin/python -m pytest tests

# Licences and sources of every dependency, where the tool for it is at hand.
deny:
	@if command -v cargo-deny >/dev/null; then cargo-deny --all-features check; \
	else echo 'cargo-deny is not installed: licences and sources are not checked'; fi

# The BLAS libraries are opened at run time: without them Bramble works, but their tests are skipped.
libraries:
	@missing=; \
	for pair in libopenblas.so.0:libopenblas0-pthread libblis.so.4:libblis4-pthread; do \
		ldconfig -p 2>/dev/null | grep -q "$${pair%%:*}" || missing="$$missing $${pair##*:}"; \
	done; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y $$missing >/dev/null \
		|| echo "could not install$$missing: the tests of those kernels are skipped"; \
	else echo "not installed:$$missing: the tests of those kernels are skipped"; fi

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/tests.stamp: tests/requirements.txt | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

$(VENV)/bench.stamp: bench/requirements.txt | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

bench: build $(VENV)/bench.stamp
	@for script in numpy_product local_workers integers kernels startup memory; do \
		$(VENV)/bin/python bench/$$script.py --bramble $(BRAMBLE) $(BENCH_ARGS) || exit 1; \
	done

demo: build | $(VENV)/bin/python
	BRAMBLE=$(BRAMBLE) $(VENV)/bin/python examples/words.py

clean:
	$(CARGO) clean
	rm -rf $(VENV) demo
