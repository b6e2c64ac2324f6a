"""`rowsum`, `colsum`, `norm`, `max`, `min` and `topk` in a batch, against NumPy; their targets, their JSON, and their errors."""

import numpy as np
import pytest
from helpers import DTYPES, assert_refused, bramble, matrix, processes_of, save, succeed, workers
from test_batch import Stream, batch_file, objects

SCALARS = "norm", "max", "min"


def reductions(folder, operand, count):
    """The lines that reduce a matrix in every way."""
    lines = [f"{folder}/{name}.npy = {name}({operand})" for name in ("rowsum", "colsum", *SCALARS)]
    return lines + [f"{folder}/i.npy, {folder}/v.npy = topk({operand}, {count})"]


def assert_reduced(folder, w, count):
    """Compares the files of `reductions` with NumPy."""
    got = {name: np.load(folder / f"{name}.npy") for name in ("rowsum", "colsum", *SCALARS, "i", "v")}
    is_float = w.dtype.kind == "f"
    wide, of_sum = (np.float64, w.dtype) if is_float else (np.int64, np.int64)
    for name, axis, shape in [("rowsum", 1, (-1, 1)), ("colsum", 0, (1, -1))]:
        want, size = w.sum(axis, dtype=wide).reshape(shape), np.abs(w.astype(np.float64)).sum(axis).reshape(shape)
        assert got[name].shape == want.shape and got[name].dtype == of_sum
        if is_float:
            assert np.all(np.abs(got[name] - want) <= 4 * np.finfo(w.dtype).eps * size)
        else:
            np.testing.assert_array_equal(got[name], want)
    assert all(got[name].shape == (1, 1) for name in SCALARS)
    norm = np.linalg.norm(w.astype(np.float64))
    assert got["norm"].dtype == (np.float32 if w.dtype == np.float32 else np.float64)
    np.testing.assert_allclose(got["norm"][0, 0], norm, rtol=1e-6 if w.dtype == np.float32 else 1e-12)
    assert (got["max"][0, 0], got["min"][0, 0]) == (w.max(), w.min()) and got["max"].dtype == w.dtype
    # A stable sort of the reversed order: equal elements by their columns.
    order = w.shape[1] - 1 - np.argsort(w[:, ::-1], axis=1, kind="stable")[:, ::-1]
    np.testing.assert_array_equal(got["i"], order[:, :count])
    np.testing.assert_array_equal(got["v"], np.take_along_axis(w, order[:, :count], 1))
    assert got["i"].dtype == np.int64 and got["v"].dtype == w.dtype


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("placement", ["", "shard=0", "shard=1", "replicate"])
def test_reductions_of_every_type(tmp_path, dtype, placement):
    w = matrix(700, 530, dtype, 1)
    # Ties, in every row.
    w[:, 100:130] = w[:, 300:330]
    path, lines = save(tmp_path, "w.npy", np.asfortranarray(w)), []
    operands = {"file": path, "turned": f"{path}.T", "kept": "H", "placed": "W"}
    for name, operand in operands.items():
        (tmp_path / name).mkdir()
        lines += reductions(tmp_path / name, operand, 10 if name != "kept" else 200)
    head = [f"H = {path}", f"W = put {path} {placement}"]
    succeed("batch", batch_file(tmp_path, "\n".join(head + lines)), "--local", "2")
    for name in operands:
        assert_reduced(tmp_path / name, w.T if name == "turned" else w, 10 if name != "kept" else 200)


def test_nan_is_the_largest_and_infinities_are_sorted(tmp_path):
    w = np.array([[1, np.nan, np.inf, np.nan, -np.inf, 3], [0.0, -0.0, -1, 0.0, 2, 2]])
    path = save(tmp_path, "w.npy", w)
    lines = [f"{tmp_path}/i.npy, {tmp_path}/v.npy = topk({path}, 6)",
             *(f"{tmp_path}/{name}.npy = {name}({path})" for name in SCALARS)]
    succeed("batch", batch_file(tmp_path, "\n".join(lines)))
    np.testing.assert_array_equal(np.load(tmp_path / "i.npy"), [[1, 3, 2, 5, 0, 4], [4, 5, 0, 1, 3, 2]])
    # NumPy sorts NaN to the end, which is the beginning in descending order.
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), np.sort(w, axis=1)[:, ::-1])
    assert all(np.isnan(np.load(tmp_path / f"{name}.npy")[0, 0]) for name in SCALARS)


def test_a_norm_whose_squares_leave_the_range(tmp_path):
    path = save(tmp_path, "w.npy", np.array([[3e300, 4e300]]))
    succeed("batch", batch_file(tmp_path, f"{tmp_path}/n.npy = norm({path})\n"))
    np.testing.assert_allclose(np.load(tmp_path / "n.npy"), [[5e300]])


def test_results_are_kept_under_names_and_described(tmp_path):
    text = f"I, V = topk(random:300x40:f32:1, 3)\nS = rowsum(V)\n{tmp_path}/p.npy = V.T @ S\nI -> {tmp_path}/i.npy\nmax = V\n"
    top, rows, *_ = objects(succeed("batch", batch_file(tmp_path, text), "--json"))
    assert top["kind"] == rows["kind"] == "reduction"
    assert [(each["rows"], each["cols"], each["dtype"]) for each in top["results"]] == [(300, 3, "i64"), (300, 3, "f32")]
    assert [(each["rows"], each["cols"]) for each in rows["results"]] == [(300, 1)]
    assert all(each["digest"] for each in top["results"])
    assert np.load(tmp_path / "i.npy").shape == (300, 3)


def test_matrices_without_elements(tmp_path):
    text = f"{tmp_path}/r.npy = rowsum(random:3x0:f32:1)\n{tmp_path}/c.npy = colsum(random:0x3:i32:1)\n"
    succeed("batch", batch_file(tmp_path, text))
    np.testing.assert_array_equal(np.load(tmp_path / "r.npy"), np.zeros((3, 1), np.float32))
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), np.zeros((1, 3), np.int64))


def test_a_placed_matrix_is_reduced_after_its_worker_was_killed(tmp_path):
    w = matrix(600, 520, "f64", 1)
    path = save(tmp_path, "w.npy", w)
    with workers(2, "--threads", 1) as (addresses, runs), Stream("-w", ",".join(addresses)) as stream:
        stream.task(f"W = put {path} shard=0")
        runs[0].process.kill()
        runs[0].process.wait()
        assert [stream.task(line)["kind"] for line in reductions(tmp_path, "W", 4)] == ["reduction"] * 6
        assert_reduced(tmp_path, w, 4)
        stream.finish()


@pytest.mark.parametrize("line, code, culprits", [
    ("t.npy = rowsum(W)", 2, ["line 2", "W", "no earlier line"]),
    ("t.npy = rowsum(a.npy, 3)", 2, ["line 2", r"rowsum\(…\)", "one matrix"]),
    ("t.npy = rowsum()", 2, ["line 2", r"rowsum\(…\)", "one matrix"]),
    ("t.npy = rowsum(a.npy", 2, ["line 2", r"rowsum\(…\)"]),
    ("t.npy = rowsum(a.npy) + b.npy", 2, ["line 2", "nothing follows"]),
    ("t.npy = median(a.npy)", 2, ["line 2", "no such operation", "rowsum"]),
    ("t.npy = topk(a.npy, 3)", 2, ["line 2", "two results"]),
    ("i.npy, v.npy = rowsum(a.npy)", 2, ["line 2", "one result"]),
    ("i.npy, v.npy = a.npy @ b.npy", 2, ["line 2", "only topk"]),
    ("i.npy, i.npy = topk(a.npy, 3)", 2, ["line 2", "both results"]),
    ("i.npy, v.npy = topk(a.npy, 0)", 2, ["line 2", r"topk\(…, 0\)", "above 0"]),
    ("i.npy, v.npy = topk(a.npy, many)", 2, ["line 2", r"topk\(…, many\)"]),
    ("i.npy, v.npy = topk(a.npy)", 2, ["line 2", "one matrix and a count"]),
    ("I, V = topk(random:3x4:f32:1, 5)", 1, ["line 2", "random:3x4:f32:1", "at most 4"]),
    ("T = max(random:0x4:f32:1)", 1, ["line 2", "random:0x4:f32:1", "no extreme"]),
    ("T = norm(none.npy)", 1, ["line 2", "none.npy"]),
])
def test_mistakes_are_refused_with_their_line(tmp_path, line, code, culprits):
    result = bramble("batch", batch_file(tmp_path, f"# a comment\n{line}\n"), "-q")
    assert_refused(result, code, culprits)
    assert not processes_of(result.tag)
    assert [path.name for path in tmp_path.iterdir()] == ["tasks.txt"]
