"""mpi4py + NumPy as a rival: rank 0 has A and B and wants C. B is broadcast, rows of A are scattered, rows of
C are gathered. Run by mpirun; rank 0 prints the seconds of each round as JSON."""

import json
import sys
import time

import numpy as np
from mpi4py import MPI


def main():
    n, dtype, rounds = int(sys.argv[1]), {"f32": np.float32, "f64": np.float64}[sys.argv[2]], int(sys.argv[3])
    world = MPI.COMM_WORLD
    first = world.rank == 0
    rng = np.random.default_rng(1)
    a, whole_b = (rng.uniform(-1, 1, (n, n)).astype(dtype) for _ in "AB") if first else (None, None)
    assert n % world.size == 0
    seconds = []
    for _ in range(rounds):
        world.Barrier()
        begun = time.perf_counter()
        b = whole_b if first else np.empty((n, n), dtype)
        rows = np.empty((n // world.size, n), dtype)
        c = np.empty((n, n), dtype) if first else None
        world.Bcast(b, root=0)
        world.Scatter(a, rows, root=0)
        world.Gather(rows @ b, c, root=0)
        seconds.append(time.perf_counter() - begun)
    if first:
        assert np.allclose(c @ np.ones(n), a @ (b @ np.ones(n)), atol=1e-2 if dtype == np.float32 else 1e-6)
        print(json.dumps(seconds))


if __name__ == "__main__":
    main()
