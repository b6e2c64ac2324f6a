"""One product, one digest: by every strategy but Strassen's, on one to eight workers, undisturbed and with one worker killed."""

import os
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from helpers import Run, assert_refused, cpu_seconds, succeed
from test_loss import assert_lost, running

COUNTS = [1, 2, 3, 5, 8]
SUMMED_BY_STEP = ["naive", "row:2", "square:2"]
"""Partial sums return after some steps of k: the strategy decides after how many, not the machines."""
WHOLE = ["reuse", "summa:2x2", "summa:1x3"]
"""No strategy here cuts k."""
CUT = ["auto", "cuboid", "cuboid:1x1x3", "cuboid:1x2x2"]
"""The machines decide the cuts of k: sums of floats depend on them, unless the product is --reproducible."""
STRATEGIES = SUMMED_BY_STEP + WHOLE + CUT

QUICK = "--kernel", "reference", "--tile", "32", "--panel", "50"
LONGER = "--kernel", "reference", "--tile", "40", "--panel", "100", "--no-steal"
"""Every machine keeps its share, so that a machine that is killed early leaves work undone."""


class Fleet:
    """Eight workers; a product uses the first few. A killed worker is replaced."""

    def __init__(self, stack):
        self.stack = stack
        self.all = []
        for _ in range(max(COUNTS)):
            self.all.append(self.begin("127.0.0.1:0"))

    def begin(self, address):
        run = Run("worker", "--listen", address, "--threads", "1")
        self.stack.callback(run.end)
        return run.process.stdout.readline().removeprefix("listening on ").strip(), run

    def names(self, count):
        return [name for name, _ in self.all[:count]]

    def renew(self, number):
        name, run = self.all[number]
        run.end()
        self.all[number] = self.begin(name)
        assert self.all[number][0] == name


@pytest.fixture(scope="module")
def fleet():
    with ExitStack() as stack:
        yield Fleet(stack)


def operands(dtype, m, k, n):
    return f"random:{m}x{k}:{dtype}:5", f"random:{k}x{n}:{dtype}:6"


def modes(strategy, dtype):
    """The options that make a product's bits independent of the machines."""
    if dtype.startswith("f"):
        return [("--reproducible",)] if strategy in CUT else [(), ("--reproducible",)]
    return [()]


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64"])
def test_any_number_of_workers(fleet, dtype):
    product = *operands(dtype, 130, 430, 150), *QUICK, "--json"
    want, seen = {}, set()
    for strategy in STRATEGIES:
        for mode in modes(strategy, dtype):
            # With integers or --reproducible all strategies have one digest, else each its own.
            group = strategy if dtype.startswith("f") and not mode and strategy in SUMMED_BY_STEP else mode
            if group not in want:
                alone = "reuse" if group == mode else strategy
                want[group] = succeed("multiply", *product, *mode, "--strategy", alone).report["digest"]
            for count in COUNTS:
                report = succeed("multiply", *product, *mode, "--strategy", strategy, "-w", ",".join(fleet.names(count))).report
                assert report["digest"] == want[group], (strategy, mode, count)
                seen.add(len(report["workers"]))
    assert seen >= set(COUNTS), f"some numbers of machines never took part: {seen}"


def cpu_ns(pid):
    """Processor time of the threads of a process, finer than the ticks of /proc/PID/stat where the system counts it."""
    try:
        return sum(int(Path(task, "schedstat").read_text().split()[0]) for task in os.scandir(f"/proc/{pid}/task"))
    except OSError:
        return cpu_seconds(pid) * 1e9


def first_at_work(fleet, count, run, began, ms):
    """The first worker to reach this processor time; `None` where the product ends before."""
    while run.process.poll() is None:
        for number in range(count):
            if cpu_ns(fleet.all[number][1].process.pid) - began[number] > ms * 1e6:
                return number
        time.sleep(0.001)
    return None


def with_one_killed(fleet, count, options, ms):
    """The product with a worker killed in it, and that worker's name; `None` where the product finished first."""
    began = [cpu_ns(run.process.pid) for _, run in fleet.all[:count]]
    with running(*options, "-w", ",".join(fleet.names(count))) as run:
        victim = first_at_work(fleet, count, run, began, ms)
        if victim is None:
            return run.finish(), None
        fleet.all[victim][1].process.kill()
        name, result = fleet.all[victim][0], run.finish()
    fleet.renew(victim)
    return result, name


def kills():
    """Each strategy on each number of machines; for each strategy one number outside of the soak tier."""
    for place, strategy in enumerate(STRATEGIES):
        if strategy != "auto":
            for count in COUNTS:
                is_rare = count != COUNTS[place % len(COUNTS)]
                yield pytest.param(strategy, count, marks=[pytest.mark.soak("losses")] if is_rare else [])


@pytest.mark.parametrize("strategy, count", list(kills()))
def test_one_is_killed(fleet, strategy, count):
    number = STRATEGIES.index(strategy) + COUNTS.index(count)
    dtype = ["f64", "i64", "f32", "i32"][number % 4]
    mode = modes(strategy, dtype)[-1 if number % 3 else 0]
    options = *operands(dtype, 600, 1500, 640), *LONGER, *mode, "--strategy", strategy
    want = succeed("multiply", *options, "--json").report["digest"]
    ms = 20
    for _ in range(12):
        result, name = with_one_killed(fleet, count, options, ms)
        if name and result.code == 3:
            assert_lost(result, [name], want)
            return
        if name and result.code == 5:
            # A slow machine was still in its greeting. A worker missing at the
            # beginning is an error that names it.
            assert_refused(result, 5, [name])
            ms *= 1.5
        else:
            assert result.code == 0 and result.report["digest"] == want, result
            ms *= 0.8
    pytest.fail("no worker was killed between its greeting and its last tile")
