"""The links to worker processes of this machine: the same bits over each, and no leftovers after any end."""

import os
import re
import signal
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from helpers import Run, assert_gone, assert_refused, bramble, cpu_seconds, matrix, save, succeed

KINDS = ["tcp", "pipe", "shm"]
MIDDLE = "random:5400x5400:f64:1", "random:5400x5400:f64:2"
"""Seconds of work."""
STRATEGIES = {
    "auto": [],
    "rows": ["--strategy", "row:3"],
    "squares": ["--strategy", "square:2"],
    "reuse": ["--strategy", "reuse"],
    "cut in depth": ["--strategy", "cuboid:1x1x2"],
    "mesh": ["--strategy", "summa:2x1"],
    "Strassen": ["--strategy", "strassen:1"],
}


def shared_files():
    """Names in shared memory, except those of tests that run at the same time: folders, and the names of MPI
    libraries."""
    names = [entry.name for entry in os.scandir("/dev/shm") if not entry.is_dir()]
    return sorted(name for name in names if not re.match(r"vader_segment|sm_segment|osc_|mpich|cray-shm|\.?ucx|psm", name))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_same_digest_over_every_link(tmp_path, strategy):
    # Integers: every cut of k gives the same sums.
    a, b = save(tmp_path, "A.npy", matrix(700, 650, "i64", 1)), save(tmp_path, "B.npy", matrix(650, 600, "i64", 2))
    want = succeed("multiply", a, b, "-o", tmp_path / "C.npy", "--json").report["digest"]
    for kind in KINDS:
        run = succeed("multiply", a, b, "-o", tmp_path / "C.npy", "--local", 2, "--link", kind, *STRATEGIES[strategy],
                      "--json").report
        assert run["digest"] == want and run["verify"]["passed"], kind
        assert {worker["link"] for worker in run["workers"]} <= {"thread", kind}, run["workers"]
        assert kind in {worker["link"] for worker in run["workers"]}, run["workers"]


@contextmanager
def running(*args):
    run = Run("multiply", *args, "--json")
    try:
        yield run
    finally:
        run.end()


def one_at_work(run, at_least_s=0.3, deadline_s=30):
    """A worker process of the run with at least this much processor time, in seconds."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        for pid in run.workers():
            if cpu_seconds(pid) > at_least_s:
                return pid
        time.sleep(0.02)
    raise AssertionError("no worker process computes")


SMALLER = "random:1300x1300:f64:1", "random:1300x1300:f64:2", "--kernel", "reference", "--tile", "128"
"""The same on every machine, and over before a silent worker is lost."""
CASES = {"killed": (signal.SIGKILL, KINDS, SMALLER), "stands still": (signal.SIGSTOP, ["pipe", "shm"], (*MIDDLE, "--kernel", "simd"))}


@pytest.mark.parametrize("case", CASES)
def test_a_worker_process_that_dies_or_stands_still(case):
    before, (blow, kinds, product) = shared_files(), CASES[case]
    options = "--local", 2, "--threads", 1, "--strategy", "reuse"
    # At the same time: most of the test is waiting for a silent end.
    with ExitStack() as stack:
        runs = [stack.enter_context(running(*product, *options, "--link", kind)) for kind in kinds]
        for run in runs:
            os.kill(one_at_work(run), blow)
        digests = set()
        for run in runs:
            result = run.finish(120)
            assert result.code == 3, result
            report = result.report
            lost = report["faults"]["lost"]
            assert len(lost) == 1 and re.fullmatch("local [12]", lost[0]["name"]), lost
            assert report["verify"]["passed"] is True, result
            digests.add(report["digest"])
            assert_gone(result.tag)
    assert len(digests) == 1
    assert shared_files() == before


@pytest.mark.parametrize("kind", ["pipe", "shm"])
def test_workers_end_when_the_primary_is_killed(kind):
    before = shared_files()
    with running(*MIDDLE, "--local", 2, "--threads", 1, "--link", kind, "--strategy", "reuse") as run:
        one_at_work(run)
        # No worker has an address.
        for pid in run.workers():
            held = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
            sockets = {name for name in held if name.startswith("socket:")}
            tcp = Path(f"/proc/{pid}/net/tcp").read_text() + Path(f"/proc/{pid}/net/tcp6").read_text()
            assert not any(name[8:-1] in tcp.split() for name in sockets), held
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
        assert_gone(run.tag)
    assert shared_files() == before


def mapped_by(pid):
    """The memory map of a process."""
    return {line.split(maxsplit=5)[5] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if line.count("/")}


def large(folder):
    """Operands that take the slow kernel more than a second on a fast core, too: 5.4 Gflop for two threads."""
    return [save(folder, name, matrix(1400, 1400, "f64", seed)) for name, seed in [("A.npy", 1), ("B.npy", 2)]]


SLOW = "--kernel", "reference", "--local", 2, "--threads", 1, "--strategy", "reuse", "--link"


def test_workers_behind_shm_map_the_operands(tmp_path):
    files = large(tmp_path)
    want = succeed("multiply", *files, *SLOW, "pipe", "--json").report
    with running(*files, *SLOW, "shm") as run:
        pid = one_at_work(run, 0.1)
        assert set(map(str, files)) <= mapped_by(pid)
        os.kill(pid, signal.SIGKILL)
        result = run.finish()
    # The remaining process computes the lost share, from the same files.
    assert result.code == 3 and result.report["digest"] == want["digest"], result
    # Only tiles are in the workers' own memory, but panels passed by reference count as sent.
    [alive] = [worker for worker in result.report["workers"] if worker["memory_bytes"]]
    assert alive["memory_bytes"] <= 8 * 1400 * 1400 < min(worker["memory_bytes"] for worker in want["workers"])
    assert alive["bytes_in"] > 8 * 1400 * 1400
    assert_gone(result.tag)


def test_an_operand_that_is_cut_short_while_it_is_mapped_ends_the_product(tmp_path):
    files = large(tmp_path)
    with running(*files, *SLOW, "shm", "-o", tmp_path / "C.npy") as run:
        one_at_work(run, 0.1)
        for file in files:
            os.truncate(file, 4096)
        result = run.finish()
    # The system kills a process that reads a truncated map: the workers, then the primary when it computes their share.
    assert result.code in (1, 4, 128 + signal.SIGBUS), result
    assert not (tmp_path / "C.npy").exists()
    assert_gone(result.tag)


FORMS = {
    "as they lie": ([], {}),
    "transposed": (["--transpose-a", "--transpose-b"], {}),
    "the old C": (["--beta", "2"], {}),
    "converted": (["--dtype", "f64"], {"dtype": "f32"}),
    "by columns": ([], {"order": "F"}),
    "the other byte order": ([], {"dtype": ">f8"}),
    "the same twice": ([], {"same": True}),
}


@pytest.mark.parametrize("form", FORMS)
def test_operands_in_every_form_are_the_same_by_shm(tmp_path, form):
    options, how = FORMS[form]
    made = [matrix(260, 260, how.get("dtype", "f64"), seed) for seed in (1, 2, 3)]
    a, b = [save(tmp_path, f"{name}.npy", np.asarray(one, order=how.get("order", "C"))) for name, one in zip("AB", made)]
    digests = set()
    for kind in ["pipe", "shm"]:
        c = save(tmp_path, "C.npy", made[2].astype("f8"))
        run = succeed("multiply", a, a if how.get("same") else b, "-o", c, "--local", 2, "--link", kind, "--tile", 64, "--panel",
                      96, "--strategy", "reuse", *options, "--json").report
        assert run["verify"]["passed"] and {worker["link"] for worker in run["workers"]} >= {kind}
        digests.add(run["digest"])
    assert len(digests) == 1


@pytest.mark.parametrize("args, culprits", [
    (["--link", "shm"], ["--link shm", "--local"]),
    (["--link", "pipe"], ["--link pipe", "--local"]),
    (["--link", "pipe", "-w", "127.0.0.1:1"], ["--link pipe", "TCP"]),
    (["--link", "thread", "-w", "127.0.0.1:1"], ["--link thread", "TCP"]),
    (["--link", "shm", "--local", "2", "--relay", "on"], ["--relay on", "--link tcp"]),
], ids=" ".join)
def test_refused(tmp_path, args, culprits):
    a = save(tmp_path, "A.npy", matrix(4, 4, "f64", 1))
    assert_refused(bramble("multiply", a, a, *args, deadline_s=20), 2, culprits)


def test_a_process_that_nobody_started_with_a_link_says_so():
    result = bramble("worker", "--inherited", deadline_s=20)
    assert_refused(result, 1, ["--inherited", "standard input"])
