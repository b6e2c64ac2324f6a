"""`bramble plan`: its output agrees with itself, with the sizes, and with the run of `multiply`."""

import math
import os
import pty
import re
import subprocess

import numpy as np
import pytest
from helpers import BRAMBLE, ROOT, assert_refused, bramble, matrix, save, succeed, workers
from test_json import COUNT, NUMBER, PREDICTED, TEXT, check_fields

CLUSTERS = ROOT / "examples" / "clusters"
PI = '[[machines]]\nname = "pi[1-3]"\ncores = 4\nmemory = "4G"\ngflops = { f64 = 12 }\nwatts = 7\n'
LAPTOP = '[primary]\nname = "laptop"\ncores = 2\nmemory = "8G"\ngflops = { f64 = 20 }\nwatts = 30\n'
FIELDS = {"schema": TEXT, "m": COUNT, "n": COUNT, "k": COUNT, "dtype": TEXT, "strategy": TEXT, "alone": bool,
          "decision": TEXT, "grid": dict, "sums": TEXT, "predicted": dict, "bound": dict, "workers": list,
          "left_out": list, "considered": list, "plan_seconds": NUMBER}
WORKER = {"name": TEXT, "part": NUMBER, "flops": NUMBER, "bytes_out": COUNT, "bytes_in": COUNT, "memory_bytes": COUNT,
          "jobs": COUNT, "blocks": COUNT, "compute_s": NUMBER, "link_s": NUMBER, "shares": list, "shares_total": COUNT}
STRATEGIES = ["auto", "naive", "row:4", "square:2", "reuse", "cuboid", "cuboid:1x2x3", "summa:2x2", "strassen:1",
              "strassen:2", "strassen:1+cuboid:1x2x2"]


@pytest.fixture
def cluster(tmp_path):
    """Three described Pis and a described laptop."""
    path = tmp_path / "cluster.toml"
    path.write_text(LAPTOP + PI)
    return path


def planned(*args, **options):
    return succeed("plan", *args, "--json", **options).report


def volume(share):
    return math.prod(share[side][1] - share[side][0] for side in ("rows", "cols", "k"))


def is_disjoint(one, other):
    return any(one[side][1] <= other[side][0] or other[side][1] <= one[side][0] for side in ("rows", "cols", "k"))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_field_and_every_element_once(cluster, strategy):
    m, k, n = 1300, 900, 1100
    report = planned("--size", f"{m}x{k}x{n}", "--cluster", cluster, "--strategy", strategy, "--tile", 128, "--panel", 200)
    check_fields("plan", report, FIELDS)
    check_fields("predicted", report["predicted"], PREDICTED)
    assert report["schema"] == "bramble.plan/1"
    assert (report["m"], report["k"], report["n"], report["dtype"]) == (m, k, n, "f64")
    assert strategy in ("auto", report["strategy"])
    assert report["grid"]["depth"] <= 200 and report["grid"]["tile_rows"] <= 128
    every = []
    for worker in report["workers"]:
        check_fields("worker", worker, WORKER)
        assert worker["shares_total"] >= len(worker["shares"]) > 0
        every += worker["shares"]
        for share in worker["shares"]:
            rows, cols, steps = share["block"]
            assert 0 < rows <= m and 0 < cols <= n and steps > 0
    assert sum(worker["shares_total"] for worker in report["workers"]) == len(every), "some are not listed"
    assert sum(map(volume, every)) == m * k * n
    assert all(is_disjoint(a, b) for i, a in enumerate(every) for b in every[:i])
    assert sum(worker["part"] for worker in report["workers"]) == pytest.approx(1, abs=1e-6)
    names = {worker["name"] for worker in report["workers"]} | {left["name"] for left in report["left_out"]}
    assert names - {"laptop"} == ({"pi1", "pi2", "pi3"}), "each worker has a share, or a reason why not"
    assert all(left["reason"] for left in report["left_out"])
    assert report["considered"][0]["seconds"] <= report["predicted"]["seconds"] * 1.001


def test_the_operands_are_not_read(tmp_path):
    report = planned("random:100000x100000:f64:1", "random:100000x100000:f64:2")
    assert (report["m"], report["k"], report["n"]) == (100000, 100000, 100000)
    assert report["alone"] and report["predicted"]["bytes_sent"] == 0
    a = save(tmp_path, "A.npy", matrix(30, 40, "f32"))
    report = planned(a, a, "--transpose-b", "--dtype", "f64")
    assert (report["m"], report["k"], report["n"], report["dtype"]) == (30, 40, 30, "f64")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["A.npy"]


def test_generated_operands_do_not_travel(cluster):
    options = "--cluster", cluster, "--strategy", "reuse"
    real = planned("--size", "3000x3000x3000", *options)
    made = planned("random:3000x3000:f64:1", "random:3000x3000:f64:2", *options)
    old = planned("--size", "3000x3000x3000", "--beta", 1, *options)
    sent = [r["predicted"]["bytes_sent"] for r in (made, real, old)]
    assert sent[0] < sent[1] / 10 and sent[2] >= sent[1] + 3000 * 3000 * 8


def test_sizes_have_a_type(cluster):
    assert planned("--size", "2000x100x300:f32", "--cluster", cluster)["dtype"] == "f32"
    assert planned("--size", "2000x100x300", "--dtype", "i32", "--cluster", cluster)["dtype"] == "i32"
    for size in ["2000", "2000x3", "0x3x4", "-1x2x3", "2x3x4:f16", "99999999999x1x1"]:
        assert_refused(bramble("plan", f"--size={size}"), 2, ["--size"])
    assert_refused(bramble("plan", "--size", "4000000000x4000000000x4000000000"), 2, ["4000000000", "at most"])
    assert_refused(bramble("plan", "random:3x0:f64:1", "random:0x3:f64:1"), 1, ["nothing to plan"])
    assert_refused(bramble("plan"), 2, ["<A>|size"])
    assert_refused(bramble("plan", "a.npy", "b.npy", "--size", "2x2x2"), 2, ["--size"])


def test_real_workers_are_asked_and_compute_nothing():
    with workers(2, "--threads", 1) as (addresses, runs):
        report = planned("--size", "2000x2000x2000", "-w", ",".join(addresses), "--strategy", "reuse")
        assert {worker["name"] for worker in report["workers"]} == set(addresses)
        assert all(worker["gflops"] > 0 and worker["link_s"] > 0 for worker in report["workers"])
        assert all(run.process.poll() is None for run in runs)
        text = succeed("plan", "--size", "2000x2000x2000", "-w", addresses[0]).out
        assert "predicted" in text
    assert_refused(bramble("plan", "--size", "2000x2000x2000", "-w", addresses[0]), 5, [addresses[0]])


def test_machines_of_other_bits_are_named():
    with workers(1, "--kernel", "reference") as (addresses, _):
        result = bramble("plan", "--size", "900x900x900", "-w", addresses[0], "--reproducible")
        assert_refused(result, 1, ["--reproducible", addresses[0], "reference"])


def test_local_processes_are_planned_for():
    report = planned("--size", "1500x1500x1500", "--local", 2)
    assert [worker["name"] for worker in report["workers"]] == ["local 1", "local 2"]


def test_what_is_planned_is_what_is_done(tmp_path):
    a, b = save(tmp_path, "A.npy", matrix(1500, 1200, "f64", 1)), save(tmp_path, "B.npy", matrix(1200, 1400, "f64", 2))
    options = "--local", 2, "--strategy", "square:2", "--tile", 256, "--panel", 256
    plan = planned(a, b, *options)
    done = succeed("multiply", a, b, "--json", *options).report
    assert done["strategy"] == plan["strategy"] == "square:2"
    assert done["grid"] == plan["grid"] and done["sums"] == plan["sums"]
    assert set(done["predicted"]) == set(plan["predicted"])
    # A slightly faster worker may get one tile more.
    for figure in ("bytes_sent", "bytes_received", "worker_memory_bytes"):
        assert done["predicted"][figure] == pytest.approx(plan["predicted"][figure], rel=0.2)


def test_energy_is_watts_times_seconds(cluster, tmp_path):
    report = planned("--size", "9000x9000x9000", "--cluster", cluster, "--strategy", "reuse")
    energy = report["energy"]
    assert energy["watts"] == 21
    assert energy["joules"] == pytest.approx(21 * report["predicted"]["seconds"])
    assert energy["gflops_per_watt"] == pytest.approx(2 * 9000**3 / energy["joules"] / 1e9)
    assert "Gflop/s/W" in succeed("plan", "--size", "9000x9000x9000", "--cluster", cluster).out
    cluster.write_text(LAPTOP + PI.replace("watts = 7", ""))
    assert planned("--size", "9000x9000x9000", "--cluster", cluster, "--strategy", "reuse")["energy"] is None


def test_the_primarys_link_bounds_all(cluster):
    fast = planned("--size", "9000x9000x9000", "--cluster", cluster, "--strategy", "reuse")
    cluster.write_text(LAPTOP + "link_mb_s = 1\n" + PI)
    slow = planned("--size", "9000x9000x9000", "--cluster", cluster, "--strategy", "reuse")
    assert slow["predicted"]["seconds"] > 20 * fast["predicted"]["seconds"]
    # Both directions are busy at the end: C returns by columns while B leaves.
    assert slow["predicted"]["by"] in ("egress", "ingress", "link")


@pytest.mark.parametrize("change, culprits", [
    (("cores = 4", "cores = 0"), ["pi\\[1-3\\]", "cores"]),
    (("cores = 4", "cores = -4"), ["pi\\[1-3\\]", "cores"]),
    (("gflops", "gflop"), ["pi\\[1-3\\]", "gflop: no such key"]),
    (("f64 = 12", "f64 = 0"), ["pi\\[1-3\\]", "gflops.f64"]),
    (("watts = 7", "watts = -7"), ["pi\\[1-3\\]", "watts"]),
    (('"4G"', '"lots"'), ["pi\\[1-3\\]", "memory"]),
    (('"pi[1-3]"', '"pi[3-1]"'), ["name"]),
    (("cores = 4", "cores = = 4"), ["cluster.toml:9"]),
    (("[[machines]]", "[machines]"), ["machines"]),
])
def test_errors_of_a_file_name_file_machine_and_key(cluster, change, culprits):
    cluster.write_text(LAPTOP + PI.replace(*change))
    result = bramble("plan", "--size", "10x10x10", "--cluster", cluster)
    assert_refused(result, 2, ["cluster.toml", *culprits])


def test_a_file_describes_and_w_reaches(cluster, tmp_path):
    a = save(tmp_path, "A.npy", matrix(10, 10, "f64"))
    assert_refused(bramble("multiply", a, a, "--cluster", cluster), 2, ["-w", "bramble plan"])
    assert_refused(bramble("nodes", "--cluster", cluster), 2, ["-w", "bramble plan"])
    assert_refused(bramble("plan", a, a, "--cluster", cluster, "--local", 2), 2, ["--cluster"])
    assert_refused(bramble("plan", a, a, "--cluster", tmp_path / "none.toml"), 2, ["none.toml"])


def test_a_file_without_a_primary_is_beside_this_machine(cluster):
    cluster.write_text(PI)
    report = planned("--size", "3000x3000x3000", "--cluster", cluster)
    assert all(not worker["primary"] or worker["name"] == os.uname().nodename for worker in report["workers"])


@pytest.mark.parametrize("name", ["pi5x8", "mixed", "lab1000"])
def test_examples_are_planned(name):
    report = planned("--size", "50000x50000x50000", "--cluster", CLUSTERS / f"{name}.toml")
    assert report["plan_seconds"] > 0
    assert report["bound"]["seconds"] <= report["predicted"]["seconds"] * 1.001


def drawn(out):
    """The lines of letters in a text, and the machine of each letter."""
    lines = out.splitlines()
    picture = [line[2:] for line in lines if re.fullmatch(r"  [A-Za-z@]+", line)]
    names = dict(pair for line in lines for pair in re.findall(r"(?:^|  )([A-Za-z@]) ([\w-]+)(?=  |$)", line))
    return picture, names


@pytest.mark.parametrize("columns", [None, 30, 200])
@pytest.mark.parametrize("size", ["3000x200x3000", "9000x200x1000", "1000x200x9000"])
@pytest.mark.parametrize("strategy", ["reuse", "summa:1x3", "row:2"])
def test_the_letter_at_a_place_is_the_owner(cluster, columns, size, strategy):
    options = "--size", size, "--cluster", cluster, "--strategy", strategy, "--tile", 100
    env = {} if columns is None else {"COLUMNS": str(columns)}
    out = succeed("plan", *options, env=env).out
    report = planned(*options)
    picture, names = drawn(out)
    assert picture and len({len(row) for row in picture}) == 1
    height, width = len(picture), len(picture[0])
    assert height <= 24 and width <= 64 and (columns is None or 2 + width <= columns)
    assert width / 2 / height == pytest.approx(report["n"] / report["m"], rel=0.35)
    for y, row in enumerate(picture):
        for x, letter in enumerate(row):
            i, j = (2 * y + 1) * report["m"] // (2 * height), (2 * x + 1) * report["n"] // (2 * width)
            owners = [worker["name"] for worker in report["workers"] for share in worker["shares"]
                      if share["rows"][0] <= i < share["rows"][1] and share["cols"][0] <= j < share["cols"][1]]
            assert owners == [names[letter]], (y, x)


def test_parts_of_k_are_drawn_one_beside_the_other(cluster):
    out = succeed("plan", "--size", "500x9000x500", "--cluster", cluster, "--strategy", "cuboid:1x1x3").out
    assert "k in 3 parts: " in out and "part 1" in out and "part 3" in out
    row = next(line for line in out.splitlines() if re.fullmatch(r"  A+  B+  C+", line))
    assert len(row) <= 66


def test_colours_are_for_terminals_that_want_them(cluster):
    args = [str(BRAMBLE), "plan", "--size", "900x900x900", "--cluster", str(cluster), "--strategy", "reuse"]

    def on_a_terminal(**env):
        clean = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS")}
        ours, theirs = pty.openpty()
        process = subprocess.Popen(args, stdout=theirs, stderr=subprocess.DEVNULL, env={**clean, **env})
        os.close(theirs)
        out = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:
                break
            if not part:
                break
            out += part
        os.close(ours)
        assert process.wait() == 0
        return out

    assert b"\x1b[" in on_a_terminal()
    assert b"\x1b" not in on_a_terminal(NO_COLOR="1")
    assert "\x1b" not in succeed(*args[1:]).out


def test_wishes_are_followed(cluster):
    options = "--size", "6000x6000x6000", "--cluster", cluster
    plain = planned(*options, "--strategy", "cuboid:1x1x3", "--reproducible")
    assert plain["sums"] == "chained" and planned(*options)["sums"] == "merged"
    for wish in ("--reproducible", "--elementwise"):
        report = planned(*options, wish)
        assert not any("strassen" in one["strategy"] for one in report["considered"])
        assert_refused(bramble("plan", *options, wish, "--strategy", "strassen:1"), 2, ["strassen:1"])
    assert planned(*options, "--elementwise", "--strategy", "strassen:1", "--dtype", "i32")["strategy"] == "strassen:1"
    assert_refused(bramble("plan", *options, "--strategy", "best"), 2, ["best", "summa"])


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if not s.startswith("strassen")])
@pytest.mark.parametrize("where", [[], ["--local", "2"], ["--local", "3"]], ids=["in process", "local 2", "local 3"])
def test_reproducible_bits_do_not_depend_on_strategy_and_machines(tmp_path, strategy, where):
    m, k, n = 300, 700, 260
    a, b = save(tmp_path, "A.npy", matrix(m, k, "f64", 1)), save(tmp_path, "B.npy", matrix(k, n, "f64", 2))
    cut = "--tile", 64, "--panel", 64, "--reproducible"
    succeed("multiply", a, b, "-o", tmp_path / "one.npy", *cut, "--strategy", "reuse")
    succeed("multiply", a, b, "-o", tmp_path / "other.npy", *cut, "--strategy", strategy, *where)
    np.testing.assert_array_equal(np.load(tmp_path / "one.npy"), np.load(tmp_path / "other.npy"))


def test_smaller_tiles_are_planned_where_the_usual_ones_do_not_fit():
    report = planned("--size", "3000x3000x3000", "--memory", "64M")
    assert report["grid"]["tile_rows"] < 256 and "do not fit the memory" in report["decision"]
    assert_refused(bramble("plan", "--size", "3000x3000x3000", "--memory", "64M", "--tile", "256"), 1, ["--tile"])
