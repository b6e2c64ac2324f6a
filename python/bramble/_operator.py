"""Placed matrices as linear operators of SciPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse.linalg import LinearOperator

from bramble._operands import check_dtype
from bramble._placement import Replicate, Shard

if TYPE_CHECKING:
    from bramble._array import DistArray


class _Placed(LinearOperator):
    """Products with a placed matrix; a block of vectors travels at once.

    As with SciPy's own operators, a product has the type to which NumPy promotes matrix and vectors. For a wider type than the
    matrix's, `wider` has the matrix in that type, placed at the first such product; operator, adjoint and transpose share it.
    """

    def __init__(self, array: DistArray, wider: dict[np.dtype, DistArray], is_transposed: bool = False) -> None:
        shape = array.shape[::-1] if is_transposed else array.shape
        super().__init__(array.dtype, shape)  # type: ignore[call-arg]
        self.array, self.wider, self.is_transposed = array, wider, is_transposed

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return self._product(np.ravel(x), self.is_transposed)

    def _matmat(self, x: np.ndarray) -> np.ndarray:
        return self._product(x, self.is_transposed)

    def _rmatvec(self, x: np.ndarray) -> np.ndarray:
        return self._product(np.ravel(x), not self.is_transposed)

    def _rmatmat(self, x: np.ndarray) -> np.ndarray:
        return self._product(x, not self.is_transposed)

    def _product(self, x: np.ndarray, by_columns: bool) -> np.ndarray:
        if x.dtype.kind == "c":
            # The matrix is real: real and imaginary parts are vectors of their own, which travel together.
            parts = x.reshape(len(x), -1)
            both = self._product(np.concatenate([parts.real, parts.imag], axis=1), by_columns)
            real, imaginary = np.hsplit(both, 2)
            return (real + 1j * imaginary).reshape(-1, *x.shape[1:])
        dtype = check_dtype(np.result_type(self.array.dtype, x.dtype), "a product of a placed matrix and a vector")
        array = self._in(dtype)
        return (array.T if by_columns else array) @ x.astype(dtype, copy=False)

    def _in(self, dtype: np.dtype) -> DistArray:
        """The matrix in this type."""
        if dtype == self.array.dtype:
            return self.array
        if dtype not in self.wider:
            array = self.array
            # Its units may be those of some machines only, if others have no part of it.
            placement = Shard(array.placement.axis) if isinstance(array.placement, Shard) else Replicate()
            self.wider[dtype] = array.cluster.put(array.numpy().astype(dtype), placement, copy=False)
        return self.wider[dtype]

    def _adjoint(self) -> LinearOperator:
        return _Placed(self.array, self.wider, not self.is_transposed)

    _transpose = _adjoint


def operator(array: DistArray) -> LinearOperator:
    """The operator of a placed matrix."""
    return _Placed(array, {})
