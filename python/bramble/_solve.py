"""``bramble.solve`` and ``bramble.lu``: systems of equations in this process; ``Cluster.solve`` and ``Cluster.lu``."""

from __future__ import annotations

import operator
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bramble import _matmul
from bramble._array import DistArray
from bramble._native import module
from bramble._operands import as_result, readable, unmasked
from bramble.errors import LinAlgWarning, VerificationError

if TYPE_CHECKING:
    from bramble._cluster import Cluster

# The largest backward error that is accepted, in units of the last place times the order: that of HPL.
_TOLERANCE = 16.0
# Most workers that a call may lose.
_SURVIVE_MAX = 8


class LU:
    """A factored matrix, L·U with partial pivoting, which solves for many right-hand sides.

    ``shape`` and ``dtype`` are those of the matrix; ``backward_error`` is that of the last solution: the smallest relative change
    of matrix and right-hand side for which it is exact (Rigal & Gaches 1967).
    """

    def __init__(self, a: ArrayLike, *, threads: int | None = None, copy: bool = True) -> None:
        array = unmasked(a, "lu")
        if array.ndim != 2:
            raise np.linalg.LinAlgError(f"{array.ndim}-dimensional array given. A matrix has two dimensions")
        if array.shape[0] != array.shape[1]:
            raise np.linalg.LinAlgError("Last 2 dimensions of the array must be square")
        self.dtype = _float_type(array.dtype)
        self.shape = array.shape
        self.backward_error = 0.0
        self._size = array.shape[0]
        count = _matmul._count(threads)
        matrix = readable(array, self.dtype)
        # The check of each solution reads the matrix.
        if copy and np.may_share_memory(matrix, array):
            matrix = matrix.copy(order="K")
        self._native = module.Lu(matrix, count) if self._size else None
        self._rounding, self._is_warned_of = np.finfo(self.dtype).eps, False

    @classmethod
    def _of(cls, native: module.Lu, size: int, dtype: np.dtype) -> LU:
        """Factors that workers have computed."""
        made = cls.__new__(cls)
        made.dtype, made.shape, made.backward_error = dtype, (size, size), 0.0
        made._size, made._native = size, native
        # Workers compute in f64, whatever the type of the matrix.
        made._rounding, made._is_warned_of = np.finfo("f8").eps, False
        return made

    def solve(self, b: ArrayLike) -> np.ndarray:
        """X with A X = B; ``b`` is a vector, or has a right-hand side in each column. The solution's residual is checked.

        The first call warns (``LinAlgWarning``) if the matrix is so ill-conditioned that no digit of X may be right.
        """
        right = unmasked(b, "solve")
        if right.ndim not in (1, 2):
            raise ValueError(f"solve: b has {right.ndim} dimensions; it is a vector or has right-hand sides in its columns")
        if right.shape[0] != self._size:
            raise ValueError(
                f"solve: Input operand 1 has a mismatch in its core dimension 0, with gufunc signature (m,m),(m,n)->(m,n) "
                f"(size {right.shape[0]} is different from {self._size})"
            )
        dtype = _float_type(right.dtype)
        if self._native is None or right.size == 0:
            return _in_class(np.zeros(right.shape, self.dtype), b)
        columns = right if right.ndim == 2 else right[:, np.newaxis]
        memory, self.backward_error = self._native.solve(readable(columns, dtype))
        accepted = _TOLERANCE * self._size * np.finfo(self.dtype).eps / 2
        if not self.backward_error <= accepted:
            raise VerificationError(
                f"the solution has a backward error of {self.backward_error:.1e}, and {accepted:.1e} is accepted: elements grew "
                f"too much during elimination, or the machine computes wrongly"
            )
        self._warn_if_ill_conditioned()
        return _in_class(as_result(memory).reshape(right.shape), b)

    def _warn_if_ill_conditioned(self) -> None:
        if not self._is_warned_of:
            self._is_warned_of = True
            condition = self.condition()
            if condition * self._rounding >= 1:
                text = f"the matrix is ill-conditioned (condition about {condition:.1e}): no digit of the solution may be right"
                warnings.warn(text, LinAlgWarning, stacklevel=_callers())

    def condition(self) -> float:
        """An estimate of the condition number in the 1-norm, almost always within a factor of 3 (Higham 1988)."""
        return self._native.condition() if self._native else 0.0

    def __repr__(self) -> str:
        return f"<bramble.LU {self.shape[0]}x{self.shape[1]} {self.dtype}>"


def lu(a: ArrayLike, *, threads: int | None = None, copy: bool = True) -> LU:
    """Factors a square matrix of float32 or float64 (integers as float64) for many right-hand sides.

    ``copy=False`` saves the memory of a copy of the matrix, whose product with each solution is compared with the right-hand side:
    the matrix must not change then as long as the factors are used.

    Raises ``numpy.linalg.LinAlgError`` if it is not square or is singular (the message names the column), ``ValueError`` if an
    element is infinite or NaN, ``MemoryError`` if the factors do not fit.
    """
    return LU(a, threads=threads, copy=copy)


def solve(a: ArrayLike, b: ArrayLike, *, threads: int | None = None) -> np.ndarray:
    """Solves A X = B, as ``numpy.linalg.solve`` for one matrix; the result is checked by its residual.

    ``a``: n × n; ``b``: a vector of n elements, or n × k. float32 with float32 is solved in float32, everything else in float64.
    Errors as for ``lu``.
    """
    left, right = unmasked(a, "solve"), unmasked(b, "solve")
    dtype = np.result_type(_float_type(left.dtype), _float_type(right.dtype))
    return _in_class(LU(left.astype(dtype, copy=False), threads=threads, copy=False).solve(right), b)


def on_cluster(cluster: Cluster, a: Any, b: ArrayLike, survive: int) -> np.ndarray:
    """``Cluster.solve``."""
    survive = _survive(cluster, survive)
    right = unmasked(b, "solve")
    if right.ndim not in (1, 2):
        raise ValueError(f"solve: b has {right.ndim} dimensions; it is a vector or has right-hand sides in its columns")
    shape, native = _matrix(a)
    if not cluster._has_workers or shape is not None and (0 in shape or right.size == 0):
        return solve(_here(cluster, a), b, threads=cluster._threads)
    columns = right if right.ndim == 2 else right[:, np.newaxis]
    columns = readable(columns, _float_type(right.dtype))
    memory, cluster._last = cluster._native.solve(native, columns, _matmul._count(None), survive)
    return _in_class(as_result(memory).reshape(right.shape), b)


def lu_on_cluster(cluster: Cluster, a: Any, survive: int) -> LU:
    """``Cluster.lu``."""
    survive = _survive(cluster, survive)
    shape, native = _matrix(a)
    if not cluster._has_workers or shape is not None and 0 in shape:
        return LU(_here(cluster, a), threads=cluster._threads)
    factors, size, dtype, cluster._last = cluster._native.lu(native, _matmul._count(None), survive)
    return LU._of(factors, size, np.dtype({"f32": "f4", "f64": "f8"}[dtype]))


def _survive(cluster: Cluster, survive: int) -> int:
    """How many workers may be lost."""
    survive = operator.index(survive)
    if not 0 <= survive <= _SURVIVE_MAX:
        raise ValueError(f"survive={survive}: it is 0 to {_SURVIVE_MAX}, the number of workers that may be lost")
    if survive and not cluster._has_workers:
        raise ValueError(f"survive={survive} needs workers, and this cluster has none")
    return survive


def _matrix(a: Any) -> tuple[tuple[int, ...] | None, Any]:
    """Its shape, unless it is a file, and it as the native module takes it."""
    if isinstance(a, DistArray):
        return a.shape, a._native
    if isinstance(a, (str, os.PathLike)):
        return None, os.fspath(a)
    array = unmasked(a, "a system of equations")
    if array.ndim != 2:
        raise np.linalg.LinAlgError(f"{array.ndim}-dimensional array given. A matrix has two dimensions")
    return array.shape, readable(array, _float_type(array.dtype))


def _here(cluster: Cluster, a: Any) -> Any:
    """A matrix as an array of this process."""
    here = cluster.put(a) if isinstance(a, (str, os.PathLike)) else a
    return here.numpy() if isinstance(here, DistArray) else here


def _callers() -> int:
    """The level of the first function outside this package, for a warning of the function that asks."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("bramble."):
        level, frame = level + 1, frame.f_back
    return level


def _in_class(x: np.ndarray, b: Any) -> np.ndarray:
    """The solution in the class of the right-hand side, as of ``numpy.linalg.solve``."""
    return b.__array_wrap__(x) if isinstance(b, np.ndarray) and type(b) is not np.ndarray else x


def _float_type(dtype: np.dtype) -> np.dtype:
    native = dtype.newbyteorder("=")
    if native in (np.dtype("f4"), np.dtype("f8")):
        return native
    if native.kind in "iub":
        return np.dtype("f8")
    raise TypeError(f"systems of {dtype} are not solved; convert the array with .astype to float32 or float64")
