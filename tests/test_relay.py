"""Workers that relay panels: the same bits, fewer bytes from the primary. A pair of workers that cannot reach each
other is named, and C is still right."""

import os
import re
import shutil
import subprocess
from contextlib import contextmanager

import numpy as np
import pytest
from helpers import BRAMBLE, Run, assert_product, matrix, save, succeed, workers
from lacking import skip

CUT = "--strategy", "cuboid", "--tile", "64", "--panel", "128", "--kernel", "simd"


def operands(folder, dtype="f64"):
    a, b = matrix(700, 512, dtype, 1), matrix(512, 600, dtype, 2)
    return a, b, save(folder, "A.npy", a), save(folder, "B.npy", b)


def relayed(report, field):
    return sum(worker[field] for worker in report["workers"])


def assert_relayed(on, off, pairs):
    """The same bits, fewer bytes from the primary, and each worker received every byte sent to it."""
    assert on["digest"] == off["digest"]
    assert on["relay"] == {"pairs": pairs, "unreachable": []}
    assert on["primary"]["bytes_sent"] < off["primary"]["bytes_sent"]
    assert relayed(on, "relayed_bytes_in") == relayed(on, "relayed_bytes_out") > 0
    assert relayed(off, "relayed_bytes_in") == 0 and off["relay"] is None


@pytest.mark.parametrize("dtype", ["f32", "f64", "i64"])
def test_local_workers_pass_on_what_several_need(tmp_path, dtype):
    a, b, left, right = operands(tmp_path, dtype)
    run = [succeed("multiply", left, right, "-o", tmp_path / "C.npy", "--local", 3, *CUT, "--relay", relay, "--json")
           for relay in ("off", "on")]
    off, on = (result.report for result in run)
    assert_relayed(on, off, 3)
    assert_product(np.load(tmp_path / "C.npy"), a, b)


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "key"
    succeed("key", "new", env={"BRAMBLE_KEY_FILE": str(path)})
    return {"BRAMBLE_KEY_FILE": str(path)}


def test_links_between_workers_of_a_cluster_prove_keys_that_nobody_has_to_make(tmp_path, key):
    _, _, left, right = operands(tmp_path)
    with workers(3, "--threads", "1", env=key) as (addresses, runs):
        team = "-w", ",".join(addresses)
        off, on = (succeed("multiply", left, right, *team, *CUT, "--relay", relay, "--json", env=key).report
                   for relay in ("off", "on"))
        assert_relayed(on, off, 3)
        assert {worker["encryption"] for worker in on["workers"]} - {None}
        for run in runs:
            run.process.terminate()
            # No warnings, and links between workers do not count as sessions.
            assert run.finish().err.count("served") == 2


def test_workers_that_dial_in_reach_each_other_too(tmp_path):
    _, _, left, right = operands(tmp_path)
    reports = {}
    for relay in ("off", "on"):
        primary = Run("multiply", left, right, "--await", 2, "--listen", "127.0.0.1:0", *CUT, "--relay", relay, "--json")
        port = re.search(r"waiting on 127\.0\.0\.1:(\d+)", primary.process.stderr.readline())[1]
        joined = [Run("worker", "--join", f"127.0.0.1:{port}", "--threads", "1") for _ in range(2)]
        result = primary.finish()
        assert result.code == 0, result
        reports[relay] = result.report
        assert [run.finish().code for run in joined] == [0, 0]
    assert_relayed(reports["on"], reports["off"], 1)


def sh(command):
    subprocess.run(command.split(), check=True, capture_output=True)


@contextmanager
def star(names):
    """Network namespaces that only this one reaches: packets from one to another end here."""
    made = []
    try:
        for at, name in enumerate(names):
            sh(f"ip netns add {name}")
            made.append(name)
            net = f"10.231.{at}"
            sh(f"ip link add v{name} type veth peer name eth0 netns {name}")
            sh(f"ip addr add {net}.1/24 dev v{name}")
            sh(f"ip link set v{name} up")
            for part in (f"addr add {net}.2/24 dev eth0", "link set eth0 up", "link set lo up",
                         f"route add default via {net}.1"):
                sh(f"ip -n {name} {part}")
        yield [f"10.231.{at}.2" for at in range(len(names))]
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False)


def forwards():
    """Whether this machine forwards packets of other machines."""
    with open("/proc/sys/net/ipv4/ip_forward") as file:
        return file.read().strip() != "0"


def test_workers_that_cannot_reach_each_other_are_named_and_served(tmp_path, key):
    if os.geteuid() != 0 or not shutil.which("ip") or forwards():
        skip("lab", "needs root, ip, and a machine that is no router")
    names = [f"brr{os.getpid() % 10000}{side}" for side in "ab"]
    a, b, left, right = operands(tmp_path)
    with star(names) as addresses:
        runs = []
        try:
            environment = {**{k: v for k, v in os.environ.items() if not k.startswith("BRAMBLE")}, **key}
            for name, address in zip(names, addresses):
                inside = ["nsenter", f"--net=/var/run/netns/{name}"]
                command = [*inside, os.fspath(BRAMBLE), "worker", "--listen", f"{address}:7400", "--threads", "1"]
                runs.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE,
                                             stderr=subprocess.DEVNULL, text=True))
                assert runs[-1].stdout.readline().startswith("listening on")
            team = "-w", ",".join(addresses)
            off, on = (succeed("multiply", left, right, "-o", tmp_path / "C.npy", *team, *CUT, "--relay", relay, "--json",
                               env=key) for relay in ("off", "on"))
        finally:
            for run in runs:
                run.kill()
                run.wait()
                run.stdout.close()
    assert on.report["digest"] == off.report["digest"]
    assert_product(np.load(tmp_path / "C.npy"), a, b)
    relay = on.report["relay"]
    assert relay["pairs"] == 0 and len(relay["unreachable"]) == 1
    pair = relay["unreachable"][0]
    assert {pair["from"], pair["to"]} == {f"{address}:7400" for address in addresses} and pair["why"]
    assert "1 of 1 pairs of workers have no link" in on.err and all(address in on.err for address in addresses)
    assert relayed(on.report, "relayed_bytes_in") == 0
    assert "no link" not in off.err
