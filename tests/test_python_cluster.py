"""`bramble.Cluster` and `DistArray` on local workers: what they return is what NumPy computes, in NumPy's types."""

import json
import re

import bramble
import numpy as np
import pytest
from bramble import Cluster, DistArray, Replicate, Shard
from helpers import DTYPES, assert_product, matrix, save, succeed
from scipy.sparse.linalg import LinearOperator, aslinearoperator, bicgstab, cg, eigsh, gmres, lobpcg, minres, svds

PLACEMENTS = {"rows": Shard(0), "columns": Shard(1), "units": Shard(1, (2, 1)), "copies": Replicate(), "auto": "auto",
              "none": None}
M, K, N = 40, 300, 280


@pytest.fixture(scope="module")
def c():
    with Cluster(local=2, kernel="simd") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def placed(c):
    """w, and W with its columns at two workers."""
    w = small(K, N)
    # In equal units: by speed, a worker that has measured itself slow may get no column.
    return w, c.put(w, Shard(1, (1, 1)))


def small(rows, cols, dtype="f64", seed=0):
    """Small whole numbers: sums of their products are exact in every type."""
    return np.random.default_rng([seed, rows, cols]).integers(-9, 9, (rows, cols), endpoint=True).astype(DTYPES.get(dtype, dtype))


def same(got, want):
    """An array of this process that may be changed, with NumPy's type and elements."""
    assert type(got) is np.ndarray and got.flags.writeable and got.dtype == want.dtype
    np.testing.assert_array_equal(got, want, strict=True)


def stays(got, want):
    """A placed matrix with NumPy's type and elements."""
    assert type(got) is DistArray and got.shape == want.shape and got.dtype == want.dtype
    same(got.numpy(), want)


# Placing.


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_and_sums_of_every_type_and_placement(c, dtype, placement):
    x, w, v, y = small(M, K, dtype, 1), small(K, N, dtype, 2), small(K, N, dtype, 3), small(N, 40, dtype, 4)
    W, V = c.put(w, placement), c.put(np.asfortranarray(v), Shard(0))
    same(x @ W, x @ w)
    same(W @ y, w @ y)
    same(y.T @ W.T, y.T @ w.T)
    same(x[0] @ W, x[0] @ w)
    same(W @ y[:, 0], w @ y[:, 0])
    stays(W.T @ V, w.T @ v)
    stays(W @ V.T @ W, w @ v.T @ w)
    stays(W + V, w + v)
    stays(W - V, w - v)
    stays(2 * W.T, 2 * w.T)
    stays(V * 3 - W, v * 3 - w)
    stays(-W, -w)
    stays(W + v, w + v)
    stays(v - W, v - w)
    same(x @ (W + 2 * V), x @ (w + 2 * v))
    same((x @ (W - V).T.T @ y), x @ (w - v) @ y)


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
def test_elements_that_overflow_on_the_way_accuse_nobody(c):
    w = small(600, 4, "f32") * np.float32(1e38)
    W = c.put(w, Shard(0))
    ten, tiny = np.float32(10), np.float32(1e-38)
    stays(tiny * (ten * W), tiny * (ten * w))
    stays((ten * W) - (ten * W), (ten * w) - (ten * w))


def test_nodes_are_this_process_and_the_workers():
    w = matrix(1024, 300, "f64", 1)
    with Cluster(local=2, kernel="simd", threads=1) as c:
        W = c.put(w, Shard(0, (3, 1)))
        here, *others = c.nodes
        assert here.is_primary and not any(node.is_primary for node in others) and len(others) == 2
        assert all(node.threads == 1 and node.gflops > 0 and node.kernel == "simd" for node in others)
        assert [node.held_bytes for node in others] == [768 * 300 * 8, 256 * 300 * 8] and here.held_bytes == 0
        assert all(node.bytes_per_s > 0 and node.round_trip_s > 0 for node in others) and here.bytes_per_s is None
        left = [node.left_bytes for node in others]
        W.free()
        assert [node.held_bytes for node in c.nodes] == [0, 0, 0]
        assert all(now.left_bytes > before for now, before in zip(c.nodes[1:], left, strict=True))


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
def test_rows_and_columns_are_fetched(c, placement):
    w, v = small(900, 600, seed=1), small(600, 3, seed=2)
    W = c.put(w, placement)
    H, want = W @ c.put(v), w @ v
    assert type(H) is DistArray
    for rows, cols in [(slice(0, 10), slice(None)), (slice(250, 700), slice(1, 2)), (slice(-3, None), slice(-1, None)),
                       (slice(5, 5), slice(None)), (slice(None), slice(7, 3)), (slice(890, 2000), slice(0, 1))]:
        same(W.numpy(rows, cols), np.ascontiguousarray(w[rows, cols]))
        same(H.numpy(rows=rows, cols=cols), want[rows, cols])
        np.testing.assert_array_equal(H.T.numpy(cols, rows), want.T[cols, rows], strict=True)
    with pytest.raises(ValueError, match="rows has step 2"):
        W.numpy(slice(0, 10, 2))
    with pytest.raises(TypeError, match=r"cols is 3; it takes a slice"):
        W.numpy(cols=3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_of_any_numbers(c, dtype):
    """Integers wrap as NumPy's do, and floats are as near as rounding allows."""
    x, w, v = matrix(M, K, dtype, 1), matrix(K, N, dtype, 2), matrix(N, 70, dtype, 3)
    W, V = c.put(w), c.put(v)
    assert_product(x @ W, x, w)
    assert_product((W @ V).numpy(), w, v)
    assert_product(c.matmul(x, w), x, w)


class Labelled(np.ndarray):
    """Arrays of other libraries."""


SOURCES = {
    "rows": lambda a: a,
    "columns": np.asfortranarray,
    "transposed": lambda a: a.T,
    "columns cut out": lambda a: a[:, 7:201],
    "every second row": lambda a: a[::2],
    "every third column": lambda a: a[:, ::3],
    "backwards": lambda a: a[::-1, ::-1],
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "not aligned": lambda a: np.frombuffer(b"x" + a.tobytes(), a.dtype, offset=1).reshape(a.shape),
    "read-only": lambda a: np.broadcast_to(a[:1], a.shape),
    "one row": lambda a: a[3:4],
    "one column": lambda a: a[:, 3:4],
    "one element": lambda a: a[:1, :1],
    "a list": lambda a: a.tolist(),
    "a subclass": lambda a: a.view(Labelled),
}


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_arrays_of_every_layout(c, source, copy):
    given = source(small(300, 270))
    want = np.array(given, dtype="f8")
    W = c.put(given, Shard(0), copy=copy)
    if isinstance(given, list):
        want = want.astype(W.dtype)
    stays(W, want)
    stays(W.T, np.ascontiguousarray(want.T))
    x = small(5, len(want), W.dtype)
    same(x @ W, x @ want)


def test_files_and_generators(c, tmp_path):
    w = small(K, N, "i32")
    path = save(tmp_path, "w.npy", w)
    for source in (path, str(path)):
        stays(c.put(source), w)
    task = tmp_path / "tasks.txt"
    task.write_text(f"{tmp_path}/r.npy = 1 * random:600x40:f32:7\n")
    succeed("batch", task)
    R, r = c.put("random:600x40:f32:7", Shard(0)), np.load(tmp_path / "r.npy")
    stays(R, r)
    stays(R.T @ R, (c.put(r.T) @ c.put(r)).numpy())


def test_a_copy_is_made_unless_the_user_forbids_it(c):
    w, x = small(K, N), small(M, K)
    want = w.copy()
    W, V = c.put(w), c.put(w, copy=False)
    w[:] = 0
    same(x @ W, x @ want)
    stays(W, want)
    # Read in place: what the array contains now is what this process takes for the matrix.
    same(V.numpy(), w)


def test_what_a_placed_matrix_tells_about_itself(c):
    w = small(900, 1300, "f32")
    W = c.put(w, Shard(1, (2, 1)))
    assert (W.shape, W.ndim, W.size, W.nbytes, len(W)) == (w.shape, 2, w.size, w.nbytes, len(w))
    assert W.dtype == np.float32 and isinstance(W.dtype, np.dtype)
    assert W.placement == Shard(1, (1024, 276)) and W.T.placement == Shard(0, (1024, 276))
    parts = W.parts()
    assert [(part.worker, part.cols, part.nbytes) for part in parts] == [
        ("local 1", slice(0, 1024), 900 * 1024 * 4), ("local 2", slice(1024, 1300), 900 * 276 * 4)]
    assert all(part.rows == slice(0, 900) for part in parts)
    assert [(part.rows, part.cols) for part in W.T.parts()] == [(part.cols, part.rows) for part in parts]
    assert repr(W) == "<bramble.DistArray 900x1300 float32, columns over local 1, local 2>"
    assert repr(W.T) == "<bramble.DistArray 1300x900 float32, rows over local 1, local 2>"
    copies = c.put(w, Replicate())
    assert copies.placement == Replicate() and len(copies.parts()) == 2 and "a copy at each of local 1, local 2" in repr(copies)
    for W, shape in ((W, "900 × 1300"), (W.T, "1300 × 900"), (copies, "900 × 1300")):
        page = W._repr_html_()
        assert shape in page and "local 2" in page and page.count("<svg") == 1
    assert "copy at local 1, local 2" in page


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
def test_the_parts_cover_the_matrix(c, placement):
    W = c.put("random:1100x1700:f64:1", placement)
    covered = np.zeros(W.shape, int)
    for part in W.parts():
        covered[part.rows, part.cols] += 1
        assert part.nbytes == covered[part.rows, part.cols].size * 8
    assert (covered == (2 if W.placement == Replicate() else 1)).all()
    assert {part.worker for part in W.parts()} == {"local 1", "local 2"}


def test_matrices_are_spread_anew(c, placed):
    w, W = placed
    for placement in (Shard(0), Shard(0, (1, 3)), Shard(1, [3, 1]), Replicate(), "auto", None):
        for V, v in ((W, w), (W.T, np.ascontiguousarray(w.T))):
            R = V.redistribute(placement)
            stays(R, v)
            assert placement in ("auto", None) or type(R.placement) is type(placement)
    assert W.T.redistribute(Shard(0, (1, 1))).placement == Shard(0, (256, N - 256))


# Products.


@pytest.mark.parametrize("special", [np.nan, np.inf, -1e308])
def test_elements_that_are_not_finite_or_become_so(c, special):
    w, x = np.full((300, 290), special), np.ones((4, 300))
    w[5:] = 1
    W = c.put(w, Shard(0))
    with np.errstate(all="ignore"):
        same(x @ W, x @ w)
        same(x @ (10 * W), x @ (10 * w))
        stays(W + W, w + w)
        stays(W - W.redistribute(Shard(1)), w - w)
        stays(W.T @ W, w.T @ w)
        np.testing.assert_array_equal([W.max(), W.min(), W.sum()], [w.max(), w.min(), w.sum()])


def test_results_stay_where_the_user_says(c, placed):
    w, W = placed
    x = small(300, K)
    for placement in (None, "auto", Shard(0), Shard(1), Shard(1, (1, 1)), Replicate()):
        H = c.matmul(x, W, keep=True, placement=placement)
        stays(H, x @ w)
        assert placement in (None, "auto") or type(H.placement) is type(placement)
    assert c.matmul(x, W, keep=True, placement=Shard(0, (1, 1))).placement == Shard(0, (256, 44))
    stays(c.matmul(x, w, keep=True), x @ w)
    stays(c.matmul(x[0], W, keep=True), x[:1] @ w)
    same(c.matmul(W.T, W, keep=False), w.T @ w)
    H = W.T @ W
    same(c.matmul(H, H, keep=False), (w.T @ w) @ (w.T @ w))
    with pytest.raises(ValueError, match="add keep=True"):
        c.matmul(x, W, placement=Shard(0))


def test_vectors_are_rows_and_columns(c, placed):
    w, W = placed
    x, y = small(1, K)[0], small(1, N, seed=1)[0]
    same(x @ W, x @ w)
    same(W @ y, w @ y)
    inner = c.matmul(x, w @ y)
    assert type(inner) is np.float64 and inner == x @ w @ y


def test_functions_of_numpy_use_the_workers(c, placed):
    w, W = placed
    x, y, v = small(M, K), small(N, 9), small(K, N, seed=5)
    V = c.put(v)
    same(np.matmul(x, W), x @ w)
    same(np.matmul(W, y), w @ y)
    same(np.dot(x, W), x @ w)
    same(np.dot(W, y[:, 0]), w @ y[:, 0])
    stays(np.matmul(W.T, V), w.T @ v)
    stays(np.add(W, V), w + v)
    stays(np.add(v, W), v + w)
    stays(np.subtract(W, v), w - v)
    stays(np.negative(W), -w)
    stays(np.multiply(W, 3), 3 * w)
    stays(np.multiply(np.float64(3), W), 3 * w)
    stays(np.float64(3) * W * np.array(2), 6 * w)
    stays(np.transpose(W), np.ascontiguousarray(w.T))
    for got, want in ((np.sum(W), w.sum()), (np.max(W), w.max()), (np.min(W), w.min()), (np.linalg.norm(W), np.linalg.norm(w))):
        assert type(got) is type(want) and got == pytest.approx(want, rel=1e-14)
    same(np.sum(W, 0), w.sum(0))
    same(np.sum(W, axis=1), w.sum(1))
    assert np.shape(W) == w.shape and np.ndim(W) == 2 and np.size(W) == w.size


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()], ids=["rows", "columns", "copies"])
def test_reductions(c, dtype, placement):
    w = small(K, N, dtype)
    W = c.put(w, placement)
    H = c.matmul(W, np.eye(N, dtype=w.dtype), keep=True)
    for A, a in ((W, w), (W.T, w.T), (H, w)):
        for axis in (0, 1, -1, -2):
            same(A.sum(axis), a.sum(axis))
        for got, want in ((A.sum(), a.sum()), (A.max(), a.max()), (A.min(), a.min())):
            assert type(got) is type(want) and got == want
        assert type(A.norm()) is type(np.linalg.norm(a)) and A.norm() == pytest.approx(np.linalg.norm(a), rel=1e-6)


def test_the_largest_elements_of_each_row(c):
    x, w = matrix(M, K, "f64", 1), matrix(K, N, "f64", 2)
    W = c.put(w, Shard(1))

    def largest(found, of, k):
        columns, values = found
        assert columns.dtype == np.int64 and columns.flags.writeable and columns.shape == values.shape == (*of.shape[:-1], k)
        np.testing.assert_array_equal(np.sort(columns), np.sort(np.argpartition(of, -k)[..., -k:]))
        np.testing.assert_allclose(values, np.take_along_axis(of, columns, -1), rtol=1e-12)
        assert (np.diff(values) <= 0).all()

    largest(W.topk(5), w, 5)
    largest(W.T.topk(1), w.T, 1)
    largest(c.topk(x, W, 7), x @ w, 7)
    largest(c.topk(x[3], W, 7), x[3] @ w, 7)
    largest(c.topk(W.T, x.T, 3), w.T @ x.T, 3)
    largest(c.matmul(x, W, keep=True).topk(N), x @ w, N)
    for k, culprit in ((0, "at least 1"), (-1, "at least 1"), (N + 1, f"fewer than {N + 1}")):
        with pytest.raises(ValueError, match=culprit):
            W.topk(k)
    with pytest.raises(TypeError):
        W.topk(2.5)
    with pytest.raises(TypeError, match="neither operand is placed"):
        c.topk(x, w, 1)
    with pytest.raises(ValueError, match=re.escape(f"{w.shape} and {w.shape}")):
        c.topk(w, W, 1)


def test_scipy_solves_with_placed_matrices(c):
    q = matrix(150, 150, "f64")
    a = q @ q.T + 15 * np.eye(150)
    A, b = c.put(a).as_linear_operator(), q[0]
    x, info = cg(A, b)
    assert info == 0 and np.linalg.norm(a @ x - b) < 1e-4 * np.linalg.norm(b)
    largest = np.linalg.eigvalsh(a)[-2:]
    found, _ = lobpcg(A, matrix(150, 2, "f64", 3), largest=True, tol=1e-9, maxiter=300)
    np.testing.assert_allclose(np.sort(found), largest, rtol=1e-6)
    np.testing.assert_allclose(np.sort(eigsh(A, k=2, return_eigenvectors=False)), largest, rtol=1e-9)
    r = matrix(200, 60, "f64", 2)
    R = c.put(r, Shard(0)).as_linear_operator()
    singular = np.linalg.svd(r, compute_uv=False)
    np.testing.assert_allclose(np.sort(svds(R, k=3, return_singular_vectors=False)), singular[2::-1], rtol=1e-9)
    for adjoint in (R.T, R.H):
        np.testing.assert_allclose(adjoint @ r, r.T @ r, rtol=1e-11)
    np.testing.assert_allclose(R @ r[0], r @ r[0], rtol=1e-11)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "i8"])
@pytest.mark.parametrize("of_vectors", ["f4", "f8", "i4", "i8", "?", "c8", "c16"])
def test_an_operator_promotes_as_scipys_own(c, dtype, of_vectors):
    a = (matrix(30, 20, "f64") * 90).astype(dtype)
    placed, own = c.put(a, Shard(0)).as_linear_operator(), aslinearoperator(a)
    vectors = (matrix(30, 7, "f64", 2) * 90).astype(of_vectors)
    if vectors.dtype.kind == "c":
        vectors = vectors + 1j * vectors[::-1]
    pairs = [(placed.T, own.T, vectors), (placed.H, own.H, vectors), (placed, own, vectors[:20]), (placed.H.T, own.H.T, vectors[:20])]
    for ours, theirs, x in pairs:
        for operand in (x, x[:, 0], x[:, :1]):
            got, want = ours @ operand, theirs @ operand
            assert got.dtype == want.dtype and got.shape == want.shape
            rtol, atol = (4e-5, 1e-2) if want.dtype in ("f4", "c8") else (1e-11, 1e-9)
            np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
    np.testing.assert_allclose(placed.rmatvec(vectors[:, 0]), own.rmatvec(vectors[:, 0]), rtol=4e-5, atol=1e-2)


@pytest.mark.parametrize("method", [cg, minres, gmres, bicgstab])
@pytest.mark.parametrize("dtype", ["f4", "i4"])
def test_solvers_reach_in_f64_what_they_promise(c, method, dtype):
    """Of a matrix of f32 they multiply vectors of f64: rounded to f32, 1e-8 would be said and not reached."""
    q = matrix(90, 90, "f64")
    a = np.rint((q @ q.T + 15 * np.eye(90)) * 64).astype(dtype)
    b = matrix(90, 1, "f64", 3)[:, 0]
    operator, scale = c.put(a).as_linear_operator(), np.abs(a).max()
    preconditioner = LinearOperator(a.shape, matvec=lambda x: x / scale, dtype="f8")
    absolute = {} if method is minres else {"atol": 0}
    x, info = method(operator, b, rtol=1e-10, maxiter=2000, M=preconditioner, **absolute)
    assert info == 0 and x.dtype == np.float64
    assert np.linalg.norm(a.astype("f8") @ x - b) <= 1e-8 * np.linalg.norm(b)


def test_masks_are_refused_and_classes_kept(c):
    w, x = small(K, N), small(M, K)
    W = c.put(w)
    masked = np.ma.masked_array(x, x > 3)
    for refused in (lambda: c.put(masked), lambda: masked @ W, lambda: W.T @ masked.T, lambda: c.topk(masked, W, 2),
                    lambda: c.solve(np.ma.masked_array(np.eye(3)), np.ones(3)), lambda: c.solve(np.eye(3), np.ma.masked_array(np.ones(3))),
                    lambda: bramble.solve(np.ma.masked_array(np.eye(3)), np.ones(3)), lambda: bramble.lu(np.ma.masked_array(np.eye(3))),
                    lambda: bramble.lu(np.eye(3)).solve(np.ma.masked_array(np.ones(3))), lambda: W + np.ma.masked_array(w)):
        with pytest.raises(TypeError, match=r"masked arrays .* \.filled"):
            refused()
    product = np.matrix(x) @ W
    assert type(product) is np.matrix and (product == x @ w).all()
    for solved in (c.solve(np.eye(3) * 2, np.matrix([[2.0], [4], [6]])), bramble.lu(np.eye(3) * 2).solve(np.matrix([[2.0], [4], [6]])),
                   bramble.solve(np.matrix(np.eye(3) * 2), np.matrix([[2.0], [4], [6]]))):
        assert type(solved) is np.matrix and solved.tolist() == [[1], [2], [3]]
    assert type(bramble.solve(np.matrix(np.eye(3)), np.ones(3))) is np.ndarray


# Reports.


def test_each_call_leaves_a_report(c, tmp_path):
    x, w = small(M, K), small(K, N)
    # Equal parts: by speed, a worker that has measured itself slow may get none.
    W = c.put(w, Shard(1, (1, 1)))
    put = c.last_report
    assert put["kind"] == "put" and (put["rows"], put["cols"], put["dtype"], put["axis"]) == (K, N, "f64", 1)
    assert [part["machine"] for part in put["parts"]] == ["local 1", "local 2"] and put["bytes_sent"] > w.nbytes
    x @ W
    product = c.last_report
    assert product["kind"] == "product" and product["product"]["verify"]["passed"] is True
    assert product["product"]["m"] == M and f"{M}x{N} f64" in product.text and str(product) == product.text
    H = W.T @ W
    kept = c.last_report
    assert kept["kind"] == "kept" and kept["checked"] is True and (kept["rows"], kept["cols"]) == (N, N)
    H.topk(2)
    reduction = c.last_report
    assert reduction["kind"] == "reduction" and reduction["bytes_sent"] < H.nbytes
    for at, report in enumerate((put, product, kept, reduction)):
        assert report["seconds"] > 0
        if report is not product:
            assert "\n" not in report.text and report["kind"] in repr(report)
        path = tmp_path / f"{at}.html"
        report.save(path if at else str(path))
        page = path.read_text(encoding="utf-8")
        assert not re.search(r"(?:src|href|url|@import)\s*[=(]", page)
        assert "//" not in page.replace("xmlns='http://www.w3.org/2000/svg'", "")
        assert report.text.splitlines()[0] in page and page.count("<svg") == ("parts" in report)
        assert report._repr_html_() in page
        assert json.loads(json.dumps(report)) == report
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.html", "1.html", "2.html", "3.html"]
