"""Machines of two kinds: a worker for ARM, under QEMU as the processor of a Raspberry Pi, beside one for this machine.
For every type and every way to cut k, C has the bits that this machine computes alone.

The workers are built by `make arm-workers`, or named by the variables BRAMBLE_AARCH64 and BRAMBLE_ARMV7.
"""

import os
import platform
import re
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers import BRAMBLE, DTYPES, ROOT, Run, assert_refused, bramble, succeed, workers
from lacking import skip

pytestmark = pytest.mark.soak("arm")


@dataclass(frozen=True)
class Board:
    """A kind of board, by the name of its processor."""

    name: str
    triple: str
    emulator: str
    processor: str
    """The emulator's name for this board's processor."""
    libraries: str
    """The folder of the cross compiler's package with the libraries of the worker."""
    machine: int
    """The machine number at byte 18 of its programs (ELF `e_machine`)."""

    @property
    def worker(self):
        named = os.environ.get(f"BRAMBLE_{self.name.upper()}")
        if named:
            return Path(named)
        return ROOT / "target" / self.triple / "release" / "bramble"

    @property
    def program(self):
        return shutil.which(f"{self.emulator}-static") or shutil.which(self.emulator)

    def why_not(self):
        if platform.machine() != "x86_64":
            return f"compares x86-64 with {self.name}, and this machine is {platform.machine()}"
        if not self.worker.is_file():
            return f"there is no worker, {self.worker}: make arm-workers"
        return "" if self.program else f"{self.emulator} is not installed (Debian: qemu-user-static)"


AARCH64 = Board("aarch64", "aarch64-unknown-linux-gnu", "qemu-aarch64", "cortex-a72", "/usr/aarch64-linux-gnu", 183)
ARMV7 = Board("armv7", "armv7-unknown-linux-gnueabihf", "qemu-arm", "cortex-a7", "/usr/arm-linux-gnueabihf", 40)
CUTS = ["reuse", "naive", "cuboid:1x1x2", "summa:1x2"]


@pytest.fixture
def board(request):
    if why := request.param.why_not():
        skip(request.param.name, why)
    return request.param


def on(*boards):
    return pytest.mark.parametrize("board", boards, indirect=True, ids=lambda board: board.name)


@contextmanager
def emulated(board, tmp_path, *options):
    """Starts a worker under QEMU; returns its address."""
    script = tmp_path / "worker"
    script.write_text(f'#!/bin/sh\nexec {board.program} -cpu {board.processor} -L {board.libraries} {board.worker} "$@"\n')
    script.chmod(0o755)
    run = Run("worker", "--listen", "127.0.0.1:0", "--threads", "1", *options, binary=script)
    try:
        line = run.process.stdout.readline()
        found = re.fullmatch(r"listening on (127\.0\.0\.1:\d+)\n", line)
        assert found, f"first line of the emulated worker: {line!r}"
        yield found[1]
    finally:
        run.end()


@on(AARCH64, ARMV7)
def test_the_worker_is_for_the_board(board):
    head = board.worker.read_bytes()[:20]
    machine = int.from_bytes(head[18:20], "little")
    assert head[:4] == b"\x7fELF" and machine == board.machine, f"{board.worker} is not for {board.name}"
    assert BRAMBLE.read_bytes()[18:20] != head[18:20]


def assert_same_bits(board, tmp_path, dtype, kernel, cuts):
    product = (f"random:530x900:{dtype}:1", f"random:900x470:{dtype}:2", "--reproducible", "--kernel", kernel, "--tile", "64",
               "--panel", "128", "--json")
    want = succeed("multiply", *product).report["digest"]
    with workers(1, "--threads", "1") as (addresses, _), emulated(board, tmp_path) as arm:
        for cut in cuts:
            # The emulated worker is slow, so its share is small; but it has one, and no worker steals it.
            report = succeed("multiply", *product, "--strategy", cut, "-w", f"{addresses[0]},{arm}", "--no-steal").report
            assert report["digest"] == want, cut
            jobs = {worker["name"]: worker["jobs"] for worker in report["workers"]}
            assert report["kernel"] == kernel and len(jobs) == 2 and min(jobs.values()) > 0, (cut, jobs)
        # Alone the emulated worker computes everything.
        report = succeed("multiply", *product, "--strategy", "reuse", "-w", arm).report
        assert report["digest"] == want and report["workers"][0]["jobs"] > 0, report


@on(AARCH64)
@pytest.mark.parametrize("kernel", ["simd", "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits_beside_this_machine(board, tmp_path, dtype, kernel):
    assert_same_bits(board, tmp_path, dtype, kernel, CUTS)


@on(ARMV7)
@pytest.mark.parametrize("dtype", ["f64", "i64"])
def test_a_board_of_32_bits_has_the_same_bits(board, tmp_path, dtype):
    assert_same_bits(board, tmp_path, dtype, "reference", ["reuse"])


@on(AARCH64, ARMV7)
def test_machines_of_two_kinds_eliminate_together(board, tmp_path):
    with workers(1, "--threads", "1") as (addresses, _), emulated(board, tmp_path) as arm:
        hosts = "-w", f"{addresses[0]},{arm}"
        # `--nodes 2` lets the plan leave no machine out.
        report = succeed("bench", "hpl", "--size", 400, "--nb", 16, "--nodes", 2, *hosts, "--json").report
        columns = {worker["name"]: worker["columns"] for worker in report["workers"]}
        assert report["passed"] and report["residual"] < 16, report
        assert set(columns) == {addresses[0], arm} and sum(columns.values()) == 401 and min(columns.values()) >= 1, columns
        report = succeed("bench", "hpl", "--mxp", "--size", 400, "--nb", 16, "--nodes", 2, *hosts, "--json").report
        assert report["passed"] and len(report["workers"]) == 2, report
        # Here the plan may leave out the emulated worker; the solution has to be right either way.
        report = succeed("solve", "random:300x300:f64:1", "random:300x2:f64:2", "--block", 16, *hosts, "--json").report
        assert report["backward_error"] <= report["tolerance"], report


@on(AARCH64)
def test_two_kernels_are_refused(board, tmp_path):
    product = "random:90x90:f64:1", "random:90x90:f64:2", "--reproducible", "--strategy", "reuse"
    with workers(1, "--threads", "1") as (addresses, _), emulated(board, tmp_path, "--kernel", "reference") as arm:
        refused = bramble("multiply", *product, "-w", f"{addresses[0]},{arm}")
        assert_refused(refused, 1, [arm, "reference", "simd", "--reproducible"])
