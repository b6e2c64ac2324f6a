"""`solve --refine` on workers: factors in f32 there, corrections in f64 here, and factors in f64 where f32 does not do."""

import json
import os
import re
import signal
import subprocess
import time
from contextlib import contextmanager

import numpy as np
import pytest
import scipy.fft
from helpers import Run, assert_gone, assert_refused, bramble, cpu_seconds, matrix, save, succeed, workers
from test_lu_survive import N, SLOW, assert_lost, losing, told_at_once
from test_solve import WRONG_BLAS, backward_error
from test_solve_workers import solved

UNIT = 2.0**-53


def with_condition(n, condition, seed=7):
    """A matrix with one small singular value, between orthogonal matrices: cosine transforms with random signs, which take far less
    time than the factors of random matrices."""
    random, a = np.random.default_rng(seed), np.eye(n)
    a[-1, -1] = 1 / condition
    for axis in (0, 1, 0, 1):
        signs = np.expand_dims(random.choice([-1.0, 1.0], n), 1 - axis)
        a = scipy.fft.dct(a * signs, axis=axis, norm="ortho")
    return a


def assert_as_good_as_numpy(a, b, x, report):
    assert report["dtype"] == "f64" and x.dtype == np.float64 and x.shape == b.shape
    assert report["backward_error"] <= report["tolerance"]
    # Corrections end at the square root of n times the rounding, as LAPACK's dsgesv; NumPy's solution may be better by chance.
    assert backward_error(a, x, b) <= max(2 * backward_error(a, np.linalg.solve(a, b), b), max(4, len(a) ** 0.5) * UNIT)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_refined_systems_of_all_forms_are_as_good_as_numpys(tmp_path, count):
    with workers(count, "--threads", 1) as (addresses, _):
        hosts = "-w", ",".join(addresses), "--refine"
        for n, width, block in [(1, None, 4), (2, 1, 4), (90, None, 8), (300, 7, 16), (500, None, None), (257, 300, 32)]:
            a = matrix(n, n, "f64", n)
            b = matrix(n, 1, "f64", 2)[:, 0] if width is None else matrix(n, width, "f64", 2) * 1e30
            x, report = solved(tmp_path, a, b, *hosts, *(["--block", block] if block else []))
            assert_as_good_as_numpy(a, b, x, report)
            refinement = report["refinement"]
            assert refinement["converged"] and refinement["gmres_iterations"] == 0, report
            assert 1 <= len(report["workers"]) <= count and report["condition"] is None


def test_layouts_give_the_same_solution_and_f32_matrices_a_better_one(tmp_path):
    a, b = matrix(200, 200, "f64", 3), matrix(200, 4, "f64", 4)
    with workers(3, "--threads", 2, "--kernel", "simd") as (addresses, _):
        options = "-w", ",".join(addresses), "--block", 16, "--refine"
        x, _ = solved(tmp_path, a, b, *options)
        other, _ = solved(tmp_path, np.asfortranarray(a), np.asfortranarray(b), *options)
        assert np.array_equal(x, other)
        a, b = a.astype(np.float32), b.astype(np.float32)
        x, report = solved(tmp_path, a, b, *options, "--dtype", "f64")
        assert_as_good_as_numpy(a.astype(np.float64), b.astype(np.float64), x, report)
        refused = bramble("solve", tmp_path / "A.npy", tmp_path / "b.npy", *options)
        assert_refused(refused, 2, ["--refine", "f64"])
        text = succeed("solve", tmp_path / "A.npy", tmp_path / "b.npy", *options, "--dtype", "f64").out
        assert re.search(r"^refined +f32 factors, \d+ corrections? in f64$", text, re.MULTILINE), text


def test_an_ill_conditioned_system_is_solved_by_gmres(tmp_path):
    a, b = with_condition(1200, 1e8), np.ones(1200)
    with workers(2, "--threads", 1) as (addresses, _):
        x, report = solved(tmp_path, a, b, "-w", ",".join(addresses), "--refine")
    refinement = report["refinement"]
    assert refinement["converged"] and refinement["gmres_iterations"] >= 1, report
    assert_as_good_as_numpy(a, b, x, report)


def test_what_f32_cannot_solve_is_factored_in_f64_and_the_report_says_so(tmp_path):
    n = 300
    regular, b = matrix(n, n, "f64", 3), matrix(n, 2, "f64", 5)
    near = regular.copy()
    near[:, 1] = near[:, 0] * (1 + 1e-13 * np.arange(n))
    cases = [
        (with_condition(n, 1e12), "does not converge"),
        (regular * 1e200, "beyond the range of f32"),
        (regular * 1e-200, "all elements are 0 in f32"),
        (near, "two columns are the same in f32"),
    ]
    with workers(2, "--threads", 1) as (addresses, _):
        options = "-w", ",".join(addresses), "--refine", "--block", 16
        for a, why in cases:
            x, report = solved(tmp_path, a, b, *options)
            refinement = report["refinement"]
            assert refinement["converged"] is False, why
            assert backward_error(a, x, b) <= report["tolerance"] and report["lost"]["count"] == 0, why
            assert report["lost"]["seconds"] == 0
        text = succeed("solve", tmp_path / "A.npy", tmp_path / "b.npy", *options).out
        assert re.search("^refined +no: not converged after .*; factored in f64 instead$", text, re.MULTILINE), text
        # Exactly singular in f64, too.
        near[:, 1] = 0
        refused = bramble("solve", save(tmp_path, "S.npy", near), tmp_path / "b.npy", *options)
        assert_refused(refused, 1, ["singular", "column 1"])


def test_half_of_the_memory_is_enough(tmp_path):
    n = 3000
    system = f"random:{n}x{n}:f64:1", f"random:{n}x1:f64:2", "--block", 64
    with workers(2, "--threads", 1, "--memory", "77M") as (addresses, _):
        hosts = "-w", ",".join(addresses), "-o", tmp_path / "x.npy"
        assert_refused(bramble("solve", *system, *hosts), 1, ["order 3000", "MiB of memory"])
        report = json.loads(succeed("solve", *system, *hosts, "--refine", "--json").out)
        assert report["refinement"]["converged"] and 4 * n * n <= report["memory_bytes"] < 8 * n * n
        # GMRES is the last resort where f64 does not fit; without it, there is nothing left.
        hopeless = save(tmp_path, "A.npy", np.full((n, n), 1e200) + np.diag(np.full(n, 1e200)))
        refused = bramble("solve", hopeless, system[1], *system[2:], *hosts, "--refine")
        assert_refused(refused, 1, ["f32 do not do", "in f64", "order 3000", "MiB of memory"])


def test_an_elimination_that_loses_a_worker_starts_again_in_f32(tmp_path):
    a, b, out = matrix(N, N, "f64", 1), matrix(N, 2, "f64", 2), tmp_path / "x.npy"
    words = "solve", save(tmp_path, "A.npy", a), save(tmp_path, "b.npy", b), "-o", out, "--json", "--survive", 1, "--block", 32, "--refine"
    with losing(3, 1, signal.SIGKILL, words) as (addresses, _, run):
        told_at_once(run, addresses[1], "2 workers")
        result = run.finish(deadline_s=120)
        assert result.code == 0, result
        report = json.loads(result.out)
        assert_lost(report, addresses, [addresses[1]])
        assert report["refinement"]["converged"] and backward_error(a, np.load(out), b) <= report["tolerance"]


@contextmanager
def losing_one_that_corrects(folder, memory, how, condition=1e13, survive=0):
    """A run on workers, of which the second is lost while the solution is corrected: the addresses, the run, A and b. `survive`
    is also the number of workers beyond two."""
    # Many iterations: f64 does not fit, and each right-hand side may take fifty.
    n = 2400
    a, b = with_condition(n, condition), matrix(n, 30, "f64", 2)
    words = "solve", save(folder, "A.npy", a), save(folder, "b.npy", b), "-o", folder / "x.npy", "--refine", "--block", 32, "--json"
    with workers(2 + survive, "--threads", 1, "--kernel", "simd", "--memory", memory) as (addresses, runs):
        run = Run(*words, "--survive", survive, "-w", ",".join(addresses))
        end = time.monotonic() + 60
        # Other threads of that name read the matrix, before the workers have anything to do.
        while not corrects(run) or min(cpu_seconds(one.process.pid) for one in runs) < 0.1:
            assert time.monotonic() < end and run.process.poll() is None, "it does not correct"
            time.sleep(0.02)
        os.kill(runs[1].process.pid, how)
        yield addresses, run, a, b
        if how == signal.SIGSTOP:
            os.kill(runs[1].process.pid, signal.SIGCONT)
    assert_gone(run.tag)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_lost_while_the_solution_is_corrected_ends_the_run_with_its_name(tmp_path, how):
    with losing_one_that_corrects(tmp_path, "64M", how) as (addresses, run, _, _):
        begun = time.monotonic()
        result = run.finish(deadline_s=30)
        took = time.monotonic() - begun
        told = result.err.splitlines()[-1]
        assert result.code == 5 and re.fullmatch(f"bramble: worker {addresses[1]}: .*lost, so the run has ended", told), result
        assert took < 13 and not (tmp_path / "x.npy").exists()
        assert succeed("bench", "hpl", "--size", 100, "-w", addresses[0]).code == 0


def test_a_worker_that_is_lost_while_the_solution_is_corrected_is_survived(tmp_path):
    with losing_one_that_corrects(tmp_path, "62M", signal.SIGKILL, 1e8, survive=1) as (addresses, run, a, b):
        told_at_once(run, addresses[1], "2 workers")
        result = run.finish(deadline_s=120)
        assert result.code == 0, result
        report = json.loads(result.out)
        assert_lost(report, addresses, [addresses[1]])
        assert report["refinement"]["converged"] and backward_error(a, np.load(tmp_path / "x.npy"), b) <= report["tolerance"]


def corrects(run):
    """Whether the thread that corrects the solution runs: threads have their names in Linux."""
    folder = f"/proc/{run.process.pid}/task"
    try:
        names = [open(f"{folder}/{task}/comm").read().strip() for task in os.listdir(folder)]
    except OSError:
        return False
    return "off loop" in names


def test_corrections_repair_what_a_worker_has_spoiled(tmp_path):
    source, library = tmp_path / "wrong.c", tmp_path / "libwrong.so"
    source.write_text(WRONG_BLAS)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    a, b = save(tmp_path, "A.npy", matrix(800, 800, "f64", 16)), save(tmp_path, "b.npy", np.ones(800))
    env = {"BRAMBLE_OPENBLAS": str(library)}
    with workers(2, *SLOW) as (good, _):
        with workers(1, "--threads", 1, "--kernel", "openblas", env=env) as (wrong, _):
            hosts = "-w", ",".join([good[0], *wrong, good[1]])
            result = bramble("solve", a, b, "-o", tmp_path / "x.npy", "--block", 16, "--refine", *hosts)
            assert result.code == 0, result
            assert backward_error(np.load(a), np.load(tmp_path / "x.npy"), np.ones(800)) < 1e-14
