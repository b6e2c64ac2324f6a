"""Numbers near the limits of their type, factors that the type cannot hold, operands of several types, and files that change."""

import ctypes.util
import os
import signal
import time
from contextlib import contextmanager

import numpy as np
import pytest
from bramble import Cluster
from helpers import (DTYPES, Run, assert_gone, assert_nothing_written, assert_product, assert_refused, bramble, cpu_seconds, matrix, multiply,
                     processes_of, save, succeed, workers)

FAILED, USAGE = 1, 2

WHERE = {"in process": [], "local 2": ["--local", "2"]}
KERNELS = ["reference", "simd", "blocked:simd:64", "strassen:simd:8",
           *(name for name in ("openblas", "blis") if ctypes.util.find_library(name))]


@pytest.fixture(params=WHERE.values(), ids=WHERE)
def where(request):
    return request.param


# Strassen's method, where its sums overflow and C does not.

LEVELS = {
    "strategy": ["--strategy", "strassen:1"],
    "two levels over summa": ["--strategy", "strassen:2+summa:1x2", "--tile", "16", "--panel", "16"],
    "kernel": ["--kernel", "strassen:simd:8"],
    "kernel in small tiles": ["--kernel", "strassen:simd:8", "--tile", "32", "--panel", "16"],
}


def nearly_overflowing(dtype, n=64):
    """Two elements whose sum overflows, multiplied by zeros only: C is small."""
    large = {"f32": 2e38, "f64": 1e308}[dtype]
    a, b = matrix(n, n, dtype, 1), matrix(n, n, dtype, 2)
    a[40, 3] = a[40, 35] = large
    b[[3, 35]] = 0
    return a, b


def assert_small_product(c, a, b, alpha=1, beta=0, old=None):
    """Like `assert_product`, without the large elements, which are multiplied by zeros only."""
    assert np.isfinite(c).all(), f"{np.count_nonzero(~np.isfinite(c))} elements are not finite"
    assert_product(c, np.where(np.abs(a) > 1e30, 0, a), b, alpha, beta, old)


@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_strassen_does_not_overflow_where_c_does_not(tmp_path, where, dtype, levels):
    a, b = nearly_overflowing(dtype)
    left, right = save(tmp_path, "A.npy", a), save(tmp_path, "B.npy", b)
    for swapped in (False, True):
        # The large elements in A, or in B.
        order = ["--transpose-a", "--transpose-b", right, left] if swapped else [left, right]
        result = succeed("multiply", *order, "-o", tmp_path / "C.npy", *levels, *where, "--verify", "full", "--json")
        c = np.load(tmp_path / "C.npy")
        assert_small_product(c.T if swapped else c, a, b)
        report = result.report
        asked = levels[1].split("+")[0]
        assert asked in report["instead"] and f"overflow {dtype}" in report["instead"], report["instead"]
        assert report["instead"] in report["decision"]
        assert not report["strategy"].startswith("strassen") and "strassen" not in report["kernel"], report


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_nor_on_an_open_cluster(tmp_path, dtype):
    """Batches and Python."""
    a, b = nearly_overflowing(dtype)
    save(tmp_path, "A.npy", a), save(tmp_path, "B.npy", b)
    (tmp_path / "tasks.txt").write_text("C.npy = A.npy @ B.npy\n")
    report = succeed("batch", "tasks.txt", "--local", 2, "--strategy", "strassen:1", "--json", cwd=tmp_path).report["product"]
    assert_small_product(np.load(tmp_path / "C.npy"), a, b)
    with Cluster(local=2, strategy="strassen:1") as c:
        assert_small_product(c.matmul(a, b), a, b)
        for found in (report, c.last_report["product"]):
            assert "strassen:1" in found["instead"] and f"overflow {dtype}" in found["instead"]
        assert f"overflow {dtype}" in c.plan(a, b)["decision"]


@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
def test_the_report_says_what_was_done_instead_of_strassen(tmp_path, levels):
    a, b = nearly_overflowing("f32")
    result = succeed("multiply", save(tmp_path, "A.npy", a), save(tmp_path, "B.npy", b), "-o", tmp_path / "C.npy", *levels)
    lines = [line for line in result.out.splitlines() if line.startswith("instead ")]
    assert len(lines) == 1 and "overflow f32" in lines[0] and "2.0e38 in A" in lines[0], result


@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
def test_strassen_with_factors_and_an_old_c_near_the_limit(tmp_path, where, levels):
    a, b, old = matrix(64, 64, "f32", 1), matrix(64, 64, "f32", 2), matrix(64, 64, "f32", 3)
    old *= np.float32(1.5e38)
    save(tmp_path, "C.npy", old)
    c = multiply(tmp_path, a, b, "--alpha", "0.5", "--beta", "1.25", *levels, *where)
    assert np.isfinite(c).all()
    assert_product(c, a, b, 0.5, 1.25, old.astype(np.float64))
    # Here it is alpha that makes sums of products too large.
    a[:, 1:], b[1:] = 0, 0
    large = multiply(tmp_path, a, b, "--alpha", "1e38", *levels, *where, "--verify", "full")
    assert np.isfinite(large).all()
    assert_product(large, a, b, 1e38)


@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
@pytest.mark.parametrize("what", ["A", "B", "old C"])
def test_strassen_spreads_no_nan(tmp_path, where, levels, what):
    a, b, old = matrix(64, 64, "f64", 1), matrix(64, 64, "f64", 2), matrix(64, 64, "f64", 3)
    {"A": a, "B": b, "old C": old}[what][7, 9] = np.nan
    save(tmp_path, "C.npy", old)
    c = multiply(tmp_path, a, b, "--beta", "1", *levels, *where)
    np.testing.assert_array_equal(np.isnan(c), np.isnan(a @ b + old))


@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
def test_strassen_is_still_done_where_numbers_allow_it(tmp_path, where, levels):
    a, b = matrix(64, 64, "f32", 1) * np.float32(1e15), matrix(64, 64, "f32", 2)
    left, right = save(tmp_path, "A.npy", a), save(tmp_path, "B.npy", b)
    report = succeed("multiply", left, right, *levels, *where, "--json").report
    assert report["instead"] is None
    assert "strassen" in report["strategy"] + report["kernel"], report


def test_a_worker_that_has_no_other_kernel_is_refused_where_it_would_overflow(tmp_path):
    a, b = nearly_overflowing("f32")
    left, right = save(tmp_path, "A.npy", a), save(tmp_path, "B.npy", b)
    fine = save(tmp_path, "fine.npy", matrix(64, 64, "f32", 1))
    with workers(1, "--kernel", "strassen:simd:8", "--insecure") as (addresses, _):
        there = "--workers", addresses[0], "--insecure", "-o", tmp_path / "C.npy"
        result = bramble("multiply", left, right, *there)
        assert result.code == FAILED, result
        for culprit in (addresses[0], "strassen:simd:8", "overflow f32", "--kernel"):
            assert culprit in result.err.splitlines()[-1], result
        assert_nothing_written(tmp_path)
        succeed("multiply", fine, fine, *there)


def test_resume_of_a_run_whose_strategy_was_not_taken(tmp_path):
    a, b = nearly_overflowing("f32", 256)
    left, right = save(tmp_path, "A.npy", a), save(tmp_path, "B.npy", b)
    product = ("multiply", left, right, "-o", tmp_path / "C.npy", "--strategy", "strassen:1", "--tile", "32", "--local", "2")
    ended = bramble(*product, env={"BRAMBLE_JOURNAL_MS": "1", "BRAMBLE_DIE_AT": "5"})
    assert ended.code == 137, ended
    result = succeed(*product, "--resume", "--json")
    assert "strassen:1" in result.report["instead"]
    assert_small_product(np.load(tmp_path / "C.npy"), a, b)


# Factors.

@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", [(70, 90, 80), (1, 100, 64), (64, 100, 1), (600, 600, 530)], ids=str)
def test_factors_outside_the_range_of_f32(tmp_path, where, kernel, shape):
    m, k, n = shape
    a, b, old = matrix(m, k, "f32", 1), matrix(k, n, "f32", 2), matrix(m, n, "f32", 3)
    for alpha, beta, size, old_size in [("1e-46", "0", 1e15, 1), ("-3e-41", "2", 1e15, 1e-12), ("1e39", "-1", 1e-18, 1e3),
                                        ("1", "1e-46", 1, 1e38), ("1e-46", "1e40", 1e15, 1e-37)]:
        big, other, was = a * np.float32(size), b * np.float32(size), old * np.float32(old_size)
        save(tmp_path, "C.npy", was)
        options = [f"--alpha={alpha}", f"--beta={beta}", "--kernel", kernel, "--tile", "256", "--panel", "128", *where]
        c = multiply(tmp_path, big, other, *options)
        assert c.dtype == np.float32
        assert_product(c, big, other, float(alpha), float(beta), was.astype(np.float64))
        assert np.abs(c).max() > 0


@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
def test_factors_outside_the_range_beside_strassen(tmp_path, where, levels):
    a, b = matrix(64, 64, "f32", 1) * np.float32(1e15), matrix(64, 64, "f32", 2) * np.float32(1e15)
    assert_product(multiply(tmp_path, a, b, "--alpha", "1e-46", *levels, *where), a, b, 1e-46)


@pytest.mark.parametrize("text, culprit", [("1e400", "1e400"), ("-1e309", "-1e309"), ("1e-400", "1e-400"), ("inf", "inf")])
@pytest.mark.parametrize("option", ["--alpha", "--beta"])
def test_a_factor_that_f64_cannot_hold_is_quoted(tmp_path, option, text, culprit):
    a = save(tmp_path, "C.npy", matrix(4, 4, "f32"))
    before = a.read_bytes()
    result = bramble("multiply", a, a, f"{option}={text}", "-o", a)
    assert_refused(result, USAGE, [culprit, option])
    assert a.read_bytes() == before


def test_beta_alone_outside_the_range(tmp_path):
    old = matrix(30, 20, "f32", 1) * np.float32(1e38)
    save(tmp_path, "C.npy", old)
    c = multiply(tmp_path, matrix(30, 5, "f32"), matrix(5, 20, "f32"), "--alpha", "0", "--beta", "1e-46")
    np.testing.assert_array_equal(c, (old.astype(np.float64) * 1e-46).astype(np.float32))
    assert np.abs(c).max() > 1e-9


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", [(1, 100, 1), (1, 100, 64), (300, 100, 1), (300, 100, 40)], ids=str)
def test_alpha_does_not_meet_the_operands_before_the_product(tmp_path, where, kernel, shape):
    m, k, n = shape
    options = "--kernel", kernel, *where
    for a, b in [(1e20, 0), (0, 1e20)]:
        a, b = np.full((m, k), a, np.float32), np.full((k, n), b, np.float32)
        assert not multiply(tmp_path, a, b, "--alpha", "1e30", *options).any()
        save(tmp_path, "C.npy", np.ones((m, n), np.float32))
        assert (multiply(tmp_path, a, b, "--alpha", "1e30", "--beta", "1", *options) == 1).all()
    a, b = np.full((m, k), 1e-30, np.float32), np.full((k, n), 1e30, np.float32)
    assert_product(multiply(tmp_path, a, b, "--alpha", "1e-20", *options), a, b, 1e-20)


# Types.

@pytest.mark.parametrize("left", ["f32", "f64", "i32", "i64", "u1", "i1", "i2", "u2", "u4", "f2"])
@pytest.mark.parametrize("right", DTYPES)
def test_operands_of_two_types_are_multiplied_as_numpy_does(tmp_path, left, right):
    a, b = matrix(20, 30, left, 1), matrix(30, 10, right, 2)
    want = np.result_type(a.dtype, b.dtype)
    for swapped in (False, True):
        c = multiply(tmp_path, *((b.T, a.T) if swapped else (a, b)))
        assert c.dtype == want, (left, right)
        one, two = a.astype(want), b.astype(want)
        assert_product(c.T if swapped else c, one, two)


def test_two_types_are_told(tmp_path):
    a, b = save(tmp_path, "A.npy", matrix(4, 4, "f32")), save(tmp_path, "B.npy", matrix(4, 4, "f64"))
    result = succeed("multiply", a, b)
    assert "A.npy is f32 and" in result.err and "B.npy is f64: multiplied as f64" in result.err, result
    assert succeed("multiply", a, b, "--quiet").err == ""
    assert succeed("multiply", a, b, "--dtype", "f32", "--json").report["dtype"] == "f32"
    assert succeed("plan", a, b, "--json").report["dtype"] == "f64"


def test_an_old_c_of_a_wider_type_keeps_it(tmp_path, where):
    a, b = matrix(40, 30, "f32", 1), matrix(30, 20, "f32", 2)
    old = matrix(40, 20, "f64", 3) * 1e300
    save(tmp_path, "C.npy", old)
    c = multiply(tmp_path, a, b, "--beta", "1", *where)
    assert c.dtype == np.float64
    assert_product(c, a.astype(np.float64), b.astype(np.float64), 1, 1, old)


@pytest.mark.parametrize("operands, old, wanted, names", [
    ("f32", "f64", "f32", ["--dtype f32", "--dtype f64"]),
    ("f64", "f64", "f32", ["--dtype f32"]),
    ("f32", "i64", None, ["--dtype f64", "i64"]),
    ("i32", "i64", "i32", ["--dtype i32", "--dtype i64"]),
    ("f32", "i32", "f32", ["--dtype f32", "--dtype f64"]),
], ids=str)
def test_an_old_c_is_not_narrowed(tmp_path, operands, old, wanted, names):
    a, b = save(tmp_path, "A.npy", matrix(9, 8, operands)), save(tmp_path, "B.npy", matrix(8, 7, operands))
    target = save(tmp_path, "C.npy", matrix(9, 7, old))
    before = target.read_bytes()
    dtype = ["--dtype", wanted] if wanted else []
    result = bramble("multiply", a, b, "--beta", "1", "-o", target, *dtype)
    assert_refused(result, (FAILED, USAGE), ["C.npy", *names])
    assert target.read_bytes() == before and not (tmp_path / "C.npy.part").exists()


@pytest.mark.parametrize("operands, old, wanted", [("f64", "f32", "f64"), ("i64", "i32", "i64"), ("i32", "f64", "f64")], ids=str)
def test_an_old_c_of_another_type_is_promoted(tmp_path, operands, old, wanted):
    a, b, was = matrix(9, 8, operands, 1), matrix(8, 7, operands, 2), matrix(9, 7, old, 3)
    save(tmp_path, "C.npy", was)
    c = multiply(tmp_path, a, b, "--beta", "1")
    kind = DTYPES[wanted]
    assert c.dtype == kind
    assert_product(c, a.astype(kind), b.astype(kind), 1, 1, was.astype(kind))


# Files that change.

SLOW = "--kernel", "reference", "--tile", "64", "--strategy", "reuse"
SIDE = 1200
"""Some seconds of processor time with that kernel."""


def aged(path):
    """Sets the file's time back: the clock of files is coarse."""
    os.utime(path, (time.time() - 1000, time.time() - 1000))
    return path


@contextmanager
def halted(run, seconds=0.8):
    """Stops the whole run once it has used this much processor time."""
    end = time.monotonic() + 50
    while sum(map(cpu_seconds, processes_of(run.tag))) < seconds:
        assert run.process.poll() is None and time.monotonic() < end, "it does not compute"
        time.sleep(0.01)
    pids = processes_of(run.tag)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    assert run.process.poll() is None, "it was over too early: make it longer"
    yield
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def in_place(path, array):
    with open(path, "r+b") as file:
        file.seek(128)
        file.write(array.tobytes())


def by_memmap(path, array):
    np.load(path, mmap_mode="r+")[:] = array


def set_back(path, array):
    status = os.stat(path)
    in_place(path, array)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def has_clock_for_maps(folder):
    """Whether the filesystem notes that a file was written to through a map."""
    path = aged(save(folder, "probe.npy", np.zeros((64, 64))))
    before = os.stat(path).st_mtime_ns
    by_memmap(path, np.ones((64, 64)))
    after = os.stat(path).st_mtime_ns
    path.unlink()
    return after != before


@pytest.mark.parametrize("change", [in_place, by_memmap, set_back], ids=lambda change: change.__name__)
@pytest.mark.parametrize("team", [[], ["--local", "2"]], ids=["in process", "local 2"])
@pytest.mark.parametrize("which", ["A.npy", "B.npy"])
def test_a_file_that_changes_is_named_and_nobody_is_accused(tmp_path, change, team, which):
    if change is by_memmap and not has_clock_for_maps(tmp_path):
        pytest.skip("this filesystem does not note writes through maps")
    a, b = matrix(SIDE, SIDE, "f32", 1), matrix(SIDE, SIDE, "f32", 2)
    left, right = aged(save(tmp_path, "A.npy", a)), aged(save(tmp_path, "B.npy", b))
    run = Run("multiply", left, right, "-o", tmp_path / "C.npy", *SLOW, *team, env={"BRAMBLE_JOURNAL_MS": "100"})
    try:
        with halted(run):
            change(tmp_path / which, matrix(SIDE, SIDE, "f32", 3))
        result = run.finish()
    finally:
        run.end()
    assert result.code == FAILED, result
    lines = [line for line in result.err.splitlines() if which in line]
    assert len(lines) == 1 and "was changed while the product ran" in lines[0] and "noticed when" in lines[0], result
    assert "cooling" not in result.err and "--resume" not in result.err and "wrong;" not in result.err, result
    assert_nothing_written(tmp_path)
    assert_gone(result.tag)


def test_a_change_is_noticed_without_verification(tmp_path):
    left, right = (aged(save(tmp_path, name, matrix(SIDE, SIDE, "f32", 1))) for name in ("A.npy", "B.npy"))
    run = Run("multiply", left, right, "-o", tmp_path / "C.npy", *SLOW, "--verify", "off", "--json")
    try:
        with halted(run), open(left, "ab") as file:
            file.write(b"more")
        result = run.finish()
    finally:
        run.end()
    assert result.code == FAILED and "A.npy was changed" in result.err and "4 bytes" not in result.out, result
    assert_nothing_written(tmp_path)


def test_the_old_c_may_not_change_either(tmp_path):
    left, right = (save(tmp_path, name, matrix(SIDE, SIDE, "f32", 1)) for name in ("A.npy", "B.npy"))
    old = aged(save(tmp_path, "C.npy", matrix(SIDE, SIDE, "f32", 2)))
    run = Run("multiply", left, right, "-o", old, "--beta", "1", *SLOW)
    try:
        new = matrix(SIDE, SIDE, "f32", 3)
        with halted(run):
            in_place(old, new)
        result = run.finish()
    finally:
        run.end()
    assert result.code == FAILED and "C.npy was changed" in result.err, result
    np.testing.assert_array_equal(np.load(old), new)
    assert not (tmp_path / "C.npy.part").exists()


def test_a_file_that_is_replaced_under_its_name_is_read_as_it_was(tmp_path):
    a, b = matrix(SIDE, SIDE, "f32", 1), matrix(SIDE, SIDE, "f32", 2)
    left, right = aged(save(tmp_path, "A.npy", a)), aged(save(tmp_path, "B.npy", b))
    run = Run("multiply", left, right, "-o", tmp_path / "C.npy", *SLOW)
    try:
        other = save(tmp_path, "other.npy", matrix(SIDE, SIDE, "f32", 3))
        with halted(run):
            os.rename(other, left)
            os.chmod(right, 0o600)
        result = run.finish()
    finally:
        run.end()
    assert result.code == 0, result
    assert_product(np.load(tmp_path / "C.npy"), a, b)
