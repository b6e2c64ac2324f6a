"""The package on a free-threaded interpreter, which runs threads of Python at once.

`make python-free-threaded` builds the wheel for the interpreter that FREE_THREADED names, `python3.14t` by default.
"""

import os
import shutil
import subprocess

import pytest
from helpers import ROOT
from lacking import skip
from test_python_wheels import IN_PROCESS

NO_LOCK = "import sys\nassert not sys._is_gil_enabled(), 'importing NumPy and bramble has turned the lock on'\n"

SIDE_BY_SIDE = """
import sys, threading
import numpy as np
import bramble

def at_once(run, count=8):
    '''Runs `run(number)` on so many threads that begin together; what each returned.'''
    gate, found = threading.Barrier(count), [None] * count
    def one(number):
        gate.wait()
        try:
            found[number] = run(number)
        except Exception as error:
            found[number] = error
    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found

x, w = (np.random.default_rng(1).integers(-9, 9, shape).astype("f4") for shape in ((64, 256), (256, 256)))

def in_process(number):
    a = x + number
    out = np.empty((64, 256), "f4")
    for _ in range(20):
        assert (bramble.matmul(a, w, out=out) == a @ w).all() and bramble.lu(np.eye(32) * (number + 1)).solve(np.ones(32))[0] > 0
    return number

assert at_once(in_process) == list(range(8))

with bramble.Cluster(local=2) as c:
    W = c.put(w, bramble.Shard(1))
    def on_cluster(number):
        for turn in range(10):
            V = c.put(w + number, copy=turn % 2 == 0)
            assert ((x + number) @ W == (x + number) @ w).all() and (x @ V == x @ (w + number)).all()
            columns, values = c.topk(x, W, 3)
            assert (np.take_along_axis(x @ w, columns, 1) == values).all()
            assert (W + V).numpy()[0, 0] == 2 * w[0, 0] + number and c.last_report["seconds"] >= 0
            if turn % 3:
                V.free()
        return number
    assert at_once(on_cluster) == list(range(8))
    # One matrix is freed by all of them, and one cluster closed by one of them while the others use it.
    V = c.put(w)
    assert at_once(lambda _: V.free()) == [None] * 8
    def until_closed(number):
        if number == 0:
            c.close()
        while True:
            assert (x @ W == x @ w).all()
    assert {type(one) for one in at_once(until_closed)} == {bramble.ClusterClosed}
assert not sys._is_gil_enabled()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs a program in a clean environment of the interpreter."""
    interpreter = shutil.which(os.environ.get("FREE_THREADED", "python3.14t"))
    wheels = sorted((ROOT / "target/wheels/free-threaded").glob("bramble-*.whl"), key=lambda path: path.stat().st_mtime)
    if not interpreter or not wheels:
        skip("free-threaded", "there is no python3.14t, FREE_THREADED names no other, or make python-free-threaded has built no wheel")
    folder = tmp_path_factory.mktemp("free-threaded")
    subprocess.run([interpreter, "-m", "venv", folder / "venv"], check=True, timeout=120)
    python = folder / "venv/bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheels[-1]], check=True, timeout=300)

    def run(text, *arguments):
        program = folder / "program.py"
        program.write_text(text)
        done = subprocess.run([python, "-W", "error", program, *arguments], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr

    return run


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "i8"])
def test_it_computes_what_numpy_computes_without_the_lock(run, dtype):
    run(IN_PROCESS.replace("Cluster(threads=1)", "Cluster(local=2)") + NO_LOCK, dtype)


def test_threads_call_side_by_side(run):
    run(SIDE_BY_SIDE)
