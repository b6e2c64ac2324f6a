"""``bramble.matmul``: products of arrays in this process."""

from __future__ import annotations

import os
from itertools import product, zip_longest
from operator import index
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bramble._native import module
from bramble._operands import DTYPES, as_array, check_dtype, has_contiguous_lines, in_class, readable

_multiply = module.multiply
_threads: int | None = None
_NUMPYS_OWN = np.ndarray.__array_ufunc__


def _default_threads() -> int:
    global _threads
    if _threads is None:
        module.guest()
        stated = os.environ.get("BRAMBLE_THREADS", "")
        _threads = int(stated) if stated.isdigit() and int(stated) > 0 else module.default_threads()
    return _threads


def _count(threads: int | None) -> int:
    if threads is None:
        return _threads or _default_threads()
    if index(threads) < 1:
        raise ValueError(f"threads={threads}: at least one thread computes")
    return threads


def matmul(a: ArrayLike, b: ArrayLike, out: np.ndarray | None = None, *, threads: int | None = None) -> Any:
    """The matrix product of two arrays, as ``numpy.matmul``.

    Parameters
    ----------
    a, b : array_like
        Of one, two or more dimensions; shapes are combined, and errors raised, as by ``numpy.matmul``. Elements are float32,
        float64, int32 or int64 (others raise ``TypeError``), of one type or of two that NumPy promotes to one of these.
        A class with ufuncs of its own (``__array_ufunc__``) multiplies itself, as with NumPy.
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
        _into(a, b, c, _count(threads))
        return c
    return _general(a, b, out, threads)


def _into(a: np.ndarray, b: np.ndarray, c: np.ndarray, threads: int) -> None:
    try:
        _multiply(a, b, c, threads)
    except BufferError:
        # Strides that are negative or no whole elements, or elements that are not aligned.
        fresh = np.empty(c.shape, c.dtype)
        _multiply(readable(a, a.dtype), readable(b, b.dtype), fresh, threads)
        c[...] = fresh


def _general(a: Any, b: Any, out: Any, threads: int | None) -> Any:
    for value in (a, b, out):
        if hasattr(value, "_placed"):
            raise TypeError("bramble.matmul multiplies in this process; multiply placed matrices with @")
    threads = _count(threads)
    if isinstance(out, tuple) and len(out) == 1:
        (out,) = out
    if any(map(_has_own_ufuncs, (a, b, out))) or not (out is None or isinstance(out, np.ndarray)):
        # The class of an operand answers, or NumPy raises its own error for this `out`.
        return np.matmul(a, b, out=out)
    left, right = as_array(a), as_array(b)
    stack = _stack(left, right)
    if stack is None:
        # NumPy raises its own error for these shapes.
        return np.matmul(left, right, out=out)
    dtype = np.result_type(*(check_dtype(operand.dtype, "bramble.matmul") for operand in (left, right)))
    core = (*left.shape[-2:-1], *(right.shape[-1:] if right.ndim > 1 else ()))
    if out is not None and not _fits(out, dtype, stack, core):
        return np.matmul(left, right, out=out)
    lefts = left if left.ndim > 1 else left[np.newaxis]
    rights = right if right.ndim > 1 else right[:, np.newaxis]
    matrices = (*stack, lefts.shape[-2], rights.shape[-1])
    is_direct = out is not None and out.shape == (*stack, *core) and _takes(out, dtype, matrices, (left, right))
    result = out.view(np.ndarray) if out is not None and is_direct else np.empty((*stack, *core), dtype)
    _each(lefts, rights, result.reshape(matrices), threads)
    if out is not None and not is_direct:
        np.copyto(out, result, casting="same_kind")
    return in_class(result, a, b, out)


def _has_own_ufuncs(value: Any) -> bool:
    return getattr(type(value), "__array_ufunc__", _NUMPYS_OWN) is not _NUMPYS_OWN


def _stack(a: np.ndarray, b: np.ndarray) -> tuple[int, ...] | None:
    """Shape of the stack of products; ``None`` if the operands do not form one."""
    if a.ndim == 0 or b.ndim == 0 or a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        return None
    return _broadcast(a.shape[:-2], b.shape[:-2])


def _broadcast(x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, ...] | None:
    """The common shape, or ``None``; for more dimensions than ``numpy.broadcast_shapes`` takes."""
    pairs = list(zip_longest(reversed(x), reversed(y), fillvalue=1))
    if any(i != j and 1 not in (i, j) for i, j in pairs):
        return None
    return tuple(j if i == 1 else i for i, j in reversed(pairs))


def _fits(out: np.ndarray, dtype: np.dtype, stack: tuple[int, ...], core: tuple[int, ...]) -> bool:
    """Whether NumPy accepts this ``out``, which may be a larger stack: each product is then written several times."""
    at = out.ndim - len(core)
    return (
        out.flags.writeable
        and np.can_cast(dtype, out.dtype, "same_kind")
        and at >= 0
        and out.shape[at:] == core
        and _broadcast(stack, out.shape[:at]) == out.shape[:at]
    )


def _takes(out: np.ndarray, dtype: np.dtype, matrices: tuple[int, ...], operands: tuple[np.ndarray, np.ndarray]) -> bool:
    """Whether products can be written where they belong: in their type, apart from the operands, and in whole lines."""
    # Adding axes of length 1 copies nothing.
    views = out.view(np.ndarray).reshape(matrices)
    return (
        out.size > 0
        and out.dtype == dtype
        and has_contiguous_lines(views[(0,) * (len(matrices) - 2)])
        and not any(np.may_share_memory(out, operand) for operand in operands)
    )


def _each(lefts: np.ndarray, rights: np.ndarray, products: np.ndarray, threads: int) -> None:
    """All products of two stacks."""
    dtype, stack = products.dtype, products.shape[:-2]
    lefts, rights = _spread(lefts, dtype, stack), _spread(rights, dtype, stack)
    for at in product(*map(range, stack)):
        _into(lefts[at], rights[at], products[at], threads)


def _spread(matrices: np.ndarray, dtype: np.dtype, stack: tuple[int, ...]) -> np.ndarray:
    if matrices.dtype != dtype:
        matrices = matrices.astype(dtype)
    return matrices if matrices.shape[:-2] == stack else np.broadcast_to(matrices, (*stack, *matrices.shape[-2:]))
