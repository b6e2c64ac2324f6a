"""The measuring scripts still run: each once, on tiny inputs, recording nothing."""

import importlib.util
import os
import signal
import subprocess
import sys
import time

import pytest
from helpers import BRAMBLE, ROOT, TAG, assert_gone
from lacking import skip

pytestmark = pytest.mark.soak("bench-scripts")


def needs(*modules):
    """Skips the test where a measured rival is not installed."""
    for module in modules:
        if not importlib.util.find_spec(module):
            skip("dask", f"{module} is not installed: see bench/requirements.txt")


@pytest.mark.parametrize("script, heads", [
    ("numpy_product", ["Product, operands in memory", "Files to file", "bramble, not verified"]),
    ("integers", ["i32", "i64"]),
    ("kernels", ["auto", "simd"]),
    ("startup", ["start to first job"]),
    ("open_cluster", ["later: task to report", "descriptors"]),
    ("memory", ["largest worker"]),
    ("encrypted_link", ["encrypted"]),
    ("local_workers", ["dask futures"]),
    ("resume_kept", ["multiplied", "kept of that", "digest"]),
    ("losses", ["killed: until it is said", "started again: until it computes"]),
    ("lu_losses", ["no loss", "last start after"]),
    ("soak", ["workers killed", "failures"]),
    ("lu", ["Systems of equations, f64", "dsgesv", "condition 1e8"]),
    ("thin_shapes", ["dot product, 2e7", "outer product"]),
    ("under_attack", ["four other addresses", "strangers of this machine"]),
])
def test_a_quick_look(tmp_path, script, heads):
    if script == "local_workers":
        needs("distributed", "mpi4py")
    attacker = BRAMBLE.parent / "examples" / "attacker"
    if script == "under_attack" and not attacker.is_file():
        skip("attacker", "it is not built: make build-for-tests")
    command = [sys.executable, ROOT / "bench" / f"{script}.py", "--quick", "--no-record",
               "--bramble", BRAMBLE, "--dir", tmp_path]
    if script == "startup":
        command += ["--workers", "2"]
    if script == "under_attack":
        command += ["--attacker", attacker]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    for head in heads:
        assert head in done.stdout, done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("script, words, heads", [
    ("placed_matrices", ["--case", "chain", "--case", "top"], ["10 products H = H @ W", "the same columns"]),
    ("placed_matrices", ["--from", "python", "--case", "chain", "--case", "top"], ["10 products H = H @ W", "the same columns"]),
    ("placed_matrices", ["--from", "python", "--case", "gram", "--case", "steps", "--case", "small"],
     ["sums pass", "5 steps x = W @ x", "to the last tile", "placed and freed 50 times"]),
    ("python_package", ["--case", "kmeans"], ["5 rounds of k-means", "scikit-learn"]),
])
def test_a_quick_look_at_placed_matrices(tmp_path, script, words, heads):
    if os.geteuid() != 0:
        skip("lab", "only root may make network namespaces")
    command = [sys.executable, ROOT / "bench" / f"{script}.py", *words, "--quick", "--no-record", "--bramble", BRAMBLE, "--dir", tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        out, err = run.communicate(timeout=240)
    if "not installed: " in err:
        skip("lab", err.strip())
    assert run.returncode == 0, err
    for head in heads:
        assert head in out, out
    assert list(tmp_path.iterdir()) == []
    assert not spaces_of(run.pid)


def lab(tmp_path, case, *words):
    """The command of a lab script."""
    return [sys.executable, ROOT / "bench" / "lab_products.py", "--case", case, "--no-record", "--bramble", BRAMBLE,
            "--dir", tmp_path, *words]


def spaces_of(pid):
    """Names of the network namespaces of a script's lab; other tests have labs at the same time."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.split()
    return [name for name in listed if name.startswith(f"bramble-bench{pid}-")]


@pytest.mark.parametrize("case, heads", [
    ("compute", ["seconds : bound", "1000 Mbit/s"]),
    ("network", ["received : C", "200 Mbit/s"]),
    ("mixed", ["of the summed speeds", "worker 4 alone", "equal shares"]),
    ("scaling", ["row:4", "square:8", "5 workers: times as fast"]),
    ("peers", ["bramble reuse", "whole command"]),
])
def test_a_quick_look_at_a_cluster_in_this_machine(tmp_path, case, heads):
    # On fifths of a core 25 products by the slow kernel take long, and so does every start of Dask.
    smaller = {"scaling": ["-n", "240"], "peers": ["--chunks", "256", "--blocks", "64,128"]}.get(case, [])
    with subprocess.Popen(lab(tmp_path, case, "--quick", *smaller), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as run:
        out, err = run.communicate(timeout=240)
    assert run.returncode == 0, err
    if out.startswith("a cluster in this machine cannot be made"):
        skip("lab", out.strip())
    for head in heads:
        assert head in out, out
    assert list(tmp_path.iterdir()) == []
    assert not spaces_of(run.pid)


@pytest.mark.parametrize("case, words", [("compute", ["--rounds", "1000"]), ("peers", ["--mbit", "1000"])])
def test_an_interrupted_measurement_leaves_nothing(tmp_path, case, words):
    if os.geteuid() != 0:
        skip("lab", "only root may make network namespaces")
    if case == "peers":
        needs("distributed")
    end = time.monotonic() + 60
    env = {**os.environ, TAG: tmp_path.name}
    with subprocess.Popen(lab(tmp_path, case, "-n", "1024", "--dtype", "f32", *words), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, env=env, start_new_session=True) as run:
        if case == "peers":
            # The first peer has been tried; the next is at work or about to be.
            run.stderr.readline()
        while run.poll() is None and len(spaces_of(run.pid)) < 6 and time.monotonic() < end:
            time.sleep(0.1)
        run.send_signal(signal.SIGINT)
        try:
            out, err = run.communicate(timeout=60)
        finally:
            run.kill()
    if "cannot be made" in out:
        skip("lab", out.strip())
    assert run.returncode == 130, err
    assert_gone(tmp_path.name, deadline_s=10)
    assert not spaces_of(run.pid)
    assert list(tmp_path.iterdir()) == []
