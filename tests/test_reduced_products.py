"""Reductions of products, `topk(x @ W, 10)`: at the workers that hold W, against NumPy; their traffic, lost and wrong machines."""

import subprocess

import numpy as np
import pytest
from helpers import DTYPES, assert_refused, bramble, matrix, save, succeed, workers
from test_batch import Stream, batch_file, objects
from test_solve import WRONG_BLAS
from wire_worker import WireWorker

SUMS = "rowsum", "colsum", "norm"
EXTREMES = "max", "min"
MACHINES = "--strategy", "reuse", "--kernel", "simd"
"""The workers alone hold the parts."""


def lines(folder, product, count):
    """The lines that reduce a product in every way, and keep it whole."""
    functions = [f"{folder}/{name}.npy = {name}({product})" for name in SUMS + EXTREMES]
    return functions + [f"{folder}/i.npy, {folder}/v.npy = topk({product}, {count})", f"{folder}/whole.npy = {product}"]


def assert_reduced(folder, exact, size, dtype, count):
    """Compares with the product in f64 or, of integers, as they wrap; `size` is |A| |B|, of whose rounding errors each element may
    have its share."""
    got = {name: np.load(folder / f"{name}.npy") for name in SUMS + EXTREMES + ("i", "v", "whole")}
    is_float = np.dtype(DTYPES[dtype]).kind == "f"
    eps = np.finfo(DTYPES[dtype]).eps if is_float else 0
    bound = 4000 * eps * size
    for name, axis in (("rowsum", 1), ("colsum", 0)):
        want = exact.sum(axis, keepdims=True)
        assert got[name].shape == want.shape and got[name].dtype == (DTYPES[dtype] if is_float else np.int64)
        assert np.all(np.abs(got[name] - want) <= bound.sum(axis, keepdims=True)), name
    norm = np.sqrt(np.square(exact.astype(np.float64)).sum())
    np.testing.assert_allclose(got["norm"], [[norm]], rtol=1e-5 if is_float else 1e-9)
    for name, want in (("max", exact.max()), ("min", exact.min())):
        assert abs(got[name][0, 0] - want) <= bound.max(), name
    i, v = got["i"], got["v"]
    assert i.shape == v.shape == (exact.shape[0], count) and v.dtype == DTYPES[dtype]
    assert np.all(np.abs(np.take_along_axis(exact, i, 1) - v) <= np.take_along_axis(bound, i, 1))
    assert np.all(np.diff(v.astype(np.float64), axis=1) <= 0)
    best = -np.sort(-exact, axis=1)[:, :count]
    assert np.all(np.abs(best - v) <= bound.max(1, keepdims=True))
    assert all(len(set(row)) == count for row in i)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("placement", ["shard", "replicate"])
def test_products_reduced_at_their_workers(tmp_path, dtype, placement):
    x, w = matrix(330, 410, dtype, 1), matrix(410, 900, dtype, 2)
    paths = save(tmp_path, "x.npy", x), save(tmp_path, "w.npy", np.asfortranarray(w)), save(tmp_path, "xt.npy", x.T.copy())
    shard = (lambda axis: f"shard={axis}") if placement == "shard" else (lambda _: placement)
    # The placed operand is on either side, as it is or transposed.
    products = {
        "right": (f"W = put {paths[1]} {shard(1)}", f"{paths[0]} @ W", x, w),
        "right turned": (f"W = put {paths[0]} {shard(0)}", f"{paths[1]}.T @ W.T", w.T, x.T),
        "left turned": (f"W = put {paths[1]} {shard(1)}", f"W.T @ {paths[2]}", w.T, x.T),
        "left": (f"V = put {paths[0]} {shard(0)}", f"V @ {paths[1]}", x, w),
        "both": (f"W = put {paths[1]} {shard(1)}", "V @ W", x, w),
    }
    text, checks = [], []
    for name, (put, product, a, b) in products.items():
        at = tmp_path / name.replace(" ", "_")
        at.mkdir()
        text += [put, *lines(at, product, 7)]
        checks.append((at, a, b))
    result = succeed("batch", batch_file(tmp_path, "\n".join(text)), "--json", "--local", "3", *MACHINES)
    reductions = [one for one in objects(result) if one["kind"] == "reduction"]
    assert len(reductions) == 6 * len(products) and all(one["machines"] for one in reductions)
    is_float = dtype.startswith("f")
    for at, a, b in checks:
        wide = np.float64 if is_float else DTYPES[dtype]
        exact = a.astype(wide) @ b.astype(wide)
        size = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
        assert_reduced(at, exact if is_float else exact.astype(np.int64), size, dtype, 7)
    # No row of a right product is doubtful.
    assert all(one["checked"] == is_float and one["rows_recomputed"] == 0 for one in reductions)


def test_only_the_other_operand_and_the_results_travel(tmp_path):
    x, w = save(tmp_path, "x.npy", matrix(9000, 800, "f64", 1)), save(tmp_path, "w.npy", matrix(800, 2048, "f64", 2))
    text = f"W = put {w} shard=1\nI, V = topk({x} @ W, 5)\nC = colsum({x} @ W)\n"
    with workers(2, "--threads", 1) as (addresses, _):
        _, top, cols = objects(succeed("batch", batch_file(tmp_path, text), "--json", "-w", ",".join(addresses), *MACHINES))
    size = 9000 * 800 * 8
    # In blocks, since it is larger than one.
    assert 2 * size < top["bytes_sent"] < 2.01 * size, top
    # The largest elements and their columns and, for the check, the sum of each row.
    assert [machine["bytes"] for machine in top["machines"]] == [9000 * (5 * 16 + 8)] * 2
    assert all(machine["bytes"] < 9000 * 8 + 100_000 for machine in cols["machines"]), cols


def test_a_product_without_placed_operands_is_computed_and_then_reduced(tmp_path):
    a, b = matrix(60, 50, "f64", 1), matrix(50, 70, "f64", 2)
    paths = save(tmp_path, "a.npy", a), save(tmp_path, "b.npy", b)
    text = f"{tmp_path}/s.npy = rowsum(2 * {paths[0]} @ {paths[1]})"
    one, = objects(succeed("batch", batch_file(tmp_path, text), "--json", "--local", "2"))
    assert "machines" not in one
    np.testing.assert_allclose(np.load(tmp_path / "s.npy"), (2 * a @ b).sum(1, keepdims=True), rtol=1e-12, atol=1e-12)


def test_a_worker_that_is_killed_has_its_part_put_again(tmp_path):
    x, w = matrix(500, 600, "f64", 1), matrix(600, 1500, "f64", 2)
    paths = save(tmp_path, "x.npy", x), save(tmp_path, "w.npy", w)
    with workers(3, "--threads", 1) as (addresses, runs), Stream("-w", ",".join(addresses), *MACHINES) as stream:
        stream.task(f"W = put {paths[1]} shard=1")
        line = f"I, V = topk({paths[0]} @ W, 5)"
        want = [each["digest"] for each in stream.task(line)["results"]]
        for lost in (0, 2):
            runs[lost].process.kill()
            runs[lost].process.wait()
            again = stream.task(line)
            assert [each["digest"] for each in again["results"]] == want
        assert [machine["machine"] for machine in again["machines"]] == [addresses[1]]
        assert stream.finish()[0] == 3


def test_a_worker_that_dies_while_it_reduces(tmp_path):
    with workers(2, "--threads", 1, "--kernel", "reference") as (addresses, runs), Stream("-w", ",".join(addresses), "--strategy", "reuse") as stream:
        stream.task("W = put random:500x4096:f64:1 shard=1 units=1:1")
        stream.process.stdin.write("I, V = topk(random:500x500:f64:2 @ W, 5)\n")
        stream.process.stdin.flush()
        runs[0].process.kill()
        assert '"kind":"reduction"' in stream.process.stdout.readline().replace(" ", "")
        assert stream.finish()[0] == 3


def test_a_worker_that_computes_wrongly_is_noticed_and_nothing_is_kept(tmp_path):
    source, library = tmp_path / "wrong.c", tmp_path / "libwrong.so"
    source.write_text(WRONG_BLAS)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    w = save(tmp_path, "w.npy", matrix(300, 2000, "f64", 1))
    x = save(tmp_path, "x.npy", matrix(200, 300, "f64", 2))
    with workers(1, "--threads", 1) as (good, _):
        with workers(1, "--threads", 1, "--kernel", "openblas", env={"BRAMBLE_OPENBLAS": str(library)}) as (wrong, _):
            hosts = ["-w", ",".join([*good, *wrong]), "--strategy", "reuse"]
            for result_of in ("r.npy = rowsum({})", "r.npy = colsum({})", "i.npy, v.npy = topk({}, 2000)"):
                line = result_of.format(f"{x} @ W").replace("r.npy", f"{tmp_path}/r.npy").replace("i.npy, v.npy", f"{tmp_path}/i.npy, {tmp_path}/v.npy")
                text = f"W = put {w} shard=1 units=1:1\n{line}\n"
                result = bramble("batch", batch_file(tmp_path, text), *hosts)
                assert result.code == 4 and "line 2" in result.err and "reduction is wrong" in result.err, result
                assert not [path for path in tmp_path.glob("?.npy") if path.stem in "riv"]


@pytest.mark.parametrize("put, line, code, culprits", [
    ("shard=0", "S = rowsum(random:90x600:f64:2 @ W)", 1, ["cut along the depth", "shard=1", "its transpose with shard=0"]),
    ("shard=1", "S = rowsum(W @ random:700x90:f64:2)", 1, ["cut along the depth", "left operand", "shard=0"]),
    ("shard=1", "I, V = topk(random:90x600:f64:2 @ W, 701)", 1, ["at most 700"]),
    ("shard=1", "S = rowsum(random:90x600:f32:2 @ W)", 0, []),
    ("shard=1", "S = rowsum(random:0x600:f64:2 @ W)", 1, ["0x700", "no elements"]),
    ("shard=1", "S = rowsum(random:90x601:f64:2 @ W)", 1, ["90x601", "columns of the first"]),
])
def test_what_cannot_be_reduced_is_refused_with_a_reason(tmp_path, put, line, code, culprits):
    result = bramble("batch", batch_file(tmp_path, f"W = put random:600x700:f64:1 {put}\n{line}\n"), "-q", "--local", "2")
    if code:
        assert_refused(result, code, ["line 2", *culprits], begun=True)
    else:
        assert result.code == 0


def test_a_reduction_without_memory_is_refused_and_the_rest_works(tmp_path):
    with workers(2, "--threads", 1, "--memory", "64M") as (addresses, _):
        with Stream("-w", ",".join(addresses), *MACHINES, "--keep-going") as stream:
            stream.task("W = put random:100x30000:f64:1 shard=1")
            refused = stream.task("I, V = topk(random:1000x100:f64:2 @ W, 20000)")
            assert refused["kind"] == "error" and any(one in refused["error"]["message"] for one in addresses), refused
            done = stream.task("I, V = topk(random:50x100:f64:2 @ W, 3)")
            assert done["kind"] == "reduction" and done["checked"]
            stream.finish()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_worker_written_from_the_page_reduces(tmp_path, dtype):
    x, w = matrix(40, 60, dtype, 1), matrix(60, 300, dtype, 2)
    paths = save(tmp_path, "x.npy", x), save(tmp_path, "w.npy", w)
    text = [f"W = put {paths[1]} shard=1", *lines(tmp_path, f"{paths[0]} @ W", 9), "S = rowsum(W.T)", "free W"]
    worker = WireWorker(hold=1 << 26, memory=1 << 26)
    worker.start()
    result = bramble("batch", batch_file(tmp_path, "\n".join(text)), "-w", worker.address, *MACHINES)
    worker.join(30)
    if worker.error:
        raise worker.error
    assert result.code == 0 and not worker.arrays, result
    wide = np.float64 if dtype.startswith("f") else DTYPES[dtype]
    exact = x.astype(wide) @ w.astype(wide)
    exact = exact if dtype.startswith("f") else exact.astype(np.int64)
    assert_reduced(tmp_path, exact, np.abs(x.astype(np.float64)) @ np.abs(w.astype(np.float64)), dtype, 9)


def test_right_results_at_the_ends_of_the_range_and_of_long_sums_are_not_refused(tmp_path):
    rng = np.random.default_rng(1)
    huge = np.float32(1e20) * (rng.random((40, 30), dtype="f4") + 1), np.float32(1e19) * (rng.random((30, 300), dtype="f4") + 1)
    tiny = np.float32(1e-25) * rng.random((40, 30), dtype="f4"), np.float32(1e-20) * rng.random((30, 300), dtype="f4")
    # All terms are positive, so that rounding errors of the sums grow faster than those of the shallow products.
    high, wide = (rng.random((2_000_000, 3)) + 1, rng.random((3, 40)) + 1), (rng.random((3, 2)) + 1, rng.random((2, 2_000_000)) + 1)
    text = []
    for name, (a, b) in {"huge": huge, "tiny": tiny, "high": high, "wide": wide}.items():
        paths = save(tmp_path, f"{name}_a.npy", a), save(tmp_path, f"{name}_b.npy", b)
        text += [f"W = put {paths[1]} shard=1", *(f"R = {function}({paths[0]} @ W)" for function in SUMS + EXTREMES)]
        text += [f"R = rowsum(1e-30 * {paths[0]} @ W)", f"I, V = topk({paths[0]} @ W, 2)"]
    result = bramble("batch", batch_file(tmp_path, "\n".join(text)), "--json", "--verify", "full", "--local", "2", *MACHINES)
    assert result.code == 0, result.err
