"""Machines that die while the product runs: the remaining ones finish, C has the bits of an undisturbed run, exit code 3."""

import os
import random
import re
import signal
import socket
import time
from contextlib import contextmanager

import numpy as np
import pytest
from helpers import Run, assert_gone, assert_product, assert_refused, bramble, cpu_seconds, matrix, save, succeed, wait_for_work, workers

SIMD = "--kernel", "simd"
SLOW = "--kernel", "reference", "--tile", "128", "--panel", "64"
"""The kernel that takes nearly the same time on every machine, so that the middle of a product is where a test expects it. Of
generated operands two steps are sent at once, and what was sent stays where it is: many steps leave work for others."""
MIDDLE = "random:1100x1100:f64:1", "random:1100x1100:f64:2"
"""A few seconds of processor time, if SLOW."""
LONG = "random:1600x1600:f64:1", "random:1600x1600:f64:2"
"""About ten seconds on one worker, if SLOW."""
FAST = "random:4500x4500:f64:1", "random:4500x4500:f64:2"
"""A few seconds with the kernel that a machine takes."""
SEVEN_LOSSES = "random:1500x1500:f64:1", "random:1500x1500:f64:2"
"""Enough for seven losses, of which the last leaves one thread alone."""


@contextmanager
def running(*args):
    run = Run("multiply", *args, "--json")
    try:
        yield run
    finally:
        run.end()


def pids_of(runs):
    return [run.process.pid for run in runs]


def assert_lost(result, names, digest=None):
    """Exit 3, each lost machine named once on stderr and in the report, C verified by the primary and equal to the bit."""
    assert result.code == 3, result
    report = result.report
    assert sorted(lost["name"] for lost in report["faults"]["lost"]) == sorted(names), result
    for name in names:
        said = re.findall(rf"^bramble: worker {re.escape(name)} was lost: .+; other machines take over", result.err, re.M)
        assert len(said) == 1, result
    assert report["verify"]["passed"] is True, result
    assert digest is None or report["digest"] == digest, result
    # A machine's `parts` is its work that went to other machines; its share is the work that it did.
    assert sum(worker["share"] for worker in report["workers"]) == pytest.approx(1, abs=1e-6), report["workers"]
    assert_gone(result.tag)
    return report


CUTS = {
    "reuse": (*MIDDLE, "--strategy", "reuse"),
    "rows": (*MIDDLE, "--strategy", "row:4"),
    "squares, relayed": (*MIDDLE, "--strategy", "square:2", "--relay", "on"),
    "mesh, relayed": (*MIDDLE, "--strategy", "summa:1x3", "--relay", "on"),
    "reproducible": (*MIDDLE, "--strategy", "cuboid", "--reproducible"),
    "integers cut in depth": ("random:1100x1100:i64:1", "random:1100x1100:i64:2", "--strategy", "cuboid:1x1x3"),
    "Strassen": (*MIDDLE, "--strategy", "strassen:1"),
}


@pytest.mark.parametrize("cut", CUTS)
def test_one_of_three_is_killed(tmp_path, cut):
    options = *CUTS[cut], "-o", tmp_path / "C.npy", *SLOW
    with workers(3, "--threads", "1") as (addresses, runs):
        team = "-w", ",".join(addresses)
        victim = [runs[1].process.pid]
        used = cpu_seconds(*victim)
        undisturbed = succeed("multiply", *options, *team, "--json").report
        used = cpu_seconds(*victim) - used
        with running(*options, *team) as run:
            # Its own processor time: the other workers' does not tell whether this one has finished.
            assert wait_for_work(victim, run, 0.3 * used)
            runs[1].process.kill()
            assert_lost(run.finish(), [addresses[1]], undisturbed["digest"])
        assert [r.process.poll() is None for r in runs] == [True, False, True]


def test_all_are_killed_and_this_machine_ends_alone(tmp_path):
    with workers(2, "--threads", "1") as (addresses, runs):
        options = *MIDDLE, "-o", tmp_path / "C.npy", *SLOW, "--strategy", "reuse", "-w", ",".join(addresses)
        undisturbed = succeed("multiply", *options, "--json").report
        with running(*options) as run:
            for victim in runs:
                assert wait_for_work(pids_of(runs), run, 0.5)
                victim.process.kill()
            report = assert_lost(run.finish(), addresses, undisturbed["digest"])
        alone = [worker for worker in report["workers"] if worker["name"] not in addresses]
        assert len(alone) == 1 and alone[0]["share"] > 0.1, report["workers"]


def test_killed_one_after_the_other_down_to_one_of_eight(tmp_path):
    rng = random.Random(8)
    with workers(8, "--threads", "1") as (addresses, runs):
        options = *SEVEN_LOSSES, "-o", tmp_path / "C.npy", *SLOW, "--strategy", "reuse", "-w", ",".join(addresses)
        left, killed = dict(zip(addresses, runs)), []
        with running(*options) as run:
            while len(left) > 1 and wait_for_work(pids_of(left.values()), run, 0.6):
                killed.append(rng.choice(sorted(left)))
                left.pop(killed[-1]).process.kill()
            assert len(left) == 1, f"the product ended before: {run.finish()}"
            report = assert_lost(run.finish(240), killed)
        alone = succeed("multiply", *SEVEN_LOSSES, "-o", tmp_path / "D.npy", *SLOW, "--strategy", "reuse", "--json").report
        assert report["digest"] == alone["digest"]


def test_who_goes_on_from_the_old_c_adds_it_once(tmp_path):
    a, b, c = matrix(3000, 2500, "f64", 1), matrix(2500, 3100, "f64", 2), matrix(3000, 3100, "f64", 3)
    left, right = save(tmp_path, "A.npy", a), save(tmp_path, "B.npy", b)
    save(tmp_path, "C.npy", c)
    with workers(3, "--threads", "1") as (addresses, runs):
        with running(left, right, "-o", tmp_path / "C.npy", "--beta", "-0.5", *SIMD, "--tile", "128", "--strategy", "reuse",
                     "-w", ",".join(addresses)) as run:
            assert wait_for_work(pids_of(runs), run, 0.2)
            runs[0].process.kill()
            assert_lost(run.finish(), [addresses[0]])
    assert_product(np.load(tmp_path / "C.npy"), a, b, beta=-0.5, old=c)


def said_meanwhile(run):
    """The stderr so far of a run that has not ended."""
    descriptor = run.process.stderr.fileno()
    os.set_blocking(descriptor, False)
    try:
        return os.read(descriptor, 1 << 16).decode()
    except BlockingIOError:
        return ""
    finally:
        os.set_blocking(descriptor, True)


@pytest.mark.parametrize("cut, after", [("reuse", 0.2), ("squares, relayed", 0.6), ("reproducible", 1)])
def test_one_that_stands_still_for_a_moment_is_waited_for(tmp_path, cut, after):
    with workers(2, "--threads", "1") as (addresses, runs):
        # Long: at the end of a product other machines would make the part of one that is late.
        options = *LONG, *CUTS[cut][len(MIDDLE):], "-o", tmp_path / "C.npy", *SLOW
        alone = succeed("multiply", *options, "--json").report["digest"]
        with running(*options, "-w", ",".join(addresses)) as run:
            assert wait_for_work(pids_of(runs), run, after)
            runs[1].process.send_signal(signal.SIGSTOP)
            time.sleep(3)
            runs[1].process.send_signal(signal.SIGCONT)
            result = run.finish(120)
        assert result.code == 0 and not result.report["faults"]["lost"], result
        assert result.report["digest"] == alone


@pytest.mark.parametrize("after", [0.3, pytest.param(1, marks=pytest.mark.soak("losses")), pytest.param(2, marks=pytest.mark.soak("losses"))])
def test_one_that_stands_still_is_lost_and_what_it_says_later_counts_no_more(tmp_path, after):
    with workers(3, "--threads", "1") as (addresses, runs):
        product = "random:5500x5500:f64:1", "random:5500x5500:f64:2", "-o", tmp_path / "C.npy", *SIMD, "--strategy", "reuse"
        alone = succeed("multiply", *product, "--json").report["digest"]
        with running(*product, "-w", ",".join(addresses)) as run:
            assert wait_for_work(pids_of(runs), run, after)
            runs[2].process.send_signal(signal.SIGSTOP)
            said, deadline = "", time.monotonic() + 60
            while "was lost" not in said:
                assert time.monotonic() < deadline and run.process.poll() is None, said
                time.sleep(0.1)
                said += said_meanwhile(run)
            assert f"worker {addresses[2]} was lost: it has been silent for 8 s" in said
            runs[2].process.send_signal(signal.SIGCONT)
            result = run.finish(120)
        assert result.code == 3, result
        assert [lost["name"] for lost in result.report["faults"]["lost"]] == [addresses[2]], result
        assert result.report["digest"] == alone
        # The worker serves the next primary normally.
        again = ("multiply", *MIDDLE, "-o", tmp_path / "D.npy", "-w", addresses[2], "--strategy", "reuse", "--json")
        assert succeed(*again).report["verify"]["passed"]


def test_one_that_dies_before_the_first_job(tmp_path):
    """Killed at random moments from the first connection on: an error that names it, or a product without it."""
    for delay in (0.0, 0.01, 0.03, 0.06, 0.1):
        with workers(2, "--threads", "1") as (addresses, runs):
            options = "random:900x900:f64:1", "random:900x900:f64:2", "-o", tmp_path / "C.npy", *SIMD
            with running(*options, "--relay", "on", "--strategy", "summa:1x2", "-w", ",".join(addresses)) as run:
                time.sleep(delay)
                runs[0].process.kill()
                result = run.finish()
        assert result.code in (0, 3, 5), result
        if result.code == 5:
            assert addresses[0] in result.err and not list(tmp_path.glob("C.npy*")), result
        else:
            report = result.report
            assert report["verify"]["passed"] and (result.code == 3) == bool(report["faults"]["lost"]), result
            (tmp_path / "C.npy").unlink()


def test_degraded_goes_on_without_who_does_not_answer(tmp_path):
    with workers(1, "--threads", "1") as (addresses, _):
        options = "random:300x300:f64:1", "random:300x300:f64:2", "-o", tmp_path / "C.npy", "--strategy", "reuse"
        team = "-w", f"{addresses[0]},127.0.0.1:1"
        refused = bramble("multiply", *options, *team)
        assert_refused(refused, 5, ["127.0.0.1:1"])
        assert not list(tmp_path.glob("C.npy*"))
        result = bramble("multiply", *options, *team, "--degraded", "--json")
        assert result.code == 3, result
        assert result.report["faults"]["missing"] and "127.0.0.1:1" in result.report["faults"]["missing"][0]
        assert "127.0.0.1:1" in result.err and "--degraded" in result.err
        assert [worker["name"] for worker in result.report["workers"]] == addresses
        assert result.report["digest"] == succeed("multiply", *options, *SIMD, "--json").report["digest"]


def share_of(report, name):
    return sum(worker["share"] for worker in report["workers"] if worker["name"] == name)


def test_one_that_is_started_again_is_dialled_again_and_takes_part(tmp_path):
    with workers(2, "--threads", "1") as (addresses, runs):
        options = *LONG, "-o", tmp_path / "C.npy", *SLOW, "--strategy", "reuse", "-w", ",".join(addresses)
        with running(*options) as run:
            assert wait_for_work(pids_of(runs), run, 1)
            runs[1].process.kill()
            runs[1].process.wait()
            again = Run("worker", "--listen", addresses[1], "--threads", "1")
            try:
                assert again.process.stdout.readline() == f"listening on {addresses[1]}\n"
                # What it was given is in the report; this says what happened if the product has ended.
                if not wait_for_work([again.process.pid], run, 1):
                    raise AssertionError(f"it was given nothing: {run.finish()}")
                result = run.finish(120)
            finally:
                again.end()
    report = assert_lost(result, [addresses[1]])
    # Twice in the report: as the lost machine, and as the new one.
    assert [worker["name"] for worker in report["workers"]].count(addresses[1]) == 2
    assert report["workers"][-1]["jobs"] > 0 and report["workers"][-1]["share"] > 0.05, report["workers"]


def test_one_that_dials_in_late_takes_part(tmp_path):
    port = free_port()
    options = *LONG, "-o", tmp_path / "C.npy", *SLOW, "--strategy", "reuse"
    alone = succeed("multiply", *LONG, *SLOW, "--strategy", "reuse", "--json").report
    with running(*options, "--await", 1, "--listen", f"127.0.0.1:{port}") as run:
        first = late = None
        try:
            first = join(port, run)
            assert wait_for_work([first.process.pid], run, 1)
            late = Run("worker", "--join", f"127.0.0.1:{port}", "--threads", "1")
            assert wait_for_work([late.process.pid], run, 1), "it was given nothing"
            result = run.finish(120)
        finally:
            for worker in filter(None, (first, late)):
                worker.end()
    assert result.code == 0, result
    report = result.report
    assert report["digest"] == alone["digest"] and not report["faults"]["lost"]
    assert len(report["workers"]) == 2 and report["workers"][1]["share"] > 0.05, report["workers"]
    name = report["workers"][1]["name"]
    assert [machine["name"] for machine in report["joined"]] == [name] and report["joined"][0]["at_s"] > 0, report["joined"]
    assert f"worker {name} has joined" in result.err, result


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def join(port, run, deadline_s=10):
    """A worker that dials in as soon as a primary listens."""
    end = time.monotonic() + deadline_s
    while True:
        worker = Run("worker", "--join", f"127.0.0.1:{port}", "--threads", "1")
        time.sleep(0.2)
        if worker.process.poll() is None:
            return worker
        worker.end()
        assert time.monotonic() < end and run.process.poll() is None, "nobody listens"


def test_another_kernel_is_turned_away_where_bits_must_be_the_same(tmp_path):
    port = free_port()
    with running(*FAST, "-o", tmp_path / "C.npy", "--reproducible", "-v", "--strategy", "reuse", "--await", 1,
                 "--listen", f"127.0.0.1:{port}") as run:
        first = late = None
        try:
            first = join(port, run)
            assert wait_for_work([first.process.pid], run, 0.3)
            late = Run("worker", "--join", f"127.0.0.1:{port}", "--threads", "1", "--kernel", "reference")
            result = run.finish(120)
        finally:
            for worker in filter(None, (first, late)):
                worker.end()
    assert result.code == 0 and "turned away" in result.err and "reference" in result.err, result
    assert len(result.report["workers"]) == 1, result
