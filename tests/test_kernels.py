"""Kernels over other kernels (blocked, strassen): products, checks, bits, refusals; and `bramble bench`."""

import json
import xml.etree.ElementTree as xml

import numpy as np
import pytest
from helpers import DTYPES, bramble, matrix, save, succeed, workers

WAYS = {"in process": [], "local 2": ["--local", "2"]}
TILES = ["--tile", "256", "--panel", "256"]
STRASSEN = ["--kernel", "strassen:simd:32"]


def product(folder, a, b, *options, verify="full"):
    """The report and C."""
    left, right = save(folder, "A.npy", a), save(folder, "B.npy", b)
    options = ["-o", folder / "C.npy", "--verify", verify, "--json", *options]
    return succeed("multiply", left, right, *options).report, np.load(folder / "C.npy")


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_strassen_multiplies_tiles_of_any_size(tmp_path, dtype, way):
    a, b = matrix(515, 700, dtype, 1), matrix(700, 389, dtype, 2)
    report, c = product(tmp_path, a, b, *STRASSEN, *TILES, *way)
    assert report["kernel"] == "strassen:simd:32" and report["verify"]["passed"] is True
    if dtype.startswith("i"):
        assert np.array_equal(c, a @ b)
        return
    assert "3 level(s) of Strassen–Winograd inside tiles" in report["verify"]["method"]
    error = np.abs(c - a.astype(np.float64) @ b.astype(np.float64)).max()
    # 18^L n0^2 u |A| |B| for each of three steps.
    bound = 3 * 18**3 * 38**2 * np.finfo(dtype.replace("f", "float")).eps * np.abs(a).max() * np.abs(b).max()
    assert error < bound


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_no_right_product_of_scaled_rows_is_refused(tmp_path, way):
    scales = 2.0 ** np.random.default_rng(3).integers(-20, 20, 400)
    a, b = matrix(400, 512, "f32", 1) * scales[:, None].astype(np.float32), matrix(512, 300, "f32", 2)
    report, _ = product(tmp_path, a, b, *STRASSEN, *TILES, *way)
    assert report["verify"]["passed"] is True


def test_bits_are_those_of_tiles_whoever_computes_them(tmp_path):
    a, b = matrix(600, 800, "f32", 1), matrix(800, 500, "f32", 2)
    ways = [[], ["--threads", 1], ["--local", 3], ["--local", 2, "--strategy", "row:3"],
            ["--local", 2, "--strategy", "cuboid:1x1x2"]]
    runs = [product(tmp_path, a, b, *STRASSEN, *TILES, "--reproducible", *way)[0] for way in ways]
    assert len({run["digest"] for run in runs}) == 1
    simd = product(tmp_path, a, b, *TILES, "--reproducible")[0]
    assert simd["kernel"].startswith("simd") and simd["digest"] != runs[0]["digest"]


def test_blocks_have_the_bits_of_what_multiplies_them(tmp_path):
    a, b = matrix(300, 1100, "f64", 1), matrix(1100, 200, "f64", 2)
    digests = {product(tmp_path, a, b, "--kernel", kernel, "--panel", 1100)[0]["digest"]
               for kernel in ("simd", "blocked", "blocked:simd:512")}
    assert len(digests) == 1


def test_a_worker_with_a_kernel_of_its_own_is_reckoned_with(tmp_path):
    scales = 2.0 ** np.random.default_rng(3).integers(-20, 20, 400)
    a, b = matrix(400, 512, "f32", 1) * scales[:, None].astype(np.float32), matrix(512, 300, "f32", 2)
    with workers(1, "--threads", 1, *STRASSEN) as (addresses, _):
        there = ["-w", ",".join(addresses), "--strategy", "reuse", *TILES]
        report, _ = product(tmp_path, a, b, "--kernel", "simd", *there)
        assert report["verify"]["passed"] is True and "inside tiles" in report["verify"]["method"]
        left, right = tmp_path / "A.npy", tmp_path / "B.npy"
        for option in (["--elementwise"], ["--strategy", "strassen:1"]):
            words = ["multiply", left, right, "-w", ",".join(addresses), "--kernel", "simd", *TILES, *option]
            refused = bramble(*words)
            assert refused.code == 1 and "strassen:simd:32" in refused.err and option[0] in refused.err, refused


@pytest.mark.parametrize("options, words", [
    (["--kernel", "strassen", "--elementwise"], ["--elementwise", "norms"]),
    (["--kernel", "strassen", "--strategy", "strassen:1"], ["strassen:1", "one of both"]),
    (["--kernel", "strassen:fast"], ["fast", "simd"]),
    (["--kernel", "strassen:simd:0"], ["CUTOFF", "1 to"]),
    (["--kernel", "blocked:simd:x"], ["EDGE", "'x'"]),
])
@pytest.mark.parametrize("verb", ["multiply", "plan"])
def test_what_cannot_be_had_is_said(tmp_path, verb, options, words):
    a = save(tmp_path, "A.npy", matrix(20, 20, "f64", 1))
    refused = bramble(verb, a, a, *options)
    assert refused.code == 2 and refused.err.count("\n") == 1, refused
    assert all(word in refused.err for word in words), refused


def test_integers_may_have_all_of_it(tmp_path):
    a, b = matrix(512, 512, "i32", 1), matrix(512, 512, "i32", 2)
    report, c = product(tmp_path, a, b, *STRASSEN, *TILES, "--elementwise", "--strategy", "strassen:1", "--local", 1)
    assert np.array_equal(c, a @ b) and report["strategy"].startswith("strassen:1")


POINT = {"kernel", "dtype", "m", "k", "n", "threads", "rounds", "seconds", "seconds_min", "seconds_max", "cpu_seconds",
         "gflops", "peak_gflops", "of_peak", "error_of_bound", "workspace_bytes", "outliers"}

MACHINE = {"schema", "host", "board", "cpu", "architecture", "cores", "memory_bytes", "system", "bramble"}


def test_bench_kernel_says_the_same_in_every_form(tmp_path):
    words = ["bench", "kernel", "--size", "64,96x32x80", "--kernel", "simd,strassen:simd:16", "--dtype", "f64,i32",
             "--threads", "1,2", "--rounds", "2"]
    printed = succeed(*words, "--json", "--plot", tmp_path / "rates.svg").out.splitlines()
    machine, *lines = [json.loads(line) for line in printed]
    assert machine["schema"] == "bramble.machine/1" and set(machine) == MACHINE
    assert machine["host"] and machine["cores"] > 0 and machine["memory_bytes"] > 0
    assert len(lines) == 2 * 2 * 2 * 2
    for line in lines:
        assert line.pop("schema") == "bramble.bench.kernel/1" and set(line) == POINT
        assert line["seconds_min"] <= line["seconds"] <= line["seconds_max"] and line["rounds"] == 2
        assert line["error_of_bound"] == 0 if line["dtype"] == "i32" else 0 < line["error_of_bound"] < 1
        assert (line["workspace_bytes"] > 0) == line["kernel"].startswith("strassen")
    drawn = xml.parse(tmp_path / "rates.svg").getroot()
    assert len(drawn.findall(".//{*}polyline")) == 2 * 2 * 2 and len(drawn.findall(".//{*}circle")) == len(lines)
    head, *rows = succeed(*words, "--csv").out.splitlines()
    assert set(head.split(",")) == POINT and len(rows) == len(lines)
    table = succeed(*words).out
    assert "96x32x80" in table and "of peak" in table and "exact" in table


def test_bench_threads_sets_several_beside_one():
    words = ["bench", "threads", "--size", "100,200", "--kernel", "simd,blocked:reference", "--threads", "2", "--rounds", "1"]
    lines = succeed(*words).out.splitlines()
    assert "1 thread" in lines[0] and "2 threads" in lines[0] and "times as fast" in lines[0]
    assert len(lines) == 1 + 2 * 2


def test_bench_refuses_what_does_not_fit():
    for words, said in [(["--size", "131072"], "MiB"), (["--size", "0"], "MxKxN"), (["--kernel", "openblas", "--dtype", "i32"], "i32")]:
        refused = bramble("bench", "kernel", *words)
        assert refused.code in (1, 2) and said in refused.err and not refused.out, refused
