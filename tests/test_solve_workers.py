"""`solve` and `bench hpl` on workers: real processes that send each other panels, losses, and wrong machines."""

import json
import os
import re
import signal
import subprocess
import time
import xml.etree.ElementTree

import numpy as np
import pytest
from helpers import Run, assert_gone, assert_refused, bramble, cpu_seconds, matrix, save, succeed, workers
from test_solve import WRONG_BLAS, backward_error

HPL = "bench", "hpl", "--json"
UNIT = 2.0**-53


def solved(folder, a, b, *options):
    """Solves from files into a file; returns X and the report."""
    left, right, out = save(folder, "A.npy", a), save(folder, "b.npy", b), folder / "x.npy"
    result = succeed("solve", left, right, "-o", out, "--json", *options)
    return np.load(out), json.loads(result.out)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_systems_of_all_forms_are_solved(tmp_path, count):
    with workers(count, "--threads", 1) as (addresses, _):
        hosts = "-w", ",".join(addresses)
        for n, width, block in [(1, None, 4), (2, 1, 4), (90, None, 8), (300, 7, 16), (500, None, None), (257, 300, 32)]:
            a = matrix(n, n, "f64", n)
            b = matrix(n, 1, "f64", 2)[:, 0] if width is None else matrix(n, width, "f64", 2)
            x, report = solved(tmp_path, a, b, *hosts, *(["--block", block] if block else []))
            lapacks = np.linalg.solve(a, b)
            assert x.shape == b.shape and x.dtype == np.float64
            assert backward_error(a, x, b) <= max(2 * backward_error(a, lapacks, b), 4 * UNIT)
            assert report["backward_error"] <= report["tolerance"] and 1 <= len(report["workers"]) <= count
            assert sum(worker["columns"] for worker in report["workers"]) == n + (width or 1)
            assert block is None or report["block"] == block


def test_layouts_and_types_give_the_same_solution(tmp_path):
    a, b = matrix(200, 200, "f64", 3), matrix(200, 4, "f64", 4)
    with workers(3, "--threads", 2, "--kernel", "simd") as (addresses, _):
        options = "-w", ",".join(addresses), "--block", 16
        x, _ = solved(tmp_path, a, b, *options)
        other, _ = solved(tmp_path, np.asfortranarray(a), np.asfortranarray(b), *options)
        here, _ = solved(tmp_path, a, b, "--kernel", "simd", "--block", 16)
        assert np.array_equal(x, other) and np.array_equal(x, here), "other bits than in this process"
        integers = np.round(a * 100).astype(np.int32)
        x, report = solved(tmp_path, integers, np.arange(200), *options)
        assert report["dtype"] == "f64" and backward_error(integers, x, np.arange(200)) < 1e-14
        x, report = solved(tmp_path, a.astype(np.float32), b.astype(np.float32), *options)
        # Computed in f64, and rounded at the end.
        assert x.dtype == np.float32 and backward_error(a.astype(np.float32), x, b.astype(np.float32)) < 2.0**-24


def test_the_report_says_what_was_done_while_columns_came(tmp_path):
    a, b = matrix(300, 300, "f64", 3), matrix(300, 1, "f64", 4)[:, 0]
    with workers(2, "--threads", 1) as (addresses, _):
        options = "-w", ",".join(addresses), "--block", 32
        _, report = solved(tmp_path, a, b, *options)
        # Both workers' panels are 10; the time of the columns is a part of the whole.
        assert 0 <= report["early_panels"] <= 10 and 0 < report["seconds"]["sent"] <= report["seconds"]["factor"]
        text = succeed("solve", tmp_path / "A.npy", tmp_path / "b.npy", *options).out
        assert re.search(r"^sent +in .*, a part of the time; \d+ panels? factored before the end$", text, re.MULTILINE), text
    _, report = solved(tmp_path, a, b)
    assert report["early_panels"] == 0 and report["seconds"]["sent"] == 0


def test_systems_without_a_solution_are_refused(tmp_path):
    a, b = matrix(120, 120, "f64", 5), save(tmp_path, "b.npy", np.ones(120))
    a[:, 77] = 0
    singular, out = save(tmp_path, "S.npy", a), tmp_path / "x.npy"
    a[3, 60] = np.nan
    not_finite = save(tmp_path, "N.npy", a)
    with workers(2, "--threads", 1, "--memory", "64M") as (addresses, runs):
        hosts = "-o", out, "-w", ",".join(addresses)
        assert_refused(bramble("solve", singular, b, *hosts), 1, ["singular", "column 77"])
        assert_refused(bramble("solve", not_finite, b, *hosts), 1, ["N.npy", "row 3, column 60", "NaN"])
        assert_refused(bramble("solve", singular, b, *hosts, "--refine"), 1, ["singular", "column 77"])
        large = "random:3000x3000:f64:1", "random:3000x1:f64:2"
        assert_refused(bramble("solve", *large, *hosts), 1, ["order 3000", "MiB of memory", "offers", addresses[1]])
        assert not out.exists() and all(run.process.poll() is None for run in runs)
        # The workers serve the next one.
        assert succeed("bench", "hpl", "--size", 200, *hosts[2:]).code == 0


def test_threads_are_those_of_this_process_or_of_local_workers(tmp_path):
    a, b = matrix(200, 200, "f64", 5), matrix(200, 1, "f64", 6)
    with workers(1, "--threads", 2) as (addresses, _):
        x, report = solved(tmp_path, a, b, "-w", *addresses, "--threads", 1)
    assert [worker["threads"] for worker in report["workers"]] == [2]
    local, report = solved(tmp_path, a, b, "--local", 1, "--threads", 2)
    assert [worker["threads"] for worker in report["workers"]] == [2]
    assert backward_error(a, x, b) <= report["tolerance"] and backward_error(a, local, b) <= report["tolerance"]
    factors = succeed("lu", save(tmp_path, "A.npy", a), "--local", 1, "--threads", 2, "--json", env={"BRAMBLE_THREADS": "1"})
    assert [worker["threads"] for worker in json.loads(factors.out)["workers"]] == [2]


def test_hpl_on_local_workers_has_hpls_norms():
    [report] = [json.loads(line) for line in succeed(*HPL, "--size", 6000, "--local", 3).out.splitlines()]
    norms = {name: f"{value:.6g}" for name, value in report["norms"].items()}
    assert (norms["a_inf"], norms["a_one"], norms["b_inf"], norms["x_inf"]) == ("1540.18", "1543.56", "0.499944", "5.17353")
    assert report["passed"] is True and report["residual"] < 16 and len(report["workers"]) == 3
    assert report["predicted"]["seconds"] >= report["bound"]["seconds"] > 0 and report["bound"]["by"] in ("compute", "links")


def test_the_plan_says_why_it_has_chosen_its_blocks_and_how_many_panels_a_worker_keeps(tmp_path):
    with workers(2, "--threads", 1, "--kernel", "simd") as (addresses, _):
        hosts = "-w", ",".join(addresses)
        [report] = [json.loads(line) for line in succeed(*HPL, "--size", 1000, *hosts).out.splitlines()]
        compared = {one["nb"]: one["seconds"] for one in report["compared"]}
        assert len(compared) > 1 and min(compared, key=compared.get) == report["nb"] and report["depth"] == 3
        assert compared[report["nb"]] == report["predicted"]["seconds"]
        given = "--size", 300, "--nb", 32, "--depth", 7, *hosts
        [report] = [json.loads(line) for line in succeed(*HPL, *given).out.splitlines()]
        assert (report["nb"], report["depth"]) == (32, 7) and [one["nb"] for one in report["compared"]] == [32]
        text = succeed("bench", "hpl", *given).out
        assert re.search(r"^blocks    of 32 columns; each worker keeps 7 panels$", text, re.MULTILINE), text
        text = succeed("bench", "hpl", "--size", 1000, *hosts).out
        assert re.search(r"^blocks    of \d+ columns: .* predicted, and .* with \d+.*; each worker keeps 3 panels$", text, re.MULTILINE), text
        # The reports of the other verbs have them, too, and those of one process have none.
        a, b = matrix(300, 300, "f64", 5), matrix(300, 1, "f64", 6)
        verbs = ["solve", save(tmp_path, "A.npy", a), save(tmp_path, "b.npy", b)], ["lu", tmp_path / "A.npy"]
        for words in verbs:
            report = succeed(*words, *hosts, "--block", 32, "--depth", 7, "--json").report
            assert (report["block"], report["depth"]) == (32, 7) and [one["nb"] for one in report["compared"]] == [32]
            assert report["predicted"]["seconds"] >= report["bound"]["seconds"] > 0
            text = succeed(*words, *hosts, "--block", 32, "--depth", 7).out
            assert re.search(r"^blocks    of 32 columns; each worker keeps 7 panels$", text, re.MULTILINE), text
            assert re.search(r"^bound     .* predicted$", text, re.MULTILINE), text
            report = succeed(*words, "--json").report
            assert (report["depth"], report["compared"], report["predicted"], report["bound"]) == (None, [], None, None)
        # The solution does not depend on the panels that are kept.
        a, b = matrix(300, 300, "f64", 5), matrix(300, 1, "f64", 6)
        same = [solved(tmp_path, a, b, *hosts, "--block", 16, "--depth", depth)[0] for depth in (1, 3, 16)]
        assert np.array_equal(same[0], same[1]) and np.array_equal(same[0], same[2])
    assert_refused(bramble("solve", "random:9x9:f64:1", "random:9x1:f64:1", "--local", 2, "--depth", 17), 2, ["--depth"])
    for alone in (["solve", "random:9x9:f64:1", "random:9x1:f64:1"], ["lu", "random:9x9:f64:1"], ["bench", "hpl", "--size", 100]):
        assert_refused(bramble(*alone, "--depth", 4), 2, ["--depth", "needs workers"])


def test_subsets_of_workers_make_a_table_and_a_plot(tmp_path):
    plot = tmp_path / "nodes.svg"
    with workers(3, "--threads", 1) as (addresses, _):
        words = "bench", "hpl", "--size", 400, "--nb", 32, "--nodes", "1,2,3", "-w", ",".join(addresses)
        text = succeed(*words, "--plot", plot).out
        found = re.findall(r"^ +400 +32 +(\d) +[\d.]+ +[\d.]+ +([\d.]+)$", text, re.MULTILINE)
        assert [count for count, _ in found] == ["1", "2", "3"] and found[0][1] == "1.00", text
        assert xml.etree.ElementTree.parse(plot).getroot().tag.endswith("svg")
        lines = succeed(*words, "--json", "--rounds", 2).out.splitlines()
        assert [len(json.loads(line)["workers"]) for line in lines] == [1, 2, 3]
    assert_refused(bramble("bench", "hpl", "--size", 100, "--nodes", 2), 2, ["--nodes", "workers"])
    assert_refused(bramble("bench", "hpl", "--local", 2, "--size", 100, "--nodes", 3), 1, ["3 workers", "2 are there"])


def hpl_that_fills(*words, memory=None):
    """Points of runs without --size, of which each takes most of the memory that its workers offer, and what was told."""
    limit = ("--memory", memory) if memory else ()
    result = succeed(*HPL, *limit, *words)
    points = [json.loads(line) for line in result.out.splitlines()]
    told = re.findall(r"^bramble: N = (\d+), which fills the memory of (.*); --size sets another$", result.err, re.MULTILINE)
    assert all(point["passed"] for point in points)
    return points, told


def test_without_an_order_the_system_fills_the_memory_of_the_workers():
    mib = 1 << 20
    [one], told = hpl_that_fills("--local", 2, memory="48M")
    assert told == [(str(one["n"]), "the workers")]
    assert all(worker["memory_bytes"] <= 48 * mib for worker in one["workers"]) and 8 * one["n"] ** 2 < 96 * mib
    # With narrow panels the matrix takes most of the memory.
    [narrow], _ = hpl_that_fills("--local", 2, "--nb", 32, memory="48M")
    assert narrow["n"] >= one["n"] and 0.8 * 96 * mib < 8 * narrow["n"] ** 2 < 96 * mib
    # In half of it, elements of half the size; and half of it with a worker that may be lost.
    [mixed], _ = hpl_that_fills("--local", 2, "--nb", 32, "--mxp", memory="24M")
    assert 0.8 * 48 * mib < 4 * mixed["n"] ** 2 < 48 * mib
    [safe], _ = hpl_that_fills("--local", 2, "--nb", 32, "--survive", 1, memory="48M")
    assert 0.8 * 48 * mib < 8 * safe["n"] ** 2 < 48 * mib
    # Each number of workers has an order of its own; all widths of panels have the same.
    points, told = hpl_that_fills("--local", 2, "--nodes", "1,2", "--nb", "32,64", memory="32M")
    assert [(len(point["workers"]), point["nb"]) for point in points] == [(1, 32), (1, 64), (2, 32), (2, 64)]
    orders = [point["n"] for point in points]
    assert orders[0] == orders[1] < orders[2] == orders[3]
    assert told == [(str(orders[0]), "1 worker"), (str(orders[2]), "2 workers")]


def test_workers_of_different_memory_are_filled_as_they_have_it():
    with workers(1, "--threads", 1, "--kernel", "simd", "--memory", "64M") as (small, _):
        with workers(1, "--threads", 1, "--kernel", "simd", "--memory", "128M") as (large, _):
            [point], _ = hpl_that_fills("--nb", 64, "-w", ",".join([*small, *large]))
    taken = {worker["name"]: worker["memory_bytes"] for worker in point["workers"]}
    assert taken[large[0]] > 2 * taken[small[0]]
    assert taken[small[0]] < 64 << 20 and 64 << 20 < taken[large[0]] < 128 << 20
    assert_refused(bramble(*HPL, "--local", 2, "--memory", "10K"), 1, ["order 32", "MiB"])


@pytest.mark.parametrize("how, within_s", [(signal.SIGKILL, 2), (signal.SIGSTOP, 10)])
def test_a_lost_worker_ends_the_run_with_its_name(how, within_s):
    # A slow kernel and one thread: a run would take a minute.
    with workers(3, "--threads", 1, "--kernel", "reference") as (addresses, runs):
        run = Run("bench", "hpl", "--size", 8000, "--nb", 32, "-w", ",".join(addresses))
        wait_until_it_computes(runs)
        os.kill(runs[1].process.pid, how)
        begun = time.monotonic()
        result = run.finish(deadline_s=30)
        assert time.monotonic() - begun < within_s + 3, result
        told = result.err.splitlines()[-1]
        assert result.code == 5 and re.fullmatch(f"bramble: worker {addresses[1]}: .*lost, so the run has ended", told), result
        if how == signal.SIGSTOP:
            os.kill(runs[1].process.pid, signal.SIGCONT)
        # The others are free again.
        others = ",".join([addresses[0], addresses[2]])
        assert succeed("bench", "hpl", "--size", 100, "-w", others).code == 0
    assert_gone(run.tag)


def test_a_benchmark_that_loses_a_worker_reports_what_it_has_measured():
    with workers(3, "--threads", 1, "--kernel", "reference") as (addresses, runs):
        words = "bench", "hpl", "--size", "300,8000", "--nb", 32, "--rounds", 2, "--nodes", 3, "-w", ",".join(addresses)
        run = Run(*words, "--json")
        wait_until_it_computes(runs)
        runs[2].process.kill()
        result = run.finish(deadline_s=30)
        told = result.err.splitlines()[-1]
        assert result.code == 5 and f"worker {addresses[2]}: " in told, result
        assert told.endswith("so the run has ended (N = 8000, NB = 32, 3 workers; 1 of 4 runs have ended)"), told
        report, error = [json.loads(line) for line in result.out.splitlines()]
        assert error["error"]["code"] == "unreachable" and report["n"] == 300 and report["rounds"] == 1 and report["passed"] and len(report["workers"]) == 3
    assert_gone(run.tag)


def wait_until_it_computes(runs, seconds=2):
    """Waits until the workers have used that much processor time on average: before a long elimination each measures its tasks for
    less, before a short one for far less. One that has seemed slow for a moment has few columns, and uses less."""
    end = time.monotonic() + 120
    while sum(cpu_seconds(run.process.pid) for run in runs) < seconds * len(runs):
        assert time.monotonic() < end, "the workers do not compute"
        time.sleep(0.05)


def test_ctrl_c_ends_a_run_and_frees_the_workers():
    with workers(2, "--threads", 1, "--kernel", "reference") as (addresses, runs):
        run = Run("bench", "hpl", "--size", 8000, "-w", ",".join(addresses))
        wait_until_it_computes(runs)
        os.kill(run.process.pid, signal.SIGINT)
        assert run.finish(deadline_s=10).code == 130
        assert succeed("bench", "hpl", "--size", 100, "-w", ",".join(addresses)).code == 0
    assert_gone(run.tag)


def test_a_worker_that_computes_wrongly_is_named_and_nothing_is_kept(tmp_path):
    source, library = tmp_path / "wrong.c", tmp_path / "libwrong.so"
    source.write_text(WRONG_BLAS)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    a, b = save(tmp_path, "A.npy", matrix(800, 800, "f64", 16)), save(tmp_path, "b.npy", np.ones(800))
    env = {"BRAMBLE_OPENBLAS": str(library)}
    # Slow kernels, so that each worker takes part.
    with workers(2, "--threads", 1, "--kernel", "reference") as (good, _):
        with workers(1, "--threads", 1, "--kernel", "openblas", env=env) as (wrong, _):
            hosts = "-w", ",".join([good[0], *wrong, good[1]])
            result = bramble("solve", a, b, "-o", tmp_path / "x.npy", "--block", 16, *hosts)
            assert result.code == 4 and "accepted" in result.err, result
            assert f"worker {wrong[0]} has computed wrongly" in result.err, result
            assert not any(f"worker {address} has" in result.err for address in good), result
            assert not (tmp_path / "x.npy").exists()
            result = bramble(*HPL, "--size", 300, "--nb", 16, "--nodes", 3, *hosts)
            assert result.code == 4 and f"worker {wrong[0]} has computed wrongly" in result.err
            assert json.loads(result.out)["passed"] is False
