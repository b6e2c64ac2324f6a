"""The Python package `bramble` in a process of its own: see `common.Side`. Arrays are loaded before the time begins, and results
are arrays when it ends."""

import importlib.util
import sys
import time
from pathlib import Path

import numpy as np

import bramble
from common import serve

open_cluster = None
placed = {}
arrays = {}


def timed(run):
    begun = time.perf_counter()
    result = run()
    return time.perf_counter() - begun, result


def opened(**options):
    """Seconds until the cluster is open."""
    global open_cluster
    seconds, open_cluster = timed(lambda: bramble.Cluster(**options))
    return seconds


def load(name, path):
    arrays[name] = np.load(path)
    return True


def put(name, axis, keep=None):
    """Seconds until the array is placed."""
    placement = None if axis is None else bramble.Shard(axis)
    seconds, placed[keep or name] = timed(lambda: open_cluster.put(arrays[name], placement, copy=False))
    return seconds


def times(x, w, sends=False, count=1):
    """Seconds of each product of an array and a matrix that is placed, or sent along; and the sum of the last result."""
    taken, y = [], None
    right = arrays[w] if sends else placed[w]
    for _ in range(count):
        seconds, y = timed(lambda: open_cluster.matmul(arrays[x], right))
        taken.append(seconds)
    return {"seconds": taken, "sum": float(y.sum(dtype=np.float64))}


def steps(w, x, count):
    """Seconds of a vector x = W @ x that stays at the workers."""
    def run():
        vector = open_cluster.matmul(placed[w], arrays[x], keep=True)
        for _ in range(count - 1):
            vector = placed[w] @ vector
        return vector.numpy()

    return timed(run)[0]


def top(x, w, k):
    """Seconds of the k largest of each row, and the product brought home and searched here."""
    there, (columns, _) = timed(lambda: open_cluster.topk(arrays[x], placed[w], k))

    def at_home():
        y = arrays[x] @ placed[w]
        found = np.argpartition(-y, k, axis=1)[:, :k]
        return np.take_along_axis(found, np.argsort(-np.take_along_axis(y, found, 1), axis=1), 1)

    here, found = timed(at_home)
    return {"there": there, "home": here, "same": float((np.sort(columns) == np.sort(found)).mean())}


def example(name):
    """A program of the examples as a module. Its own module `common` stands for ours while it is loaded."""
    folder, ours = Path(__file__).parent.parent / "examples/python", sys.modules["common"]

    def loaded(name, known_as):
        spec = importlib.util.spec_from_file_location(known_as, folder / f"{name}.py")
        module = sys.modules[known_as] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    try:
        loaded("common", "common")
        return loaded(name, f"example_{name}")
    finally:
        sys.modules["common"] = ours


def components(x, count, passes):
    """Seconds of the principal components of a placed matrix, and their singular values."""
    pca = example("pca").ClusterPCA(count, rounds=passes)
    seconds, found = timed(lambda: pca.fit(placed[x]))
    return {"seconds": seconds, "values": found.singular_values_.tolist()}


def link_bytes():
    """Bytes that this machine has received and sent, all headers included: /proc/net/dev has a line for each of its links."""
    lines = [line.split(":") for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    counts = [list(map(int, figures.split())) for name, figures in lines if name.strip() != "lo"]
    return np.array([sum(link[0] for link in counts), sum(link[8] for link in counts)])


def kmeans_samples(x, init):
    """Seconds until the samples of k-means are placed, for the centres of `init` at first."""
    placed["estimator"] = estimator = example("kmeans").ClusterKMeans(open_cluster, arrays[init])
    seconds, placed["samples"] = timed(lambda: estimator.place(arrays[x]))
    return seconds


def kmeans(x, rounds, out):
    """Seconds of so many rounds of k-means, bytes received and sent in each, and the inertia. The labels go to a file."""
    estimator, before = placed["estimator"], link_bytes()
    estimator.max_iter = rounds
    seconds, found = timed(lambda: estimator.fit(arrays[x], placed["samples"]))
    # Centres are compared once more than they move.
    received, sent = (link_bytes() - before) / (found.n_iter_ + 1)
    np.save(out, found.labels_)
    return {"seconds": seconds, "received": received, "sent": sent, "rounds": found.n_iter_, "inertia": float(found.inertia_)}


def close():
    placed.clear()
    open_cluster.close()
    return True


if __name__ == "__main__":
    serve({"open": opened, "load": load, "put": put, "times": times, "steps": steps, "top": top, "components": components,
           "kmeans_samples": kmeans_samples, "kmeans": kmeans, "close": close})
