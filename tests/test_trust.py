"""Admission: machines with the same cluster key, whichever end dials; without a key no remote machine.

The bytes on the wire are checked in test_capture.py.
"""

import re
import signal
import subprocess
import time

import pytest
from helpers import BRAMBLE, Run, assert_nothing_written, assert_refused, bramble, succeed, workers
from lacking import skip

OPERANDS = "random:300x200:f64:1", "random:200x300:f64:2"
TOGETHER = "--strategy", "reuse"
UNREACHABLE = 5


@pytest.fixture
def keys(tmp_path):
    """Two clusters' keys, as environments."""
    found = []
    for name in ("ours", "theirs"):
        path = tmp_path / name / "key"
        succeed("key", "new", env={"BRAMBLE_KEY_FILE": str(path)})
        found.append({"BRAMBLE_KEY": path.read_text().strip()})
    return found


def key_id(env):
    return succeed("key", "show", "--id", env=env).out.strip()


def multiply(folder, address, env=None, *options):
    run = Run("multiply", *OPERANDS, "-o", folder / "C.npy", "-w", address, *TOGETHER, *options, env=env)
    return run.finish()


def ended(runs):
    """A worker's stderr, after it was told to stop."""
    runs[0].process.send_signal(signal.SIGTERM)
    return runs[0].process.communicate(timeout=20)[1]


def test_machines_with_the_key_work_together_and_report_the_cipher(tmp_path, keys):
    alone = succeed("multiply", *OPERANDS, *TOGETHER, "--json").report["digest"]
    with workers(2, env=keys[0]) as (addresses, _):
        result = multiply(tmp_path, ",".join(addresses), keys[0], "--json")
    assert result.code == 0, result
    assert result.report["digest"] == alone
    assert all(w["encryption"] in ("aes-128-gcm", "chacha20-poly1305") for w in result.report["workers"])


def test_another_key_is_refused_and_both_sides_say_so(tmp_path, keys):
    ours, theirs = keys
    with workers(1, env=ours) as (addresses, runs):
        result = multiply(tmp_path, addresses[0], theirs)
        assert_refused(result, UNREACHABLE, [addresses[0], "another", key_id(theirs)])
        assert key_id(ours) not in result.err, "a stranger learns the id of our key"
        assert_nothing_written(tmp_path)
        log = ended(runs)
    assert re.search(f"connection of 127.0.0.1:.*does not prove.*{key_id(ours)}.*{key_id(theirs)}", log), log
    assert keys[0]["BRAMBLE_KEY"] not in log and keys[1]["BRAMBLE_KEY"] not in log


def test_a_primary_without_a_key_is_told_what_is_missing(tmp_path, keys):
    with workers(1, env=keys[0]) as (addresses, runs):
        result = multiply(tmp_path, addresses[0])
        assert_refused(result, UNREACHABLE, [addresses[0], "cluster key"])
        assert_nothing_written(tmp_path)
        assert "does not speak TLS" in ended(runs)


def test_a_worker_without_a_key_tells_a_primary_with_one(tmp_path, keys):
    with workers(1) as (addresses, runs):
        result = multiply(tmp_path, addresses[0], keys[0])
        assert_refused(result, UNREACHABLE, [addresses[0], "no cluster key"])
        assert "speaks TLS" in ended(runs)


def test_workers_that_dial_in_prove_the_key_too(tmp_path, keys):
    ours, theirs = keys
    env = {**ours}
    run = Run("multiply", *OPERANDS, "-o", tmp_path / "C.npy", "--await", 2, "--listen", "127.0.0.1:0", *TOGETHER,
              "--json", env=env)
    line = run.process.stderr.readline()
    port = re.search(r"waiting on 127\.0\.0\.1:(\d+) for 2 workers", line)
    assert port, line
    address = f"localhost:{port[1]}"
    stranger = bramble("worker", "-q", "--join", address, env=theirs)
    assert stranger.code == 1 and "another" in stranger.err, stranger
    joined = [Run("worker", "--join", address, env=ours) for _ in range(2)]
    result = run.finish()
    assert result.code == 0, result
    assert len(result.report["workers"]) == 2
    # The stranger tries every address of the name.
    turned_away = result.report["turned_away"]
    assert turned_away["count"] >= 1 and "does not prove this cluster's key" in turned_away["last"]["why"]
    assert f"bramble: turned away {turned_away['last']['address']}: " in result.err, result
    for worker in joined:
        left = worker.finish()
        assert left.code == 0, left


def test_a_worker_that_dials_in_early_waits_for_the_others(tmp_path, keys):
    """Longer than the limit of a stranger's silence."""
    run = Run("multiply", *OPERANDS, "-o", tmp_path / "C.npy", "--await", 2, "--listen", "127.0.0.1:0", *TOGETHER,
              env=keys[0])
    port = re.search(r":(\d+) for 2 workers", run.process.stderr.readline())[1]
    early = Run("worker", "--join", f"127.0.0.1:{port}", env=keys[0])
    time.sleep(7)
    late = Run("worker", "--join", f"127.0.0.1:{port}", env=keys[0])
    result = run.finish()
    assert result.code == 0, result
    assert (early.finish().code, late.finish().code) == (0, 0)


def test_many_primaries_of_one_machine_get_in_together(tmp_path, keys):
    """The number of sessions that a worker promises to serve."""
    with workers(1, "--memory", "1G", env=keys[0]) as (addresses, _):
        runs = [Run("multiply", *OPERANDS, "-w", addresses[0], *TOGETHER, "-q", env=keys[0]) for _ in range(16)]
        ended_as = [run.finish() for run in runs]
    assert all(result.code == 0 for result in ended_as), ended_as


def test_awaiting_beyond_loopback_needs_a_key(tmp_path):
    result = bramble("multiply", *OPERANDS, "--await", 1)
    assert_refused(result, 2, ["--listen 0.0.0.0:7401", "bramble key new"])


def test_listening_beyond_loopback_needs_a_key():
    result = bramble("worker", "--listen", "0.0.0.0:0")
    assert_refused(result, 1, ["0.0.0.0", "bramble key new", "127.0.0.1"])


def test_another_machine_is_dialled_only_with_a_key():
    # An address that is reserved for documentation: nothing is sent to it.
    result = bramble("multiply", *OPERANDS, "-w", "192.0.2.1")
    assert_refused(result, 2, ["192.0.2.1", "bramble key new"])
    result = bramble("worker", "--join", "192.0.2.1:7400")
    assert_refused(result, 1, ["192.0.2.1", "bramble key new"])


def test_a_worker_says_who_can_use_it(keys):
    for env, words in ((None, "no cluster key: only this machine"), (keys[0], f"cluster key {key_id(keys[0])}")):
        with workers(1, env=env) as (_, runs):
            assert words in ended(runs)


def test_insecure_is_said_every_time_even_when_quiet(tmp_path, keys):
    with workers(1, "--insecure", env=keys[0]) as (addresses, runs):
        result = multiply(tmp_path, addresses[0], keys[0], "--insecure", "-q")
        assert result.code == 0 and "INSECURE" in result.err, result
        assert "INSECURE" in ended(runs)
    with workers(1, "--insecure", "--i-trust-this-network", "--quiet") as (_, runs):
        assert "anyone on this network" in ended(runs)


def test_trusting_a_network_takes_both_options():
    result = bramble("worker", "--i-trust-this-network")
    assert_refused(result, 2, ["--insecure"])


def test_insecure_alone_stays_on_this_machine():
    result = bramble("multiply", *OPERANDS, "-w", "192.0.2.1", "--insecure")
    assert result.code == 2 and "192.0.2.1" in result.err.splitlines()[-1], result


def test_local_workers_take_no_other_primary_and_show_no_key():
    """Their one-time key is in no command line, and differs from run to run."""
    run = Run("multiply", "random:4000x4000:f64:1", "random:4000x4000:f64:2", "--local", 2)
    try:
        lines, until = set(), time.monotonic() + 20
        while not any("--join" in line for line in lines) and time.monotonic() < until:
            for pid in run.workers():
                try:
                    lines.add(open(f"/proc/{pid}/cmdline").read().replace("\0", " "))
                except OSError:
                    pass
        assert any("--join" in line for line in lines), lines
        assert not any("bramble1-" in line for line in lines), lines
    finally:
        run.end()


def test_boards_whose_clocks_are_wrong_still_join(tmp_path, keys):
    """TLS without dates: a worker whose clock says 1980 serves a primary of today."""
    try:
        subprocess.run(["faketime", "1980-01-01", "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        skip("clock", "faketime is not installed")
    worker = subprocess.Popen(["faketime", "1980-01-01", BRAMBLE, "worker", "--listen", "127.0.0.1:0"],
                              env={**keys[0], "PATH": "/usr/bin:/bin"}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        address = re.fullmatch(r"listening on (.*)\n", worker.stdout.readline())[1]
        result = multiply(tmp_path, address, keys[0])
        assert result.code == 0, result
    finally:
        subprocess.run(["pkill", "-TERM", "-s", str(worker.pid)], check=False)
        worker.communicate(timeout=20)
