"""NumPy as a rival, in a process of its own: see `common.Side`."""

import os
import resource
import time
from functools import lru_cache

import numpy as np
from common import serve

KINDS = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64}


@lru_cache(maxsize=1)
def operands(n, dtype):
    rng = np.random.default_rng(1)
    kind = np.dtype(KINDS[dtype])
    if kind.kind == "f":
        return tuple(rng.uniform(-1, 1, (n, n)).astype(kind) for _ in "AB")
    limits = np.iinfo(kind)
    return tuple(rng.integers(limits.min, limits.max, (n, n), dtype=kind) for _ in "AB")


def make(n, dtype, folder):
    """Writes A.npy and B.npy."""
    for name, array in zip("AB", operands(n, dtype), strict=True):
        np.save(f"{folder}/{name}.npy", array)


def product(n, dtype):
    """Seconds of A @ B, array to array."""
    a, b = operands(n, dtype)
    begun = time.perf_counter()
    c = a @ b
    seconds = time.perf_counter() - begun
    del c
    return seconds


def files(folder, out, sync):
    """Seconds to load, multiply and save: without the interpreter's start and the imports."""
    begun = time.perf_counter()
    a, b = np.load(f"{folder}/A.npy"), np.load(f"{folder}/B.npy")
    loaded = time.perf_counter()
    c = a @ b
    done = time.perf_counter()
    with open(out, "wb") as file:
        np.save(file, c)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    saved = time.perf_counter()
    return {"total": saved - begun, "load": loaded - begun, "product": done - loaded, "save": saved - done}


def peak():
    """The largest resident set of this process, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    serve({"make": make, "product": product, "files": files, "peak": peak})
