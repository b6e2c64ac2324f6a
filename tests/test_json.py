"""The report that `--json` prints: its fields, their types, and that they agree with each other."""

import json
import math
import signal

import pytest
from helpers import Run, bramble, matrix, save, succeed

M, K, N, TILE, PANEL = 500, 700, 400, 128, 200
TILES, STEPS = math.ceil(M / TILE) * math.ceil(N / TILE), math.ceil(K / PANEL)
LINK_TEST = 2**16 + 2 * 2**20
"""Bytes each way by which every link is measured before the plan is made."""

NUMBER, COUNT, TEXT = (int, float), int, str
FIELDS = {
    "schema": TEXT, "m": COUNT, "k": COUNT, "n": COUNT, "dtype": TEXT, "strategy": TEXT, "sums": TEXT, "kernel": TEXT,
    "seconds": NUMBER, "gflops": NUMBER, "total_seconds": NUMBER, "first_job_seconds": NUMBER,
    "digest": TEXT, "primary": dict, "workers": list, "bound": dict, "predicted": dict, "verify": dict,
    "faults": dict,
}
PREDICTED = {"seconds": NUMBER, "bytes_sent": COUNT, "bytes_received": COUNT, "worker_memory_bytes": COUNT,
             "primary_memory_bytes": COUNT, "by": TEXT}
NESTED = {
    "primary": {"bytes_sent": COUNT, "bytes_received": COUNT, "sums_bytes_max": COUNT, "cpu_s": NUMBER,
                "rss_peak_bytes": COUNT, "io": object},
    "bound": {"seconds": NUMBER, "by": TEXT},
    "predicted": PREDICTED,
    "verify": {"method": TEXT, "passed": bool, "worst_ratio": NUMBER, "seconds": NUMBER},
    "faults": {"lost": list, "missing": list, "retried": COUNT, "excluded": list},
}
WORKER = {"name": TEXT, "link": TEXT, "gflops": NUMBER, "share": NUMBER, "bytes_in": COUNT,
          "bytes_out": COUNT, "busy_s": NUMBER, "jobs": COUNT, "threads": list}
WAYS = {"in process": [], "thread link": ["--link", "thread"],
        "local 1": ["--local", "1"], "local 3": ["--local", "3", "--link", "tcp"]}


def check_fields(where, given, wanted):
    for name, kind in wanted.items():
        assert name in given, f"{where} has no {name}"
        value = given[name]
        if kind in (NUMBER, COUNT):
            assert not isinstance(value, bool), f"{where}.{name} is {value!r}"
        assert isinstance(value, kind), f"{where}.{name} is {value!r}"
        if kind in (NUMBER, COUNT):
            assert math.isfinite(value) and value >= 0, f"{where}.{name} is {value}"


def product(folder, *options):
    a, b = save(folder, "A.npy", matrix(M, K, "f64", 1)), save(folder, "B.npy", matrix(K, N, "f64", 2))
    # Strassen's method, which measured speeds may suggest on a busy machine, has other jobs.
    return succeed("multiply", a, b, "-o", folder / "C.npy", "--json", "--tile", TILE, "--panel", PANEL, "--elementwise",
                   *options).report


@pytest.mark.parametrize("way", WAYS)
def test_every_field(tmp_path, way):
    report = product(tmp_path, *WAYS[way])
    check_fields("report", report, FIELDS)
    for name, fields in NESTED.items():
        check_fields(name, report[name], fields)
    for worker in report["workers"]:
        check_fields("worker", worker, WORKER)
        for thread in worker["threads"]:
            check_fields("thread", thread, {"jobs": COUNT, "busy_s": NUMBER, "idle_s": NUMBER, "cpu_s": object})
    assert report["schema"] == "bramble.multiply/1"
    assert (report["m"], report["k"], report["n"], report["dtype"]) == (M, K, N, "f64")


@pytest.mark.parametrize("way", WAYS)
def test_the_figures_agree(tmp_path, way):
    report = product(tmp_path, *WAYS[way])
    seconds = report["seconds"]
    assert seconds > 0
    assert report["gflops"] == pytest.approx(2 * M * N * K / seconds / 1e9, rel=0.02)
    assert report["total_seconds"] >= seconds
    assert report["first_job_seconds"] + seconds <= report["total_seconds"] + 0.01
    assert 0 < report["bound"]["seconds"]
    assert report["bound"]["by"] in ("compute", "egress", "ingress")
    workers = report["workers"]
    assert sum(worker["jobs"] for worker in workers) == TILES * STEPS
    assert sum(worker["share"] for worker in workers) == pytest.approx(1, abs=1e-6)
    for worker in workers:
        assert sum(thread["jobs"] for thread in worker["threads"]) == worker["jobs"]
        busy = sum(thread["busy_s"] for thread in worker["threads"])
        assert busy == pytest.approx(worker["busy_s"], abs=1e-3)
        assert all(thread["busy_s"] <= seconds + 0.05 for thread in worker["threads"])
    assert report["faults"]["lost"] == [] and report["faults"]["retried"] == 0
    for machine in report["faults"]["excluded"]:
        assert machine["name"] and machine["reason"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_bytes_over_the_links(tmp_path, count):
    m, k, n = 2200, 2400, 2000
    a, b = save(tmp_path, "A.npy", matrix(m, k, "f64", 1)), save(tmp_path, "B.npy", matrix(k, n, "f64", 2))
    report = succeed("multiply", a, b, "--local", count, "--link", "tcp", "--json").report
    operands, result = (m * k + k * n) * 8, m * n * 8
    sent, received = report["primary"]["bytes_sent"], report["primary"]["bytes_received"]
    working, link_tests = len(report["workers"]), count * LINK_TEST
    assert 1 <= working <= count
    assert len({worker["name"] for worker in report["workers"]}) == working
    assert sent >= operands and received >= result
    # Not more than every worker getting both operands whole, and a little for frames and jobs.
    assert sent <= working * operands * 1.01 + link_tests and received <= result * 1.01 + link_tests
    for figure, measured in {
        sum(worker["bytes_in"] for worker in report["workers"]): sent,
        sum(worker["bytes_out"] for worker in report["workers"]): received,
        report["predicted"]["bytes_sent"]: sent,
        report["predicted"]["bytes_received"]: received,
    }.items():
        assert abs(figure - measured) <= 0.01 * measured + link_tests


IO = {"sending_s": NUMBER, "receiving_s": NUMBER, "encoding_s": NUMBER, "scheduling_s": NUMBER, "other_s": NUMBER}


def test_processor_time_is_accounted_for_when_asked(tmp_path):
    plain = product(tmp_path, "--local", 2)
    assert plain["primary"]["io"] is None
    assert all(w["io"] is None and all(t["cpu_s"] is None for t in w["threads"]) for w in plain["workers"])
    asked = product(tmp_path, "--local", 2, "--verbose")
    check_fields("primary.io", asked["primary"]["io"], IO)
    assert 0 < sum(asked["primary"]["io"].values()) <= asked["primary"]["cpu_s"]
    for worker in asked["workers"]:
        check_fields("worker.io", worker["io"], IO)
        assert sum(worker["io"].values()) > 0
        assert all(isinstance(thread["cpu_s"], float) for thread in worker["threads"])
    alone = product(tmp_path, "--verbose")
    check_fields("primary.io", alone["primary"]["io"], IO)
    # Its own threads have no other thread of their own.
    assert [worker["io"] for worker in alone["workers"]] == [None]


def test_in_process_nothing_is_sent(tmp_path):
    primary = product(tmp_path)["primary"]
    assert primary["bytes_sent"] == 0 and primary["bytes_received"] == 0


def test_a_failure_prints_no_report(tmp_path):
    a, b = save(tmp_path, "A.npy", matrix(3, 4, "f64")), save(tmp_path, "B.npy", matrix(3, 4, "f64"))
    result = bramble("multiply", a, b, "--json")
    assert result.code in (1, 2) and result.report["schema"] == "bramble.error/1", result


FAILURES = {
    "a file that is not there": (1, "multiply nowhere.npy random:9x9", "nowhere.npy", None),
    "shapes": (1, "multiply random:9x8 random:9x8", "random:9x8 is 9x8", "did you mean --transpose-b?"),
    "a description": (2, "multiply random:9 random:9x9", "random:9", "write random:"),
    "an option of the parser": (2, "multiply random:9x9 random:9x9 --threads 0", "--threads <T>", "see --help"),
    "an option that is not there": (2, "plan --nonsense", "--nonsense", "see --help"),
    "no operands": (2, "multiply", "<A> <B>", "see --help"),
    "a plan": (1, "plan nowhere.npy random:9x9", "nowhere.npy", None),
    "faults": (2, "sim 9x9x9 --faults nonsense", "--faults", "write one|use"),
    "no faults": (2, "sim 9x9x9 --faults=", "--faults", "write one"),
    "nodes": (2, "nodes -w a,a", "--workers a:7400", "name it once"),
    "kernels": (2, "bench kernel --size 0", "--size <LIST>", "see --help"),
    "links": (2, "bench link --ends 99", "--ends", "see --help"),
    "labs": (2, "lab status --nonsense", "--nonsense", "see --help"),
    "nobody there": (5, "multiply random:9x9 random:9x9 -w 127.0.0.1:1", "worker 127.0.0.1:1", "start one there"),
}


@pytest.mark.parametrize("code, words, what, step", FAILURES.values(), ids=FAILURES)
def test_failures_are_one_object_on_stdout_and_the_same_line_on_stderr(code, words, what, step):
    result = bramble(*words.split(), "--json")
    assert result.code == code and result.out.count("\n") == 1, result
    report = json.loads(result.out)
    assert report["schema"] == "bramble.error/1" and set(report) == {"schema", "error"}
    error = report["error"]
    check_fields("error", error, {"code": TEXT, "exit_code": COUNT, "message": TEXT, "what": object, "next": object})
    assert error["exit_code"] == code and error["code"] == {1: "failed", 2: "usage", 5: "unreachable"}[code]
    assert f"bramble: {error['message']}\n" in result.err, result
    assert what in (error["what"] or ""), error
    assert step is None or words.startswith("sim 9x9x9 --faults nonsense") or step in (error["next"] or ""), error
    plain = bramble(*words.split())
    assert plain.code == code and plain.out == "" and error["message"] in plain.err, plain


def test_nodes_that_do_not_answer_are_in_the_object_of_the_verb():
    result = bramble("nodes", "-w", "127.0.0.1:1", "--json")
    assert result.code == 5 and result.report["schema"] == "bramble.nodes/1" and len(result.report["missing"]) == 1


def test_a_run_that_is_interrupted_prints_an_object_too():
    run = Run("multiply", "random:9x9", "random:9x9", "--await", 1, "--listen", "127.0.0.1:0", "--json")
    try:
        assert "waiting on" in run.process.stderr.readline()
        run.process.send_signal(signal.SIGINT)
        result = run.finish(20)
        assert result.code == 130 and result.report["error"]["code"] == "interrupted", result
    finally:
        run.end()
