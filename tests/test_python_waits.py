"""A cluster whose user thinks before the first call, or between two: its workers wait as long. Without a key a worker closes a
connection that says nothing for 5 seconds, so each test here waits longer."""

import subprocess
import time

import numpy as np
from bramble import Cluster, Shard
from helpers import BRAMBLE, Run, matrix, save, workers
from test_python_cluster import same, small

LONGER = 6


def test_workers_without_a_key_wait_for_the_first_call():
    with workers(2, "--threads", "1") as (addresses, _), Cluster(",".join(addresses), insecure=True) as c:
        time.sleep(LONGER)
        x, w = small(40, 300), small(300, 280)
        W = c.put(w, Shard(1))
        assert sorted(node.name for node in c.nodes if node.link == "tcp") == sorted(addresses)
        same(x @ W, x @ w)


def test_a_batch_waits_for_its_first_line(tmp_path):
    a, b = (save(tmp_path, f"{name}.npy", matrix(60, 60, "f64", at)) for at, name in enumerate("ab"))
    with workers(1, "--threads", "1") as (addresses, _):
        command = [BRAMBLE, "batch", "-", "--workers", addresses[0], "--insecure"]
        batch = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(LONGER)
        out, err = batch.communicate(f"{tmp_path}/c.npy = {a} @ {b}\n", timeout=60)
    assert batch.returncode == 0, (out, err)
    np.testing.assert_allclose(np.load(tmp_path / "c.npy"), np.load(a) @ np.load(b), rtol=1e-12)


def test_a_worker_that_starts_again_between_two_calls_is_there_for_the_next():
    x, y = small(200, 300), small(300, 200)
    with workers(2, "--threads", "1") as (addresses, runs), Cluster(",".join(addresses), insecure=True) as c:
        same(c.matmul(x, y), x @ y)
        runs[1].end()
        # The loss is noticed by this call, and the worker is dialled from now on.
        same(c.matmul(x, y), x @ y)
        again = Run("worker", "--listen", addresses[1], "--threads", "1")
        try:
            again.process.stdout.readline()
            # It is dialled within 6 s, and then waits for longer than its patience.
            time.sleep(2 * LONGER)
            assert sorted(node.name for node in c.nodes if node.link == "tcp") == sorted(addresses)
            same(c.matmul(x, y), x @ y)
        finally:
            again.end()
