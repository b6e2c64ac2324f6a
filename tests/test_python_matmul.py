"""`bramble.matmul` against `numpy.matmul`: values, types, shapes and errors, and what it does to the process around it."""

import array
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import bramble
import numpy as np
import pytest
from helpers import cpu_seconds
from numpy.lib.stride_tricks import as_strided

DTYPES = ["float32", "float64", "int32", "int64"]
UNSUPPORTED = ["float16", "longdouble", "complex64", "complex128", "clongdouble", "bool", "int8", "int16", "uint8", "uint16",
               "uint32", "uint64", "object", "datetime64[s]", "timedelta64[s]", "S3", "U3", "V4"]
if np.dtype("longdouble") == np.dtype("float64"):
    UNSUPPORTED.remove("longdouble")
NDIM_MAX = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
DEADLINE_S = 120
"""No process here may take longer; most take a second."""


def whole(shape, dtype, seed=1):
    """Small whole numbers: their products and sums are exact in every type."""
    return np.random.default_rng([seed, *shape]).integers(-9, 10, shape).astype(dtype)


def text(value):
    """A readable id of a shape, of several shapes, or of any other value."""
    if not isinstance(value, tuple):
        return str(value)
    if any(isinstance(part, tuple) for part in value):
        return " @ ".join(map(text, value))
    return "x".join(map(str, value)) or "scalar" if len(value) < 10 else f"{len(value)} dimensions"


def outcome(matmul, *args, **kwargs):
    """The result, or the error as its class and text."""
    with np.errstate(all="ignore"):
        try:
            return matmul(*args, **kwargs)
        except Exception as error:
            return type(error), str(error)


def assert_same(ours, numpys):
    """The same class, type, shape and values, or the same error."""
    assert type(ours) is type(numpys), f"{ours!r} instead of {numpys!r}"
    if isinstance(numpys, (np.ndarray, np.generic)):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(numpys), strict=True)
    else:
        assert ours == numpys


def assert_as_numpy(*args, **kwargs):
    """One call of both; returns the result."""
    ours, numpys = outcome(bramble.matmul, *args, **kwargs), outcome(np.matmul, *args, **kwargs)
    assert_same(ours, numpys)
    return ours


def assert_error_as_numpy(error, *args, **kwargs):
    """Both raise the same error, of this class."""
    ours = assert_as_numpy(*args, **kwargs)
    assert isinstance(ours, tuple) and issubclass(ours[0], error), f"no {error.__name__}: {ours!r}"


# Shapes.

SHAPES = [
    ((1,), (1,)), ((7,), (7,)), ((1000,), (1000,)), ((0,), (0,)),
    ((5,), (5, 3)), ((5,), (5, 1)), ((5,), (5, 0)), ((0,), (0, 3)),
    ((3, 5), (5,)), ((1, 5), (5,)), ((0, 5), (5,)), ((3, 0), (0,)), ((0, 0), (0,)),
    ((1, 1), (1, 1)), ((2, 3), (3, 4)), ((17, 33), (33, 9)), ((1, 64), (64, 1)), ((64, 1), (1, 64)), ((1, 7), (7, 90)),
    ((90, 7), (7, 1)), ((100, 130), (130, 70)), ((200, 3), (3, 200)), ((300, 200), (200, 100)), ((3, 5000), (5000, 2)),
    ((0, 3), (3, 4)), ((2, 0), (0, 4)), ((2, 3), (3, 0)), ((0, 0), (0, 0)), ((0, 3), (3, 0)), ((0, 0), (0, 4)),
    ((2, 3, 4), (2, 4, 5)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((1, 3, 4), (6, 4, 2)), ((6, 3, 4), (1, 4, 2)),
    ((2, 1, 3, 4), (5, 4, 2)), ((5, 3, 4), (2, 1, 4, 2)), ((2, 5, 3, 4), (2, 5, 4, 2)), ((4,), (2, 4, 5)), ((4,), (3, 2, 4, 5)),
    ((2, 3, 4), (4,)), ((2, 3, 5, 4), (4,)), ((0, 3, 4), (4, 5)), ((0, 3, 4), (0, 4, 5)), ((0, 3, 4), (1, 4, 5)),
    ((4,), (0, 4, 5)), ((0, 3, 4), (4,)), ((2, 0, 4), (4, 5)), ((2, 3, 0), (0, 5)), ((2, 3, 0), (2, 0, 5)),
    ((2, 3, 4), (2, 4, 0)), ((1, 1, 1, 1, 2), (2, 1)), ((1,) * (NDIM_MAX - 2) + (2, 3), (3, 2)),
    ((2,), (1,) * (NDIM_MAX - 2) + (2, 3)),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("a, b", SHAPES, ids=text)
def test_shapes_give_what_numpy_gives(a, b, dtype):
    assert_as_numpy(whole(a, dtype), whole(b, dtype, 2))


MISMATCHES = [
    ((), ()), ((), (3,)), ((3,), ()), ((), (2, 3)), ((2, 3), ()), ((), (2, 3, 4)), ((3,), (4,)), ((3,), (0,)), ((0,), (1,)),
    ((3,), (4, 2)), ((3,), (2, 3)), ((2, 3), (2,)), ((2, 3), (2, 3)), ((2, 3), (0, 3)), ((2, 0), (3, 0)), ((1, 1), (2, 1)),
    ((2, 3, 4), (3, 4, 5)), ((2, 3, 4), (2, 3, 5)), ((2, 3, 4), (3,)), ((4,), (2, 3, 4)), ((2, 3, 4), (0, 4, 5)),
    ((2, 2, 3, 4), (3, 4, 5)), ((2, 2, 3, 4), (3, 2, 4, 5)), ((2, 3, 4), (3, 5, 4)),
]


@pytest.mark.parametrize("a, b", MISMATCHES, ids=text)
def test_shapes_that_form_no_product_give_numpys_error(a, b):
    assert_error_as_numpy(ValueError, whole(a, "f8"), whole(b, "f8"))


@pytest.mark.parametrize("dtypes", [("i4", "f4"), ("f2", "f2"), ("O", "O"), ("c16", "f8")], ids=" @ ".join)
def test_wrong_shapes_are_named_for_every_type(dtypes):
    assert_error_as_numpy(ValueError, np.ones((2, 3), dtypes[0]), np.ones((2, 3), dtypes[1]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_vectors_give_a_scalar(dtype):
    assert type(bramble.matmul(whole((9,), dtype), whole((9,), dtype))) is np.dtype(dtype).type


@pytest.mark.parametrize("a, b", [((2, 3), (3, 4)), ((3,), (3, 4)), ((2, 3), (3,)), ((5, 2, 3), (3, 4))], ids=text)
def test_a_result_owns_its_memory_row_by_row(a, b):
    flags = bramble.matmul(whole(a, "f8"), whole(b, "f8")).flags
    assert flags.owndata and flags.c_contiguous and flags.writeable


def test_a_result_too_large_for_memory_is_a_memory_error():
    assert_error_as_numpy(MemoryError, np.broadcast_to(1.0, (2**28, 1)), np.broadcast_to(1.0, (1, 2**28)))


# Strides.


def misaligned(x):
    return np.frombuffer(b"?" + x.tobytes(), x.dtype, offset=1).reshape(x.shape)


def field(x, *, aligned):
    """A field of a record, so that elements are not next to each other; unless aligned, in steps of no whole elements."""
    records = np.zeros(x.shape, np.dtype([("before", "i1"), ("x", x.dtype)], align=aligned))
    records["x"] = x
    return records["x"]


def spread(x, *axes):
    """The same elements, in every third place."""
    wide = np.full([3 * n if axis in axes else n for axis, n in enumerate(x.shape)], 77, x.dtype)
    view = wide[tuple(slice(None, None, 3) if axis in axes else slice(None) for axis in range(x.ndim))]
    view[...] = x
    return view


def frozen(x):
    x = x.copy()
    x.flags.writeable = False
    return x


LAYOUTS = {
    "rows": np.ascontiguousarray,
    "columns": np.asfortranarray,
    "every third row": lambda x: spread(x, x.ndim - 2),
    "every third column": lambda x: spread(x, x.ndim - 1),
    "every third row and column": lambda x: spread(x, x.ndim - 2, x.ndim - 1),
    "every third column transposed": lambda x: np.swapaxes(spread(np.swapaxes(x, -1, -2), x.ndim - 2), -1, -2),
    "rows backwards": lambda x: x[..., ::-1, :].copy()[..., ::-1, :],
    "columns backwards": lambda x: x[..., ::-1].copy()[..., ::-1],
    "both backwards": lambda x: x[..., ::-1, ::-1].copy()[..., ::-1, ::-1],
    "part of a larger one": lambda x: np.pad(x, 1, constant_values=77)[(slice(1, -1),) * x.ndim],
    "one row repeated": lambda x: np.broadcast_to(x[..., :1, :], x.shape),
    "one column repeated": lambda x: np.broadcast_to(x[..., :1], x.shape),
    "one element repeated": lambda x: np.broadcast_to(x.dtype.type(3), x.shape),
    "overlapping rows": lambda x: as_strided(x.copy(), x.shape, (*x.strides[:-2], x.itemsize, x.itemsize)),
    "misaligned": misaligned,
    "misaligned columns": lambda x: misaligned(x.T.copy()).T,
    "field": lambda x: field(x, aligned=True),
    "packed field": lambda x: field(x, aligned=False),
    "bytes swapped": lambda x: x.astype(x.dtype.newbyteorder()),
    "read-only": frozen,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("which", ["left", "right", "both"])
def test_strides_do_not_matter(layout, dtype, which):
    a, b = whole((6, 7), dtype), whole((7, 5), dtype, 2)
    a = LAYOUTS[layout](a) if which != "right" else a
    b = LAYOUTS[layout](b) if which != "left" else b
    assert_as_numpy(a, b)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("a, b", [((2, 3, 4), (4, 5)), ((3, 1, 2, 4), (2, 4, 3))], ids=text)
def test_strides_of_stacks_do_not_matter(layout, a, b):
    assert_as_numpy(LAYOUTS[layout](whole(a, "f4")), LAYOUTS[layout](whole(b, "f4", 2)))


@pytest.mark.parametrize("layout", ["misaligned", "misaligned columns", "field", "packed field", "rows backwards"])
@pytest.mark.parametrize("a, b", [((0, 5), (5, 3)), ((5, 0), (0, 3)), ((3, 5), (5, 0)), ((1, 1), (1, 1))], ids=text)
def test_strides_of_empty_and_single_elements_do_not_matter(layout, a, b):
    assert_as_numpy(LAYOUTS[layout](whole(a, "f8")), LAYOUTS[layout](whole(b, "f8", 2)))


def test_layouts_are_what_their_names_say():
    made = {name: layout(whole((6, 7), "f8")) for name, layout in LAYOUTS.items()}
    assert made["columns"].strides == (8, 48) and made["part of a larger one"].strides == (72, 8)
    assert made["every third row and column"].strides == (504, 24) and made["both backwards"].strides == (-56, -8)
    assert made["one element repeated"].strides == (0, 0) and made["overlapping rows"].strides == (8, 8)
    assert not made["misaligned"].flags.aligned and not made["misaligned columns"].flags.aligned
    assert made["field"].strides[1] == 16 and made["packed field"].strides[1] == 9
    assert not made["bytes swapped"].dtype.isnative and not made["read-only"].flags.writeable


def any_case(seed):
    """Two operands at random: shapes, stacks, layouts and types."""
    rng = np.random.default_rng(seed)
    m, k, n, *stack = rng.choice([1, 2, 3, 5, 8, 31], 3 + rng.integers(3)).tolist()
    operands = []
    for matrix in ((m, k), (k, n)):
        kept = [size if rng.integers(3) else 1 for size in stack][rng.integers(len(stack) + 1):]
        layout = LAYOUTS[rng.choice(list(LAYOUTS))]
        operands.append(layout(whole((*kept, *matrix), rng.choice(DTYPES), seed)))
    return operands


@pytest.mark.parametrize("seed", range(100))
def test_any_operands_give_what_numpy_gives(seed):
    assert isinstance(assert_as_numpy(*any_case(seed)), np.ndarray)


# Element types.


@pytest.mark.parametrize("shapes", [((3, 4), (4, 5)), ((4,), (4,)), ((2, 3, 4), (4,))], ids=text)
@pytest.mark.parametrize("right", DTYPES)
@pytest.mark.parametrize("left", DTYPES)
def test_mixed_types_are_promoted(left, right, shapes):
    assert_as_numpy(whole(shapes[0], left), whole(shapes[1], right, 2))


@pytest.mark.parametrize("dtypes", [(">f8", "<f8"), (">i4", "f4"), (">i8", ">i4"), ("longlong", "i8"), ("intc", "i4")],
                         ids=" @ ".join)
def test_other_names_of_a_type_are_that_type(dtypes):
    assert_as_numpy(whole((3, 4), dtypes[0]), whole((4, 5), dtypes[1], 2))


@pytest.mark.parametrize("where", ["left", "right", "both", "vectors"])
@pytest.mark.parametrize("dtype", UNSUPPORTED)
def test_an_unsupported_type_is_a_type_error_that_names_it(dtype, where):
    dtype = np.dtype(dtype)
    a, b = np.zeros((2, 2), dtype if where != "right" else "f8"), np.zeros((2, 2), dtype if where != "left" else "f8")
    if where == "vectors":
        a, b = a[0], b[0]
    with pytest.raises(TypeError) as raised:
        bramble.matmul(a, b)
    assert f"elements of {dtype} are" in str(raised.value) and ".astype" in str(raised.value)


SPECIAL = {
    "nan left": ([[np.nan, 1], [2, 3]], [[1, 2], [3, 4]]),
    "nan right": ([[1, 2], [3, 4]], [[1, 2], [np.nan, 4]]),
    "nan times zero": ([[np.nan, 1]], [[0], [1]]),
    "infinity": ([[np.inf, 1], [2, -np.inf]], [[1, -2], [3, 4]]),
    "infinity times zero": ([[0, 1]], [[np.inf], [1]]),
    "infinity minus infinity": ([[np.inf, -np.inf]], [[1], [1]]),
    "infinity vectors": ([np.inf, 1], [1, 2]),
    "overflow": ([[3e38, 3e38]], [[3e38], [3e38]]),
    "one nan among many": (np.where(np.eye(90), np.nan, 1), np.ones((90, 90))),
    "one infinity among many": (np.where(np.eye(90), np.inf, 1), np.where(np.eye(90) > 0, 0, 1)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", SPECIAL)
def test_nan_and_infinity_spread_as_in_numpy(case, dtype):
    assert_as_numpy(*(np.array(operand, dtype) for operand in SPECIAL[case]))


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("shape", [(1, 1), (3, 40), (140, 120)], ids=text)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_wrap_around(dtype, shape, threads):
    numbers = np.iinfo(dtype)
    a = np.random.default_rng(3).integers(numbers.min, numbers.max, shape, dtype, endpoint=True)
    product = bramble.matmul(a, a.T, threads=threads)
    assert_same(product, np.matmul(a, a.T))
    assert (product.astype(object) != a.astype(object) @ a.T.astype(object)).any(), "nothing wrapped"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("m, k, n", [(3, 4, 5), (70, 300, 40), (1, 5000, 1), (150, 150, 150), (2, 3, 2000)])
def test_fractions_are_as_near_as_rounding_allows(m, k, n, dtype):
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    exact, size = a.astype("g") @ b.astype("g"), np.abs(a).astype("g") @ np.abs(b).astype("g")
    assert (np.abs(bramble.matmul(a, b) - exact) <= 8 * k**0.5 * np.finfo(dtype).eps * size).all()


# out=.


def twice(make):
    """The same arrays in two memories, one for each library."""
    return make(), make()


def assert_out_as_numpy(make):
    """`make` returns operands and `out`; both libraries write the same into it, and return it, or raise the same."""
    (a, b, ours), (x, y, numpys) = twice(make)
    result, expected = outcome(bramble.matmul, a, b, out=ours), outcome(np.matmul, x, y, out=numpys)
    if isinstance(expected, tuple):
        assert result == expected
    else:
        assert expected is numpys and result is ours
    for changed, as_numpy in ((ours, numpys), (a, x), (b, y)):
        np.testing.assert_array_equal(np.asarray(changed), np.asarray(as_numpy), strict=True)
    return expected


OUTS = {
    **{name: make for name, make in LAYOUTS.items() if not any(word in name for word in ("repeated", "misaligned", "read-only"))},
    "misaligned": lambda x: np.frombuffer(bytearray(x.nbytes + 1), x.dtype, offset=1).reshape(x.shape),
}


@pytest.mark.parametrize("a, b", [((6, 7), (7, 5)), ((7,), (3, 7, 5)), ((2, 6, 7), (7, 5)), ((3, 6, 7), (7,)), ((6, 0), (0, 5)),
                                  ((0, 6), (6, 5))], ids=text)
@pytest.mark.parametrize("layout", OUTS)
def test_out_has_any_strides(layout, a, b):
    def make():
        left, right = whole(a, "f8"), whole(b, "f8", 2)
        return left, right, OUTS[layout](np.full(np.matmul(left, right).shape, 77.0))

    assert isinstance(assert_out_as_numpy(make), np.ndarray)


@pytest.mark.parametrize("strides", [(8, 8), (0, 8), (8, 0), (16, 8)], ids=str)
def test_elements_of_out_may_coincide(strides):
    make = lambda: (whole((4, 4), "f8"), whole((4, 4), "f8", 2), as_strided(np.zeros(30), (4, 4), strides))  # noqa: E731
    assert isinstance(assert_out_as_numpy(make), np.ndarray)


def test_nothing_beside_out_is_written():
    wide = np.full((8, 9), 5.0)
    bramble.matmul(whole((4, 3), "f8"), whole((3, 5), "f8"), out=wide[2:6, 2:7])
    wide[2:6, 2:7] = 5
    assert (wide == 5).all()


@pytest.mark.parametrize("out", [*DTYPES, "float16", "longdouble", "int16", "uint64", "complex64", "object", "bool", "U9", ">f8"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_out_is_cast_as_numpy_casts(dtype, out):
    assert_out_as_numpy(lambda: (whole((3, 4), dtype), whole((4, 5), dtype, 2), np.zeros((3, 5), out)))


def test_products_overflow_in_their_own_type_before_the_cast_to_out():
    big = np.full((2, 2), 2**30, "i4"), np.full((2, 2), 3, "i4")
    assert (assert_out_as_numpy(lambda: (*big, np.zeros((2, 2), "i8"))) == -(2**31)).all()


@pytest.mark.parametrize("a, b, out", [
    ((2, 3), (3, 4), (2, 5)), ((2, 3), (3, 4), (8,)), ((2, 3), (3, 4), (4, 2)), ((2, 3), (3, 4), (1, 4)),
    ((2, 3), (3, 4), ()), ((2, 3), (3, 4), (0, 4)), ((5, 2, 3), (3, 4), (2, 4)), ((5, 2, 3), (3, 4), (1, 2, 4)),
    ((5, 2, 3), (3, 4), (4, 2, 4)), ((3,), (3, 4), ()), ((3,), (3, 4), (3,)), ((2, 3), (3,), (2, 1)), ((2, 3), (3,), (3,)),
    ((3,), (3, 4), ()), ((3,), (3, 4), (3,)), ((2, 3), (3,), (2, 1)), ((2, 3), (3,), (3,)),
    ((2, 3), (2, 3), (2, 3)), ((), (3,), (3,)),
], ids=text)
def test_a_wrong_shape_of_out_gives_numpys_error(a, b, out):
    assert assert_out_as_numpy(lambda: (whole(a, "f8"), whole(b, "f8"), np.zeros(out)))[0] is ValueError


@pytest.mark.parametrize("a, b, out", [
    ((3,), (3,), ()), ((0,), (0,), ()), ((2, 3), (3, 4), (6, 2, 4)), ((2, 3), (3, 4), (1, 1, 2, 4)),
    ((1, 2, 3), (3, 4), (6, 2, 4)), ((3,), (3,), (1,)), ((3,), (3,), (7,)), ((3,), (3, 4), (1, 4)),
    ((2, 3), (3,), (5, 2)), ((2, 3), (3, 4), (0, 2, 4)), ((5, 1, 2, 3), (4, 3, 2), (5, 4, 2, 2)),
], ids=text)
def test_out_may_be_a_larger_stack(a, b, out):
    assert isinstance(assert_out_as_numpy(lambda: (whole(a, "f8"), whole(b, "f8", 2), np.full(out, 9.0))), np.ndarray)


@pytest.mark.parametrize("shape", [(2, 4), (3, 3), (6, 2, 4)], ids=text)
def test_a_read_only_out_is_an_error(shape):
    error, _ = assert_out_as_numpy(lambda: (whole((2, 3), "f8"), whole((3, 4), "f8"), frozen(np.zeros(shape))))
    assert error is ValueError


@pytest.mark.parametrize("out", [[[0.0] * 4] * 2, 1.0, "C", (), (None, None), np.float64(1), array.array("d", 8 * [0])], ids=repr)
def test_out_must_be_an_array(out):
    assert_error_as_numpy((TypeError, ValueError), whole((2, 3), "f8"), whole((3, 4), "f8"), out=out)


def test_out_may_be_a_tuple_of_one_array():
    c = np.zeros((2, 4))
    assert bramble.matmul(whole((2, 3), "f8"), whole((3, 4), "f8"), out=(c,)) is c and c.any()
    assert_as_numpy(whole((2, 3), "f8"), whole((3, 4), "f8"), out=(None,))


def within(x, at):
    """A square matrix of a larger memory, beginning at that element."""
    n = x.shape[0]
    memory = np.concatenate([x.ravel(), x.ravel(), x.ravel()])
    return memory[:n * n].reshape(n, n), memory[at:at + n * n].reshape(n, n)


OVERLAPS = {
    "the left one": lambda x: (x, x.T.copy(), x),
    "the right one": lambda x: (x.T.copy(), x, x),
    "both": lambda x: (x, x, x),
    "a transpose": lambda x: (x, x.copy(), x.T),
    "an upside-down view": lambda x: (x, x.copy(), x[::-1]),
    "part of the left one": lambda x: (x[:, ::2], x[::2].copy(), x),
    "left one from the second element": lambda x: (lambda a, c: (a, x.copy(), c))(*within(x, 1)),
    "right one from the second row": lambda x: (lambda b, c: (x.copy(), b, c))(*within(x, x.shape[0])),
    "beside the left one": lambda x: (lambda a, c: (a, x.copy(), c))(*within(x, x.size)),
    "between the elements of the left one": lambda x: (lambda w: (w[..., 0], x, w[..., 1]))(np.stack([x, x], -1)),
    "a stack that holds the left one": lambda x: (lambda s: (s[1], x.copy(), s))(np.stack([x, x, x])),
    "a stack in place": lambda x: (lambda s: (s, x.copy(), s))(np.stack([x, x + 1])),
    "a row of the matrix": lambda x: (x[0], x, x[0]),
    "a column of the matrix": lambda x: (x, x[:, 0], x[:, 1]),
}


@pytest.mark.parametrize("n", [4, 170])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("overlap", OVERLAPS)
def test_out_may_overlap_an_operand(overlap, dtype, n):
    assert isinstance(assert_out_as_numpy(lambda: OVERLAPS[overlap](whole((n, n), dtype))), np.ndarray)


# Operands that are no arrays, and arrays of a class.


class Dlpack:
    """An array of another library, as far as DLPack shows it."""

    def __init__(self, held):
        self.held = held

    def __dlpack__(self, **kwargs):
        return self.held.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.held.__dlpack_device__()


class Converts:
    def __array__(self, dtype=None, copy=None):
        return whole((3, 4), "f4")


class Interface:
    held = whole((3, 4), "i4")
    __array_interface__ = held.__array_interface__


OPERANDS = {
    "lists of int": ([[1, 2], [3, 4]], [[5, 6], [7, 8]]),
    "lists of float": ([[1.0, 2.0]], [[0.5], [0.25]]),
    "list of both": ([1, 2.5], [[1], [2]]),
    "tuples": (((1, 2), (3, 4)), (1, 2)),
    "a list and float32": ([1, 2, 3], whole((3,), "f4")),
    "a list and int32": ([[1, 2, 3]], whole((3, 2), "i4")),
    "a list of arrays": ([whole((3,), "f4"), whole((3,), "f4")], whole((3, 2), "f4")),
    "a list of scalars": ([np.float32(1), np.int32(2)], [1, 2]),
    "range": (range(3), whole((3, 4), "i8")),
    "empty lists": ([], []),
    "empty rows": ([[], []], np.zeros((0, 3))),
    "memoryview": (memoryview(whole((2, 3), "f4")), memoryview(whole((3, 2), "f4"))),
    "array.array of double": (array.array("d", [1, 2, 3]), whole((3, 2), "f8")),
    "array.array of int": (whole((2, 3), "i4"), array.array("i", [1, 2, 3])),
    "an object with __array__": (whole((2, 3), "f4"), Converts()),
    "an object with __array_interface__": (whole((2, 3), "i4"), Interface()),
}


@pytest.mark.parametrize("case", OPERANDS)
def test_operands_are_converted(case):
    assert isinstance(assert_as_numpy(*OPERANDS[case]), (np.ndarray, np.generic))


WRONG = {
    "two numbers": (2, 3),
    "a number left": (2.0, [1, 2]),
    "a number right": ([[1, 2]], 3),
    "a NumPy scalar": (np.float32(3), [1]),
    "None": (None, [1]),
    "a set": ([1], {1}),
    "a generator": ((i for i in range(3)), [1, 2, 3]),
    "a dict": ({}, [1]),
    "text": ("ab", [1.0]),
    "bytes": (b"abc", np.ones(3)),
    "ragged lists left": ([[1, 2], [3]], [1, 2]),
    "ragged lists right": ([1, 2], [[1, 2], [3]]),
    "lists of unequal length": ([1, 2], [1, 2, 3]),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_matrix_gives_numpys_error(case):
    assert_error_as_numpy((TypeError, ValueError), *WRONG[case])


@pytest.mark.parametrize("value, name", [([True], "bool"), ([1j], "complex128"), ([2**63], "uint64"), ([2**70], "object"),
                                         ([None], "object"), (bytearray(b"a"), "uint8"), (["a"], "<U1")], ids=repr)
def test_a_list_of_an_unsupported_type_is_a_type_error(value, name):
    with pytest.raises(TypeError, match=rf"elements of {name} are.*\.astype"):
        bramble.matmul(value, value)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["rows", "columns", "every third row and column", "rows backwards", "field"])
def test_arrays_of_other_libraries_come_by_dlpack(layout, dtype):
    a, b = LAYOUTS[layout](whole((6, 7), dtype)), whole((7, 5), dtype, 2)
    expected = np.matmul(a, b)
    assert_same(bramble.matmul(Dlpack(a), Dlpack(b)), expected)
    assert_same(bramble.matmul(Dlpack(a), b.tolist()), np.matmul(a, b.tolist()))


def test_an_unsupported_type_by_dlpack_is_a_type_error():
    with pytest.raises(TypeError, match=r"complex64.*\.astype"):
        bramble.matmul(Dlpack(np.ones((2, 2), "c8")), np.ones((2, 2)))


def test_out_may_overlap_an_array_that_came_by_dlpack():
    x = whole((5, 5), "f8")
    expected = x @ x
    assert_same(bramble.matmul(Dlpack(x), Dlpack(x), out=x), expected)


class Plain(np.ndarray):
    pass


class Preferred(np.ndarray):
    __array_priority__ = 5


class Deferring(np.ndarray):
    __array_priority__ = -5


class Wrapping(np.ndarray):
    def __array_wrap__(self, result, context=None, return_scalar=False):
        return "wrapped", result.tolist(), context[0].__name__, len(context[1])


class Own(np.ndarray):
    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        return "own", ufunc.__name__, method, len(inputs), sorted(kwargs)


class NoUfuncs(np.ndarray):
    __array_ufunc__ = None


class OwnWithoutArray:
    __array_ufunc__ = Own.__array_ufunc__


def of(cls):
    """Makes arrays of this class."""
    return lambda x: x.view(cls)


CLASSES = {
    **{cls.__name__: of(cls) for cls in (np.matrix, np.recarray, np.memmap, Plain, Preferred, Wrapping, Own, NoUfuncs)},
    "masked": np.ma.masked_array,
    "masked elements": lambda x: np.ma.masked_array(x, x > 3),
    "own without array": lambda x: OwnWithoutArray(),
}


@pytest.mark.parametrize("which", ["left", "right", "both", "out", "all"])
@pytest.mark.parametrize("case", CLASSES)
def test_classes_are_kept_as_numpy_keeps_them(case, which):
    make, plain = CLASSES[case], np.asarray
    a = (make if which in ("left", "both", "all") else plain)(whole((3, 3), "f8"))
    b = (make if which in ("right", "both", "all") else plain)(whole((3, 3), "f8", 2))
    ours, numpys = ((make(np.zeros((3, 3))) if which in ("out", "all") else None) for _ in range(2))
    result, expected = outcome(bramble.matmul, a, b, out=ours), outcome(np.matmul, a, b, out=numpys)
    assert_same(result, expected)
    assert (result is ours) == (expected is numpys)


@pytest.mark.parametrize("a, b", [((3,), (3,)), ((3,), (3, 3)), ((3, 3), (3,)), ((2, 3, 3), (3, 3))], ids=text)
@pytest.mark.parametrize("case", ["Plain", "Preferred", "memmap", "masked", "recarray"])
def test_classes_are_kept_for_vectors_and_stacks(case, a, b):
    assert_as_numpy(CLASSES[case](whole(a, "f8")), CLASSES[case](whole(b, "f8", 2)))


@pytest.mark.parametrize("left, right", [
    (Plain, Preferred), (Preferred, Plain), (Deferring, Plain), (Plain, Deferring), (Plain, Wrapping), (Wrapping, Preferred),
])
def test_the_class_with_the_higher_priority_wins(left, right):
    assert_as_numpy(whole((3, 3), "f8").view(left), whole((3, 3), "f8", 2).view(right))


def test_a_mapped_file_is_an_operand_and_an_out(tmp_path):
    np.save(tmp_path / "A.npy", whole((6, 7), "f4"))
    a = np.load(tmp_path / "A.npy", mmap_mode="r")
    out = np.lib.format.open_memmap(tmp_path / "C.npy", "w+", "f4", (6, 5))
    assert bramble.matmul(a, whole((7, 5), "f4"), out=out) is out
    out.flush()
    assert_same(np.load(tmp_path / "C.npy"), np.matmul(np.asarray(a), whole((7, 5), "f4")))


# threads=.


@pytest.mark.parametrize("shapes", [((2, 2), (2, 2)), ((2,), (2,)), ((0, 2, 2), (2, 2)), ((0, 2), (2, 0))], ids=text)
@pytest.mark.parametrize("threads, error", [(0, ValueError), (-1, ValueError), (-(2**70), ValueError), (1.5, TypeError),
                                            ("2", TypeError)])
def test_threads_is_a_number_from_1_on(shapes, threads, error):
    with pytest.raises(error, match="threads=|integer"):
        bramble.matmul(*map(np.ones, shapes), threads=threads)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m, k, n", [(300, 200, 250), (2000, 60, 60), (60, 60, 2000), (150, 3000, 150)])
def test_the_bits_are_the_same_for_any_number_of_threads(m, k, n, dtype):
    rng = np.random.default_rng(5)
    a, b = ((100 * rng.standard_normal(shape)).astype(dtype) for shape in ((m, k), (k, n)))
    first = bramble.matmul(a, b, threads=1).tobytes()
    assert [bramble.matmul(a, b, threads=threads).tobytes() == first for threads in (2, 5, np.int64(3), None)] == [True] * 4


# The process around it.


def test_many_threads_call_at_once():
    cases = [any_case(seed) for seed in range(40)]
    cases += [(whole((130, 120), "f8"), whole((120, 140), "f8", 2)), (whole((0, 3), "f4"), whole((3, 2), "f4"))]
    expected = [np.matmul(*case) for case in cases]

    def call(first):
        for at in range(first, first + 500):
            np.testing.assert_array_equal(bramble.matmul(*cases[at % len(cases)]), expected[at % len(cases)], strict=True)
        return 500

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(call, range(8))) == 4000


def python(code):
    """The words that a new interpreter prints, running this code."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


LONG = """
import signal, numpy as np, bramble
signal.signal(signal.SIGINT, signal.default_int_handler)
ones, c = np.broadcast_to(1.0, (9000, 9000)), np.zeros((9000, 9000))
print("begins", flush=True)
try:
    bramble.matmul(ones, ones, out=c, threads=1)
finally:
    print("unfinished" if (c != 9000).any() else "finished", *bramble.matmul([[1, 2]], [3, 4]), flush=True)
"""


def test_ctrl_c_ends_a_long_product():
    child = subprocess.Popen([sys.executable, "-c", LONG], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "begins\n"
        begun, deadline = cpu_seconds(child.pid), time.monotonic() + DEADLINE_S
        while cpu_seconds(child.pid) < begun + 0.3:
            assert child.poll() is None and time.monotonic() < deadline, "the product does not begin"
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=DEADLINE_S)
    finally:
        child.kill()
        child.wait()
    assert out == "unfinished 11\n"
    assert err.rstrip().endswith("KeyboardInterrupt") and "_matmul.py" in err
    assert child.returncode == -signal.SIGINT


FLAT = """
import sys, os, numpy as np, bramble
a, stack, c = np.ones((100, 100)), np.ones((3, 50, 100), "f4"), np.ones((100, 100))
b = np.frombuffer(b"?" + a.tobytes(), offset=1).reshape(100, 100)
arrays = a, b, c, stack
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
def calls(times):
    for _ in range(times):
        bramble.matmul(a, a), bramble.matmul(a, a, out=c), bramble.matmul(a[::-1], b), bramble.matmul(stack, a)
        try:
            bramble.matmul(a, a[:50])
        except ValueError:
            pass
calls(100)
before, counts = resident(), [sys.getrefcount(array) for array in arrays]
calls(600)
assert [sys.getrefcount(array) for array in arrays] == counts
print(resident() - before)
"""


def test_memory_stays_flat_over_3000_calls():
    # If calls of one kind left their result behind, that would be 48 MB.
    assert int(python(FLAT)[0]) < 16e6


def test_the_import_starts_no_thread():
    count = "import os, threading; print(len(os.listdir('/proc/self/task')), threading.active_count())"
    assert python(f"import numpy, bramble; {count}") == python(f"import numpy; {count}")


def test_no_thread_stays_after_a_product():
    code = ("import os, time, numpy as np, bramble; threads = lambda: len(os.listdir('/proc/self/task')); before = threads()\n"
            "a = np.ones((400, 400)); bramble.matmul(a, a, threads=5); end = time.monotonic() + 20\n"
            "while threads() > before and time.monotonic() < end: time.sleep(0.01)\n"
            "print(threads() - before)")
    assert python(code) == ["0"]
