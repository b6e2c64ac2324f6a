"""`--survive`: `solve`, `lu` and `bench hpl` on workers outlive the loss of some, and end with a valid result."""

import json
import os
import re
import signal
import socket
import struct
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
import scipy.linalg
from helpers import Run, assert_gone, assert_refused, bramble, matrix, save, succeed, workers
from test_lu_workers import assert_factors
from test_solve import backward_error
from test_solve_workers import wait_until_it_computes
from wire_worker import NEIGHBOUR, PING

# A slow kernel on one thread: an elimination of 2200 columns takes some seconds. `losing` needs every worker to take part; wide blocks,
# which a worker that has measured itself as slow holds up, let the plan leave that one out, so the tests take blocks of 32 columns.
SLOW = "--threads", 1, "--kernel", "reference"
N = 2200


@contextmanager
def losing(count, victim, how, words, seconds=0.5):
    """A run on workers, of which one is lost when all compute: the addresses, the workers, and the run. `seconds`: of processor
    time that each has used then."""
    with workers(count, *SLOW) as (addresses, runs):
        run = Run(*words, "-w", ",".join(addresses))
        wait_until_it_computes(runs, seconds)
        os.kill(runs[victim].process.pid, how)
        yield addresses, runs, run
        if how == signal.SIGSTOP:
            os.kill(runs[victim].process.pid, signal.SIGCONT)
    assert_gone(run.tag)


def told_at_once(run, address, left):
    """The line that names the lost worker, read while the run goes on."""
    line = run.process.stderr.readline()
    if "predicted" in line:
        line = run.process.stderr.readline()
    pattern = rf"bramble: worker {address} was lost after .* \(.*\); the elimination starts again on {left}\n"
    assert re.fullmatch(pattern, line), line
    assert run.process.poll() is None, "the run ended at the loss"


def assert_lost(report, addresses, victims):
    """The report names the lost workers, and the seconds that their loss has cost."""
    lost = report["lost"]
    assert lost["count"] == len(victims) and [worker["name"] for worker in lost["workers"]] == victims
    assert all(worker["at_s"] > 0 and worker["why"] for worker in lost["workers"])
    assert lost["seconds"] >= lost["workers"][-1]["at_s"]
    assert {worker["name"] for worker in report["workers"]} <= set(addresses) - set(victims)


@pytest.mark.parametrize("how, within_s", [(signal.SIGKILL, 3), (signal.SIGSTOP, 10)])
def test_a_system_is_solved_without_the_worker_that_was_lost(tmp_path, how, within_s):
    a, b, out = matrix(N, N, "f64", 1), matrix(N, 2, "f64", 2), tmp_path / "x.npy"
    words = "solve", save(tmp_path, "A.npy", a), save(tmp_path, "b.npy", b), "-o", out, "--json", "--survive", 1, "--block", 32
    with losing(3, 1, how, words) as (addresses, _, run):
        begun = time.monotonic()
        told_at_once(run, addresses[1], "2 workers")
        assert time.monotonic() - begun < within_s + 3
        result = run.finish(deadline_s=120)
        assert result.code == 0, result
        report = json.loads(result.out)
        assert_lost(report, addresses, [addresses[1]])
        assert report["seconds"]["factor"] > report["lost"]["seconds"]
        assert report["backward_error"] <= report["tolerance"] and backward_error(a, np.load(out), b) <= report["tolerance"]
        x = np.linalg.solve(a, b)
        assert np.abs(np.load(out) - x).max() <= np.linalg.cond(a, np.inf) * report["tolerance"] * np.abs(x).max()


def test_factors_come_without_the_worker_that_was_lost(tmp_path):
    # Longer than the other eliminations: the second loss has to come before its end.
    a = matrix(2800, 2800, "f64", 3)
    words = "lu", save(tmp_path, "A.npy", a), "-o", tmp_path / "LU.npy", "--json", "--survive", 2, "--block", 32
    with losing(4, 0, signal.SIGKILL, words) as (addresses, runs, run):
        told_at_once(run, addresses[0], "3 workers")
        wait_until_it_computes(runs[1:], 1.2)
        runs[2].process.kill()
        result = run.finish(deadline_s=120)
        assert result.code == 0, result
        report = json.loads(result.out)
        assert_lost(report, addresses, [addresses[0], addresses[2]])
        lu, pivots = np.load(tmp_path / "LU.npy"), np.load(tmp_path / "LU.pivots.npy")
        assert np.array_equal(pivots, scipy.linalg.lu_factor(a)[1])
        assert_factors(a, lu, pivots)
    assert not list(tmp_path.glob("*.part"))


def test_the_benchmark_says_what_a_loss_has_cost_and_begins_no_further_run():
    words = "bench", "hpl", "--size", N, "--nb", 32, "--survive", 1
    with losing(3, 2, signal.SIGKILL, words) as (addresses, _, run):
        told_at_once(run, addresses[2], "2 workers")
        result = run.finish(deadline_s=120)
        assert result.code == 0 and "PASSED" in result.out, result
        assert re.search(rf"^lost +{addresses[2]} after .*\)$", result.out, re.MULTILINE), result
        assert re.search("^again +the last elimination started .* after the first", result.out, re.MULTILINE), result
    with losing(3, 0, signal.SIGKILL, (*words, "--rounds", 2, "--json")) as (addresses, _, run):
        result = run.finish(deadline_s=120)
        report, error = [json.loads(line) for line in result.out.splitlines()]
        assert result.code == 5 and error["error"]["code"] == "unreachable", result
        assert "no further run begins" in error["error"]["message"] and "1 of 2 runs" in error["error"]["message"], error
        assert report["passed"] and report["rounds"] == 1 and report["seconds"] > report["lost"]["seconds"]
        assert_lost(report, addresses, [addresses[0]])


def test_one_loss_more_ends_the_run_with_its_name(tmp_path):
    words = "solve", "random:8000x8000:f64:1", "random:8000x1:f64:2", "-o", tmp_path / "x.npy", "--survive", 1, "--block", 32
    with losing(3, 1, signal.SIGKILL, words, 2) as (addresses, runs, run):
        told_at_once(run, addresses[1], "2 workers")
        wait_until_it_computes([runs[0], runs[2]], 4)
        runs[2].process.kill()
        result = run.finish(deadline_s=30)
        told = result.err.splitlines()[-1]
        assert result.code == 5 and re.fullmatch(f"bramble: worker {addresses[2]}: .*lost, so the run has ended", told), result
        assert not list(tmp_path.iterdir())
        # The last one is free again.
        assert succeed("lu", "random:60x60:f64:1", "-w", addresses[0]).code == 0


def test_what_could_not_survive_is_refused_before_the_start():
    system = "solve", "random:1000x1000:f64:1", "random:1000x1:f64:2"
    assert_refused(bramble(*system, "--survive", 1), 2, ["--survive", "needs workers"])
    assert_refused(bramble("lu", system[1], "--survive", 1), 2, ["--survive", "needs workers"])
    assert_refused(bramble("bench", "hpl", "--size", 100, "--survive", 1), 2, ["--survive", "needs workers"])
    assert_refused(bramble(*system, "--survive", 9), 2, ["--survive", "0..=8"])
    with workers(1, "--threads", 1, "--memory", "64M") as (small, _), workers(1, "--threads", 1) as (large, runs):
        hosts = "-w", ",".join([*small, *large])
        for verb in (system, ("lu", system[1]), ("bench", "hpl", "--size", 1000)):
            few = bramble(*verb, "-w", *large, "--survive", 1)
            assert_refused(few, 1, ["--survive 1", "2 workers are needed", "1 takes part"])
        wide = "random:3000x3000:f64:1", "random:3000x1:f64:2"
        assert succeed("solve", *wide, *hosts).code == 0
        refused = bramble("solve", *wide, *hosts, "--survive", 1)
        assert_refused(refused, 1, ["--survive 1", "order 3000", "once the largest worker is lost", f"{small[0]} offers \\d+ MiB"])
        assert large[0] not in refused.err, refused
        # Without a loss, nothing is different, and both can be lost where the system fits one.
        report = json.loads(succeed(*system, *hosts, "--survive", 1, "--json").out)
        assert report["lost"] == {"count": 0, "workers": [], "seconds": 0}


class CutLink:
    """Stands between this process and a worker, and closes the connection before a message of this kind reaches the worker."""

    def __init__(self, address, kind):
        host, port = address.split(":")
        self.target, self.kind, self.was_cut = (host, int(port)), kind, False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"

    def __enter__(self):
        threading.Thread(target=self.serve, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.close()

    def serve(self):
        here, _ = self.listener.accept()
        self.listener.close()
        there = socket.create_connection(self.target)
        back = threading.Thread(target=self.copy, args=(there, here), daemon=True)
        back.start()
        with here, there, here.makefile("rb") as frames:
            while header := frames.read(16):
                body, head, kind = struct.unpack_from("<IHB", header)
                if kind == self.kind:
                    self.was_cut = True
                    break
                there.sendall(header + frames.read(body + head))
            for end in here, there:
                end.shutdown(socket.SHUT_RDWR)
            back.join()

    @staticmethod
    def copy(source, sink):
        try:
            while some := source.recv(1 << 16):
                sink.sendall(some)
        except OSError:
            pass  # The other thread has closed them.


@pytest.mark.parametrize("survive", [0, 1])
def test_a_worker_that_is_lost_while_it_is_introduced_is_survived_or_named(survive):
    words = "bench", "hpl", "--size", 600, "--nb", 32, "--nodes", 3, "--json", "--survive", survive
    with workers(3, "--threads", 1) as (addresses, _), CutLink(addresses[1], NEIGHBOUR) as cut:
        hosts = [addresses[0], cut.address, addresses[2]]
        result = bramble(*words, "-w", ",".join(hosts))
        assert cut.was_cut
        if survive:
            report = json.loads(result.out)
            assert result.code == 0 and report["passed"], result
            assert f"bramble: worker {cut.address} was lost before the start (" in result.err, result
            assert "the elimination starts on 2 workers\n" in result.err, result
            assert [worker["name"] for worker in report["lost"]["workers"]] == [cut.address] and report["lost"]["seconds"] == 0
            assert [worker["name"] for worker in report["workers"]] == hosts[::2]
        else:
            assert_refused(result, 5, [f"bramble: worker {cut.address}: "], begun=True)
        # The others are free.
        assert succeed(*words[:-2], "-w", ",".join(addresses)).code == 0


def test_no_order_is_looked_for_without_a_worker_that_is_lost():
    words = "bench", "hpl", "--memory", "32M", "--json", "--survive", 1
    with workers(3, "--threads", 1) as (addresses, _), CutLink(addresses[1], PING) as cut:
        result = bramble(*words, "-w", ",".join([addresses[0], cut.address, addresses[2]]))
        assert cut.was_cut
        assert_refused(result, {1, 5}, [cut.address])
        assert "N = " not in result.err, result
        assert_refused(bramble(*words, "-w", addresses[0]), 1, ["--survive 1: 2 workers are needed, and 1 takes part"])
