"""No process exceeds its memory limit: workers keep to --memory, the primary to its mapped files."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import Run, assert_refused, bramble, matrix, save, succeed, workers
from lacking import unless

MIB = 2**20


def peak_bytes(pid):
    """The largest resident set a live process ever had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no VmHWM")


@pytest.mark.parametrize("limit, m, k, n, dtype", [
    (512, 12288, 512, 12288, "f32"),  # C alone is 576 MiB: it takes several blocks.
    (128, 4096, 2048, 4096, "f64"),  # C alone is as large as the limit.
])
def test_a_worker_keeps_to_its_memory(tmp_path, limit, m, k, n, dtype):
    operands = f"random:{m}x{k}:{dtype}:1", f"random:{k}x{n}:{dtype}:2"
    with workers(1, "--threads", "2", "--memory", f"{limit}M") as (addresses, runs):
        succeed("multiply", *operands, "-o", tmp_path / "C.npy", "-w", addresses[0],
                "--strategy", "reuse")
        peak = peak_bytes(runs[0].process.pid)
    assert peak <= limit * MIB, f"{peak / MIB:.0f} MiB of {limit}"


def status(pid, field):
    """A number of /proc/PID/status, in that file's unit."""
    return int(Path(f"/proc/{pid}/status").read_text().split(f"\n{field}:")[1].split()[0])


def wait_until(is_so, what, deadline_s=30):
    end = time.monotonic() + deadline_s
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.01)


SMALL_TILES = "--tile", "40", "--panel", "100", "--kernel", "reference", "--strategy", "reuse"
"""Matrices of a few kilobytes, thousands of them, which lie with the C library's allocator."""


@unless("" if os.confstr("CS_GNU_LIBC_VERSION") else "what other C libraries keep is up to them", "glibc")
def test_a_worker_gives_back_what_a_lost_primary_made_it_take_while_others_go_on():
    with workers(1, "--threads", "1", "--memory", "400M") as (addresses, runs):
        pid = runs[0].process.pid
        begin = lambda *operands: Run("multiply", *operands, *SMALL_TILES, "-w", addresses[0], "--json")  # noqa: E731
        held_kib = lambda: status(pid, "RssAnon")  # noqa: E731
        first = begin("random:3000x1000:f64:1", "random:1000x3000:f64:2")
        try:
            wait_until(lambda: held_kib() > 40 << 10, "the worker never holds much of the first product")
            first.process.send_signal(signal.SIGSTOP)
            threads = status(pid, "Threads")
            # Its allocations lie above those of the first product on the heap.
            second = begin("random:420x2000:f64:1", "random:2000x440:f64:2")
            try:
                wait_until(lambda: status(pid, "Threads") > threads, "the second product never begins")
                second.process.send_signal(signal.SIGSTOP)
                first.process.kill()
                wait_until(lambda: held_kib() < 20 << 10, "the worker keeps memory of a primary that is gone", 5)
                second.process.send_signal(signal.SIGCONT)
                assert second.finish().code == 0
            finally:
                second.end()
        finally:
            first.end()


@pytest.fixture(scope="module")
def operands(tmp_path_factory):
    folder = tmp_path_factory.mktemp("operands")
    return [save(folder, f"{name}.npy", matrix(4096, 4096, "f64", seed)) for seed, name in enumerate("AB")]


@pytest.mark.parametrize("where", [["--local", "2", "--link", "tcp"], []], ids=["local 2", "in process"])
def test_the_primary_keeps_to_its_mapped_files(tmp_path, operands, where):
    # Not auto, which takes Strassen's method, with sums in memory, where it predicts the least gain.
    report = succeed("multiply", *operands, "-o", tmp_path / "C.npy", "--json", "--strategy", "reuse", *where).report
    mapped = sum(path.stat().st_size for path in [*operands, tmp_path / "C.npy"])
    if not where:  # The threads of the primary hold C until it is whole.
        mapped += (tmp_path / "C.npy").stat().st_size
    beyond = report["primary"]["rss_peak_bytes"] - mapped
    assert beyond <= 64 * MIB, f"{beyond / MIB:.0f} MiB beyond the mapped files"
    c = np.load(tmp_path / "C.npy", mmap_mode="r")
    a, b = (np.load(path, mmap_mode="r") for path in operands)
    x = np.ones(4096)
    np.testing.assert_allclose(c @ x, a @ (b @ x), atol=1e-8)


def test_strassens_sums_are_there_only_while_products_need_them(tmp_path, operands):
    """Two levels make sums of 2.75 times A, of 2.75 times B and products of 4.8 times C: never all at once."""
    report = succeed("multiply", *operands, "-o", tmp_path / "C.npy", "--json", "--strategy", "strassen:2").report
    c = (tmp_path / "C.npy").stat().st_size
    beyond = report["primary"]["rss_peak_bytes"] - sum(path.stat().st_size for path in operands) - 2 * c
    assert beyond <= 4 * c, f"{beyond / MIB:.0f} MiB beyond A, B and C, which has {c / MIB:.0f}"


def test_generated_operands_take_no_memory_of_the_primary(tmp_path):
    report = succeed("multiply", "random:4096x4096:f64:1", "random:4096x4096:f64:2", "-o",
                     tmp_path / "C.npy", "--json", "--local", 2, "--link", "tcp").report
    beyond = report["primary"]["rss_peak_bytes"] - (tmp_path / "C.npy").stat().st_size
    assert beyond <= 64 * MIB, f"{beyond / MIB:.0f} MiB beyond the mapped result"


def test_smaller_tiles_are_taken_where_the_usual_ones_do_not_fit(tmp_path):
    product = "random:3000x3000:f64:1", "random:3000x3000:f64:2"
    succeed("multiply", *product, "-o", tmp_path / "usual.npy", "--strategy", "reuse")
    done = succeed("multiply", *product, "-o", tmp_path / "small.npy", "--memory", "64M", "--json")
    assert done.report["grid"]["tile_rows"] < 256
    assert "do not fit the memory" in done.report["decision"], done.report["decision"]
    np.testing.assert_allclose(np.load(tmp_path / "small.npy"), np.load(tmp_path / "usual.npy"), rtol=1e-9, atol=1e-9)
    # An explicit --tile is kept.
    assert_refused(bramble("multiply", *product, "--memory", "64M", "--tile", "256"), 1, ["--tile", "--memory"])
