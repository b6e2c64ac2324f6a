"""`solve`, `lu` and `bench hpl`: against NumPy and SciPy, and with input that cannot be solved."""

import json
import os
import re
import signal
import subprocess
import time
import xml.etree.ElementTree

import numpy as np
import pytest
import scipy.linalg
from helpers import BRAMBLE, Run, assert_gone, assert_refused, bramble, cpu_seconds, matrix, save, succeed

UNIT = {"f32": 2.0**-24, "f64": 2.0**-53}


def backward_error(a, x, b):
    """The largest normwise backward error of a right-hand side."""
    a, x, b = (np.asarray(v, np.float64) for v in (a, x, b))
    x, b = x.reshape(len(a), -1), b.reshape(len(a), -1)
    scale = np.abs(a).sum(axis=1).max(initial=0) * np.abs(x).max(axis=0, initial=0) + np.abs(b).max(axis=0, initial=0)
    return (np.abs(b - a @ x).max(axis=0, initial=0) / np.where(scale > 0, scale, 1)).max(initial=0)


def solve(folder, a, b, *options):
    """Solves from files into a file; returns X and the report."""
    left, right, out = save(folder, "A.npy", a), save(folder, "b.npy", b), folder / "x.npy"
    result = succeed("solve", left, right, "-o", out, "--json", *options)
    return np.load(out), json.loads(result.out)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("n, width", [(1, None), (2, 1), (33, None), (100, 7), (500, None), (700, 300)])
def test_solutions_are_as_good_as_lapacks(tmp_path, dtype, n, width):
    a = matrix(n, n, dtype, 1)
    b = matrix(n, 1, dtype, 2)[:, 0] if width is None else matrix(n, width, dtype, 2)
    x, report = solve(tmp_path, a, b)
    # NumPy computes in f64 whatever the type is, SciPy in the type of the matrices as `solve` does.
    theirs = scipy.linalg.solve(a, b)
    assert x.shape == theirs.shape and x.dtype == theirs.dtype
    ours, lapacks = backward_error(a, x, b), backward_error(a, theirs, b)
    # Both round in their own order: twice LAPACK's error, or a few roundings.
    assert ours <= max(2 * lapacks, 4 * UNIT[dtype]), (ours, lapacks)
    assert report["backward_error"] == pytest.approx(ours, rel=0.5, abs=UNIT["f64"]) and report["tolerance"] >= ours
    assert (report["n"], report["right_hand_sides"], report["dtype"]) == (n, width or 1, dtype)


@pytest.mark.parametrize("threads", [1, 3])
def test_layouts_types_and_threads(tmp_path, threads):
    a, b = matrix(150, 150, "f64", 3), matrix(150, 4, "f64", 4)
    one, _ = solve(tmp_path, a, b, "--threads", 1, "--kernel", "simd")
    other, report = solve(tmp_path, np.asfortranarray(a), np.asfortranarray(b), "--threads", threads, "--kernel", "simd")
    assert np.array_equal(one, other) and report["threads"] == threads
    integers = np.round(a * 100).astype(np.int32)
    x, report = solve(tmp_path, integers, np.arange(150, dtype=np.int64), "--threads", threads)
    assert report["dtype"] == "f64" and backward_error(integers, x, np.arange(150)) < 1e-14
    x, report = solve(tmp_path, a, b[:, 0].astype(np.float32), "--threads", threads)
    assert x.dtype == np.float64 and x.shape == (150,)
    x, report = solve(tmp_path, a.astype(np.float32), b.astype(np.float32), "--dtype", "f64")
    assert x.dtype == np.float64 and backward_error(a.astype(np.float32), x, b.astype(np.float32)) < 1e-14


def test_standard_input_generators_and_nothing_to_solve(tmp_path):
    a = save(tmp_path, "A.npy", matrix(60, 60, "f64", 5))
    with open(a, "rb") as file:
        result = subprocess.run([BRAMBLE, "solve", "-", "random:60x1:f64:1"], stdin=file, capture_output=True, text=True)
    assert result.returncode == 0 and "verified  yes" in result.stdout, result
    assert "not kept (no -o)" in succeed("solve", "random:50x50:f64:1", "random:50x2:f64:2").out
    for empty in (np.zeros((0, 0)), np.zeros((0, 3))):
        x, _ = solve(tmp_path, np.zeros((0, 0)), empty)
        assert x.shape == empty.shape
    x, _ = solve(tmp_path, matrix(5, 5, "f64", 1), np.zeros((5, 0)))
    assert x.shape == (5, 0)
    assert succeed("solve", "identity:9:f64", "random:9x1:f64:1", "-q").out == ""


@pytest.mark.parametrize("kernel", ["reference", "simd", "openblas", "blis", "auto"])
@pytest.mark.parametrize("block", [1, 16, 1000])
def test_kernels_and_panels(tmp_path, kernel, block):
    a, b = matrix(200, 200, "f64", 6), matrix(200, 3, "f64", 7)
    x, report = solve(tmp_path, a, b, "--kernel", kernel, "--block", block)
    assert backward_error(a, x, b) < 1e-14 and report["block"] == block


def test_a_singular_matrix_is_named_with_its_column(tmp_path):
    a = matrix(80, 80, "f64", 8)
    a[:, 37] = 0
    left, b = save(tmp_path, "A.npy", a), save(tmp_path, "b.npy", np.ones(80))
    for options in ([], ["--json"], ["--refine"]):
        assert_refused(bramble("solve", left, b, "-o", tmp_path / "x.npy", *options), 1, ["singular", "column 37"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["A.npy", "b.npy"]
    a[:, 37] = 2 * a[:, 11]
    x, report = solve(tmp_path, a, a @ np.ones(80))
    assert report["weakest_column"] == 37 and report["condition"] > 1e15
    warned = succeed("solve", save(tmp_path, "A.npy", a), b)
    assert "nearly singular: column 37" in warned.err and "at least 0 of 15 digits" in warned.out


def test_the_condition_is_numpys_within_a_factor_of_three(tmp_path):
    for n, power in [(3, 2), (40, 6), (200, 9)]:
        u, _ = np.linalg.qr(matrix(n, n, "f64", 9))
        a = u @ np.diag(np.logspace(0, -power, n)) @ u.T
        _, report = solve(tmp_path, a, np.ones(n))
        exact = np.linalg.cond(a, 1)
        assert exact / 3 <= report["condition"] <= exact * 1.01, (report["condition"], exact)
    _, report = solve(tmp_path, a, np.ones(n), "--no-condition")
    assert report["condition"] is None


def test_refined_solutions_are_f64_and_say_so_when_they_cannot_be(tmp_path):
    a, b = matrix(400, 400, "f64", 10), matrix(400, 2, "f64", 11)
    x, report = solve(tmp_path, a, b, "--refine")
    assert report["refinement"]["converged"] and report["refinement"]["rounds"] >= 1 and report["dtype"] == "f64"
    assert x.dtype == np.float64 and backward_error(a, x, b) <= np.sqrt(400) * UNIT["f64"]
    x, report = solve(tmp_path, a * 1e200, b, "--refine")  # Beyond the range of f32.
    assert not report["refinement"]["converged"] and backward_error(a * 1e200, x, b) < 1e-13
    hilbert = scipy.linalg.hilbert(12)
    x, report = solve(tmp_path, hilbert, hilbert @ np.ones(12), "--refine")
    assert backward_error(hilbert, x, hilbert @ np.ones(12)) < 1e-14
    assert "refined   " in succeed("solve", save(tmp_path, "A.npy", a), save(tmp_path, "b.npy", b), "--refine").out


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("shape", [(1, 1), (60, 60), (90, 40), (40, 90), (1, 30), (30, 1), (400, 400)])
def test_factors_are_lapacks(tmp_path, dtype, shape):
    a = matrix(*shape, dtype, 12)
    succeed("lu", save(tmp_path, "A.npy", a), "-o", tmp_path / "LU.npy")
    lu, pivots = np.load(tmp_path / "LU.npy"), np.load(tmp_path / "LU.pivots.npy")
    theirs, their_pivots = scipy.linalg.lu_factor(a)
    assert np.array_equal(pivots, their_pivots) and pivots.dtype == np.int64 and lu.dtype == a.dtype
    short = min(shape)
    lower, upper = np.tril(lu[:, :short], -1) + np.eye(shape[0], short), np.triu(lu[:short])
    rows = a.astype(np.float64)
    for i, p in enumerate(pivots):
        rows[[i, p]] = rows[[p, i]]
    bound = 4 * short * UNIT[dtype] * (np.abs(lower).astype(np.float64) @ np.abs(upper))
    assert (np.abs(lower.astype(np.float64) @ upper - rows) <= bound + UNIT[dtype]).all()
    if shape[0] == shape[1]:
        b = matrix(shape[0], 2, dtype, 13)
        assert backward_error(a, scipy.linalg.lu_solve((lu, pivots), b), b) < 100 * shape[0] * UNIT[dtype]


def test_factors_of_a_singular_matrix_come_with_a_warning(tmp_path):
    a = matrix(50, 50, "f64", 14)
    a[:, 20] = 0
    result = succeed("lu", save(tmp_path, "A.npy", a), "-o", tmp_path / "LU.npy", "--json")
    assert "singular: column 20" in result.err and json.loads(result.out)["singular_column"] == 20
    assert np.load(tmp_path / "LU.npy")[20, 20] == 0


@pytest.mark.parametrize("words, codes, culprits", [
    pytest.param(["A.npy", "wide.npy"], 1, ["A.npy is 30x30", "wide.npy is 2x30", "transpose it"], id="B in rows"),
    pytest.param(["wide.npy", "b.npy"], 1, ["wide.npy is 2x30", "as many rows as columns"], id="not square"),
    pytest.param(["A.npy", "missing.npy"], 1, ["missing.npy"], id="missing file"),
    pytest.param(["nan.npy", "b.npy"], 1, ["nan.npy", "row 3, column 17", "NaN"], id="NaN in A"),
    pytest.param(["A.npy", "inf.npy"], 1, ["inf.npy", "row 5, column 0", "inf"], id="infinity in B"),
    pytest.param(["A.npy", "b.npy", "--kernel", "strassen"], 2, ["--kernel strassen", "auto"], id="Strassen"),
    pytest.param(["A.npy", "b.npy", "--dtype", "i32"], 2, ["--dtype i32", "f32 or f64"], id="integers"),
    pytest.param(["A.npy", "b.npy", "--threads", "0"], 2, ["--threads"], id="no threads"),
    pytest.param(["A.npy", "b.npy", "--block", "0"], 2, ["--block"], id="no columns"),
    pytest.param(["f32.npy", "f32.npy", "--refine"], 2, ["--refine", "f64"], id="refinement of f32"),
    pytest.param(["random:9000x9000:f64:1", "random:9000x1:f64:1", "--memory", "500M"], 1,
                 ["9000x9000 f64", "--memory allows 524.29 MB"], id="too little memory"),
    pytest.param(["random:9000000x9000000:f64:1", "random:9000000x1:f64:1"], 1, ["takes", "has free"], id="far too large"),
    pytest.param(["A.npy", "b.npy", "-o", "none/x.npy"], 1, ["-o", "no folder none"], id="no folder"),
    pytest.param(["-", "-"], 2, ["one matrix"], id="standard input twice"),
    pytest.param(["A.npy", "b.npy", "-w", "nosuchpi.invalid"], 5, ["nosuchpi.invalid", "no such machine"], id="workers"),
])
def test_refused(tmp_path, words, codes, culprits):
    a = matrix(30, 30, "f64", 15)
    save(tmp_path, "A.npy", a), save(tmp_path, "b.npy", np.ones(30)), save(tmp_path, "wide.npy", np.ones((2, 30)))
    save(tmp_path, "f32.npy", a.astype(np.float32))
    a[3, 17] = np.nan
    infinite = np.ones(30)
    infinite[5] = np.inf
    save(tmp_path, "nan.npy", a), save(tmp_path, "inf.npy", infinite)
    before = sorted(tmp_path.iterdir())
    if "-o" not in words:
        words = [*words, "-o", "x.npy"]
    assert_refused(bramble("solve", *words, cwd=tmp_path), codes, culprits)
    assert sorted(tmp_path.iterdir()) == before


WRONG_BLAS = """
/* cblas_sgemm and cblas_dgemm by their definition; in large products one element is off. */
#define GEMM(name, T) \\
void name(int order, int ta, int tb, int m, int n, int k, T alpha, const T *a, int lda, const T *b, int ldb, T beta, T *c, \\
          int ldc) { \\
    for (int i = 0; i < m; i++) for (int j = 0; j < n; j++) { \\
        T sum = 0; \\
        for (int p = 0; p < k; p++) sum += (ta == 111 ? a[(long)i * lda + p] : a[(long)p * lda + i]) * \\
                                           (tb == 111 ? b[(long)p * ldb + j] : b[(long)j * ldb + p]); \\
        T *at = c + (long)i * ldc + j; \\
        *at = alpha * sum + (beta == 0 ? 0 : beta * *at); \\
        if (m * n * k > 20000 && i == m / 2 && j == n / 2) *at += (T)0.01; \\
    } \\
}
GEMM(cblas_sgemm, float)
GEMM(cblas_dgemm, double)
void openblas_set_num_threads(int n) { (void)n; }
int openblas_get_parallel(void) { return 1; }
"""


def test_a_kernel_that_computes_wrongly_is_found_and_nothing_is_kept(tmp_path):
    source, library = tmp_path / "wrong.c", tmp_path / "libwrong.so"
    source.write_text(WRONG_BLAS)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    a, b = save(tmp_path, "A.npy", matrix(200, 200, "f64", 16)), save(tmp_path, "b.npy", np.ones(200))
    env = {"BRAMBLE_OPENBLAS": str(library)}
    for words in (["solve", a, b, "-o", tmp_path / "x.npy"], ["lu", a, "-o", tmp_path / "x.npy"]):
        assert_refused(bramble(*words, "--kernel", "openblas", env=env), 4, ["accepted", "kept"])
    assert not list(tmp_path.glob("x*"))
    # Corrections repair what wrong f32 factors have spoiled.
    succeed("solve", a, b, "-o", tmp_path / "x.npy", "--refine", "--kernel", "openblas", env=env)
    assert backward_error(np.load(a), np.load(tmp_path / "x.npy"), np.ones(200)) < 1e-14
    result = bramble("bench", "hpl", "--size", 300, "--kernel", "openblas", "--json", env=env)
    assert result.code == 4 and json.loads(result.out)["passed"] is False, result


def test_ctrl_c_ends_a_factorisation_and_leaves_no_file(tmp_path):
    run = Run("lu", "random:12000x12000:f64:1", "-o", tmp_path / "LU.npy")
    end = time.monotonic() + 20
    while cpu_seconds(run.process.pid) < 1:
        assert run.process.poll() is None and time.monotonic() < end, run.finish()
        time.sleep(0.02)
    os.kill(run.process.pid, signal.SIGINT)
    begun = time.monotonic()
    result = run.finish(deadline_s=10)
    assert result.code == 130 and time.monotonic() - begun < 4, result
    assert_gone(run.tag)
    assert not list(tmp_path.iterdir())


def hpl(*options):
    return [json.loads(line) for line in succeed("bench", "hpl", "--json", *options).out.splitlines()]


def test_the_system_and_the_norms_are_hpls():
    [report] = hpl("--size", 6000)
    # As hpcc 1.5.0 prints them for this order.
    norms = {name: f"{value:.6g}" for name, value in report["norms"].items()}
    assert (norms["a_inf"], norms["a_one"], norms["b_inf"]) == ("1540.18", "1543.56", "0.499944")
    assert norms["x_inf"] == "5.17353" and report["passed"] is True and 0 < report["residual"] < 16
    n, seconds = report["n"], report["seconds"]
    assert report["gflops"] == pytest.approx((2 / 3 * n**3 + 3 / 2 * n**2) / seconds / 1e9)
    assert report["predicted"]["seconds"] >= report["bound"]["seconds"] > 0
    assert report["start"] <= report["end"] and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", report["start"])


def test_readers_of_hpls_output_understand_the_text():
    text = succeed("bench", "hpl", "--size", "300,200", "--nb", "32,64").out
    results = re.findall(r"^W[CR]\S+\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s+([\d.]+)\s+(\d\.\d{4}e[+-]\d\d)$", text, re.MULTILINE)
    assert [result[:4] for result in results] == [(n, nb, "1", "1") for n in ("300", "200") for nb in ("32", "64")]
    residuals = re.findall(r"^\|\|Ax-b\|\|_oo/\(eps\*\(\|\|A\|\|_oo\*\|\|x\|\|_oo\+\|\|b\|\|_oo\)\*N\)=\s+(\S+) \.+ (\w+)$", text, re.M)
    assert len(residuals) == 4 and all(float(value) < 16 and word == "PASSED" for value, word in residuals)
    assert text.count("HPL_pdgesv() start time ") == 4 and "2 tests completed and passed residual checks" in text


def test_sweeps_threads_and_memory(tmp_path):
    reports = hpl("--size", "200", "--nb", "16,32", "--threads", "1,2", "--rounds", 3, "--plot", tmp_path / "nb.svg")
    assert [(r["threads"], r["nb"], r["rounds"]) for r in reports] == [(1, 16, 3), (1, 32, 3), (2, 16, 3), (2, 32, 3)]
    assert xml.etree.ElementTree.parse(tmp_path / "nb.svg").getroot().tag.endswith("svg")
    result = succeed("bench", "hpl", "--memory", "20M", "--json")
    [report] = [json.loads(line) for line in result.out.splitlines()]
    assert 1000 < report["n"] < 1620 and report["n"] % report["nb"] == 0 and f"N = {report['n']}" in result.err
    assert_refused(bramble("bench", "hpl", "--size", 20_000, "--memory", "1G"), 1, ["--size 20000", "at most"])
    assert_refused(bramble("bench", "hpl", "--size", 100, "--kernel", "strassen"), 2, ["--kernel strassen", "rules"])
