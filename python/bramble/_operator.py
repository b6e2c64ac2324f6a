"""Placed matrices as linear operators of SciPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse.linalg import LinearOperator

if TYPE_CHECKING:
    from bramble._array import DistArray


class _Placed(LinearOperator):
    """Products with a placed matrix; a block of vectors travels at once."""

    def __init__(self, array: DistArray) -> None:
        super().__init__(array.dtype, array.shape)
        self.array = array

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return self.array @ np.ravel(x).astype(self.dtype, copy=False)

    def _matmat(self, x: np.ndarray) -> np.ndarray:
        return self.array @ x.astype(self.dtype, copy=False)

    def _rmatvec(self, x: np.ndarray) -> np.ndarray:
        return self.array.T @ np.ravel(x).astype(self.dtype, copy=False)

    def _rmatmat(self, x: np.ndarray) -> np.ndarray:
        return self.array.T @ x.astype(self.dtype, copy=False)

    def _adjoint(self) -> LinearOperator:
        return _Placed(self.array.T)

    _transpose = _adjoint


def operator(array: DistArray) -> LinearOperator:
    """The operator of a placed matrix."""
    return _Placed(array)
