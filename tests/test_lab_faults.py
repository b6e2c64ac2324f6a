"""Networks that fail under a product, in a lab: links that drop every packet, and links that become slow."""

import re
import subprocess
import time
from contextlib import contextmanager

import pytest

from helpers import BRAMBLE, Run, matrix, save, succeed, wait_for_work
from lacking import unless
from test_lab import inside, lab, why_not

pytestmark = unless(why_not(), "lab")

THREE = """
key = false
[primary]
cores = 0.5
memory = "1G"
link = "500Mbit/s"

[[machines]]
name = "pi[1-3]"
cores = 0.2
threads = 1
memory = "300M"
link = "200Mbit/s"
kernel = "simd"
"""
SQUARE = "random:4000x4000:f64:1", "random:4000x4000:f64:2"
MIDDLE = "random:2800x2800:f64:1", "random:2800x2800:f64:2"
LONG = "random:700x200000:f64:1", "random:200000x700:f64:2"
"""A small C, so that it returns over any link."""
CUT = "--kernel", "simd", "--tile", "256", "--json"


def digest(folder, operands):
    """Digest of the same product by this machine alone, without Strassen's method, which `auto` might choose, and with k in one
    part, as in a team."""
    return succeed("multiply", *operands, *CUT, "--strategy", "reuse", "--reproducible", "-o", folder / "alone.npy").report["digest"]


def begin(lab, folder, operands, seconds, *options):
    """The product in this lab, once its workers have this much processor time together. The whole takes some 3 s."""
    name, made = lab
    pids = [machine["worker"]["pid"] for machine in made["machines"]]
    run = Run("lab", "run", "--name", name, "--", "multiply", *operands, *CUT, "--strategy", "reuse", "-w", "pi[1-3]", "-o",
              folder / "C.npy", *options)
    assert wait_for_work(pids, run, seconds), run.finish()
    return run


def ends(run, code, digest):
    result = run.finish(deadline_s=240)
    assert result.code in (code if isinstance(code, tuple) else (code,)), result
    report = result.report
    assert report["verify"]["passed"] and report["digest"] == digest, result
    return result, report


@pytest.mark.parametrize("cut, after", [(["pi2"], 0.8), (["pi1", "pi3"], 0.5), (["pi1", "pi2", "pi3"], 0.3)], ids=["1", "2", "3"])
def test_machines_whose_network_swallows_everything_are_lost_after_8_s(tmp_path, cut, after):
    with lab(tmp_path, THREE) as (name, made):
        run = begin((name, made), tmp_path, SQUARE, after)
        try:
            for machine in cut:
                assert inside(name, "ip", "link", "set", "eth0", "down", at=machine).code == 0
            result, report = ends(run, 3, digest(tmp_path, SQUARE))
        finally:
            run.end()
    assert len(report["faults"]["lost"]) == len(cut), report["faults"]
    assert all("silent for 8 s" in lost["why"] for lost in report["faults"]["lost"]), report["faults"]
    assert result.err.count("was lost") == len(cut), result


def received(name, machine):
    """Bytes that this machine's network card has received."""
    told = inside(name, "cat", "/proc/net/dev", at=machine).out
    [bytes_in] = re.findall(r"^ *eth0: *(\d+) ", told, re.MULTILINE)
    return int(bytes_in)


@contextmanager
def factorisation_without_the_network_of_pi2(folder, *options):
    """`bench hpl` in the lab of three, whose second machine is cut off when all compute; the run, and that machine's address."""
    with lab(folder, THREE) as (name, made):
        hosts = ",".join(f"{machine['address']}:7400" for machine in made["machines"])
        run = Run("lab", "exec", "--name", name, "--", BRAMBLE, "bench", "hpl", "--size", 6000, "-w", hosts, "--insecure",
                  "--i-trust-this-network", *options)
        try:
            # Some panels, of some MB each: the measurements before take less.
            deadline = time.monotonic() + 120
            while received(name, "pi2") < 40e6:
                assert run.process.poll() is None and time.monotonic() < deadline, run.finish()
                time.sleep(0.05)
            assert inside(name, "ip", "link", "set", "eth0", "down", at="pi2").code == 0
            yield run, made["machines"][1]["address"]
        finally:
            run.end()


def test_a_factorisation_ends_with_the_name_of_the_one_whose_network_swallows_everything(tmp_path):
    with factorisation_without_the_network_of_pi2(tmp_path) as (run, lost):
        begun = time.monotonic()
        result = run.finish(deadline_s=40)
        # It is given up after 8 s of silence.
        assert time.monotonic() - begun < 13, result
    told = result.err.splitlines()[-1]
    assert result.code == 5 and f"worker {lost}" in told and "lost, so the run has ended" in told, result


def test_a_factorisation_survives_a_network_that_swallows_everything(tmp_path):
    with factorisation_without_the_network_of_pi2(tmp_path, "--survive", 1, "--json") as (run, lost):
        result = run.finish(deadline_s=240)
    assert result.code == 0, result
    report = result.report
    assert report["passed"] and report["residual"] < 16, report
    assert [worker["name"].split(":")[0] for worker in report["lost"]["workers"]] == [lost], report
    assert "silent for 8 s" in report["lost"]["workers"][0]["why"], report
    assert len(report["workers"]) == 2 and report["seconds"] > report["lost"]["seconds"] > 8, report


RARELY = pytest.mark.soak("losses")


@pytest.mark.parametrize("after", [0.3, pytest.param(0.8, marks=RARELY)])
@pytest.mark.parametrize("way", ["it is not heard", "it hears nothing"])
def test_one_whose_network_swallows_one_direction_is_lost(tmp_path, way, after):
    with lab(tmp_path, THREE) as (name, made):
        run = begin((name, made), tmp_path, SQUARE, after)
        try:
            if way == "it is not heard":
                assert inside(name, "tc", "qdisc", "replace", "dev", "eth0", "root", "blackhole", at="pi2").code == 0
            else:
                hub = "tc", "-n", f"bramble-{name}-hub", "qdisc", "replace", "dev", "port2", "root", "blackhole"
                subprocess.run(hub, check=True)
            _, report = ends(run, 3, digest(tmp_path, SQUARE))
        finally:
            run.end()
    assert len(report["faults"]["lost"]) == 1 and "silent for 8 s" in report["faults"]["lost"][0]["why"], report["faults"]


def test_one_whose_network_comes_back_is_a_new_machine(tmp_path):
    with lab(tmp_path, THREE) as (name, made):
        run = begin((name, made), tmp_path, SQUARE, 0.5)
        try:
            assert inside(name, "ip", "link", "set", "eth0", "down", at="pi2").code == 0
            time.sleep(10)
            assert inside(name, "ip", "link", "set", "eth0", "up", at="pi2").code == 0
            result, report = ends(run, 3, digest(tmp_path, SQUARE))
        finally:
            run.end()
    assert len(report["faults"]["lost"]) == 1, report["faults"]
    # Whether it still gets work depends on the progress of the other workers.
    came = [worker["name"] for worker in report["workers"]]
    assert len(came) in (3, 4), came


def becomes_slow(tmp_path, operands, number, after, codes):
    """1 Mbit/s both ways. A frame of a megabyte takes seconds, and no heartbeat can pass it: that must not count as silence."""
    with lab(tmp_path, THREE) as (name, made):
        run = begin((name, made), tmp_path, operands, after)
        try:
            slow = "root", "tbf", "rate", "1mbit", "burst", "16kb", "latency", "200ms"
            assert inside(name, "tc", "qdisc", "replace", "dev", "eth0", *slow, at=f"pi{number}").code == 0
            hub = "tc", "-n", f"bramble-{name}-hub", "qdisc", "replace", "dev", f"port{number}", *slow
            subprocess.run(hub, check=True)
            result, report = ends(run, codes, digest(tmp_path, operands))
        finally:
            run.end()
    lost = report["faults"]["lost"]
    assert result.code == (3 if lost else 0) and len(lost) <= 1, report["faults"]
    # Packets on their way when the rate falls may be lost, and TCP re-sends them after a while.
    assert all("too slow" in one["why"] or "silent for 8 s" in one["why"] for one in lost), report["faults"]
    names = [worker["name"] for worker in report["workers"] if worker["link"] == "tcp"]
    assert len(names) == 3, f"it is not asked to come back: {names}"


def test_one_whose_link_becomes_slow_is_waited_for_unless_others_are_done_sooner(tmp_path):
    """Its part of C is a megabyte: ten seconds, or a few if other workers recompute it."""
    becomes_slow(tmp_path, LONG, 2, 0.7, (0, 3))


@pytest.mark.parametrize("number, after", [(1, 0.2), pytest.param(2, 0.3, marks=RARELY), pytest.param(3, 0.4, marks=RARELY)])
def test_one_that_has_much_behind_a_link_that_becomes_slow_is_given_up(tmp_path, number, after):
    """Twenty megabytes of C would take some minutes."""
    becomes_slow(tmp_path, MIDDLE, number, after, 3)


def test_two_workers_whose_link_swallows_everything_part_and_the_primary_sends(tmp_path):
    """Traffic between workers goes to a network card that does not exist; all other traffic is undisturbed, and no machine is lost."""
    # Generated operands are not relayed.
    operands = [save(tmp_path, f"{of}.npy", matrix(2000, 2000, "f64", seed)) for of, seed in (("A", 1), ("B", 2))]
    with lab(tmp_path, THREE) as (name, made):
        run = begin((name, made), tmp_path, operands, 0.2, "--relay", "on")
        try:
            address = {machine["name"]: machine["address"] for machine in made["machines"]}
            for one, other in (("pi1", "pi2"), ("pi2", "pi1")):
                nowhere = "ip", "neigh", "replace", address[other], "lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent"
                assert inside(name, *nowhere, at=one).code == 0
            result, report = ends(run, 0, digest(tmp_path, operands))
        finally:
            run.end()
    assert not report["faults"]["lost"], report["faults"]
    assert report["relay"]["pairs"] == 2 and len(report["relay"]["unreachable"]) == 1, report["relay"]
    pair = report["relay"]["unreachable"][0]
    assert {pair["from"].split(":")[0], pair["to"].split(":")[0]} == {address["pi1"], address["pi2"]}, pair
    assert "nothing has arrived over it for 10 s" in pair["why"] and pair["why"] in result.err, result
