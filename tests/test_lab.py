"""Labs: clusters of network namespaces on this machine. Every promise of a lab except speed: it comes up,
its limits are set, products in it are right, nothing outside can be reached, and it leaves nothing behind."""

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from helpers import BRAMBLE, Run, assert_nothing_written, assert_refused, bramble, save, succeed
from lacking import unless

TWO = """
[primary]
cores = 0.5
memory = "1G"
link = "500Mbit/s"

[[machines]]
name = "pi[1-2]"
cores = 0.2
threads = 1
memory = "128M"
link = "200Mbit/s"
kernel = "simd"
"""
PLAIN = 'key = false\n[[machines]]\nname = "a,b"\nthreads = 1\nmemory = "128M"\n'


def why_not():
    """The reason why this machine cannot have labs; empty where it can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "labs need Linux and root"
    tools = [tool for tool in ("ip", "tc", "unshare") if not shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin:/sbin")]
    if tools:
        return f"not installed: {' '.join(tools)}"
    if subprocess.run(["unshare", "--net", "--uts", "true"], capture_output=True).returncode != 0:
        return "this container may not make network namespaces"
    kinds = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    old = {option for _, _, kind, options, *_ in kinds if kind == "cgroup" for option in options.split(",")}
    new = {word for _, path, kind, *_ in kinds if kind == "cgroup2"
           for word in Path(path, "cgroup.controllers").read_text().split()}
    missing = {"cpu", "memory"} - old - new
    return f"no control groups of {' and '.join(sorted(missing))}" if missing else ""


pytestmark = unless(why_not(), "lab")
NUMBERS = iter(range(1000))


def new_name():
    return f"t{os.getpid()}_{next(NUMBERS)}"


@contextmanager
def lab(folder, text=TWO, *options):
    """A lab of this description; returns its name and the output of `up`."""
    name, path = new_name(), Path(folder) / "lab.toml"
    path.write_text(text)
    try:
        yield name, succeed("lab", "up", path, "--name", name, "--json", *options).report
    finally:
        succeed("lab", "down", "--name", name)
        assert_nothing_left(name)


def inside(name, *command, at="primary", **options):
    return bramble("lab", "exec", "--name", name, "--at", at, "--", *command, **options)


def groups_of(name):
    return glob.glob(f"/sys/fs/cgroup/bramble-{name}") + glob.glob(f"/sys/fs/cgroup/*/bramble-{name}")


def namespaces_of(name):
    return [path.name for path in Path("/var/run/netns").glob(f"bramble-{name}-*")]


def workers_of(name):
    """Processes with the lab's key in their environment: all workers of a lab that has a key."""
    mark, found = f"BRAMBLE_KEY_FILE=/run/bramble-lab/{name}/key".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            pass  # The process ended meanwhile.
    return found


def assert_nothing_left(name):
    left = [*namespaces_of(name), *groups_of(name), *workers_of(name), *glob.glob(f"/run/bramble-lab/{name}")]
    assert not left, f"left behind: {left}"


def test_a_product_in_a_lab_has_the_bits_of_one_without(tmp_path):
    a = save(tmp_path, "A.npy", np.random.default_rng(1).uniform(-1, 1, (600, 500)))
    b = save(tmp_path, "B.npy", np.random.default_rng(2).uniform(-1, 1, (500, 550)))
    options = ["--strategy", "reuse", "--kernel", "simd", "--tile", "64", "--panel", "128", "--json"]
    alone = succeed("multiply", a, b, *options).report
    with lab(tmp_path) as (name, made):
        assert [machine["name"] for machine in made["machines"]] == ["pi1", "pi2"]
        result = succeed("lab", "run", "--name", name, "--", "multiply", a, b, "-o", tmp_path / "C.npy", *options)
        report = result.report
        assert report["digest"] == alone["digest"] and report["verify"]["passed"] is True
        assert (tmp_path / "C.npy").is_file()
        parts = {worker["name"]: worker for worker in report["workers"] if worker["jobs"]}
        # A worker that measured itself slow may have no share.
        assert parts and set(parts) <= {"10.77.0.2:7400", "10.77.0.3:7400"}, parts
        # The whole product went through the lab's links, encrypted.
        status = succeed("lab", "status", "--name", name, "--json").report
        for machine in status["machines"]:
            part = parts.get(f"{machine['address']}:7400")
            if part is None:
                continue
            assert part["encryption"] and machine["worker"]["alive"] and machine["worker"]["cpu_s"] >= 0
            assert machine["bytes_in"] > part["bytes_in"] > 0 and machine["bytes_out"] > part["bytes_out"] > 0
        named = succeed("lab", "run", "--name", name, "--", "nodes", "-w", "pi2", "--json").report
        assert [node["name"] for node in named["nodes"]][1:] == ["10.77.0.3:7400"], named


@pytest.mark.parametrize("key", [True, False])
def test_systems_are_solved_in_a_lab(tmp_path, key):
    a, b, out = np.random.default_rng(1).standard_normal((300, 300)), np.ones(300), tmp_path / "x.npy"
    files = save(tmp_path, "A.npy", a), save(tmp_path, "b.npy", b)
    with lab(tmp_path, TWO if key else "key = false\n" + TWO) as (name, _):
        run = ["lab", "run", "--name", name, "--"]
        addresses = {"10.77.0.2:7400", "10.77.0.3:7400"}
        # A machine with which it would take longer takes no part.
        def named(report):
            return {worker["name"] for worker in report["workers"]} | set(report["left_out"])

        assert named(succeed(*run, "solve", *files, "-o", out, "--json").report) == addresses
        np.testing.assert_allclose(a @ np.load(out), b, rtol=0, atol=1e-10)
        assert named(succeed(*run, "lu", files[0], "--json").report) == addresses
        [hpl] = [json.loads(line) for line in succeed(*run, "bench", "hpl", "--size", 300, "--nodes", 2, "--json").out.splitlines()]
        assert hpl["passed"] and {worker["name"] for worker in hpl["workers"]} == addresses
        assert "10.77.0.3:7400" in succeed(*run, "plan", "lu", 300, "-w", "pi2").out
        alone = succeed("lab", "run", "--name", name, "--alone", "--", "solve", *files, "--json").report
        assert alone["workers"] == []


def test_the_limits_are_those_of_the_description(tmp_path):
    with lab(tmp_path) as (name, made):
        for machine, mbit, cores, memory in [(made["primary"], 500, 0.5, 1 << 30)] + [
            (one, 200, 0.2, 128 << 20) for one in made["machines"]
        ]:
            assert (machine["link_bits_per_s"], machine["cores"], machine["memory_bytes"]) == (mbit * 10**6, cores, memory)
            assert rate_of(machine["namespace"], machine["interface"]) == f"{mbit}Mbit"
            quota, most = limits_of(machine["groups"])
            assert quota == pytest.approx(cores) and most == memory
        hub = f"bramble-{name}-hub"
        assert [rate_of(hub, f"port{number}") for number in range(3)] == ["500Mbit", "200Mbit", "200Mbit"]
        # A worker knows its limit, not the machine's memory.
        nodes = succeed("lab", "run", "--name", name, "--", "nodes", "--json").report["nodes"]
        assert all(0 < node["memory_bytes"] <= (128 << 20) * 3 // 4 for node in nodes[1:]), nodes
        assert nodes[0]["memory_bytes"] <= (1 << 30) * 3 // 4
        pid = made["machines"][0]["worker"]["pid"]
        assert f"bramble-{name}/pi1" in Path(f"/proc/{pid}/cgroup").read_text()


def test_the_limits_hold(tmp_path):
    with lab(tmp_path) as (name, made):
        result = inside(name, sys.executable, "-c", "bytearray(1 << 20); print('fits')", at="pi1")
        assert result.code == 0 and result.out == "fits\n", result
        # Killed by the system: the machine has only 128 MiB.
        result = inside(name, sys.executable, "-c", "print(sum(bytearray(300 << 20)[::4096]))", at="pi1")
        assert result.code == 128 + signal.SIGKILL, result
        before = throttled(made["machines"][1]["groups"])
        inside(name, sys.executable, "-c", "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass",
               at="pi2")
        assert throttled(made["machines"][1]["groups"]) > before


def throttled(groups):
    """How often the system throttled the group's processes."""
    texts = [Path(group, "cpu.stat").read_text() for group in groups if Path(group, "cpu.stat").exists()]
    return max(int(found[1]) for text in texts for found in [re.search(r"nr_throttled (\d+)", text)] if found)


def rate_of(namespace, interface):
    command = ["tc", "-n", namespace, "-s", "qdisc", "show", "dev", interface]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.search(r"qdisc tbf .* rate (\S+)", shown)[1]


def limits_of(groups):
    """Processors and bytes, from control groups of either version."""
    def read(name):
        return [Path(group, name).read_text().split() for group in groups if Path(group, name).exists()]

    quota = read("cpu.max") or [[read("cpu.cfs_quota_us")[0][0], read("cpu.cfs_period_us")[0][0]]]
    memory = read("memory.max") or read("memory.limit_in_bytes")
    return int(quota[0][0]) / int(quota[0][1]), int(memory[0][0])


def test_options_of_up_go_before_the_description(tmp_path):
    with lab(tmp_path, TWO, "--link", "50Mbit/s", "--cores", "0.1") as (_, made):
        assert {(one["link_bits_per_s"], one["cores"]) for one in made["machines"]} == {(50_000_000, 0.1)}
        assert made["primary"]["cores"] == 0.5
        assert rate_of(made["machines"][1]["namespace"], "eth0") == "50Mbit"


def test_a_lab_without_a_key_is_plain_and_has_nothing_to_be_told(tmp_path):
    with lab(tmp_path, PLAIN) as (name, made):
        assert made["key"] is False and made["primary"]["groups"] == []
        nodes = succeed("lab", "run", "--name", name, "--", "nodes", "--json").report["nodes"]
        assert [node["encryption"] for node in nodes] == [None, None, None]


def test_labs_stand_side_by_side_and_none_is_made_twice(tmp_path):
    with lab(tmp_path) as (one, first), lab(tmp_path) as (other, second):
        assert first["machines"][0]["address"] == second["machines"][0]["address"]
        assert_refused(bramble("lab", "up", tmp_path / "lab.toml", "--name", one), 1,
                       [f"lab {one}: it exists already", f"bramble lab down --name {one}"])
        succeed("lab", "down", "--name", other)
        succeed("lab", "down", "--name", other)
        assert_nothing_left(other)
        assert all(machine["worker"]["alive"] for machine in status(one)["machines"])
        assert_refused(bramble("lab", "status", "--name", other), 1, [f"lab {other}: there is no such lab", one])


def status(name):
    return succeed("lab", "status", "--name", name, "--json").report


def test_addresses_outside_are_refused(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("10.77.0.2\npi7\n")
    product = ["multiply", "random:64x64:f64:1", "random:64x64:f64:2", "-o", tmp_path / "C.npy"]
    with lab(tmp_path) as (name, _):
        run = ["lab", "run", "--name", name, "--", *product]
        for options, env, said in [
            (["-w", "10.77.0.2,192.168.1.7"], None, "--workers 192.168.1.7:7400: no machine of lab"),
            (["--workers=pi1:7401"], None, "listen on port 7400"),
            (["--hostfile", hosts], None, "pi7:7400: no machine of lab"),
            ([], {"BRAMBLE_HOSTS": "localhost"}, "BRAMBLE_HOSTS localhost:7400: no machine of lab"),
        ]:
            assert_refused(bramble(*run, *options, env=env), 2, [said])
        assert_refused(bramble("lab", "run", "--name", name, "--", "worker"), 2, ["use multiply, batch, solve"])
        # The same product on the primary alone, whatever the variable says; but no workers by name.
        alone = succeed("lab", "run", "--name", name, "--alone", "--", *product[:3], "--json", env={"BRAMBLE_HOSTS": "pi1"}).report
        assert [worker["link"] for worker in alone["workers"]] == ["thread"], alone["workers"]
        assert_refused(bramble("lab", "run", "--name", name, "--alone", "--", *product, "-w", "pi1"), 2,
                       ["--alone", "--workers names workers"])
        assert_nothing_written(tmp_path)
        # No other traffic gets out either.
        script = "import socket; socket.create_connection(('198.51.100.7', 80), 5)"
        result = inside(name, sys.executable, "-c", script)
        assert result.code == 1 and "Network is unreachable" in result.err, result
        routes = inside(name, "cat", "/proc/net/route").out.splitlines()[1:]
        assert [route.split()[:3] for route in routes] == [["eth0", "00004D0A", "00000000"]], routes


def test_a_command_is_in_the_machine_and_keeps_its_streams_code_and_signals(tmp_path):
    with lab(tmp_path) as (name, made):
        result = inside(name, "sh", "-c", "uname -n; cat /proc/self/cgroup; echo no >&2; exit 7", at="10.77.0.3")
        assert result.code == 7 and result.err == "no\n", result
        assert result.out.startswith("pi2\n") and f"/bramble-{name}/pi2" in result.out, result
        hosts = inside(name, "sh", "-c", "echo $BRAMBLE_HOSTS").out
        assert hosts == "10.77.0.2:7400,10.77.0.3:7400\n"
        assert_refused(inside(name, "true", at="pi9"), 2, ["--at pi9: no machine of lab", "pi1"])
        assert_refused(inside(name, "/no/such/program"), 1, ["/no/such/program: cannot be run"])
        run = Run("lab", "exec", "--name", name, "--", "sh", "-c", "echo here; exec sleep 60")
        assert run.process.stdout.readline() == "here\n"
        run.process.send_signal(signal.SIGTERM)
        assert run.finish().code == 128 + signal.SIGTERM
        # Processes still running in a machine end with the lab.
        stray = inside(name, "sh", "-c", "sleep 300 >/dev/null 2>&1 & echo $!", at="pi1").out.strip()
        own = inside(name, sys.executable, "-c", "print('listening')", at="pi1")
        assert own.code == 0 and Path(f"/proc/{stray}").exists()
        assert_refused(inside(name, BRAMBLE, "lab", "down", "--name", name), 1, ["this command runs inside the lab"])
    assert_ended(int(stray))


def assert_ended(pid):
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] in "ZX"


def test_a_worker_that_ended_is_shown_so(tmp_path):
    with lab(tmp_path) as (name, made):
        os.kill(made["machines"][0]["worker"]["pid"], signal.SIGKILL)
        until = time.monotonic() + 10
        while status(name)["machines"][0]["worker"]["alive"]:
            assert time.monotonic() < until
        assert status(name)["machines"][1]["worker"]["alive"]
        assert "gone" in succeed("lab", "status", "--name", name).out
        result = bramble("lab", "run", "--name", name, "--", "nodes")
        assert result.code == 5 and "10.77.0.2:7400" in result.err, result


@pytest.mark.parametrize("moment", range(6))
def test_after_a_crash_of_up_down_leaves_nothing(tmp_path, moment):
    name, path = new_name(), tmp_path / "lab.toml"
    path.write_text(TWO)
    folder = Path("/run/bramble-lab") / name
    moments = [
        folder.exists,
        lambda: len(namespaces_of(name)) >= 1,
        lambda: len(namespaces_of(name)) >= 3,
        lambda: bool(groups_of(name)),
        lambda: (folder / "logs" / "pi1.log").exists(),
        lambda: (folder / "workers").exists(),
    ]
    run = Run("lab", "up", path, "--name", name)
    try:
        until = time.monotonic() + 30
        while not moments[moment]() and run.process.poll() is None:
            assert time.monotonic() < until
        run.process.kill()
        run.finish()
        result = bramble("lab", "status", "--name", name)
        # The lab may have been complete a moment before.
        assert result.code in (0, 1), result
        if result.code:
            # Processes that `up` has just started may still be ending.
            assert_refused(result, 1, [f"(was not completed; remove it with bramble lab down --name {name}|is creating)"])
    finally:
        succeed("lab", "down", "--name", name)
    assert_nothing_left(name)
    succeed("lab", "down", "--name", name)


def test_an_interrupted_up_removes_what_it_made(tmp_path):
    name = new_name()
    run = Run("lab", "up", "tiny8", "--name", name)
    try:
        until = time.monotonic() + 30
        while not namespaces_of(name):
            assert time.monotonic() < until
        run.process.send_signal(signal.SIGINT)
        assert run.finish().code in (0, 130)
    finally:
        if run.process.returncode == 0:
            succeed("lab", "down", "--name", name)
    assert_nothing_left(name)


def test_a_lab_whose_folder_was_lost_is_found_by_its_names(tmp_path):
    with lab(tmp_path) as (name, made):
        shutil.rmtree(f"/run/bramble-lab/{name}")
        succeed("lab", "down", "--name", name)
        assert_nothing_left(name)
        for machine in made["machines"]:
            assert_ended(machine["worker"]["pid"])


@pytest.mark.parametrize("verb", [["up", "four"], ["run", "--", "nodes"], ["exec", "--", "true"], ["status"], ["down"]])
def test_without_root_it_says_what_is_needed(verb):
    with open(BRAMBLE, "rb") as program:
        # By its handle, since only root may be able to reach its path.
        path = f"/proc/self/fd/{program.fileno()}"
        done = subprocess.run(["bramble", "lab", *verb], executable=path, pass_fds=[program.fileno()], user=65534,
                              group=65534, extra_groups=[], capture_output=True, text=True, cwd="/", timeout=60)
    assert done.returncode == 1 and done.stdout == "", done
    assert re.fullmatch(rf"bramble: lab {verb[0]}: only root may .*; use sudo bramble lab {verb[0]}\n", done.stderr), done


@pytest.mark.parametrize("text, culprits", [
    ("", ["names no machines"]),
    ('[[machines]]\nname = "a"\nlink = "fast"\n', ["lab.toml: machine a: link: use a rate"]),
    ('[[machines]]\nname = "a"\ncores = 0\n', ["lab.toml: machine a: cores: must be a number from 0.01"]),
    ('[[machines]]\nname = "a,a"\n', ["lab.toml: machine a: two machines have this name"]),
    ('[[machines]]\nname = "a"\nrate = 1\n', ["lab.toml: machine a: rate: no such key"]),
    ('[[machines]\n', ["lab.toml:1: "]),
])
def test_a_wrong_description_is_refused_before_anything_is_made(tmp_path, text, culprits):
    name, path = new_name(), tmp_path / "lab.toml"
    path.write_text(text)
    assert_refused(bramble("lab", "up", path, "--name", name), 2, culprits)
    assert_nothing_left(name)


def test_wrong_words_are_refused():
    assert_refused(bramble("lab", "up", "five"), 2, ["five: no example of a lab", "four, mixed, tiny8, slow-link"])
    assert_refused(bramble("lab", "up", "four", "--name", "a-b"), 2, ["--name", "lower-case letters"])
    assert_refused(bramble("lab", "up", "four", "--cores", "0"), 2, ["--cores", "0.01"])
    assert_refused(bramble("lab", "up", "four", "--link", "9"), 2, ["--link", "200Mbit/s"])


@pytest.mark.parametrize("example", ["four", "mixed", "tiny8", "slow-link"])
def test_every_example_comes_up(example):
    name = new_name()
    try:
        made = succeed("lab", "up", example, "--name", name, "--json").report
        assert made["from"] == example and made["schema"] == "bramble.lab/1"
        report = json.loads(succeed("lab", "run", "--name", name, "--", "multiply", "random:300x300:f32:1",
                                    "random:300x300:f32:2", "--json").out)
        assert report["verify"]["passed"] is True
    finally:
        succeed("lab", "down", "--name", name)
    assert_nothing_left(name)
