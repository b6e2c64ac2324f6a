"""`--link mpi`: the processes that an mpirun has started are one primary and its workers, with each installed library."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from helpers import BRAMBLE, Run, assert_gone, assert_refused, bramble, cpu_seconds, matrix, processes_of, save, succeed
from lacking import skip

LAUNCHERS = {
    "openmpi": ["mpirun.openmpi", "--oversubscribe"] + (["--allow-run-as-root"] if os.getuid() == 0 else []),
    "mpich": ["mpirun.mpich"],
}
RANK = {"openmpi": b"OMPI_COMM_WORLD_RANK=", "mpich": b"PMI_RANK="}
"""The variable in which the launcher tells a process its rank."""
LONG = "random:2000x35000:f64:1", "random:35000x2000:f64:2"
"""Seconds of work for a small C."""
STRATEGIES = ["row:3", "reuse", "cuboid:1x1x2", "strassen:1"]


@pytest.fixture(params=LAUNCHERS)
def library(request):
    launcher = LAUNCHERS[request.param][0]
    if not shutil.which(launcher):
        skip("mpi", f"{launcher} is not installed: its link is not tested")
    return request.param


def start(library, ranks, *args, env=None):
    launcher, *options = LAUNCHERS[library]
    binary = shutil.which(launcher)
    return Run(*options, "-n", ranks, BRAMBLE, *args, binary=binary, env=env)


def ours(result):
    """Bramble's own lines on stderr."""
    return [line for line in result.err.splitlines() if line.startswith("bramble")]


LAUNCHER_ALONE_S = 10
"""A launcher without any process ends within a fraction of a second."""


def finish(run, deadline_s=60):
    """The outcome of a run, and whether its launcher had to be killed.

    Open MPI's, with PMIx 4.2, sometimes hangs after it has ended the processes of an aborted job: its
    main thread waits in PMIx_server_finalize for a thread that waits for an abandoned lock (docs/mpi.md).
    """
    end, alone_since = time.monotonic() + deadline_s, None
    while True:
        try:
            run.process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            alone_since = (alone_since or time.monotonic()) if not run.workers() else None
            if alone_since and time.monotonic() - alone_since > LAUNCHER_ALONE_S:
                run.process.kill()
                return run.finish(), True
            if time.monotonic() < end:
                continue
        # Its output fits into the pipes; not having ended by now is an error.
        return run.finish(deadline_s=1), False


def launcher_failed(result, was_ended):
    """Whether the exit code is the launcher's own: it crashed, or hung, after all processes had ended."""
    crashed = result.code == 128 + signal.SIGSEGV and "(PMIx_server_finalize+" in result.err
    return crashed or (was_ended and result.code == 128 + signal.SIGKILL)


def has_begun(pid):
    """Whether the process has compute threads: then it has entered MPI. Entering takes processor time, too."""
    for task in Path(f"/proc/{pid}/task").glob("*/comm"):
        try:
            if task.read_text().startswith("compute"):
                return True
        except OSError:
            pass  # The process ended meanwhile.
    return False


def rank_of(run, library, rank, computes_s=0.4, deadline_s=20):
    """The process of this rank, once it has entered MPI (if it computes) and has used this much processor time."""
    end, mark = time.monotonic() + deadline_s, RANK[library] + str(rank).encode()
    while time.monotonic() < end:
        for pid in processes_of(run.tag):
            try:
                is_it = mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if is_it and (computes_s == 0 or has_begun(pid)) and cpu_seconds(pid) >= computes_s:
                return pid
        time.sleep(0.02)
    raise AssertionError(f"rank {rank} does not compute")


def test_the_same_digest_as_on_one_machine(library, tmp_path):
    # Integers: every cut of k gives the same sums.
    a, b = save(tmp_path, "A.npy", matrix(700, 650, "i64", 1)), save(tmp_path, "B.npy", matrix(650, 600, "i64", 2))
    want = succeed("multiply", a, b, "--json").report["digest"]
    runs = [start(library, 3, "multiply", a, b, "-o", tmp_path / f"C{i}.npy", "--link", "mpi", "--strategy", strategy, "--json")
            for i, strategy in enumerate(STRATEGIES)]
    for run in runs:
        result = run.finish()
        # One object: only the first process prints.
        assert (result.code, result.err) == (0, ""), result
        report = result.report
        assert report["digest"] == want and report["verify"]["passed"], result
        assert {worker["link"] for worker in report["workers"]} <= {"thread", "mpi"}, result
        assert "mpi" in {worker["link"] for worker in report["workers"]}, result
        assert_gone(result.tag)
    assert len(list(tmp_path.glob("C*"))) == len(STRATEGIES)


def test_a_world_of_one_is_this_machine_alone(library, tmp_path):
    a = save(tmp_path, "A.npy", matrix(30, 30, "f64", 1))
    result = start(library, 1, "multiply", a, a, "--link", "mpi", "--json").finish()
    assert (result.code, result.report["alone"]) == (0, True), result
    assert_gone(result.tag)


def ended(library, folder, blow):
    """Starts a long product, and calls `blow` to end it once its workers compute; returns the run and the name of C."""
    c = folder / f"C-{blow.__name__}.npy"
    return start(library, 3, "multiply", *LONG, "-o", c, "--link", "mpi", "--kernel", "simd", "--threads", 1,
                 "--strategy", "reuse"), c, blow


def test_who_ends_early_ends_all_and_leaves_nothing_under_the_name_of_c(library, tmp_path):
    def worker_killed(run):
        os.kill(rank_of(run, library, 1), signal.SIGKILL)

    def primary_killed(run):
        rank_of(run, library, 1)
        os.kill(rank_of(run, library, 0, 0), signal.SIGKILL)

    def interrupted(run):
        rank_of(run, library, 1)
        run.process.send_signal(signal.SIGINT)

    runs = [ended(library, tmp_path, blow) for blow in (worker_killed, primary_killed, interrupted)]
    try:
        for run, _, blow in runs:
            blow(run)
        for run, c, blow in runs:
            result, was_ended = finish(run)
            # MPICH's mpirun exits with 0 after Ctrl-C, whatever the processes' exit codes.
            assert result.code != 0 or (blow is interrupted and library == "mpich"), result
            assert not was_ended or library == "openmpi", result
            assert_gone(result.tag, deadline_s=5)
            assert not c.exists(), "a part of a product has the name of a whole one"
    finally:
        for run, *_ in runs:
            if run.process.poll() is None:
                run.end()


def test_one_that_stands_still_in_mid_frame_is_done_without(tmp_path):
    """An MPI receive cannot be cancelled: a late message must not land in C, which other workers recompute meanwhile."""
    if not shutil.which(LAUNCHERS["openmpi"][0]):
        skip("mpi", "Open MPI is not installed")
    # A row of C, whose frames are one run of memory, over TCP with buffers that no frame fits.
    wide = "random:1x1:f64:1", "random:1x40000000:f64:2"
    want = succeed("multiply", *wide, "--json").report["digest"]
    slow = {"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "lo", "OMPI_MCA_btl_tcp_sndbuf": "8192",
            "OMPI_MCA_btl_tcp_rcvbuf": "8192"}
    run = start("openmpi", 3, "multiply", *wide, "--link", "mpi", "--threads", 1, "--strategy", "reuse", "--json", env=slow)
    try:
        # It takes 0.7 s on a fast machine.
        os.kill(rank_of(run, "openmpi", 1, computes_s=0.3), signal.SIGSTOP)
        result, was_ended = finish(run, deadline_s=90)
        # If the other workers complete C within 8 s, the stopped one is not lost yet.
        lost = [lost["name"] for lost in result.report["faults"]["lost"]]
        assert (result.code, lost) in [(3, ["rank 1"]), (0, [])] or (launcher_failed(result, was_ended) and len(lost) < 2), result
        assert result.report["digest"] == want and result.report["verify"]["passed"], result
        assert_gone(result.tag, deadline_s=5)
    finally:
        if run.process.poll() is None:
            run.end()


def test_a_process_that_never_enters_is_waited_for_only_so_long(library, tmp_path):
    """A process that runs but does something else: no process of the job may wait for it for ever."""
    launcher, *options = LAUNCHERS[library]
    a = save(tmp_path, "A.npy", matrix(4, 4, "f64", 1))
    program = BRAMBLE, "multiply", a, a, "--link", "mpi"
    run = Run(*options, "-n", 2, *program, ":", "-n", 1, "sleep", 1000, binary=shutil.which(launcher),
              env={"BRAMBLE_MPI_START_S": "2"})
    try:
        result, was_ended = finish(run)
        lines = ours(result)
        # The first process prints the error, and a second one if the launcher is slow to end them.
        assert lines and all("not all 3 processes" in line and "after 2 s" in line and "BRAMBLE_MPI_START_S" in line for line in lines), result
        # MPICH's mpirun may return the signal with which it killed the rest.
        assert result.code == 1 or (library == "mpich" and result.code) or launcher_failed(result, was_ended), result
        assert_gone(result.tag, deadline_s=5)
    finally:
        if run.process.poll() is None:
            run.end()


def test_a_launcher_that_hangs_alone_is_told_from_a_program_that_does(monkeypatch):
    """Stand-ins: a launcher whose process has ended, and one whose process runs."""
    monkeypatch.setitem(globals(), "LAUNCHER_ALONE_S", 0.5)
    result, was_ended = finish(Run("-c", "echo whole; exec sleep 1000", binary="sh"))
    assert (result.out, was_ended) == ("whole\n", True) and launcher_failed(result, was_ended), result
    with pytest.raises(AssertionError, match="no end"):
        finish(Run("-c", "sleep 1000 & wait", binary="sh"), deadline_s=2)
    # A launcher killed by a signal of its own does not count.
    result, was_ended = finish(Run("-c", "kill -KILL $$", binary="sh"))
    assert not was_ended and not launcher_failed(result, was_ended), result


CASES = {
    "no time to start": (["A.npy", "A.npy", "--link", "mpi"], 2, "BRAMBLE_MPI_START_S"),
    "no operand": (["nobody.npy", "nobody.npy", "--link", "mpi"], 1, "nobody.npy"),
    "no option": (["A.npy", "A.npy", "--link", "mpi", "--wrong"], 2, "--wrong"),
    "two teams": (["A.npy", "A.npy", "--link", "mpi", "--local", "2"], 2, "--local"),
    "no links between workers": (["A.npy", "A.npy", "--link", "mpi", "--relay", "on"], 2, "--relay on"),
}


def test_what_cannot_be_done_is_said_once(library, tmp_path):
    save(tmp_path, "A.npy", matrix(4, 4, "f64", 1))
    cases = [(start(library, 3, "multiply", *(tmp_path / x if x.endswith(".npy") else x for x in args),
                    env={"BRAMBLE_MPI_START_S": "soon"} if culprit == "BRAMBLE_MPI_START_S" else None), code, culprit)
             for args, code, culprit in CASES.values()]
    missing = {"BRAMBLE_MPI": str(tmp_path / "libnobody.so")}
    cases.append((start(library, 3, "multiply", "A.npy", "A.npy", "--link", "mpi", env=missing), 1, "libnobody.so.*BRAMBLE_MPI"))
    for run, code, culprit in cases:
        result = run.finish(deadline_s=30)
        lines = ours(result)
        assert (result.code, result.out, len(lines)) == (code, "", 1), result
        assert re.search(culprit, lines[0]), result
        assert_gone(result.tag)


def test_nobody_has_started_others(library, tmp_path):
    a = save(tmp_path, "A.npy", matrix(4, 4, "f64", 1))
    file = {"openmpi": "libmpi.so.40", "mpich": "libmpich.so.12"}[library]
    result = bramble("multiply", a, a, "--link", "mpi", env={"BRAMBLE_MPI": file})
    assert_refused(result, 2, ["--link mpi", "mpirun -n"])


def test_a_library_of_another_mpirun_is_named(tmp_path):
    if not all(shutil.which(launcher) for launcher, *_ in LAUNCHERS.values()):
        skip("mpi", "only one MPI library is installed")
    a = save(tmp_path, "A.npy", matrix(4, 4, "f64", 1))
    result = start("mpich", 2, "multiply", a, a, "--link", "mpi", env={"BRAMBLE_MPI": "libmpi.so.40"}).finish()
    lines = ours(result)
    assert (result.code, len(lines)) == (1, 1), result
    assert re.search("started 2 .* sees 1.*BRAMBLE_MPI", lines[0]), result


def test_without_a_library_it_is_said_what_to_install(tmp_path):
    # Files that are no libraries stand before those of the system.
    for name in ("libmpi_abi.so.0", "libmpi_abi.so.1", "libmpi.so.40", "libmpi.so.12", "libmpich.so.12"):
        (tmp_path / name).write_text("no library")
    a = save(tmp_path, "A.npy", matrix(4, 4, "f64", 1))
    result = bramble("multiply", a, a, "--link", "mpi", env={"LD_LIBRARY_PATH": str(tmp_path)})
    assert_refused(result, 1, ["openmpi-bin", "mpich", "BRAMBLE_MPI"])


def test_its_link_is_measured_beside_mpi_alone(library):
    run = start(library, 2, "bench", "link", "--link", "mpi", "--function", "latency,bandwidth,broadcast", "--size", "8,9K",
                "--ends", "2,4", "--rounds", 1, "--json")
    result = run.finish(deadline_s=50)
    assert result.code == 0, result
    points = [json.loads(line) for line in result.out.splitlines()][1:]
    seen = {(p["function"], p["bytes"], p["ends"]): p["bare"] for p in points}
    assert set(seen) == {(f, size, 2) for f in ("latency", "bandwidth", "broadcast") for size in (8, 9 << 10)}, seen
    assert {p["link"] for p in points} == {"mpi"}
    # Every run was verified. Four ends exceed the two ranks.
    assert all(bare == (None if f == "broadcast" else "MPI alone") for (f, *_), bare in seen.items()), seen
    assert [line for line in ours(result) if "started 2 processes" in line], result
    assert_gone(result.tag)
