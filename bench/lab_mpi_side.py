"""mpi4py + NumPy as a rival in the lab. Rank 0 is the primary: it has A and B, wants C, and computes nothing. B is
broadcast, rows of A are scattered over the other ranks, rows of C are gathered.

    mpirun … lab_mpi_side.py A.npy B.npy C.npy

Rank 0 prints the seconds of the product. A small product before it opens all connections; buffers are touched before.
"""

import json
import sys
import time

import numpy as np
from mpi4py import MPI

WARM_UP = 256


def shares(rows, ranks):
    """Rows of each rank: none for the first, equal numbers for the rest."""
    parts = np.full(ranks - 1, rows // (ranks - 1))
    parts[:rows % (ranks - 1)] += 1
    return np.concatenate([[0], parts])


class Product:
    """C = AB with all buffers at hand."""

    def __init__(self, world, a, b):
        self.world, self.a, self.b = world, a, b
        first = world.rank == 0
        (m, k), n, dtype = world.bcast((a.shape, b.shape[1], a.dtype) if first else None, root=0)
        self.rows = shares(m, world.size)
        mine = self.rows[world.rank]
        self.part, self.result = (np.full((mine, side), 1, dtype) for side in (k, n))
        if first:
            self.c = np.full((m, n), 1, dtype)
        else:
            self.a, self.b, self.c = None, np.full((k, n), 1, dtype), None
        self.k, self.n = k, n

    def spread(self, array, side):
        return [array, self.rows * side]

    def run(self):
        """Seconds at rank 0."""
        self.world.Barrier()
        begun = time.perf_counter()
        self.world.Bcast(self.b, root=0)
        self.world.Scatterv(self.spread(self.a, self.k) if self.world.rank == 0 else None, self.part, root=0)
        if len(self.part):
            np.matmul(self.part, self.b, out=self.result)
        self.world.Gatherv(self.result, self.spread(self.c, self.n) if self.world.rank == 0 else None, root=0)
        return time.perf_counter() - begun


def main():
    world = MPI.COMM_WORLD
    a, b = (np.load(path) for path in sys.argv[1:3]) if world.rank == 0 else (None, None)
    small = [np.ascontiguousarray(matrix[:WARM_UP, :WARM_UP]) for matrix in (a, b)] if world.rank == 0 else (None, None)
    Product(world, *small).run()
    product = Product(world, a, b)
    seconds = product.run()
    if world.rank == 0:
        np.save(sys.argv[3], product.c)
        print(json.dumps(seconds))


if __name__ == "__main__":
    main()
