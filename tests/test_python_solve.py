"""`Cluster.solve` and `Cluster.lu`: systems of equations on local workers, against NumPy."""

import threading
import warnings

import bramble
import numpy as np
import pytest
from bramble import BrambleError, Cluster, Replicate, Shard, Unreachable, VerificationError
from helpers import cpu_seconds, matrix, save, workers
from test_lu_survive import CutLink
from test_solve_workers import wait_until_it_computes
from wire_worker import NEIGHBOUR


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


def warned(call):
    """The warnings of a call about the matrix."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [warning for warning in caught if issubclass(warning.category, bramble.LinAlgWarning)]


@pytest.mark.parametrize("dtype, n, is_bad", [("f8", 12, True), ("f8", 8, False), ("f4", 8, True), ("f4", 4, False)])
def test_an_ill_conditioned_matrix_is_warned_of(c, dtype, n, is_bad):
    hilbert = 1 / (np.arange(n)[:, None] + np.arange(n) + 1.0)
    a, b = hilbert.astype(dtype), np.ones(n, dtype)
    for call in (lambda: bramble.solve(a, b), lambda: bramble.lu(a).solve(b)):
        told = warned(call)
        assert len(told) == is_bad and all(warning.filename == __file__ and "condition about" in str(warning.message) for warning in told)
    # The workers factor in f64.
    assert len(warned(lambda: c.lu(a).solve(b))) == (n == 12)


def test_one_warning_for_each_matrix_and_none_for_a_tiny_one():
    factors = bramble.lu(1 / (np.arange(12)[:, None] + np.arange(12) + 1.0))
    assert [len(warned(lambda: factors.solve(np.ones(12)))) for _ in range(3)] == [1, 0, 0]
    assert warned(lambda: bramble.solve(np.eye(3) * 5e-324, np.zeros(3))) == []


def test_factors_solve_the_system_that_they_were_made_from():
    """Also if the matrix changes afterwards, as in a loop that builds the next one in place."""
    for a in (system(90, 1)[0], system(90, 1)[0].T, np.asfortranarray(system(90, 1)[0]), system(90, 1, "f4")[0]):
        b, before = system(90, 1)[1], a.copy()
        factors = bramble.lu(a)
        a[:] = 0
        x = factors.solve(b)
        assert backward_error(before, x, b) <= 360 * np.finfo(a.dtype).eps
        shared = bramble.lu(before, copy=False)
        assert backward_error(before, shared.solve(b), b) <= 360 * np.finfo(a.dtype).eps


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


def factors(c, a, as_given=None):
    """Factors, whose solutions for a vector and for several right-hand sides are as good as NumPy's."""
    f = c.lu(a if as_given is None else as_given)
    for k in (0, 3, 1):
        _, b = system(len(a), k, seed=k)
        x = f.solve(b)
        assert type(x) is np.ndarray and x.shape == b.shape and x.dtype == f.dtype
        assert backward_error(a, x, b) <= 4 * len(a) * np.finfo(f.dtype).eps and f.backward_error < 1e-5
    return f


@pytest.mark.parametrize("n", [1, 2, 65, 300])
def test_factors_serve_many_right_hand_sides(any_cluster, n):
    a, _ = system(n, 0)
    f = factors(any_cluster, a)
    assert f.shape == (n, n) and f.dtype == np.float64
    assert f.condition() == pytest.approx(np.linalg.cond(a, 1), rel=2)
    assert np.array_equal(f.solve(a[:, 0]), f.solve(a)[:, 0]) or n > 1


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "i8"])
def test_factors_have_the_type_of_the_matrix(any_cluster, dtype):
    a, _ = system(80, 0)
    f = factors(any_cluster, (a * 100).astype(dtype))
    assert f.dtype == (dtype if dtype[0] == "f" else "f8")


def test_factors_of_placed_matrices_files_and_strided_arrays(tmp_path, any_cluster):
    a, _ = system(300, 0)
    A = any_cluster.put(a, Shard(0))
    factors(any_cluster, a, A)
    factors(any_cluster, np.ascontiguousarray(a.T), A.T)
    factors(any_cluster, a, save(tmp_path, "a.npy", a))
    factors(any_cluster, a[::2, ::2])
    factors(any_cluster, np.asfortranarray(a))
    assert any_cluster.lu(np.empty((0, 0))).solve(np.empty((0, 2))).shape == (0, 2)


def test_the_report_of_factors_names_the_shares_and_the_way_home(c):
    a, _ = system(400, 0)
    c.lu(a)
    report = c.last_report
    assert report["kind"] == "factors" and report["checked"] and report["error"] < 1e-13 and report["home_seconds"] > 0
    assert sum(machine["columns"] for machine in report["machines"]) >= 400 and "factors" in str(report)


def test_factors_outlive_the_cluster_and_other_calls_run_meanwhile():
    a, b = system(200, 2)
    with Cluster(local=2, kernel="simd") as c:
        f = c.lu(a)
        W = c.put(a)
        np.testing.assert_allclose(b.T @ W, b.T @ a, rtol=1e-12, atol=1e-9)
        first = f.solve(b)
    assert np.array_equal(f.solve(b), first) and backward_error(a, first, b) < 1e-13


def test_factors_that_do_not_exist_are_refused(any_cluster):
    a, b = system(64, 1)
    singular = a.copy()
    singular[:, 7] = 0
    with pytest.raises(np.linalg.LinAlgError, match="column 7"):
        any_cluster.lu(singular)
    with pytest.raises(np.linalg.LinAlgError):
        any_cluster.lu(a[:, :60])
    with pytest.raises(np.linalg.LinAlgError, match="1-dimensional"):
        any_cluster.lu(a[0])
    with pytest.raises(TypeError, match="complex128"):
        any_cluster.lu(a + 1j)
    broken = a.copy()
    broken[3, 4] = np.inf
    with pytest.raises(ValueError, match="inf"):
        any_cluster.lu(broken)
    with pytest.raises(ValueError, match="60"):
        any_cluster.lu(a).solve(b[:60])
    factors(any_cluster, a)


def test_factors_of_a_matrix_that_was_made_at_the_workers_are_not_fetched_unasked(c):
    a, _ = system(80, 0)
    H = c.put(a) + c.put(a)
    with pytest.raises(ValueError, match=r"\.numpy\(\)"):
        c.lu(H)


def test_a_lost_worker_ends_a_factorisation_and_the_cluster_goes_on(capfd):
    """A worker is killed while it eliminates: its columns are nowhere else."""
    with workers(2, "--threads", 1, "--kernel", "reference") as (addresses, runs):
        with Cluster(",".join(addresses), insecure=True) as c:
            a, b = system(100, 2)
            W = c.put(a, Shard(0, units=(0, 1, 1)))
            dying = threading.Thread(target=lambda: (wait_until_it_computes(runs, 3), runs[1].process.kill()))
            dying.start()
            with pytest.raises(Unreachable, match="columns are lost"):
                c.lu("random:6000x6000:f64:1")
            dying.join()
            factors(c, a)
            solves(c, a, b)
            # The other worker has kept its part, and gets that of the lost one.
            np.testing.assert_allclose(b.T @ W, b.T @ a, rtol=1e-12, atol=1e-9)
            assert addresses[0] in {part.worker for part in W.parts()}
        told = capfd.readouterr().err
        assert f"{addresses[1]} was lost" in told and f"{addresses[0]} was lost" not in told


@pytest.mark.parametrize("call", ["solve", "lu"])
def test_a_call_outlives_lost_workers(call, capfd):
    n, victim = 2600, []

    def kill_one(runs):
        """The one that has computed most: one that has seemed slow for a moment may have no column, and nobody would miss it."""
        wait_until_it_computes(runs, 0.7)
        victim.append(max(range(len(runs)), key=lambda at: cpu_seconds(runs[at].process.pid)))
        runs[victim[0]].process.kill()

    with workers(3, "--threads", 1, "--kernel", "reference") as (addresses, runs):
        with Cluster(",".join(addresses), insecure=True) as c:
            a, b = system(n, 1)
            dying = threading.Thread(target=kill_one, args=[runs])
            dying.start()
            x = c.solve(a, b, survive=1) if call == "solve" else c.lu(a, survive=1).solve(b)
            dying.join()
            assert backward_error(a, x, b) <= 4 * n * np.finfo("f8").eps
            lost, left = c.last_report["lost"], {one["machine"] for one in c.last_report["machines"]}
            name = addresses[victim[0]]
            assert lost["count"] == 1 and lost["workers"][0]["name"] == name and lost["seconds"] > 0
            assert name not in left
            told = capfd.readouterr().err
            assert f"{name} was lost after" in told and "starts again on 2 workers" in told
            solves(c, *system(90, 2))
            assert c.last_report["lost"] == {"count": 0, "workers": [], "seconds": 0}


def test_a_worker_that_is_lost_while_it_is_introduced_takes_no_other_with_it():
    with workers(2, "--threads", 1) as (addresses, _), CutLink(addresses[0], NEIGHBOUR) as cut:
        with Cluster(f"{cut.address},{addresses[1]}", insecure=True) as c:
            a, b = system(3000, 1)
            with pytest.raises(Unreachable, match=cut.address):
                c.solve(a, b)
            assert cut.was_cut
            solves(c, *system(90, 2))
            assert [one["machine"] for one in c.last_report["machines"]] == [addresses[1]]


def test_losses_that_cannot_be_outlived_are_refused(c):
    a, b = system(40, 0)
    for call in (lambda survive: c.solve(a, b, survive=survive), lambda survive: c.lu(a, survive=survive)):
        for survive in (-1, 9):
            with pytest.raises(ValueError, match=f"survive={survive}: it is 0 to 8"):
                call(survive)
        with pytest.raises(TypeError):
            call(0.5)
        with pytest.raises(BrambleError, match="survive=2: 3 workers are needed, and 2 take part"):
            call(2)
    with Cluster(threads=1) as alone, pytest.raises(ValueError, match="survive=1 needs workers"):
        alone.solve(a, b, survive=1)
    solves(c, a, b)
