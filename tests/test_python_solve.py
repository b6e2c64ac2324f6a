"""`Cluster.solve`: systems of equations on local workers, against NumPy."""

import numpy as np
import pytest
from bramble import Cluster, Replicate, Shard, VerificationError
from helpers import matrix, save


@pytest.fixture(scope="module")
def c():
    with Cluster(local=2, kernel="simd") as cluster:
        yield cluster


@pytest.fixture(scope="module", params=["workers", "none"])
def any_cluster(request, c):
    """With workers, and without."""
    if request.param == "workers":
        yield c
    else:
        with Cluster(threads=1) as alone:
            yield alone


def system(n, k, dtype="f8", seed=0):
    rng = np.random.default_rng([seed, n, k])
    a, b = rng.standard_normal((n, n)), rng.standard_normal((n, k) if k else n)
    return (a * 9).astype(dtype), (b * 9).astype(dtype)


def backward_error(a, x, b):
    """Normwise, in the infinity norm (Rigal & Gaches 1967)."""
    a, x, b = (np.asarray(part, dtype="f8").reshape(len(a), -1) for part in (a, x, b))
    return np.max(np.abs(a @ x - b).max(0) / (np.abs(a).sum(1).max() * np.abs(x).max(0) + np.abs(b).max(0)))


def solves(c, a, b, as_given=None):
    x = c.solve(a if as_given is None else as_given, b)
    wide = np.result_type(a, b) if np.result_type(a, b).kind == "f" else np.dtype("f8")
    want = np.linalg.solve(a.astype("f8"), b.astype("f8"))
    assert type(x) is np.ndarray and x.shape == want.shape and x.dtype == wide
    unit = np.finfo(wide).eps
    assert backward_error(a, x, b) <= 4 * len(a) * unit
    np.testing.assert_allclose(x, want, rtol=0, atol=np.linalg.cond(a.astype("f8")) * 8 * unit * np.abs(want).max())


@pytest.mark.parametrize("k", [0, 1, 3])
@pytest.mark.parametrize("n", [1, 2, 65, 300])
def test_vectors_and_several_right_hand_sides(any_cluster, n, k):
    solves(any_cluster, *system(n, k))


@pytest.mark.parametrize("types", [("f4", "f4"), ("f4", "f8"), ("f8", "f4"), ("i4", "i8"), ("i8", "f4")])
def test_types_are_those_of_numpy(any_cluster, types):
    a, b = system(80, 2)
    solves(any_cluster, (a * 100).astype(types[0]), b.astype(types[1]))


def test_strided_and_transposed_arrays(c):
    a, b = system(120, 4)
    solves(c, a.T, b)
    solves(c, a[::2, ::2], b[:60, ::2])
    solves(c, np.asfortranarray(a), np.asfortranarray(b))


def test_placed_matrices_and_files(tmp_path, any_cluster):
    a, b = system(300, 2)
    for placement in (Shard(0), Shard(1), Replicate()):
        A = any_cluster.put(a, placement)
        solves(any_cluster, a, b, A)
        solves(any_cluster, np.ascontiguousarray(a.T), b, A.T)
    solves(any_cluster, a, b, save(tmp_path, "a.npy", a))
    x = np.linalg.solve(any_cluster.put(a), b[:, 0])
    assert type(x) is np.ndarray and backward_error(a, x, b[:, 0]) < 1e-13


def test_the_report_names_the_shares(c, tmp_path):
    a, b = system(600, 1)
    c.solve(a, b)
    report = c.last_report
    assert report["kind"] == "system" and report["checked"] and 0 < report["backward_error"] < 1e-13
    assert sum(machine["columns"] for machine in report["machines"]) >= 600 and report["bound_seconds"] > 0
    assert "system" in str(report)
    report.save(tmp_path / "r.html")
    assert "backward_error" in (tmp_path / "r.html").read_text()


def test_errors_are_those_of_numpy(any_cluster):
    a, b = system(64, 1)
    singular = a.copy()
    singular[:, 7] = 0
    with pytest.raises(np.linalg.LinAlgError, match="column 7"):
        any_cluster.solve(singular, b)
    with pytest.raises(np.linalg.LinAlgError):
        any_cluster.solve(a[:, :60], b)
    with pytest.raises(ValueError, match="60"):
        any_cluster.solve(a, b[:60])
    with pytest.raises(np.linalg.LinAlgError, match="1-dimensional"):
        any_cluster.solve(a[0], b)
    with pytest.raises(ValueError, match="3 dimensions"):
        any_cluster.solve(a, np.ones((64, 1, 1)))
    with pytest.raises(TypeError, match="complex128"):
        any_cluster.solve(a + 1j, b)
    broken = a.copy()
    broken[3, 4] = np.nan
    with pytest.raises(ValueError, match="nan|NaN"):
        any_cluster.solve(broken, b)
    solves(any_cluster, a, b)


def test_a_matrix_that_was_made_at_the_workers_is_not_fetched_unasked(c):
    a, b = system(80, 1)
    H = c.put(a) + c.put(a)
    with pytest.raises(ValueError, match=r"\.numpy\(\)"):
        c.solve(H, b)
    with pytest.raises(TypeError, match="placed right-hand side"):
        np.linalg.solve(a, c.put(b))
    solves(c, 2 * a, b, H.numpy())


def test_empty_systems(any_cluster):
    assert any_cluster.solve(np.empty((0, 0)), np.empty(0)).shape == (0,)
    assert any_cluster.solve(np.eye(3), np.empty((3, 0))).shape == (3, 0)


def test_a_solution_without_accuracy_is_refused(c):
    """Elements grow to 2^(n − 1) during the elimination of this matrix (Wilkinson 1963)."""
    n = 90
    a = np.tril(-np.ones((n, n)), -1) + np.eye(n)
    a[:, -1] = 1
    with pytest.raises(VerificationError, match="backward error"):
        c.solve(a, matrix(n, 1, "f64", 3))
