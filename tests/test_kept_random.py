"""Random chains of kept results against NumPy: shapes around the lattice, all types, placements, teams, uneven and extreme elements."""

import random

import numpy as np
import pytest
from helpers import save, succeed
from test_batch import batch_file

SIDES = [1, 2, 5, 64, 255, 256, 257, 300, 511, 513, 700, 1025]
TEAMS = [["--local", "2"], ["--local", "3"], ["--local", "2", "--link", "shm"], [], ["--local", "3", "--relay", "off"]]


def elements(shape, dtype, kind, rng):
    if dtype[0] == "i":
        return rng.integers(-50, 50, shape).astype(dtype)
    matrix = rng.standard_normal(shape) * {"huge": 1e18 if dtype == "f4" else 1e150, "tiny": 1e-30}.get(kind, 1.0)
    if kind == "uneven":
        matrix *= 10.0 ** rng.integers(-6, 6, (shape[0], 1))
    matrix = matrix.astype(dtype)
    if kind == "nan":
        matrix[rng.integers(shape[0]), rng.integers(shape[1])] = np.nan
    return matrix


@pytest.mark.parametrize("seed", range(24))
def test_chains_of_random_matrices(tmp_path, seed):
    pick, rng = random.Random(seed), np.random.default_rng(seed)
    dtype, kind = pick.choice(["f4", "f8", "i4", "i8"]), pick.choice(["normal", "uneven", "huge", "nan", "tiny"])
    m, k, n, p = (pick.choice(SIDES) for _ in range(4))
    given = {name: elements(shape, dtype, kind, rng) for name, shape in
             {"A": (m, k), "B": (k, n), "C": (m, n), "E": (n, p)}.items()}
    paths = {name: str(save(tmp_path, f"{name}.npy", matrix)) for name, matrix in given.items()}
    placed = [name for name in given if name == "B" or pick.random() < 0.75]
    of = {name: name if name in placed else path for name, path in paths.items()}
    alpha, beta = pick.choice([1, 2, -3]), pick.choice([1, -2])
    lines = [f"{name} = put {paths[name]} {pick.choice(['', 'shard=0', 'shard=1', 'replicate'])}" for name in placed]
    lines += [f"H = {alpha} * {of['A']} @ {of['B']} + {beta} * {of['C']}", f"G = H @ {of['E']}", f"S = {beta} * H - {of['C']}",
              "T = G.T @ S", f"R = put T.T shard={pick.choice('01')}", *[f"{name} -> {tmp_path}/{name}.npy" for name in "HGSTR"]]
    team, effort = pick.choice(TEAMS), pick.choice(["fast", "full"])
    succeed("batch", batch_file(tmp_path, "\n".join(lines)), "-q", "--verify", effort, *team)
    a, b, c, e = given.values()
    factor = a.dtype.type
    with np.errstate(all="ignore"):
        h = factor(alpha) * (a @ b) + factor(beta) * c
        want = {"H": h, "G": h @ e, "S": factor(beta) * h - c}
        want["T"] = want["G"].T @ want["S"]
        want["R"] = want["T"].T
    for name, matrix in want.items():
        got = np.load(tmp_path / f"{name}.npy")
        assert (got.shape, got.dtype) == (matrix.shape, matrix.dtype), name
        if dtype[0] == "i":
            np.testing.assert_array_equal(got, matrix)
        elif kind not in ("nan", "huge"):
            # Errors of a chain of three, against its largest element: rows may be uneven.
            bound = (1e-2 if dtype == "f4" else 1e-9) * np.abs(matrix.astype("f8")).max()
            assert np.abs(got.astype("f8") - matrix).max() <= bound, name
