"""Arrays as the compiled module takes them: element types, layouts, and results as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

DTYPES = {np.dtype(t) for t in ("f4", "f8", "i4", "i8")}
_NAMES: dict[str, np.dtype[Any]] = {"f32": np.dtype("f4"), "f64": np.dtype("f8"), "i32": np.dtype("i4"), "i64": np.dtype("i8")}


def check_dtype(dtype: np.dtype, what: str) -> np.dtype:
    """The dtype in native byte order; an error if Bramble has no such elements."""
    native = dtype if dtype in DTYPES else dtype.newbyteorder("=")
    if native not in DTYPES:
        raise TypeError(
            f"{what}: elements of {dtype} are not supported; Bramble has float32, float64, int32 and int64: convert the array "
            f"with .astype"
        )
    return native


def as_array(value: Any) -> np.ndarray:
    """The value as an array: of NumPy, of a library with DLPack, or whatever NumPy converts."""
    if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    return np.asarray(value)


def unmasked(value: Any, what: str) -> np.ndarray:
    """The value as an array; an error if it has a mask, which the result would not have."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{what}: masked arrays are not supported; give the masked elements a value with .filled, as in x.filled(0)")
    return as_array(value)


def in_class(result: np.ndarray, a: Any, b: Any, out: np.ndarray | None) -> Any:
    """What ``numpy.matmul`` returns for these operands: ``out``, a scalar, or an array of the subclass that an operand has."""
    if out is not None:
        return out if type(out) is np.ndarray else out.__array_wrap__(out, (np.matmul, (a, b, out), 0))
    # NumPy's order: by priority, then a subclass before a plain array, then the left before the right one.
    arrays = [value for value in (a, b) if isinstance(value, np.ndarray)]
    owner = max(arrays, key=lambda array: (array.__array_priority__, type(array) is not np.ndarray), default=result)
    if type(owner) is not np.ndarray:
        result = owner.__array_wrap__(result, (np.matmul, (a, b), 0))
    return result[()] if type(result) is np.ndarray and result.ndim == 0 else result


def readable(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The two-dimensional array with contiguous rows or columns; copied only if it has other strides, or another dtype."""
    if array.dtype != dtype:
        array = array.astype(dtype)
    return array if has_contiguous_lines(array) else np.array(array, order="C")


def has_contiguous_lines(array: np.ndarray) -> bool:
    """Whether rows or columns of a two-dimensional array are contiguous, apart from each other, and aligned."""
    # NumPy calls an empty array aligned, wherever it lies.
    if array.size == 0 or not array.flags.aligned:
        return False
    size = array.itemsize
    (rows, cols), (down, along) = array.shape, array.strides
    by_rows = (along == size or cols <= 1) and (down >= cols * size or rows <= 1) and down % size == 0
    by_cols = (down == size or rows <= 1) and (along >= rows * size or cols <= 1) and along % size == 0
    return by_rows or by_cols


def as_result(memory: Any) -> np.ndarray:
    """A result of the compiled module as an array over the same memory."""
    return np.frombuffer(memory, dtype=_NAMES[memory.dtype]).reshape(memory.shape)
