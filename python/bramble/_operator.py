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
        super().__init__(array.dtype, array.shape)  # type: ignore[call-arg]
        self.array = array

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return self.array @ self._converted(np.ravel(x))

    def _matmat(self, x: np.ndarray) -> np.ndarray:
        return self.array @ self._converted(x)

    def _rmatvec(self, x: np.ndarray) -> np.ndarray:
        return self.array.T @ self._converted(np.ravel(x))

    def _rmatmat(self, x: np.ndarray) -> np.ndarray:
        return self.array.T @ self._converted(x)

    def _converted(self, x: np.ndarray) -> np.ndarray:
        """In the type of the matrix: f64 as f32, but neither complex numbers as real ones nor floats as integers."""
        return x.astype(self.dtype, casting="same_kind", copy=False)

    def _adjoint(self) -> LinearOperator:
        return _Placed(self.array.T)

    _transpose = _adjoint


def operator(array: DistArray) -> LinearOperator:
    """The operator of a placed matrix."""
    return _Placed(array)
