"""Ctrl-C, SIGTERM, and machines that die in the middle: a quick end, and nothing left behind."""

import os
import re
import signal
import time

import numpy as np
import pytest
from helpers import Run, assert_gone, assert_nothing_written, bramble, cpu_seconds, succeed, workers
from test_unreachable import free_port

LONG = "random:9000x9000:f64:1", "random:9000x9000:f64:2"
"""More than ten seconds of work, so that every signal falls into the middle of it."""
MIDDLE = "random:1400x1400:f64:1", "random:1400x1400:f64:2"
"""A few seconds of work, if TOGETHER."""
TOGETHER = "--strategy", "reuse", "--kernel", "reference", "--tile", "128", "--panel", "64"
"""Uses the workers even where this machine alone would be faster, takes as long on every machine, and gives the same bits: `auto`
may choose another kernel in each run."""


def wait_until_busy(pids, run, seconds=0.5, deadline_s=20):
    """Waits until each of these processes has computed for a while."""
    end = time.monotonic() + deadline_s
    # Each process: measuring its kernels during the greeting also takes processor time.
    while min(map(cpu_seconds, pids()), default=0) < seconds:
        assert run.process.poll() is None, run.finish()
        assert time.monotonic() < end, "the product does not begin"
        time.sleep(0.02)


@pytest.fixture
def start():
    """Starts runs, and kills them when the test ends in any way."""
    runs = []

    def begin(*args):
        runs.append(Run(*args))
        return runs[-1]

    yield begin
    for run in runs:
        run.end()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=["Ctrl-C", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("whole_group", [False, True], ids=["primary alone", "whole group"])
@pytest.mark.parametrize("where", [[], ["--local", "2"]], ids=["in process", "local 2"])
def test_interrupted(tmp_path, start, where, whole_group, number):
    run = start("multiply", *LONG, "-o", tmp_path / "C.npy", *where)
    wait_until_busy(run.workers if where else lambda: [run.process.pid], run)
    (os.killpg if whole_group else os.kill)(run.process.pid, number)
    begun = time.monotonic()
    result = run.finish(deadline_s=10)
    # The promise is 2 s; the rest is slack for a busy machine.
    assert time.monotonic() - begun < 4, result
    assert result.code == 128 + number, result
    said = [line for line in result.err.splitlines() if line.startswith("bramble:")]
    assert result.out == "" and len(said) <= 1, result
    assert_gone(run.tag)
    # Complete tiles are kept, and the message names them.
    if not (said and "are kept; resume with" in said[0]):
        assert_nothing_written(tmp_path)
    assert not (tmp_path / "C.npy").exists()


def test_interrupted_before_the_first_job(tmp_path, start):
    run = start("multiply", *LONG, "-o", tmp_path / "C.npy", "--local", 2)
    time.sleep(0.01)
    run.process.send_signal(signal.SIGTERM)
    assert run.finish(deadline_s=10).code == 143
    assert_gone(run.tag)
    assert_nothing_written(tmp_path)


def test_killed_primary_takes_its_workers_with_it(tmp_path, start):
    run = start("multiply", *LONG, "-o", tmp_path / "C.npy", "--local", 2)
    wait_until_busy(run.workers, run)
    assert len(run.workers()) == 2
    run.process.kill()
    assert run.finish().code == 137
    assert_gone(run.tag, deadline_s=10)
    assert not (tmp_path / "C.npy").exists()


def assert_done_without(result, folder, names):
    """The product went on without the machine, named it, and is right to the bit."""
    assert result.code == 3 and re.search(names, result.err), result
    # `auto` may choose Strassen's method for either run, by the speeds of the moment, with other bits.
    succeed("multiply", *MIDDLE, "-o", folder / "again.npy", *TOGETHER)
    np.testing.assert_array_equal(np.load(folder / "C.npy"), np.load(folder / "again.npy"))


def test_a_local_worker_is_killed(tmp_path, start):
    run = start("multiply", *MIDDLE, "-o", tmp_path / "C.npy", "--local", 2, "--link", "tcp", *TOGETHER)
    wait_until_busy(run.workers, run)
    os.kill(run.workers()[0], signal.SIGKILL)
    result = run.finish(deadline_s=40)
    assert_gone(run.tag)
    assert_done_without(result, tmp_path, r"worker|local|127\.0\.0\.1:\d+")


def test_a_worker_started_by_hand_is_killed(tmp_path, start):
    with workers(2, "--threads", "1") as (addresses, runs):
        run = start("multiply", *MIDDLE, "-o", tmp_path / "C.npy", "-w", ",".join(addresses), *TOGETHER)
        wait_until_busy(lambda: [worker.process.pid for worker in runs], run)
        runs[1].process.kill()
        result = run.finish(deadline_s=40)
        assert_done_without(result, tmp_path, re.escape(addresses[1]))
        assert runs[0].process.poll() is None


def test_a_worker_that_stops_answering(tmp_path, start):
    """Stopped, not dead: its connection stays open, and still the product does not wait for ever."""
    with workers(2, "--threads", "1") as (addresses, runs):
        run = start("multiply", *MIDDLE, "-o", tmp_path / "C.npy", "-w", ",".join(addresses), *TOGETHER)
        wait_until_busy(lambda: [worker.process.pid for worker in runs], run)
        runs[1].process.send_signal(signal.SIGSTOP)
        result = run.finish(deadline_s=50)
        assert_done_without(result, tmp_path, re.escape(addresses[1]))


def test_a_worker_ends_with_its_terminal():
    with workers(1, "--threads", "1") as (_, runs):
        runs[0].process.send_signal(signal.SIGHUP)
        assert runs[0].process.wait(10) == 129


def test_a_local_worker_whose_product_has_ended_says_nothing(tmp_path):
    """Ctrl-C while workers start: the advice for a worker that was started by hand would be the last that the user reads."""
    env = {"BRAMBLE_KEY_FILE": str(tmp_path / "key")}
    assert bramble("key", "new", env=env).code == 0
    key = bramble("key", "show", env=env).out.strip()
    ended = bramble("worker", "--join", f"127.0.0.1:{free_port()}", env={"BRAMBLE_ONE_TIME_KEY": key})
    assert ended.code == 1 and ended.err == "" and ended.out == "", ended
