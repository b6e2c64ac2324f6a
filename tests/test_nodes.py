"""`bramble nodes`: machines that answer are shown, machines that do not are named."""

import os
import signal

import pytest
from helpers import Run, assert_gone, bramble, succeed, workers
from test_json import COUNT, NUMBER, TEXT, check_fields

NODE = {"name": TEXT, "primary": bool, "link": TEXT, "threads": COUNT, "kernel": TEXT, "gflops": NUMBER,
        "peak_gflops": NUMBER, "memory_bytes": COUNT}


def asked(*args, **options):
    report = succeed("nodes", "--json", *args, **options).report
    assert report["schema"] == "bramble.nodes/1"
    for node in report["nodes"]:
        check_fields("node", node, NODE)
        # Not which is larger: they are measured one after the other, and other programs disturb them.
        assert node["gflops"] > 0 and node["peak_gflops"] > 0 and node["memory_bytes"] > 0
    return report


def test_this_machine_comes_first():
    report = asked("--threads", 1)
    [own] = report["nodes"]
    assert own["name"] == os.uname().nodename and own["primary"] and own["threads"] == 1
    assert own["link"] == "thread" and own["link_bytes_per_s"] is None and own["round_trip_s"] is None
    assert report["missing"] == [] and report["dtype"] == "f64"
    lines = succeed("nodes").out.splitlines()
    assert lines[0].split()[:3] == ["machine", "threads", "kernel"] and lines[1].split()[0] == own["name"]


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64"])
def test_workers_are_asked(dtype):
    with workers(2, "--threads", 1, "--memory", "256M", "--kernel", "simd") as (addresses, runs):
        report = asked("-w", ",".join(addresses), "--dtype", dtype)
        assert [node["name"] for node in report["nodes"][1:]] == addresses
        for node in report["nodes"][1:]:
            assert node["kernel"] == "simd" and node["threads"] == 1 and not node["primary"]
            assert node["memory_bytes"] <= 256 << 20
            assert node["link"] == "tcp" and node["link_bytes_per_s"] > 1e6 and node["round_trip_s"] > 0
        assert report["together_bytes_per_s"] > 1e6
        # The workers are idle again, with all their memory.
        assert asked("-w", addresses[0])["nodes"][1]["memory_bytes"] == report["nodes"][1]["memory_bytes"]
        assert all(run.process.poll() is None for run in runs)


def test_processes_of_this_machine():
    report = asked("--local", 2)
    assert [node["name"] for node in report["nodes"][1:]] == ["local 1", "local 2"]


def test_workers_that_dial_in():
    waiting = Run("nodes", "--json", "--await", 1, "--listen", "127.0.0.1:0")
    try:
        address = waiting.process.stderr.readline().split()[2]
        assert bramble("worker", "--join", address, "--quiet").code == 0
        result = waiting.finish()
    finally:
        waiting.end()
    assert result.code == 0 and len(result.report["nodes"]) == 2, result


@pytest.mark.parametrize("verb", [["nodes"], ["plan", "--size", "9x9x9"]], ids=["nodes", "plan"])
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_waiting(verb, number, code):
    waiting = Run(*verb, "--await", 1, "--listen", "127.0.0.1:0")
    try:
        assert "waiting on" in waiting.process.stderr.readline()
        waiting.process.send_signal(number)
        result = waiting.finish(5)
    finally:
        waiting.end()
    assert result.code == code and result.out == "", result


def test_a_hostfile_and_a_kernel(tmp_path):
    with workers(1) as (addresses, _):
        host, port = addresses[0].split(":")
        (tmp_path / "hosts").write_text(f"{host} port={port} slots=1\n")
        report = asked("--hostfile", tmp_path / "hosts", "--kernel", "reference")
    assert [node["kernel"] for node in report["nodes"]] == ["reference", "reference"]
    assert report["nodes"][1]["threads"] == 1


def test_who_answers_is_shown_though_another_does_not():
    with workers(1) as (addresses, _):
        result = bramble("nodes", "-w", f"127.0.0.1:1,{addresses[0]},127.0.0.1:2")
        assert result.code == 5, result
        assert addresses[0] in result.out and "127.0.0.1:1 " not in result.out
        lines = result.err.splitlines()
        assert len(lines) == 2 and all(line.startswith("bramble: worker 127.0.0.1:") for line in lines), result
        assert_gone(result.tag)
        result = bramble("nodes", "--json", "-w", f"127.0.0.1:1,{addresses[0]}")
        assert result.code == 5 and len(result.report["nodes"]) == 2, result
        [missing] = result.report["missing"]
        assert "127.0.0.1:1" in missing
