"""`bramble bench link` and `bramble bench spawn`: output, refused arguments, and no leftovers."""

import json
import os
import re
import signal
import time
import xml.etree.ElementTree as ElementTree

import pytest
from helpers import Run, assert_gone, assert_refused, bramble, succeed

LINKS = {"thread", "tcp", "pipe", "shm"}
PAIRS = {"gap", "latency", "bandwidth", "two-way"}
ALGORITHMS = {"gap": {"window"}, "latency": {"ping-pong"}, "bandwidth": {"window"}, "two-way": {"windows"},
              "broadcast": {"binomial tree"}, "reduce": {"binomial tree"}, "all-reduce": {"recursive doubling", "ring"},
              "all-to-all": {"pairwise exchange"}}
POINT = {"schema", "link", "function", "algorithm", "bytes", "ends", "window", "rounds", "repeats", "seconds", "seconds_min",
         "seconds_max", "bytes_per_s", "messages_per_s", "bare", "bare_seconds", "of_bare", "outliers"}
SPAWNED = {"schema", "what", "count", "rounds", "start_s", "start_s_min", "start_s_max", "end_s", "end_s_min", "end_s_max",
           "outliers"}


def points(result):
    machine, *points = [json.loads(line) for line in result.out.splitlines()]
    assert machine["schema"] == "bramble.machine/1"
    return points


def test_every_link_does_every_function(tmp_path):
    sizes = [8, 200_000]
    words = ["bench", "link", "--size", ",".join(map(str, sizes)), "--ends", "2,5", "--rounds", "1", "--json"]
    done = succeed(*words, "--plot", tmp_path / "links.svg")
    seen = set()
    for point in points(done):
        assert set(point) == POINT and point["schema"] == "bramble.bench.link/1"
        assert 0 < point["seconds_min"] <= point["seconds"] <= point["seconds_max"]
        others = point["ends"] - 1 if point["function"] == "all-to-all" else 1
        assert point["bytes_per_s"] == pytest.approx(others * point["bytes"] / point["seconds"])
        assert point["messages_per_s"] == pytest.approx(1 / point["seconds"])
        assert point["rounds"] == 1 and point["repeats"] >= 1 and point["outliers"] == 0
        assert point["algorithm"] in ALGORITHMS[point["function"]]
        one_way = point["function"] in PAIRS - {"latency"}
        assert point["window"] == (64 if one_way else 1)
        has_bare = point["function"] in PAIRS and (point["link"] != "shm" or point["function"] in {"bandwidth", "two-way"})
        if has_bare:
            assert point["of_bare"] == pytest.approx(point["bare_seconds"] / point["seconds"])
        else:
            assert point["bare"] is point["bare_seconds"] is point["of_bare"] is None
        seen.add((point["link"], point["function"], point["bytes"], point["ends"]))
    want = {(link, function, size, ends) for link in LINKS for function in ALGORITHMS for size in sizes
            for ends in ((2,) if function in PAIRS else (2, 5))}
    assert seen == want
    drawing = ElementTree.parse(tmp_path / "links.svg").getroot()
    panels = drawing.findall("{http://www.w3.org/2000/svg}g")
    # One chart for each function, and for each number of ends where that matters.
    assert drawing.tag.endswith("svg") and len(panels) == 4 + 2 * 4


def test_csv_has_the_fields_of_json():
    words = ["bench", "link", "--link", "pipe,thread", "--function", "round-trip,reduce", "--size", "4,64", "--ends", "3",
             "--rounds", "1", "--csv"]
    done = succeed(*words)
    head, *lines = done.out.splitlines()
    assert set(head.split(",")) == POINT - {"schema"}
    rows = [dict(zip(head.split(","), line.split(","), strict=True)) for line in lines]
    got = [(row["link"], row["function"], row["bytes"], row["ends"]) for row in rows]
    assert got == [(link, function, size, ends) for function, size, ends in
                   [("latency", "4", "2"), ("latency", "64", "2"), ("reduce", "64", "3")] for link in ("pipe", "thread")]
    assert {row["bare"] for row in rows} == {"std pipe", "std channel", ""}
    assert "reduce of 4 bytes among 3 ends is skipped: sums need multiples of 8 bytes" in done.err


def test_the_table_names_links_units_and_sizes():
    done = succeed("bench", "link", "--function", "latency,bandwidth", "--size", "1,4K", "--rounds", "1")
    latency, bandwidth = done.out.strip().split("\n\n")
    for text, unit in [(latency, "µs"), (bandwidth, "MB/s")]:
        assert all(f"{link}, {unit}" in text for link in LINKS)
        assert len(re.findall(r"^  (1|4K) ", text, re.MULTILINE)) == 2
    assert "half of a round trip" in latency and "shm by memcpy" in bandwidth


@pytest.mark.parametrize("words, culprits", [
    (["--link", "mail"], ["mail", "thread"]),
    (["--link", "mpi"], ["--link mpi", "mpirun"]),
    (["--function", "scan"], ["scan", "all-reduce"]),
    (["--size", "0"], ["0"]),
    (["--size", "2G"], ["1G"]),
    (["--ends", "1"], ["2..=16"]),
    (["--ends", "17"], ["2..=16"]),
    (["--json", "--csv"], ["--json", "--csv"]),
    (["--rounds", "0"], ["rounds"]),
], ids=" ".join)
def test_what_cannot_be_measured_is_refused(words, culprits):
    assert_refused(bramble("bench", "link", *words), 2, culprits)


@pytest.mark.parametrize("purpose", ["end", "bare"])
def test_what_bench_starts_is_nothing_for_people(purpose):
    done = bramble("bench", "child", purpose)
    # The bare process ends when its standard input ends.
    assert done.code == (1 if purpose == "end" else 0) and done.out == ""
    if purpose == "end":
        assert "only bench link can start this" in done.err
    assert "child" not in bramble("bench", "--help").out


def children(run, count):
    """The processes of a run, once it has this many beside the first."""
    end = time.monotonic() + 20
    while len(found := run.workers()) < count:
        assert time.monotonic() < end and run.process.poll() is None, found
        time.sleep(0.01)
    return found


LONG = ["bench", "link", "--size", "1M", "--rounds", "1000", "--ends", "4"]
"""Takes minutes unless it is interrupted: three ends of three links, and two bare ones."""


@pytest.mark.parametrize("how, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, 137)],
                         ids=["interrupted", "terminated", "killed"])
def test_no_process_is_left(how, code):
    run = Run(*LONG, "--function", "gap,all-reduce")
    children(run, 9)
    time.sleep(0.2)
    run.process.send_signal(how)
    assert run.finish().code == code
    assert_gone(run.tag)


def test_an_end_that_dies_is_named():
    run = Run(*LONG, "--function", "all-reduce")
    victim = children(run, 9)[4]
    time.sleep(0.2)
    os.kill(victim, signal.SIGKILL)
    done = run.finish()
    assert done.code == 1, done
    assert re.search(r"all-reduce of 1048576 bytes among 4 ends of (tcp|pipe|shm): .*end \d", done.err), done
    assert_gone(run.tag)


WHAT = "thread", "process", "worker", "tcp", "pipe", "shm"


def test_starting_is_measured():
    done = succeed("bench", "spawn", "--count", "1,3", "--rounds", "2", "--json")
    got = points(done)
    assert [(p["what"], p["count"]) for p in got] == [(w, c) for c in (1, 3) for w in WHAT]
    for p in got:
        assert set(p) == SPAWNED and p["schema"] == "bramble.bench.spawn/1" and p["rounds"] == 2
        assert 0 < p["start_s_min"] <= p["start_s"] <= p["start_s_max"] and p["end_s"] > 0
    head, line = succeed("bench", "spawn", "--what", "process", "--count", "2", "--rounds", "1", "--csv").out.splitlines()
    assert set(head.split(",")) == SPAWNED - {"schema"} and line.startswith("process,2,1,")
    shown = succeed("bench", "spawn", "--count", "1", "--rounds", "1").out
    assert [line.split()[:2] for line in shown.splitlines()[-len(WHAT):]] == [["1", what] for what in WHAT], shown
    assert_refused(bramble("bench", "spawn", "--count", "0"), 2, ["count"])
