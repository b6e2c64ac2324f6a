"""Dask as a rival, in a process of its own: see `common.Side`. The cluster is a LocalCluster of one-thread processes
(`dask_side.py COUNT`), or a scheduler here to which workers of other machines connect (`dask_side.py --listen ADDRESS`).

Every method starts with A and B as NumPy arrays in the client, except `generated`, whose chunks are made and kept
at the workers beforehand; every method ends with C as a NumPy array in the client. The cluster's start is not
counted.
"""

import itertools
import signal
import sys
import time
import warnings
from functools import lru_cache

import dask
import dask.array as da
import numpy as np
from common import serve
from distributed import Client, LocalCluster, wait

KINDS = {"f32": np.float32, "f64": np.float64}
# Dask warns about from_array; that cost is the point of this measurement.
warnings.filterwarnings("ignore", message="Sending large graph")
client = None
given = ()
"""Operands that were loaded from files."""
placed = None
"""A matrix at the workers: futures of its blocks of columns, and the array of them."""


@lru_cache(maxsize=1)
def operands(n, dtype):
    if given:
        return given
    rng = np.random.default_rng(1)
    return tuple(rng.uniform(-1, 1, (n, n)).astype(KINDS[dtype]) for _ in "AB")


def from_array(n, dtype, chunk):
    """da.from_array: the operands travel inside the task graph."""
    a, b = (da.from_array(array, chunks=chunk) for array in operands(n, dtype))
    return (a @ b).compute()


def scattered(n, dtype, chunk):
    """Chunks are sent to the workers first, then a dask array is built of the futures."""
    def spread(array):
        starts = range(0, n, chunk)
        blocks = [[array[i:i + chunk, j:j + chunk] for j in starts] for i in starts]
        futures = client.scatter([block for row in blocks for block in row])
        parts = iter(futures)
        return da.block([[da.from_delayed(next(parts), block.shape, block.dtype) for block in row]
                         for row in blocks])

    a, b = map(spread, operands(n, dtype))
    return (a @ b).compute()


def futures(n, dtype, chunk):
    """By hand: B to every worker, rows of A in as many parts as workers, one task each."""
    a, b = operands(n, dtype)
    parts = len(client.ncores())
    whole_b = client.scatter(b, broadcast=True)
    rows = client.scatter(np.array_split(a, parts))
    return np.vstack(client.gather([client.submit(np.matmul, part, whole_b, pure=False) for part in rows]))


@lru_cache(maxsize=1)
def kept(n, dtype, chunk):
    rng = da.random.default_rng(1)
    pair = [rng.uniform(-1, 1, (n, n), chunks=chunk).astype(KINDS[dtype]) for _ in "AB"]
    pair = dask.persist(*pair)
    wait(pair)
    return pair


def generated(n, dtype, chunk):
    """The operands are already at the workers."""
    a, b = kept(n, dtype, chunk)
    return (a @ b).compute()


WAYS = {"from_array": from_array, "scattered": scattered, "futures": futures, "generated": generated}


def product(way, n, dtype, chunk):
    """Seconds of one product."""
    if way == "generated":
        kept(n, dtype, chunk)
    else:
        operands(n, dtype)
    begun = time.perf_counter()
    c = WAYS[way](n, dtype, chunk)
    seconds = time.perf_counter() - begun
    assert c.shape == (n, n)
    return seconds


def load(a, b):
    """Loads these files as the operands."""
    global given
    given = ()
    operands.cache_clear()
    given = np.load(a), np.load(b)
    return [len(matrix) for matrix in given]


def saved(way, n, dtype, chunk, out):
    """Seconds of one product of the operands that were loaded; C goes to a file afterwards."""
    begun = time.perf_counter()
    c = WAYS[way](n, dtype, chunk)
    seconds = time.perf_counter() - begun
    np.save(out, c)
    return seconds


def persist(path, parts):
    """Keeps a matrix at the workers, as many columns at each; seconds."""
    global placed
    whole = np.load(path)
    begun = time.perf_counter()
    edges = np.linspace(0, whole.shape[1], parts + 1).astype(int)
    blocks = [np.ascontiguousarray(whole[:, start:end]) for start, end in itertools.pairwise(edges)]
    workers = list(client.scheduler_info(n_workers=-1)["workers"])
    futures = [client.scatter(block, workers=[worker]) for block, worker in zip(blocks, workers, strict=True)]
    wait(futures)
    columns = [da.from_delayed(future, block.shape, block.dtype) for future, block in zip(futures, blocks, strict=True)]
    placed = futures, da.concatenate(columns, axis=1).persist()
    wait(placed[1])
    return time.perf_counter() - begun


def times_placed(way, path):
    """Seconds of one product of a matrix and the one that was persisted; the result is here afterwards."""
    x = np.load(path)
    futures, array = placed
    begun = time.perf_counter()
    if way == "array":
        y = (da.from_array(x, chunks=x.shape) @ array).compute()
    else:
        rows = client.scatter(x, broadcast=True, hash=False)
        y = np.hstack(client.gather([client.submit(np.matmul, rows, part, pure=False) for part in futures]))
    seconds = time.perf_counter() - begun
    assert y.shape == (len(x), array.shape[1])
    return {"seconds": seconds, "sum": float(y.sum(dtype=np.float64))}


def close():
    """Releases all data, so that workers can leave without warnings."""
    client.close()
    return True


def enough(workers):
    """Waits until this many workers are connected."""
    client.wait_for_workers(workers, timeout=60)
    return workers


def main():
    global client
    begun = time.perf_counter()
    options = {"dashboard_address": None}
    listens = sys.argv[1] == "--listen"
    if listens:
        # The asking process is interrupted too, and ends this one.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        options.update(n_workers=0, host=sys.argv[2])
    else:
        options.update(n_workers=int(sys.argv[1]), threads_per_worker=1, processes=True)
    cluster = LocalCluster(**options)
    # Where links are slow, data that is scattered and gathered should not pass the scheduler's loop as well.
    client = Client(cluster, direct_to_workers=True if listens else None)
    start_s = time.perf_counter() - begun
    serve({"product": product, "start": lambda: start_s, "address": lambda: cluster.scheduler_address,
           "enough": enough, "load": load, "saved": saved, "persist": persist, "times_placed": times_placed,
           "close": close})
    client.close()
    cluster.close()


if __name__ == "__main__":
    main()
