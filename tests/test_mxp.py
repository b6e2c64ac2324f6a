"""`bench hpl --mxp`: the system of HPL-MxP, its report, and what it refuses; `solve --refine` where plain corrections do not converge."""

import json
import re
import signal
import xml.etree.ElementTree

import numpy as np
import pytest
from helpers import assert_refused, bramble, save, succeed, workers
from test_lu_survive import N, assert_lost, losing, told_at_once

MXP = "bench", "hpl", "--mxp"


def mxp(*options):
    return [json.loads(line) for line in succeed(*MXP, "--json", *options).out.splitlines()]


def reference(n):
    """The system of the reference implementation: one draw after another, columns first."""
    def draws(state, count):
        for _ in range(count):
            state = (state * 6364136223846793005 + 1) % 2**64
            yield state * 2.0**-64 - 0.5

    a = np.fromiter(draws(1, n * n), float).reshape(n, n).T
    sums = np.zeros(n)
    for column in np.abs(a).T:
        sums += column
    return a - np.diag(np.diag(a)) + np.diag(sums - np.abs(np.diag(a))), np.fromiter(draws(2, n), float)


def test_the_system_is_that_of_the_reference_implementation():
    n = 250
    [report] = mxp("--size", n, "--threads", 2, "--nb", 32)
    a, b = reference(n)
    x = np.linalg.solve(a, b)
    expected = {"a_inf": np.abs(a).sum(axis=1).max(), "a_one": np.abs(a).sum(axis=0).max(), "b_inf": np.abs(b).max(),
                "x_inf": np.abs(x).max(), "x_one": np.abs(x).sum()}
    assert report["norms"] == {name: pytest.approx(value, rel=1e-12) for name, value in expected.items()}
    assert (report["schema"], report["n"], report["nb"], report["threads"]) == ("bramble.bench.hpl-mxp/1", n, 32, 2)


def test_the_report_has_names_of_its_own():
    [report] = mxp("--size", 1200, "--rounds", 3)
    assert report["passed"] is True and 0 < report["mxp_residual"] < 16
    assert 1 <= report["iterations"] <= 50 and report["exchanges"] == 0 and report["rounds"] == 3
    n, seconds = report["n"], report["mxp_seconds"]
    assert report["mxp_gflops"] == pytest.approx((2 / 3 * n**3 + 3 / 2 * n**2) / seconds / 1e9)
    assert sum(report["parts"].values()) == pytest.approx(seconds)
    assert report["mxp_seconds_min"] <= seconds <= report["mxp_seconds_max"]
    assert report["predicted"]["seconds"] >= report["bound"]["seconds"] > 0
    assert report["memory_bytes"] > 12 * n * n and report["start"] <= report["end"]
    # Readers of HPL's object find none of its figures.
    assert not {"gflops", "residual", "seconds", "dgemm_gflops", "official"} & report.keys()


def test_the_text_says_that_it_is_no_result_of_hpl():
    text = succeed(*MXP, "--size", "300,200", "--nb", "32,64").out
    assert "HPL-MxP" in text and "no result of HPL" in text
    assert re.findall(r"^HPL-MxP   N = (\d+), NB = (\d+)$", text, re.M) == [(n, nb) for n in ("300", "200") for nb in ("32", "64")]
    found = re.findall(r"\*N\)= (\S+) \.+ PASSED", text)
    assert len(found) == 4 and all(float(value) < 16 for value in found)
    # HPL's readers look for these lines.
    assert not re.search(r"^W[CR]\d|HPL_pdgesv", text, re.M)


def test_sweeps_memory_and_plot(tmp_path):
    reports = mxp("--size", 200, "--nb", "16,32", "--threads", "1,2", "--plot", tmp_path / "nb.svg")
    assert [(r["threads"], r["nb"]) for r in reports] == [(1, 16), (1, 32), (2, 16), (2, 32)]
    assert xml.etree.ElementTree.parse(tmp_path / "nb.svg").getroot().tag.endswith("svg")
    assert "HPL-MxP" in (tmp_path / "nb.svg").read_text()
    # Both copies of the matrix are in the memory that the default order is made for.
    result = succeed(*MXP, "--memory", "40M", "--json", "--threads", 1)
    report = json.loads(result.out)
    assert 1000 < report["n"] < (40 * 2**20 / 12) ** 0.5 and report["memory_bytes"] <= 40 * 2**20
    assert f"N = {report['n']}" in result.err


@pytest.mark.parametrize("options, code, words", [
    (["--size", 3], 2, ["--size 3", "singular", "N = 4"]),
    (["--size", 20_000, "--memory", "1G"], 1, ["--size 20000", "3.20 GB for A in f64", "factors in f32", "at most"]),
    (["--size", 3, "--local", 2], 2, ["--size 3", "singular", "N = 4"]),
    (["--size", 100, "--nodes", 2], 2, ["--nodes", "needs workers"]),
    (["--size", 100, "--survive", 1], 2, ["--survive", "needs workers"]),
    (["--size", 100, "--official"], 2, ["--official", "HPL-MxP"]),
    (["--size", 100, "--official", "--local", 2], 2, ["--official", "HPL-MxP"]),
    (["--size", 100, "--kernel", "strassen"], 2, ["--kernel strassen", "rules"]),
])
def test_wrong_options_are_refused(options, code, words):
    assert_refused(bramble(*MXP, *options), code, words)


def test_workers_solve_the_same_system(tmp_path):
    sizes = [4, 7, 250, 1000]
    alone = {report["n"]: report for n in sizes for report in mxp("--size", n)}
    with workers(3, "--threads", 2) as (addresses, _):
        hosts = "-w", ",".join(addresses)
        reports = mxp(*hosts, "--size", ",".join(map(str, sizes)), "--nb", 32, "--rounds", 2, "--plot", tmp_path / "nb.svg")
        assert [report["n"] for report in reports] == sizes and "HPL-MxP" in (tmp_path / "nb.svg").read_text()
        for report in reports:
            n, norms, parts = report["n"], report["norms"], report["parts"]
            expected = alone[n]["norms"]
            assert norms == {name: pytest.approx(value, rel=1e-12) for name, value in expected.items()}
            assert report["passed"] is True and 0 <= report["mxp_residual"] < 16 and report["rounds"] == 2
            assert 0 <= report["iterations"] <= 50 and (n < 8 or report["exchanges"] == 0)
            assert parts["convert_seconds"] == 0 and sum(parts.values()) == pytest.approx(report["mxp_seconds"])
            assert report["mxp_gflops"] == pytest.approx((2 / 3 * n**3 + 3 / 2 * n**2) / report["mxp_seconds"] / 1e9)
            named = [worker["name"] for worker in report["workers"]]
            assert {*named, *report["left_out"]} == set(addresses) and report["threads"] == 2 * len(named)
            assert sum(worker["columns"] for worker in report["workers"]) == n + 1 and report["lost"]["count"] == 0
            assert not {"gflops", "residual", "seconds", "dgemm_gflops", "official", "kernel"} & report.keys()
            assert report["memory_bytes"] < 8 * n * n or n < 1000, "A in f64 lies nowhere"
        text = succeed(*MXP, *hosts, "--size", 300, "--nb", 32).out
        assert "no result of HPL" in text and re.search(r"\*N\)= \S+ \.+ PASSED", text), text
        assert re.search(r"^worker    \S+: \d+ columns, .* Gflop/s with \w+ by 2 threads$", text, re.M), text
        [two] = mxp(*hosts, "--size", 600, "--nb", 32, "--nodes", 2)
        assert {worker["name"] for worker in two["workers"]} <= set(addresses[:2])


def test_a_worker_that_is_lost_is_survived():
    words = *MXP, "--size", N, "--nb", 32, "--json", "--survive", 1
    with losing(3, 1, signal.SIGKILL, words) as (addresses, _, run):
        told_at_once(run, addresses[1], "2 workers")
        result = run.finish(deadline_s=120)
        assert result.code == 0, result
        report = json.loads(result.out)
        assert_lost(report, addresses, [addresses[1]])
        assert report["passed"] and report["mxp_seconds"] > report["lost"]["seconds"]


def ill_conditioned(n):
    """A random matrix of condition 1e8 with one small singular value."""
    random = np.random.default_rng(n)
    (u, _), (v, _) = (np.linalg.qr(random.standard_normal((n, n))) for _ in range(2))
    return (u * np.append(np.ones(n - 1), 1e-8)) @ v, random.standard_normal(n)


def test_a_system_of_condition_1e8_is_refined_by_gmres(tmp_path):
    # Plain corrections shrink the error by less than a half here; the budget of iterations is N / 256.
    a, b = ill_conditioned(1536)
    left, right, out = save(tmp_path, "A.npy", a), save(tmp_path, "b.npy", b), tmp_path / "x.npy"
    report = json.loads(succeed("solve", left, right, "-o", out, "--refine", "--json").out)
    refinement, x = report["refinement"], np.load(out)
    assert refinement["converged"] and refinement["gmres_iterations"] >= 1, report
    scale = np.abs(a).sum(axis=1).max() * np.abs(x).max() + np.abs(b).max()
    assert np.abs(b - a @ x).max() / scale <= 1536**0.5 * 2.0**-53
    assert "of GMRES" in succeed("solve", left, right, "--refine").out


def test_a_small_system_that_corrections_do_not_solve_is_factored_in_f64(tmp_path):
    a, b = ill_conditioned(200)
    words = "solve", save(tmp_path, "A.npy", a), save(tmp_path, "b.npy", b), "--refine", "--json"
    report = json.loads(succeed(*words).out)
    # A few iterations take longer than f64 factors of this order.
    assert not report["refinement"]["converged"] and report["refinement"]["gmres_iterations"] == 0
    assert report["backward_error"] <= report["tolerance"]
