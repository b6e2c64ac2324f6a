"""Machines of two kinds: a worker for aarch64, under QEMU as the processor of a Raspberry Pi 4, beside one for this machine.
Every type has the bits that this machine has alone, by every way to cut k.

The worker is built by `make aarch64`, or named by the variable BRAMBLE_AARCH64.
"""

import os
import platform
import re
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers import BRAMBLE, DTYPES, ROOT, Run, assert_refused, bramble, succeed, workers

ARM = Path(os.environ.get("BRAMBLE_AARCH64") or ROOT / "target" / "aarch64-unknown-linux-gnu" / "release" / "bramble")
QEMU = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")


def why_not():
    if platform.machine() != "x86_64":
        return f"compares x86-64 with aarch64, and this machine is {platform.machine()}"
    if not ARM.is_file():
        return f"there is no worker for aarch64, {ARM}: make aarch64"
    return "" if QEMU else "qemu-aarch64 is not installed (Debian: qemu-user-static)"


pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
CUTS = ["reuse", "naive", "cuboid:1x1x2", "summa:1x2"]


@contextmanager
def emulated(tmp_path, *options):
    """A worker under QEMU; gives its address."""
    script = tmp_path / "arm"
    # Where the binary is not static, the libraries of the cross compiler's package.
    script.write_text(f'#!/bin/sh\nexec {QEMU} -cpu cortex-a72 -L /usr/aarch64-linux-gnu {ARM} "$@"\n')
    script.chmod(0o755)
    run = Run("worker", "--listen", "127.0.0.1:0", "--threads", "1", *options, binary=script)
    try:
        line = run.process.stdout.readline()
        found = re.fullmatch(r"listening on (127\.0\.0\.1:\d+)\n", line)
        assert found, f"first line of the emulated worker: {line!r}"
        yield found[1]
    finally:
        run.end()


def test_the_worker_is_for_aarch64():
    head = ARM.read_bytes()[:20]
    assert head[:4] == b"\x7fELF" and int.from_bytes(head[18:20], "little") == 183, f"{ARM} is not for aarch64"
    assert BRAMBLE.read_bytes()[18:20] != head[18:20]


@pytest.mark.parametrize("kernel", ["simd", "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits_beside_this_machine(tmp_path, dtype, kernel):
    product = (f"random:530x900:{dtype}:1", f"random:900x470:{dtype}:2", "--reproducible", "--kernel", kernel, "--tile", "64",
               "--panel", "128", "--json")
    want = succeed("multiply", *product).report["digest"]
    with workers(1, "--threads", "1") as (addresses, _), emulated(tmp_path) as arm:
        for cut in CUTS:
            # The emulated one is slow, so its part is small; but it has one, and nobody takes it over.
            report = succeed("multiply", *product, "--strategy", cut, "-w", f"{addresses[0]},{arm}", "--no-steal").report
            assert report["digest"] == want, cut
            jobs = {worker["name"]: worker["jobs"] for worker in report["workers"]}
            assert report["kernel"] == kernel and len(jobs) == 2 and min(jobs.values()) > 0, (cut, jobs)
        # Alone it does everything.
        report = succeed("multiply", *product, "--strategy", "reuse", "-w", arm).report
        assert report["digest"] == want and report["workers"][0]["jobs"] > 0, report


def test_two_kernels_are_refused(tmp_path):
    product = "random:90x90:f64:1", "random:90x90:f64:2", "--reproducible", "--strategy", "reuse"
    with workers(1, "--threads", "1") as (addresses, _), emulated(tmp_path, "--kernel", "reference") as arm:
        refused = bramble("multiply", *product, "-w", f"{addresses[0]},{arm}")
        assert_refused(refused, 1, [arm, "reference", "simd", "--reproducible"])
