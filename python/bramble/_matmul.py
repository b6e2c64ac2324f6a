"""``bramble.matmul``: products of arrays in this process."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bramble._native import module
from bramble._operands import DTYPES, as_array, check_dtype, readable

_multiply = module.multiply
_threads: int | None = None


def _default_threads() -> int:
    global _threads
    if _threads is None:
        module.guest()
        stated = os.environ.get("BRAMBLE_THREADS", "")
        _threads = int(stated) if stated.isdigit() and int(stated) > 0 else module.default_threads()
    return _threads


def matmul(a: ArrayLike, b: ArrayLike, out: np.ndarray | None = None, *, threads: int | None = None) -> Any:
    """The matrix product of two arrays, as ``numpy.matmul``.

    Parameters
    ----------
    a, b : array_like
        Of one, two or more dimensions; shapes are combined, and errors raised, as by ``numpy.matmul``. Elements are float32,
        float64, int32 or int64 (others raise ``TypeError``), of one type or of two that NumPy promotes to one of these.
    out : ndarray, optional
        Where the result is written.
    threads : int, optional
        Compute threads; by default ``BRAMBLE_THREADS``, or all processors that this process may use.

    Returns
    -------
    ndarray or scalar
        The product. Integers wrap around, as in NumPy. The same bits for any number of threads.

    Placed matrices are multiplied with ``@``; see ``bramble.Cluster``.
    """
    if (
        type(a) is np.ndarray
        and type(b) is np.ndarray
        and a.ndim == 2 == b.ndim
        and a.dtype == b.dtype
        and a.dtype in DTYPES
        and a.shape[1] == b.shape[0]
        and out is None
    ):
        c = np.empty((a.shape[0], b.shape[1]), a.dtype)
        _into(a, b, c, threads)
        return c
    return _general(a, b, out, threads)


def _into(a: np.ndarray, b: np.ndarray, c: np.ndarray, threads: int | None) -> None:
    if threads is None:
        threads = _threads or _default_threads()
    elif threads < 1:
        raise ValueError(f"threads={threads}: at least one thread computes")
    try:
        _multiply(a, b, c, threads)
    except BufferError:
        # Strides that are negative or no whole elements, or elements that are not aligned.
        c[...] = matmul(readable(a, a.dtype), readable(b, b.dtype), threads=threads)


def _general(a: ArrayLike, b: ArrayLike, out: np.ndarray | None, threads: int | None) -> Any:
    for operand in (a, b):
        if hasattr(operand, "_placed"):
            raise TypeError("bramble.matmul multiplies in this process; multiply placed matrices with @")
    a, b = as_array(a), as_array(b)
    _check_shapes(a, b, out)
    dtype = check_dtype(np.result_type(a, b), "bramble.matmul")
    for operand in (a, b):
        check_dtype(operand.dtype, "bramble.matmul")
    left = a[np.newaxis, :] if a.ndim == 1 else a
    right = b[:, np.newaxis] if b.ndim == 1 else b
    stack = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    whole = (*stack, left.shape[-2], right.shape[-1])
    shape = (*stack, *((left.shape[-2],) if a.ndim > 1 else ()), *((right.shape[-1],) if b.ndim > 1 else ()))
    is_direct = out is not None and _takes(out, dtype, (a, b))
    c = out.reshape(whole) if is_direct and out.shape == shape and out.flags.c_contiguous else np.empty(whole, dtype)
    left = np.broadcast_to(_in(left, dtype), (*stack, *left.shape[-2:]))
    right = np.broadcast_to(_in(right, dtype), (*stack, *right.shape[-2:]))
    for at in np.ndindex(stack):
        _into(left[at], right[at], c[at], threads)
    if out is None:
        return c.reshape(shape)[()]
    if not np.shares_memory(c, out) or c.base is not out and c is not out:
        np.copyto(out, c.reshape(shape), casting="same_kind")
    return out


def _in(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return array if array.dtype == dtype else array.astype(dtype)


def _takes(out: np.ndarray, dtype: np.dtype, operands: tuple[np.ndarray, np.ndarray]) -> bool:
    """Whether a result can be written where it belongs: in its type, and apart from the operands."""
    return (
        type(out) is np.ndarray
        and out.dtype == dtype
        and out.flags.writeable
        and out.flags.aligned
        and not any(np.may_share_memory(out, operand) for operand in operands)
    )


def _check_shapes(a: np.ndarray, b: np.ndarray, out: Any) -> None:
    """Raises what NumPy raises for these shapes, and this ``out``."""
    if out is not None and not isinstance(out, np.ndarray):
        raise TypeError("return arrays must be of ArrayType")
    depth = b.shape[-2 if b.ndim > 1 else 0] if b.ndim else 0
    fits = a.ndim > 0 and b.ndim > 0 and a.shape[-1] == depth
    if fits:
        try:
            np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except ValueError:
            fits = False
    if fits and out is None:
        return
    # An operand without memory of its own: NumPy computes nothing that is kept, and raises its own error.
    zero = np.zeros((), np.result_type(a, b) if a.dtype.kind in "fiubc" and b.dtype.kind in "fiubc" else a.dtype)
    if not fits:
        np.matmul(np.broadcast_to(zero, a.shape), np.broadcast_to(zero, b.shape), out)
        raise ValueError(f"shapes {a.shape} and {b.shape} do not form a product")
    _check_out(a, b, out, zero.dtype)


def _check_out(a: np.ndarray, b: np.ndarray, out: np.ndarray, dtype: np.dtype) -> None:
    stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*stack, *((a.shape[-2],) if a.ndim > 1 else ()), *((b.shape[-1],) if b.ndim > 1 else ()))
    # NumPy's own errors, from a product as small as shapes and types allow: the depth does not matter.
    thin = np.zeros((), dtype)
    left = np.broadcast_to(thin, (*a.shape[:-1], 0))
    right = np.broadcast_to(thin, (*b.shape[:-2], 0, *b.shape[-1:]) if b.ndim > 1 else (0,))
    if out.shape != shape or not np.can_cast(dtype, out.dtype, "same_kind") or not out.flags.writeable:
        np.matmul(left, right, out)
