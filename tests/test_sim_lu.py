"""`bramble sim lu`: the time of an LU factorisation on described machines; repeatable, with errors that name the next step."""

import pytest
from helpers import ROOT, assert_refused, bramble, succeed
from test_json import COUNT, NUMBER, TEXT, check_fields

CLUSTERS = ROOT / "examples" / "clusters"
PI = '[[machines]]\nname = "pi[1-4]"\ncores = 4\nmemory = "2G"\ngflops = { f64 = 10 }\nlink_mb_s = 117.5\n'
N = 8000
FIELDS = {"schema": TEXT, "n": COUNT, "nb": COUNT, "seconds": NUMBER, "gflops": NUMBER, "elimination_seconds": NUMBER,
          "back_seconds": NUMBER, "predicted": dict, "bound": dict, "product_gflops": NUMBER, "busy": NUMBER, "machines": list,
          "left_out": list, "events": COUNT, "own_seconds": NUMBER, "own_cpu_seconds": NUMBER}
WAITS = ("wait_own_panel_s", "wait_link_s", "wait_others_s", "wait_end_s")
MACHINE = {"name": TEXT, "threads": COUNT, "gflops": NUMBER, "columns": COUNT, "memory_bytes": COUNT, "bytes_in": COUNT,
           "bytes_out": COUNT, "busy": NUMBER, "limit": TEXT, "update_s": NUMBER, "panel_s": NUMBER, **dict.fromkeys(WAITS, NUMBER)}


@pytest.fixture
def cluster(tmp_path):
    """Four equal workers, and no primary: it takes no part."""
    path = tmp_path / "cluster.toml"
    path.write_text(PI)
    return path


def simulated(cluster, *args, order=N):
    return succeed("sim", "lu", str(order), "--cluster", cluster, "--json", *args).report


def test_every_field_and_numbers_that_agree(cluster):
    report = simulated(cluster, "--nb", "128")
    check_fields("sim lu", report, FIELDS)
    assert (report["schema"], report["n"], report["nb"]) == ("bramble.sim.lu/1", N, 128)
    assert report["seconds"] == pytest.approx(report["elimination_seconds"] + report["back_seconds"])
    assert report["gflops"] == pytest.approx(N * N * (2 / 3 * N + 1.5) / report["seconds"] / 1e9)
    assert report["bound"]["seconds"] < report["seconds"] < 1.3 * report["predicted"]["seconds"]
    assert report["product_gflops"] == pytest.approx(40) and report["left_out"] == []
    machines = report["machines"]
    assert [one["name"] for one in machines] == ["pi1", "pi2", "pi3", "pi4"]
    assert sum(one["columns"] for one in machines) == N + 1
    for at, one in enumerate(machines):
        check_fields("machine", one, MACHINE)
        threads = one["update_s"] + one["panel_s"] + sum(one[wait] for wait in WAITS)
        assert threads == pytest.approx(4 * report["elimination_seconds"])
        assert one["busy"] == pytest.approx((one["update_s"] + one["panel_s"]) / threads)
        assert one["bytes_in"] == machines[at - 1]["bytes_out"]
        assert one["memory_bytes"] < 2 << 30
    # Every panel goes to each of the three machines that did not make it.
    panels = sum((N - start) * min(128, N - start) * 8 for start in range(0, N, 128))
    assert sum(one["bytes_in"] for one in machines) == 3 * panels


def test_the_text_has_time_prediction_and_bound_and_each_machine(cluster):
    run = succeed("sim", "lu", str(N), "--cluster", cluster)
    for part in (f"N = {N}, NB = ", "4 of 4 machines", "pi1 ", "pi4 ", "time  ", "predicted ", "bound  ", "(compute)", "busy  ", "Gflop/s"):
        assert part in run.out, part
    assert "events" in run.err and "events" not in run.out


def test_the_same_arguments_give_the_same_answer(cluster):
    args = ["sim", "lu", str(N), "--cluster", cluster]
    assert succeed(*args).out == succeed(*args).out
    one, other = ({**simulated(cluster), "own_seconds": 0, "own_cpu_seconds": 0} for _ in range(2))
    assert one == other


def test_a_slow_link_is_named_and_a_slow_machine_gets_few_columns_or_none(cluster):
    slow = PI.replace("117.5", "5")
    cluster.write_text(slow)
    report = simulated(cluster, "--nodes", "4")
    assert "its link" in {one["limit"] for one in report["machines"]} and report["bound"]["by"] == "links"
    cluster.write_text(PI + PI.replace("pi[1-4]", "old").replace("f64 = 10", "f64 = 1"))
    columns = {one["name"]: one["columns"] for one in simulated(cluster, "--nodes", "5", order=20_000)["machines"]}
    assert columns["old"] < columns["pi1"] / 5
    cluster.write_text(PI + slow.replace("pi[1-4]", "far").replace('"2G"', '"4G"'))
    assert simulated(cluster)["left_out"] == ["far"]
    assert "left out  far" in succeed("sim", "lu", str(N), "--cluster", cluster).out


def test_fewer_nodes_take_longer(cluster):
    seconds = [simulated(cluster, "--nodes", str(nodes))["seconds"] for nodes in (1, 2, 4)]
    assert seconds[0] > 1.5 * seconds[1] > 2 * seconds[2]


def test_the_published_run_of_eight_raspberry_pis_is_told_within_a_tenth():
    report = simulated(CLUSTERS / "pi4x8.toml", order=52_416)
    assert report["gflops"] == pytest.approx(103.41, rel=0.1)
    assert len(report["machines"]) == 8 and report["own_seconds"] < 60


def test_help_and_manual_name_the_verb():
    out = succeed("sim", "lu", "--help").out
    for word in ("--cluster", "--nb", "--nodes", "--json", "Example", "docs/simulator.md"):
        assert word in out
    assert "sim lu" in succeed("sim", "--help").out
    assert "BRAMBLE SIM LU" in succeed("man").out


def test_what_is_wrong_is_named_with_what_to_do(cluster, tmp_path):
    def refused(parts, *words, code=2):
        assert_refused(bramble("sim", "lu", *words), code, parts)

    on = ["--cluster", cluster]
    refused(["--cluster"], str(N))
    refused(["<N>"], *on)
    refused(["N"], "many", *on)
    refused(["--cluster", "nowhere.toml"], str(N), "--cluster", tmp_path / "nowhere.toml")
    refused(["--workers"], str(N), *on, "--workers", "4")
    refused(["--faults"], str(N), *on, "--faults", "kill:w1@1s")
    refused(["N = 0"], "0", *on)
    refused(["--nb", "4096"], str(N), *on, "--nb", "5000")
    refused(["--nodes 5", "4 workers"], str(N), *on, "--nodes", "5")
    refused(["order 100000", "76[0-9]{3} MiB", "pi1 offers 2048 MiB", "smaller"], "100000", *on, code=1)
    refused(["order 31000", "in panels of 1024 columns", "pi4 offers"], "31000", *on, "--nb", "1024", "--json", code=1)
    cluster.write_text(PI.replace("pi[1-4]", "pi[1-70]"))
    refused(["70 workers", "at most 64", "--nodes"], str(N), *on, code=1)
    assert len(simulated(cluster, "--nodes", "64")["machines"]) == 64
    cluster.write_text(PI.replace("cores", "kores"))
    refused(["--cluster", "cluster.toml", r"pi\[1-4\]", "kores"], str(N), *on)
