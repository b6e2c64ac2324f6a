"""`bramble plan lu`: the plan of LU on real and described machines, with what it holds, what it waits for, and what it refuses."""

import numpy as np
import pytest
from helpers import assert_refused, bramble, matrix, save, succeed, workers
from test_json import COUNT, NUMBER, TEXT, check_fields

PI = '[[machines]]\nname = "pi[1-4]"\ncores = 4\nmemory = "2G"\ngflops = { f64 = 10 }\nlink_mb_s = 117.5\n'
N = 8000
PARTS = ("work_seconds", "panel_wait_seconds", "column_wait_seconds", "back_seconds", "iteration_seconds")
FIELDS = {"schema": TEXT, "verb": TEXT, "n": COUNT, "nb": COUNT, "depth": COUNT, "dtype": TEXT, "predicted": dict, "parts": dict,
          "bound": dict, "product_gflops": NUMBER, "machines": list, "owners": list, "left_out": list, "compared": list,
          "survives": COUNT}
MACHINE = {"name": TEXT, "threads": COUNT, "gflops": NUMBER, "columns": COUNT, "memory_bytes": COUNT, "offered_bytes": COUNT,
           "full": bool, "bytes_per_s": NUMBER}


@pytest.fixture
def cluster(tmp_path):
    """Four equal workers."""
    path = tmp_path / "cluster.toml"
    path.write_text(PI)
    return path


def planned(*words):
    return succeed("plan", "lu", *words, "--json").report


def assert_whole(report, n, extra=1):
    """Every column has one owner, and the parts of the time make the whole."""
    check_fields("plan lu", report, FIELDS)
    assert (report["schema"], report["n"]) == ("bramble.plan.lu/1", n)
    widths = [min(report["nb"], n - start) for start in range(0, n, report["nb"])] + [extra]
    assert len(report["owners"]) == len(widths)
    for at, one in enumerate(report["machines"]):
        held = sum(width for width, owner in zip(widths, report["owners"]) if owner == at)
        assert one["columns"] == held > 0 and one["memory_bytes"] <= one["offered_bytes"]
    parts = [report["parts"][part] for part in PARTS]
    assert min(parts) >= 0
    assert report["predicted"]["seconds"] >= report["bound"]["seconds"] > 0
    assert report["predicted"]["seconds"] == pytest.approx(sum(parts), rel=1e-6)
    assert report["predicted"]["gflops"] == pytest.approx(n * n * (2 / 3 * n + 1.5) / report["predicted"]["seconds"] / 1e9)


def test_a_described_cluster_has_every_field_and_the_prediction_of_sim(cluster):
    report = planned(N, "--cluster", cluster)
    assert_whole(report, N)
    for one in report["machines"]:
        check_fields("machine", one, MACHINE)
    assert [one["name"] for one in report["machines"]] == ["pi1", "pi2", "pi3", "pi4"]
    assert (report["verb"], report["dtype"], report["bound"]["by"]) == ("bench hpl", "f64", "compute")
    simulated = succeed("sim", "lu", N, "--cluster", cluster, "--json").report
    assert (report["nb"], report["predicted"]) == (simulated["nb"], simulated["predicted"])
    assert [one["memory_bytes"] for one in report["machines"]] == [one["memory_bytes"] for one in simulated["machines"]]
    best = min(report["compared"], key=lambda one: one["seconds"])
    assert best == {"nb": report["nb"], "seconds": report["predicted"]["seconds"]}


def test_what_the_verbs_do_differs_in_the_plan(cluster):
    on = "--cluster", cluster, "--nb", "100"
    a, b = f"random:{N}x{N}:f64:1", f"random:{N}x3:f64:2"
    hpl, mxp = planned(N, *on), planned(N, "--mxp", *on)
    assert (mxp["verb"], mxp["dtype"]) == ("bench hpl --mxp", "f32") and mxp["parts"]["iteration_seconds"] > 0
    solve, refined, factors = planned(a, b, *on), planned(a, b, "--refine", *on), planned(a, *on)
    assert_whole(solve, N, 3)
    assert [one["verb"] for one in (solve, refined, factors)] == ["solve", "solve --refine", "lu"]
    memory = [sum(one["memory_bytes"] for one in report["machines"]) for report in (hpl, mxp)]
    assert memory[1] < 0.6 * memory[0]
    assert len(planned(N, *on, "--nodes", "2")["machines"]) == 2
    # The 512 MB of A take 6.4 s over four links of 20 MB/s, and hide the first steps only.
    cluster.write_text(PI.replace("117.5", "20"))
    few, more = planned(a, *on, "--depth", "3"), planned(a, *on)
    waits = [report["parts"]["column_wait_seconds"] for report in (planned(N, *on), more, few)]
    assert waits[0] == 0 and waits[1] < waits[2] and waits[2] > 4
    assert (hpl["depth"], few["depth"]) == (3, 3) and more["depth"] > 3


def test_slow_links_and_full_memories_are_told(cluster):
    cluster.write_text(PI.replace("117.5", "2"))
    slow = planned(N, "--cluster", cluster, "--nodes", "4")
    assert slow["bound"]["by"] == "links" and slow["parts"]["panel_wait_seconds"] > 0.5 * slow["predicted"]["seconds"]
    cluster.write_text(PI.replace("pi[1-4]", "pi[1-3]") + PI.replace("pi[1-4]", "small").replace("2G", "100M"))
    report = planned(N, "--cluster", cluster, "--nodes", "4")
    assert [one["name"] for one in report["machines"] if one["full"]] == ["small"]
    assert report["machines"][3]["columns"] < report["machines"][0]["columns"]
    assert "memory    small has no room for another block" in succeed("plan", "lu", N, "--cluster", cluster, "--nodes", "4").out


def test_the_text_has_the_machines_their_columns_and_the_reasons(cluster):
    out = succeed("plan", "lu", N, "--cluster", cluster, "--nb", "128", "--survive", "1").out
    for part in (f"bench hpl: N = {N}, NB = 128, 4 of 4 machines", "pi1 ", "117.5 MB/s", "owners    ", "predicted ", "waiting for panels",
                 "bound  ", "(compute)", "survives  1 loss"):
        assert part in out, part
    lines = [line.split()[0 if line.startswith(" ") else 1] for line in out.splitlines()[8:-5]]
    assert "".join(lines) == "".join("abcd"[owner] for owner in planned(N, "--cluster", cluster, "--nb", "128")["owners"])
    many = succeed("plan", "lu", 20000, "--cluster", cluster, "--nb", "32").out
    assert "114 blocks" in many


def test_real_workers_are_measured_and_free_again(tmp_path):
    a, b = matrix(400, 400, "f64", 1), matrix(400, 2, "f64", 2)
    files = save(tmp_path, "A.npy", a), save(tmp_path, "B.npy", b)
    with workers(2, "--threads", 1) as (addresses, _):
        hosts = "-w", ",".join(addresses)
        report = planned(300, *hosts, "--nb", "10", "--nodes", "2")
        assert_whole(report, 300)
        assert [one["name"] for one in report["machines"]] == addresses and report["left_out"] == []
        assert all(one["gflops"] > 0 and one["threads"] == 1 for one in report["machines"])
        assert_whole(planned(*files, *hosts), 400, 2)
        assert planned(files[0], *hosts)["verb"] == "lu"
        limited = planned(400, *hosts, "--nodes", "2", "--memory", "8M")
        assert all(one["offered_bytes"] <= 8 << 20 for one in limited["machines"])
        succeed("solve", *files, "-o", tmp_path / "X.npy", *hosts)
    assert np.allclose(a @ np.load(tmp_path / "X.npy"), b)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["A.npy", "B.npy", "X.npy"]


def test_what_is_wrong_is_named_with_what_to_do(cluster, tmp_path):
    def refused(parts, *words, code=2):
        assert_refused(bramble("plan", "lu", *words), code, parts)

    on = "--cluster", cluster
    refused(["-w", "--cluster", "bench hpl"], N)
    refused(["right-hand side"], N, "random:9x1:f64:1", *on)
    refused(["too large"], "9" * 30, *on)
    refused(["order 0"], "0", *on, code=1)
    refused(["HPL-MxP"], "random:9x9:f64:1", "--mxp", *on)
    refused(["<B>"], "random:9x9:f64:1", "--refine", *on)
    refused(["--nodes"], "random:9x9:f64:1", "--nodes", "2", *on)
    refused(["--nodes 5", "4 workers"], N, "--nodes", "5", *on)
    refused(["9x8", "square"], "random:9x8:f64:1", *on, code=1)
    refused(["B needs as many rows"], "random:9x9:f64:1", "random:8x1:f64:1", *on, code=1)
    refused(["nowhere.npy"], tmp_path / "nowhere.npy", *on, code=1)
    refused(["strassen"], N, "--kernel", "strassen:simd:512", *on)
    refused(["order 100000", "pi1 offers"], "100000", *on, code=1)
    refused(["--survive 3", "pi1 offers 2048 MiB"], 20000, "--survive", "3", *on, code=1)
    refused(["--survive 2", "3 workers"], 100, "--survive", "2", "--local", "2", code=1)
    refused(["--faults"], N, *on, "--faults", "kill:w1@1s")
    refused(["cannot be used"], N, *on, "-w", "pi1")
    with workers(1, "--threads", 1) as (addresses, _):
        refused(["2 workers", "1 are there"], 100, "--nodes", "2", "-w", addresses[0], code=1)
    refused([addresses[0]], 100, "-w", addresses[0], code=5)
