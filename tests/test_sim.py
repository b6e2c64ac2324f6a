"""`bramble sim`: the time of a product and the cost of faults; repeatable, with errors that name the next step."""

import json
import re
import subprocess
import sys

import pytest
from helpers import BRAMBLE, ROOT, assert_refused, bramble, matrix, save, succeed
from test_json import COUNT, NUMBER, PREDICTED, TEXT, check_fields

CLUSTERS = ROOT / "examples" / "clusters"
PRIMARY = '[primary]\nname = "head"\ncores = 2\nmemory = "8G"\ngflops = { f64 = 1 }\n'
PI = '[[machines]]\nname = "pi[1-4]"\ncores = 4\nmemory = "2G"\ngflops = { f64 = 10 }\n'
SHAPE = "4000x4000x4000"
FIELDS = {"schema": TEXT, "m": COUNT, "n": COUNT, "k": COUNT, "dtype": TEXT, "strategy": TEXT, "alone": bool, "relay": bool,
          "decision": TEXT, "predicted": dict, "bound": dict, "left_out": list, "undisturbed": dict, "disturbed": object,
          "drawn": object, "simulated_seconds": NUMBER, "events": COUNT, "own_seconds": NUMBER, "own_cpu_seconds": NUMBER}
RUN = {"seconds": NUMBER, "gflops": NUMBER, "failed": object, "busy": NUMBER, "flops": NUMBER, "jobs": COUNT, "moved": NUMBER,
       "primary": dict, "bytes_relayed": COUNT, "lost": list, "joined": list, "machines": list}
MACHINE = {"worker": COUNT, "name": TEXT, "primary": bool, "share": NUMBER, "busy": NUMBER, "bytes_out": COUNT,
           "bytes_in": COUNT, "bytes_given": COUNT, "memory_bytes": COUNT, "jobs": COUNT}


@pytest.fixture
def cluster(tmp_path):
    """A weak primary and four equal workers."""
    path = tmp_path / "cluster.toml"
    path.write_text(PRIMARY + PI)
    return path


def simulated(cluster, *args, shape=SHAPE):
    return succeed("sim", shape, "--cluster", cluster, "--strategy", "reuse", "--json", *args).report


def test_help_names_the_faults_and_an_example():
    out = succeed("sim", "--help").out
    for word in ("--faults", "kill:w3", "--seeds", "--cluster", "--strategy", "docs/simulator.md", "Examples"):
        assert word in out
    assert "sim" in succeed("--help").out
    assert "BRAMBLE SIM" in succeed("man").out and "--faults" in succeed("completions", "bash").out


def test_the_faults_of_the_help_can_happen_on_the_cluster_of_the_first_page():
    example = re.search(r"such as (kill:\S+%)\.", " ".join(succeed("sim", "--help").out.split()))[1]
    words = ["sim", "20000x20000x20000", "--cluster", CLUSTERS / "pi5x8.toml", "--json"]
    struck = succeed(*words, "--faults", example).report["disturbed"]
    assert struck["lost"] and struck["joined"] and struck["failed"] is None


def test_every_field_and_numbers_that_agree(cluster):
    report = simulated(cluster, "--faults", "kill:w2@50%")
    check_fields("sim", report, FIELDS)
    check_fields("predicted", report["predicted"], PREDICTED)
    assert report["schema"] == "bramble.sim/1" and report["drawn"] is None
    for run in (report["undisturbed"], report["disturbed"]):
        check_fields("run", run, RUN)
        for machine in run["machines"]:
            check_fields("machine", machine, MACHINE)
            assert 0 <= machine["busy"] <= 1.001
        assert sum(machine["share"] for machine in run["machines"]) == pytest.approx(1)
        assert sum(machine["bytes_out"] for machine in run["machines"]) == run["primary"]["bytes_sent"]
        assert sum(machine["bytes_in"] for machine in run["machines"]) == run["primary"]["bytes_received"]
    calm = report["undisturbed"]
    assert calm["flops"] == pytest.approx(2 * 4000**3) and calm["lost"] == calm["joined"] == []
    assert report["bound"]["seconds"] < calm["seconds"] < 1.5 * report["predicted"]["seconds"]
    assert calm["primary"]["bytes_sent"] == pytest.approx(report["predicted"]["bytes_sent"], rel=0.05)


def test_a_machine_that_dies_at_half_time_costs_about_half_of_its_part_and_what_it_had_done(cluster):
    report = simulated(cluster, "--faults", "kill:w2@50%")
    calm, struck = report["undisturbed"], report["disturbed"]
    [lost] = struck["lost"]
    assert (lost["worker"], lost["name"]) == (2, "pi2")
    assert lost["at_s"] == pytest.approx(calm["seconds"] / 2, rel=0.02)
    assert 0.1 < lost["part"] < 0.3
    assert struck["failed"] is None and 1.1 < report["disturbed"]["times"] < 1.6
    assert struck["again_flops"] > 0.05 * calm["flops"]
    ms = round(calm["seconds"] / 2 * 1e3)
    assert re.fullmatch(r"kill:w2@\d+(ms|s)", struck["faults"]) and str(ms)[:-1] in struck["faults"]


def test_who_is_switched_off_is_noticed_after_eight_seconds(cluster):
    struck = simulated(cluster, "--faults", "off:w1@1s")["disturbed"]
    [lost] = struck["lost"]
    assert 9 <= lost["at_s"] <= 9.5 and "silent" in lost["why"]


def test_a_machine_that_joins_was_not_there_before(cluster):
    # Computing is the limit: where the network is, one more machine only adds traffic.
    cluster.write_text(PRIMARY + PI.replace("f64 = 10", "f64 = 2"))
    report = simulated(cluster, "--faults", "join:w4@10%")
    calm, struck = report["undisturbed"], report["disturbed"]
    assert "pi4" not in {machine["name"] for machine in calm["machines"]}
    assert [joined["name"] for joined in struck["joined"]] == ["pi4"] and struck["times"] < 0.95
    assert next(machine for machine in struck["machines"] if machine["name"] == "pi4")["share"] > 0.1


def test_the_text_says_what_was_lost_and_what_it_cost(cluster):
    run = succeed("sim", SHAPE, "--cluster", cluster, "--strategy", "reuse", "--faults", "kill:w2@50%,restart:w3@10%..20%")
    for part in ("time  ", "bound  ", "busy  ", "moved  ", "lost      w2 (pi2) at", "lost      w3 (pi3) at",
                 "joined    w3 (pi3) at", "cost      +", "times the undisturbed"):
        assert part in run.out, part
    assert "real time" in run.err and "real time" not in run.out


@pytest.mark.parametrize("words", [["--faults", "off:w1@20%,slow:w2@10%..50%/20,pause:w3@30%..60%"], ["--seeds", "12"], []])
def test_the_same_arguments_give_the_same_answer(cluster, words):
    args = ["sim", SHAPE, "--cluster", cluster, "--strategy", "reuse", *words]
    assert succeed(*args).out == succeed(*args).out
    one, other = ({**succeed(*args, "--json").report, "own_seconds": 0, "own_cpu_seconds": 0} for _ in range(2))
    assert one == other


def test_faults_that_are_drawn_all_end_and_the_worst_can_be_repeated(cluster):
    report = simulated(cluster, "--seeds", "30")
    drawn = report["drawn"]
    assert drawn["sets"] == 30 and drawn["failed"] == 0 and [one["seed"] for one in drawn["all"]] == list(range(30))
    seconds = sorted(one["seconds"] for one in drawn["all"])
    assert drawn["seconds"]["least"] == seconds[0] and drawn["seconds"]["most"] == seconds[-1] == drawn["worst"]["seconds"]
    assert drawn["seconds"]["median"] == pytest.approx((seconds[14] + seconds[15]) / 2)
    again = simulated(cluster, "--faults", drawn["worst"]["faults"])
    assert again["disturbed"]["seconds"] == drawn["worst"]["seconds"]
    [last] = simulated(cluster, "--seeds", "1", "--seed", "29")["drawn"]["all"]
    assert last == drawn["all"][-1]
    assert len({one["faults"] for one in drawn["all"]}) == 30


def test_all_may_die_and_the_primary_ends_it_or_says_that_nobody_can(cluster):
    faults = "kill:w1@1%,kill:w2@2%,kill:w3@3%,kill:w4@4%"
    struck = simulated(cluster, "--faults", faults)["disturbed"]
    assert struck["failed"] is None and len(struck["lost"]) == 4
    assert max(struck["machines"], key=lambda machine: machine["share"])["primary"]
    cluster.write_text((PRIMARY + PI).replace('"8G"', '"1M"'))
    run = bramble("sim", SHAPE, "--cluster", cluster, "--strategy", "reuse", "--faults", faults, "--json")
    assert run.code == 1 and "memory" in json.loads(run.out)["disturbed"]["failed"]
    assert_one_line(run, ["with these faults", "memory"])


def assert_one_line(run, parts):
    lines = [line for line in run.err.splitlines() if line.startswith("bramble:")]
    assert len(lines) == 1 and all(part in lines[0] for part in parts), run


def test_a_thousand_machines_are_faster_than_real_time():
    shape, cluster = "20000x20000x20000", CLUSTERS / "lab1000.toml"
    report = succeed("sim", shape, "--cluster", cluster, "--strategy", "reuse", "--json").report
    assert len(report["undisturbed"]["machines"]) > 300
    # Its speed depends on the load of this machine: bench/simulated.py measures it.
    assert report["simulated_seconds"] > 0 and report["events"] > 100_000


def test_the_published_times_of_raspberry_pis_are_told_within_a_tenth(tmp_path):
    command = [sys.executable, ROOT / "bench" / "simulated.py", "--part", "table", "--quick", "--no-record",
               "--bramble", BRAMBLE, "--dir", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "speed of the job: 5 of 5 within 10 %" in done.stdout and "speed of one worker: 4 of 4 within 10 %" in done.stdout


def test_operands_give_the_sizes_and_this_machine_alone_will_do(tmp_path):
    a = save(tmp_path, "A.npy", matrix(300, 200, "f32"))
    report = succeed("sim", a, "random:200x100:f32:1", "--json").report
    assert (report["m"], report["k"], report["n"], report["dtype"]) == (300, 200, 100, "f32") and report["alone"]
    assert report["undisturbed"]["primary"]["bytes_sent"] == 0


def test_what_is_wrong_is_named_with_what_to_do(cluster, tmp_path):
    def refused(parts, *words, code=2):
        assert_refused(bramble("sim", *words), code, parts)

    on = ["--cluster", cluster]
    refused(["--faults", "fault 2", "'die:w1@1s'", "kinds are kill, off, pause, busy, slow, join, restart$"], SHAPE, *on,
            "--faults", "kill:w1@1s,die:w1@1s")
    refused(["--faults", "names no fault"], SHAPE, *on, "--faults", "")
    refused(["--faults", "'kill:w1@.*'", "the product ends after"], SHAPE, *on, "--strategy", "reuse", "--faults", "kill:w1@500%")
    refused(["--faults", "no share of this product", "--strategy reuse"], "100x100x100", *on, "--faults", "kill:w2@50%", "--json")
    refused(["--faults", "'kill:w5@1s'", "w1 to w4"], SHAPE, *on, "--faults", "kill:w5@1s")
    refused(["--faults", "'stall:w1@1s..'", "kinds are kill, off"], SHAPE, *on, "--faults", "stall:w1@1s..")
    refused(["--faults", "a time is"], SHAPE, *on, "--faults", "kill:w1@half")
    refused(["--faults", "ends before"], SHAPE, *on, "--faults", "pause:w1@60%..50%")
    refused(["4000x4000", "two operands", "MxKxN"], "4000x4000", *on)
    refused(["<A>"], *on)
    refused(["--faults", "--seeds"], SHAPE, *on, "--faults", "kill:w1@1s", "--seeds", "3")
    refused(["--seeds", "1..=100000"], SHAPE, *on, "--seeds", "0")
    refused(["--move-ns"], SHAPE, *on, "--move-ns", "-1")
    refused(["--worker-move-ns", "one each"], SHAPE, *on, "--worker-move-ns", "1,2,3,4,5,6,7,8,9,1,2,3")
    refused(["--cluster", "nowhere.toml"], SHAPE, "--cluster", tmp_path / "nowhere.toml")
    cluster.write_text(PRIMARY + PI.replace("cores", "kores"))
    refused(["--cluster", "cluster.toml", r"pi\[1-4\]", "kores"], SHAPE, *on)
    cluster.write_text(PRIMARY + PI)
    refused(["jobs", "--tile"], "100000x100000x100000", *on, "--tile", "16", "--panel", "16", code=1)
    refused(["--seeds", "no worker", "--strategy"], "100x100x100", *on, "--seeds", "3", code=1)
