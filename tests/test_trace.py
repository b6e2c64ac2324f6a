"""The trace that `--trace` writes: whole or absent, every job once, no overlaps, and the states add up."""

import json
import math
import signal
import time

import numpy as np
import pytest
from helpers import Run, bramble, matrix, save, succeed
from wire_worker import WireWorker, agreeing_liars

M, K, N, TILE, PANEL = 600, 700, 500, 128, 100
STATES = {"computing (all threads)", "computing (some threads)", "waiting for data", "waiting for credit", "sending results",
          "idle"}


def operands(folder, m=M, k=K, n=N):
    return save(folder, "A.npy", matrix(m, k, "f64", 1)), save(folder, "B.npy", matrix(k, n, "f64", 2))


SMALL = 150, 130, 170
"""For the worker in Python, which is slow."""


def traced(folder, *options):
    """(trace, report) of a product."""
    file = folder / "out.json"
    report = succeed("multiply", *operands(folder), "-o", folder / "C.npy", "--json", "--tile", TILE, "--panel", PANEL,
                     "--trace", file, *options).report
    assert sorted(p.name for p in folder.iterdir()) == ["A.npy", "B.npy", "C.npy", "out.json"]
    return json.loads(file.read_text()), report


def nanoseconds(microseconds):
    return round(microseconds * 1000)


def spans_by_track(trace):
    tracks = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            start = nanoseconds(event["ts"])
            span = (start, start + nanoseconds(event["dur"]), event["cat"], event["name"], event["args"])
            tracks.setdefault((event["pid"], event["tid"]), []).append(span)
    return {track: sorted(spans, key=lambda span: span[:2]) for track, spans in tracks.items()}


def names(trace, what):
    return {(event["pid"], event.get("tid")): event["args"]["name"] for event in trace["traceEvents"]
            if event["ph"] == "M" and event["name"] == what}


RELAYING = ["--local", "3", "--threads", "1", "--strategy", "cuboid", "--relay", "on"]


@pytest.mark.parametrize("way", [["--local", "2", "--threads", "2"], [], RELAYING], ids=["local 2", "in process", "relay"])
def test_every_job_is_a_span_and_the_states_add_up(tmp_path, way):
    trace, report = traced(tmp_path, *way)
    tracks, threads = spans_by_track(trace), names(trace, "thread_name")
    assert set(tracks) <= set(threads), "every track has a name"
    for track, spans in tracks.items():
        for before, after in zip(spans, spans[1:]):
            assert before[1] <= after[0], (threads[track], before, after)
    processes = {name: pid for (pid, _), name in names(trace, "process_name").items()}
    phases = tracks[next(t for t, name in threads.items() if name == "phases")]
    computing = next(span for span in phases if span[3] == "computing")
    relays = report["relay"] is not None
    assert relays == (way is RELAYING) == ("introducing workers" in {span[3] for span in phases})
    assert trace["otherData"]["dropped_events"] == 0
    machines = trace["otherData"]["machines"]
    assert [m["name"] for m in machines] == [w["name"] for w in report["workers"]]
    for worker, machine in zip(report["workers"], machines):
        pid = next(pid for name, pid in processes.items() if name in (f"worker {worker['name']}", f"own threads of {worker['name']}"))
        tids = {name: tid for (p, tid), name in threads.items() if p == pid}
        assert machine["lost_records"] == 0
        for number, thread in enumerate(worker["threads"]):
            jobs = [span for span in tracks.get((pid, tids[f"compute {number}"]), []) if span[2] == "job"]
            assert len(jobs) == thread["jobs"]
            # The worker reports microseconds, and the clock correction stretches them by millionths.
            assert sum(end - start for start, end, *_ in jobs) / 1e9 == pytest.approx(thread["busy_s"], rel=1e-3, abs=2e-6)
        states = tracks[pid, tids["state"]]
        assert {name for *_, name, _ in states} <= STATES and set(machine["state_seconds"]) == STATES
        assert states[0][0] == computing[0] and states[-1][1] == computing[1]
        assert all(before[1] == after[0] for before, after in zip(states, states[1:]))
        assert sum(machine["state_seconds"].values()) == pytest.approx((computing[1] - computing[0]) / 1e9, abs=1e-6)
        clock = machine["clock_at_start"]
        # One machine, one clock: the measured offset between the processes must be within its stated error.
        assert abs(clock["offset_ns"]) <= clock["uncertainty_ns"]
        frames = [span for name in ("link: to it", "link: from it") for span in tracks[pid, tids[name]]]
        assert {"store", "result", "bye"} <= {span[3] for span in frames}
        orders = [start for start, *_, kind, _ in frames if kind == "relay"]
        assert relays or not orders
    jobs = [e["args"] for e in trace["traceEvents"] if e.get("cat") == "job" and e["name"] == "multiply"]
    tiles, steps = math.ceil(M / TILE) * math.ceil(N / TILE), math.ceil(K / PANEL)
    assert len(jobs) == tiles * steps
    places = {(job["row"], job["col"], job["step"]) for job in jobs}
    assert places == {(row, col, step) for row in range(0, M, TILE) for col in range(0, N, TILE) for step in range(steps)}
    counters = {event["name"] for event in trace["traceEvents"] if event["ph"] == "C"}
    assert counters == {"credit left", "in the link", "jobs"}


def test_bytes_of_the_frames_are_those_of_the_report(tmp_path):
    trace, report = traced(tmp_path, "--local", "2")
    frames, threads = [e for e in trace["traceEvents"] if e.get("cat") == "frame"], names(trace, "thread_name")
    for name, figure in (("link: to it", "bytes_sent"), ("link: from it", "bytes_received")):
        assert sum(f["args"]["bytes"] for f in frames if threads[f["pid"], f["tid"]] == name) == report["primary"][figure]


def test_strassens_sums_are_jobs_too(tmp_path):
    trace, report = traced(tmp_path, "--local", "2", "--strategy", "strassen:1")
    names = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "job"]
    assert {"multiply", "add", "subtract"} <= set(names)
    assert len(names) == sum(worker["jobs"] for worker in report["workers"])


def test_a_worker_written_from_the_page_is_in_the_trace(tmp_path):
    worker, file = WireWorker(), tmp_path / "out.json"
    worker.start()
    result = bramble("multiply", *operands(tmp_path, *SMALL), "-o", tmp_path / "C.npy", "-w", worker.address, "--strategy", "reuse",
                     "--kernel", "simd", "--tile", 32, "--panel", 30, "--json", "--trace", file)
    worker.join(30)
    assert result.code == 0 and worker.error is None, result
    trace = json.loads(file.read_text())
    jobs = [event for event in trace["traceEvents"] if event.get("cat") == "job"]
    assert len(jobs) == result.report["workers"][0]["jobs"] == worker.jobs_done
    assert result.report["workers"][0]["io"]["sending_s"] == pytest.approx(1e-5)
    clock = trace["otherData"]["machines"][0]["clock_at_start"]
    assert abs(clock["offset_ns"]) <= clock["uncertainty_ns"]


def nothing_but_the_operands(folder):
    return sorted(p.name for p in folder.iterdir()) == ["A.npy", "B.npy"]


def test_a_product_that_fails_leaves_no_trace(tmp_path):
    # Tiles of 15 rows are verified only with all of C, so no liar is excluded before.
    for liars, code in ((agreeing_liars(10 * 12)[0], 4), ([WireWorker(protocol=7)], 5)):
        for worker in liars:
            worker.start()
        result = bramble("multiply", *operands(tmp_path, *SMALL), "-o", tmp_path / "C.npy", "-w",
                         ",".join(worker.address for worker in liars), "--strategy", "reuse", "--tile", 15, "--panel", 30,
                         "--no-steal", "--trace", tmp_path / "out.json")
        for worker in liars:
            worker.join(30)
        assert result.code == code, result
        assert nothing_but_the_operands(tmp_path)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_product_leaves_no_trace(tmp_path, how):
    run = Run("multiply", "random:9000x9000:f64:1", "random:9000x9000:f64:2", "--trace", tmp_path / "out.json")
    try:
        end = time.monotonic() + 20
        while not (tmp_path / "out.json.part").exists():
            assert run.process.poll() is None and time.monotonic() < end
            time.sleep(0.01)
        run.process.send_signal(how)
        assert run.finish().code == 128 + how
    finally:
        run.end()
    assert list(tmp_path.iterdir()) == []


def test_what_was_there_stays_when_the_product_fails(tmp_path):
    (tmp_path / "out.json").write_text("mine")
    result = bramble("multiply", *operands(tmp_path)[::-1], "--transpose-a", "--trace", tmp_path / "out.json")
    assert result.code in (1, 2), result
    assert (tmp_path / "out.json").read_text() == "mine"


@pytest.mark.parametrize("name", ["none/out.json", "."])
def test_a_file_that_cannot_be_is_said_before_the_product_begins(tmp_path, name):
    a, b = operands(tmp_path)
    # Hours of work: the answer comes at once, so nothing was begun.
    result = bramble("multiply", "random:90000x90000:f64:1", "random:90000x90000:f64:2", "--local", "2", "--trace", tmp_path / name)
    assert result.code == 1 and "--trace" in result.err, result
    result = bramble("multiply", a, b, "-o", tmp_path / "C.npy", "--trace", tmp_path / "C.npy")
    assert result.code == 2 and "--trace" in result.err, result
    assert nothing_but_the_operands(tmp_path)


def test_a_product_without_steps_has_a_trace_too(tmp_path):
    a, b = save(tmp_path, "A.npy", np.zeros((3, 0))), save(tmp_path, "B.npy", np.zeros((0, 4)))
    succeed("multiply", a, b, "--trace", tmp_path / "out.json")
    trace = json.loads((tmp_path / "out.json").read_text())
    assert trace["otherData"]["machines"] == []
