"""The Python package `bramble` in a process of its own: see `common.Side`. Arrays are loaded before the time begins, and results
are arrays when it ends."""

import hashlib
import importlib.util
import re
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


def array(path):
    """The array of this name: a result, or the elements of a file."""
    if path not in arrays:
        arrays[path] = np.load(path)
    return arrays[path]


def operand(word):
    """The matrix that a word of the batch language names."""
    name = word.removesuffix(".T")
    found = placed[name] if name in placed else array(name)
    return found if name == word else found.T


def put(name, path, replicate=None, shard=None, units=None):
    source = operand(path)
    placement = bramble.Replicate() if replicate else None
    if shard is not None:
        placement = bramble.Shard(int(shard), None if units is None else [int(unit) for unit in units.split(":")])
    return name, lambda: open_cluster.put(source, placement, copy=False)


def product(target, left, right):
    a, b = operand(left), operand(right)
    is_name = re.fullmatch(r"\w+", target) is not None
    return target, lambda: open_cluster.matmul(a, b, keep=is_name)


def largest(columns, values, left, right, count):
    a, b = operand(left), operand(right)
    return (columns, values), lambda: open_cluster.topk(a, b, int(count))


def largest_here(columns, values, matrix, count):
    """By NumPy, some rows at a time: it needs an index for each element."""
    y, k = operand(matrix), int(count)

    def found():
        parts = [largest_of(y[row:row + 256], k) for row in range(0, len(y), 256)]
        return tuple(np.vstack(part) for part in zip(*parts, strict=True))

    return (columns, values), found


def largest_of(y, k):
    found = np.argpartition(y, -k, axis=1)[:, -k:]
    values = np.take_along_axis(y, found, 1)
    order = np.argsort(-values, axis=1)
    return np.take_along_axis(found, order, 1), np.take_along_axis(values, order, 1)


def fetched(name, target):
    matrix = placed[name]
    return target, matrix.numpy


def freed(name):
    return None, placed.pop(name).free


TASKS = {
    r"(\w+) = put (\S+)(?: (replicate)| shard=([01])(?: units=(\S+))?)?": put,
    r"(\S+) = (\S+) @ (\S+)": product,
    r"(\S+) = (\S+)": lambda target, name: fetched(name, target),
    r"(\w+), (\w+) = topk\((\S+) @ (\S+), (\d+)\)": largest,
    r"(\w+), (\w+) = topk\((\S+), (\d+)\)": largest_here,
    r"(\w+) -> (\S+)": fetched,
    r"free (\w+)": freed,
}
"""The lines of the batch language (docs/batch.md) that the benchmarks use, and the functions that give target and call of each."""


def task(line):
    """Carries out a line of the batch language. Files that it names are loaded before, and results for files become arrays of that
    name. The report of the call, with its seconds, and the digest and the sum of an array that came back."""
    for form, parsed in TASKS.items():
        if match := re.fullmatch(form, line):
            target, call = parsed(*match.groups())
            break
    else:
        raise ValueError(f"{line}: the Python side carries out no such task; add it to TASKS in {__file__}")
    arrays.pop(target, None)
    before = open_cluster.last_report
    seconds, result = timed(call)
    # Some calls leave no report.
    report = {} if open_cluster.last_report is before else dict(open_cluster.last_report)
    report["round_trip_s"] = seconds
    if isinstance(result, bramble.DistArray):
        placed[target] = result
    elif isinstance(result, tuple):
        report["results"] = [{"digest": digest(one)} for one in result]
    elif result is not None:
        arrays[target] = result
        report |= {"digest": digest(result), "sum": float(result.sum(dtype=np.float64))}
    return report


def digest(result):
    return hashlib.blake2b(np.ascontiguousarray(result)).hexdigest()


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
    placed["estimator"] = estimator = example("kmeans").ClusterKMeans(open_cluster, array(init))
    samples = array(x)
    seconds, placed["samples"] = timed(lambda: estimator.place(samples))
    return seconds


def kmeans(x, rounds, out):
    """Seconds of so many rounds of k-means, bytes received and sent in each, and the inertia. The labels go to a file."""
    estimator, before = placed["estimator"], link_bytes()
    estimator.max_iter = rounds
    seconds, found = timed(lambda: estimator.fit(array(x), placed["samples"]))
    # Centres are compared once more than they move.
    received, sent = (link_bytes() - before) / (found.n_iter_ + 1)
    np.save(out, found.labels_)
    return {"seconds": seconds, "received": received, "sent": sent, "rounds": found.n_iter_, "inertia": float(found.inertia_)}


def close():
    placed.clear()
    open_cluster.close()
    return True


if __name__ == "__main__":
    serve({"ready": lambda: True, "open": opened, "task": task, "components": components, "kmeans_samples": kmeans_samples,
           "kmeans": kmeans, "close": close})
