"""Nobody takes more memory than was said: workers keep to --memory, the primary to its mapped files."""

from pathlib import Path

import numpy as np
import pytest
from helpers import matrix, save, succeed, workers

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


@pytest.fixture(scope="module")
def operands(tmp_path_factory):
    folder = tmp_path_factory.mktemp("operands")
    return [save(folder, f"{name}.npy", matrix(4096, 4096, "f64", seed)) for seed, name in enumerate("AB")]


@pytest.mark.parametrize("where", [["--local", "2", "--link", "tcp"], []], ids=["local 2", "in process"])
def test_the_primary_keeps_to_its_mapped_files(tmp_path, operands, where):
    report = succeed("multiply", *operands, "-o", tmp_path / "C.npy", "--json", *where).report
    mapped = sum(path.stat().st_size for path in [*operands, tmp_path / "C.npy"])
    if not where:  # The threads of the primary hold C until it is whole.
        mapped += (tmp_path / "C.npy").stat().st_size
    beyond = report["primary"]["rss_peak_bytes"] - mapped
    assert beyond <= 64 * MIB, f"{beyond / MIB:.0f} MiB beyond the mapped files"
    c = np.load(tmp_path / "C.npy", mmap_mode="r")
    a, b = (np.load(path, mmap_mode="r") for path in operands)
    x = np.ones(4096)
    np.testing.assert_allclose(c @ x, a @ (b @ x), atol=1e-8)


def test_generated_operands_take_no_memory_of_the_primary(tmp_path):
    report = succeed("multiply", "random:4096x4096:f64:1", "random:4096x4096:f64:2", "-o",
                     tmp_path / "C.npy", "--json", "--local", 2, "--link", "tcp").report
    beyond = report["primary"]["rss_peak_bytes"] - (tmp_path / "C.npy").stat().st_size
    assert beyond <= 64 * MIB, f"{beyond / MIB:.0f} MiB beyond the mapped result"
