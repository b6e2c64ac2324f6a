"""`lu` on workers: their factors against LAPACK's and those of one process, losses, and what is left when a run fails."""

import io
import json
import os
import re
import signal
import subprocess
import threading

import numpy as np
import pytest
import scipy.linalg
from helpers import Run, assert_gone, assert_refused, bramble, matrix, save, succeed, workers
from test_solve import UNIT, WRONG_BLAS, backward_error
from test_solve_workers import wait_until_it_computes


def factored(folder, a, *options):
    """Factors from a file into files; returns L and U, the exchanges of rows and the report."""
    result = succeed("lu", save(folder, "A.npy", a), "-o", folder / "LU.npy", "--json", *options)
    assert not list(folder.glob("*.part"))
    return np.load(folder / "LU.npy"), np.load(folder / "LU.pivots.npy"), json.loads(result.out)


def assert_factors(a, lu, pivots):
    """L U is P A up to rounding, and SciPy solves with the files."""
    n = len(a)
    lower, upper = np.tril(lu, -1).astype(np.float64) + np.eye(n), np.triu(lu).astype(np.float64)
    rows = a.astype(np.float64)
    for i, p in enumerate(pivots):
        rows[[i, p]] = rows[[p, i]]
    unit = UNIT["f32" if lu.dtype == np.float32 else "f64"]
    bound = 4 * n * unit * (np.abs(lower) @ np.abs(upper))
    assert (np.abs(lower @ upper - rows) <= bound + unit).all()
    b = matrix(n, 3, "f64", 13)
    assert backward_error(a, scipy.linalg.lu_solve((lu, pivots), b), b) < 100 * n * unit


@pytest.mark.parametrize("count", [1, 2, 4])
def test_factors_are_lapacks(tmp_path, count):
    with workers(count, "--threads", 1) as (addresses, _):
        hosts = "-w", ",".join(addresses)
        for n, block in [(1, None), (2, 1), (90, 8), (257, 32), (500, None), (700, 300)]:
            a = matrix(n, n, "f64", n)
            lu, pivots, report = factored(tmp_path, a, *hosts, *(["--block", block] if block else []))
            assert lu.dtype == np.float64 and pivots.dtype == np.int64 and lu.flags.c_contiguous
            assert np.array_equal(pivots, scipy.linalg.lu_factor(a)[1])
            assert_factors(a, lu, pivots)
            assert report["error"] <= report["tolerance"] and report["seconds"]["home"] > 0
            assert sum(worker["columns"] for worker in report["workers"]) == n + 1 and report["singular_column"] is None
        text = succeed("lu", save(tmp_path, "A.npy", a), *hosts).out
        assert "not kept" in text and "home  " in text and f"{addresses[0]}: " in text


def test_bits_are_those_of_one_process_whatever_the_layout(tmp_path):
    a = matrix(300, 300, "f64", 3)
    here, here_pivots, _ = factored(tmp_path, a, "--kernel", "simd", "--block", 16)
    with workers(3, "--threads", 2, "--kernel", "simd") as (addresses, _):
        options = "-w", ",".join(addresses), "--block", 16
        for same in (a, np.asfortranarray(a)):
            lu, pivots, _ = factored(tmp_path, same, *options)
            assert np.array_equal(lu, here) and np.array_equal(pivots, here_pivots)
        integers = np.round(a * 100).astype(np.int32)
        lu, pivots, report = factored(tmp_path, integers, *options)
        assert report["dtype"] == "f64"
        assert_factors(integers, lu, pivots)
        lu, pivots, report = factored(tmp_path, a.astype(np.float32), *options)
        # Computed in f64, and rounded at the end.
        doubles, _, _ = factored(tmp_path, a.astype(np.float32).astype(np.float64), *options)
        assert report["dtype"] == "f32" and np.array_equal(lu, doubles.astype(np.float32))
        assert_factors(a.astype(np.float32), lu, pivots)
    lu, pivots, report = factored(tmp_path, a, "--local", 2)
    # The plan of a small system leaves out a worker whose speed was measured too low.
    assert sorted([worker["name"] for worker in report["workers"]] + report["left_out"]) == ["local 1", "local 2"]
    assert_factors(a, lu, pivots)


def test_factors_go_into_a_pipe(tmp_path):
    a, pipe, read = matrix(120, 120, "f64", 8), tmp_path / "pipe.npy", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    # The program refuses a pipe that nobody reads: the reader waits in `open` until the program does the same.
    for _ in range(100):
        result = bramble("lu", save(tmp_path, "A.npy", a), "-o", pipe, "--local", 2, "--block", 16)
        if result.code == 0 or "no process reads" not in result.err:
            break
    assert result.code == 0, result
    reader.join(10)
    assert_factors(a, np.load(io.BytesIO(read[0])), np.load(tmp_path / "pipe.pivots.npy"))


def test_matrices_that_are_singular_or_refused(tmp_path):
    a = matrix(120, 120, "f64", 5)
    a[:, 77] = 0
    with workers(2, "--threads", 1, "--memory", "64M") as (addresses, runs):
        hosts = "-w", ",".join(addresses)
        result = succeed("lu", save(tmp_path, "S.npy", a), "-o", tmp_path / "LU.npy", *hosts, "--json")
        lu = np.load(tmp_path / "LU.npy")
        assert "singular: column 77" in result.err and json.loads(result.out)["singular_column"] == 77
        assert lu[77, 77] == 0 and np.isfinite(lu).all()
        old = (tmp_path / "LU.npy").read_bytes(), (tmp_path / "LU.pivots.npy").read_bytes()
        a[3, 60] = np.nan
        not_finite = save(tmp_path, "N.npy", a)
        wide, large = save(tmp_path, "wide.npy", a[:50]), "random:3000x3000:f64:1"
        before = sorted(tmp_path.iterdir())
        out = "-o", tmp_path / "LU.npy", *hosts
        assert_refused(bramble("lu", not_finite, *out), 1, ["N.npy", "row 3, column 60", "NaN"])
        assert_refused(bramble("lu", wide, *out), 1, ["wide.npy is 50x120", "square", "without workers"])
        assert_refused(bramble("lu", large, *out), 1, ["order 3000", "MiB of memory", "offers", addresses[1]])
        overflowing = save(tmp_path, "S.npy", matrix(120, 120, "f64", 6) * 1e308)
        assert_refused(bramble("lu", overflowing, *out), 1, ["exceeded the range of f64", "column"])
        assert_refused(bramble("lu", large, "-o", tmp_path / "none" / "LU.npy", *hosts), 1, ["-o", "no folder"])
        # The old files are as they were, and nothing lies beside them.
        assert ((tmp_path / "LU.npy").read_bytes(), (tmp_path / "LU.pivots.npy").read_bytes()) == old
        assert sorted(tmp_path.iterdir()) == before and all(run.process.poll() is None for run in runs)
        assert succeed("lu", "random:50x50:f64:1", *hosts).code == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_worker_ends_the_run_with_its_name_and_leaves_the_old_file(tmp_path, how):
    (tmp_path / "LU.npy").write_bytes(b"old")
    # A slow kernel and one thread: a run would take a minute.
    with workers(3, "--threads", 1, "--kernel", "reference") as (addresses, runs):
        run = Run("lu", "random:7000x7000:f64:1", "--block", 32, "-o", tmp_path / "LU.npy", "-w", ",".join(addresses))
        wait_until_it_computes(runs)
        assert (tmp_path / "LU.npy.part").exists()
        os.kill(runs[1].process.pid, how)
        result = run.finish(deadline_s=40)
        told = result.err.splitlines()[-1]
        assert result.code == 5 and re.fullmatch(f"bramble: worker {addresses[1]}: .*lost, so the run has ended", told), result
        if how == signal.SIGSTOP:
            os.kill(runs[1].process.pid, signal.SIGCONT)
        assert [path.name for path in tmp_path.iterdir()] == ["LU.npy"] and (tmp_path / "LU.npy").read_bytes() == b"old"
        # The others are free again.
        assert succeed("lu", "random:60x60:f64:1", "-w", ",".join([addresses[0], addresses[2]])).code == 0
    assert_gone(run.tag)


def test_ctrl_c_leaves_no_file_and_frees_the_workers(tmp_path):
    with workers(2, "--threads", 1, "--kernel", "reference") as (addresses, runs):
        run = Run("lu", "random:7000x7000:f64:1", "-o", tmp_path / "LU.npy", "-w", ",".join(addresses))
        wait_until_it_computes(runs)
        os.kill(run.process.pid, signal.SIGINT)
        assert run.finish(deadline_s=10).code == 130 and not list(tmp_path.iterdir())
        assert succeed("lu", "random:60x60:f64:1", "-w", ",".join(addresses)).code == 0
    assert_gone(run.tag)


def test_a_worker_that_computes_wrongly_is_named_and_nothing_is_kept(tmp_path):
    source, library = tmp_path / "wrong.c", tmp_path / "libwrong.so"
    source.write_text(WRONG_BLAS)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    a, env = save(tmp_path, "A.npy", matrix(800, 800, "f64", 16)), {"BRAMBLE_OPENBLAS": str(library)}
    # Slow kernels, so that each worker takes part.
    with workers(2, "--threads", 1, "--kernel", "reference") as (good, _):
        with workers(1, "--threads", 1, "--kernel", "openblas", env=env) as (wrong, _):
            hosts = "-w", ",".join([good[0], *wrong, good[1]])
            result = bramble("lu", a, "-o", tmp_path / "LU.npy", "--block", 16, *hosts)
            assert result.code == 4 and "accepted" in result.err and "nothing was kept" in result.err, result
            assert f"worker {wrong[0]} has computed wrongly" in result.err, result
            assert not any(f"worker {address} has" in result.err for address in good), result
            assert not list(tmp_path.glob("LU*"))
