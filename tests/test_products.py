"""C = AB against NumPy: element types, shapes, transposes, layouts."""

import numpy as np
import pytest
from helpers import DTYPES, assert_product, matrix, multiply, save, succeed

SHAPES = {
    "square": (96, 96, 96),
    "one tile and a bit": (257, 1025, 263),
    "tall": (1500, 40, 7),
    "flat": (7, 40, 1500),
    "inner": (33, 3000, 17),
    "outer": (300, 1, 400),
    "row vector": (1, 500, 300),
    "column vector": (300, 500, 1),
    "dot product": (1, 1000, 1),
    "one element": (1, 1, 1),
    "primes": (101, 211, 307),
}
EMPTY = {"no rows": (0, 5, 4), "no columns": (4, 5, 0), "no depth": (6, 0, 7), "nothing": (0, 0, 0)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_shapes_in_process(tmp_path, shape, dtype):
    m, k, n = shape
    a, b = matrix(m, k, dtype, 1), matrix(k, n, dtype, 2)
    c = multiply(tmp_path, a, b)
    assert c.dtype == DTYPES[dtype]
    assert_product(c, a, b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ["one tile and a bit", "tall", "dot product", "primes"])
def test_shapes_with_workers(tmp_path, shape, dtype):
    m, k, n = SHAPES[shape]
    a, b = matrix(m, k, dtype, 3), matrix(k, n, dtype, 4)
    assert_product(multiply(tmp_path, a, b, "--local", 2), a, b)


@pytest.mark.parametrize("where", [[], ["--local", "2"]], ids=["in process", "local 2"])
@pytest.mark.parametrize("dtype", ["f32", "i64"])
@pytest.mark.parametrize("shape", EMPTY.values(), ids=EMPTY)
def test_empty_matrices(tmp_path, shape, dtype, where):
    m, k, n = shape
    c = multiply(tmp_path, np.ones((m, k), DTYPES[dtype]), np.ones((k, n), DTYPES[dtype]), *where)
    assert c.dtype == DTYPES[dtype] and c.shape == (m, n)
    assert not c.any()


@pytest.mark.parametrize("dtype", ["f64", "i32"])
@pytest.mark.parametrize("where", [[], ["--local", "2"]], ids=["in process", "local 2"])
@pytest.mark.parametrize("which", ["a", "b", "ab"])
def test_transposes(tmp_path, which, where, dtype):
    a, b = matrix(130, 277, dtype, 5), matrix(277, 301, dtype, 6)
    stored_a = np.ascontiguousarray(a.T) if "a" in which else a
    stored_b = np.ascontiguousarray(b.T) if "b" in which else b
    options = [f"--transpose-{letter}" for letter in which]
    assert_product(multiply(tmp_path, stored_a, stored_b, *options, *where), a, b)


@pytest.mark.parametrize("where", [[], ["--local", "2"]], ids=["in process", "local 2"])
@pytest.mark.parametrize("which", ["a", "b", "ab"])
@pytest.mark.parametrize("options", [[], ["--transpose-a", "--transpose-b"]], ids=["plain", "transposed"])
def test_fortran_order(tmp_path, which, where, options):
    a, b = matrix(150, 270, "f64", 7), matrix(270, 310, "f64", 8)
    shown_a, shown_b = (a.T.copy(), b.T.copy()) if options else (a, b)
    stored_a = np.asfortranarray(shown_a) if "a" in which else shown_a
    stored_b = np.asfortranarray(shown_b) if "b" in which else shown_b
    c = multiply(tmp_path, stored_a, stored_b, *options, *where)
    assert_product(c, a, b)
    assert c.flags.c_contiguous


def test_both_operands_are_one_file(tmp_path):
    a = matrix(120, 120, "f64", 9)
    path = save(tmp_path, "A.npy", a)
    succeed("multiply", path, path, "--transpose-b", "-o", tmp_path / "C.npy")
    assert_product(np.load(tmp_path / "C.npy"), a, a.T)


def test_integers_wrap(tmp_path):
    a = np.full((3, 3), np.iinfo(np.int32).max, np.int32)
    c = multiply(tmp_path, a, a)
    np.testing.assert_array_equal(c, np.full((3, 3), 3, np.int32))


def test_an_operand_may_be_overwritten_by_the_result(tmp_path):
    a, b = matrix(200, 200, "f64", 10), matrix(200, 200, "f64", 11)
    assert_product(multiply(tmp_path, a, b, out="A.npy"), a, b)


def test_without_an_output_file_nothing_is_written(tmp_path):
    a = save(tmp_path, "A.npy", matrix(40, 40, "f64"))
    succeed("multiply", a, a, cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["A.npy"]


def test_nan_and_infinity_pass_through_unverified(tmp_path):
    a, b = matrix(20, 30, "f64", 12), matrix(30, 25, "f64", 13)
    a[3, 4], a[7, 2] = np.nan, np.inf
    c = multiply(tmp_path, a, b, "--verify", "off")
    assert np.isnan(c[3]).all() and np.isinf(c[7]).all()
    rest = [row for row in range(20) if row not in (3, 7)]
    assert_product(c[rest], a[rest], b)


@pytest.mark.parametrize("dtype", ["f64", "f32", "i64"])
@pytest.mark.parametrize("shape", [(1, 1_500_001, 1), (8, 400_000, 8), (64, 60_000, 64), (3000, 3000, 1)])
def test_thin_products_have_the_same_bits_on_any_number_of_threads(tmp_path, shape, dtype):
    m, k, n = shape
    a, b = matrix(m, k, dtype, 5), matrix(k, n, dtype, 6)
    one = multiply(tmp_path, a, b, "--threads", 1)
    assert_product(one, a, b)
    for threads in [2, 3]:
        assert np.array_equal(one, multiply(tmp_path, a, b, "--threads", threads)), threads
    # A whole k, one step after the other: the same numbers within rounding.
    assert_product(multiply(tmp_path, a, b, "--reproducible"), a, b)


def test_memory_is_what_limits_a_dot_product(tmp_path):
    row, column = save(tmp_path, "row.npy", matrix(1, 4_000_000, "f64", 1)), save(
        tmp_path, "column.npy", matrix(4_000_000, 1, "f64", 2))
    report = succeed("multiply", row, column, "--json").report
    assert report["predicted"]["by"] == "memory" and report["bound"]["by"] == "memory", report["predicted"]
    assert 0 < report["bound"]["seconds"] <= report["predicted"]["seconds"]
