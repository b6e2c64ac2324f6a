"""``bramble.DistArray``: a matrix whose elements the machines of a cluster hold."""

from __future__ import annotations

import numbers
import os
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np

from bramble._native import module
from bramble._operands import _NAMES, as_result, check_dtype, readable, unmasked
from bramble._placement import Placement, Replicate, Shard, native
from bramble._report import Report, picture

if TYPE_CHECKING:
    from bramble._cluster import Cluster


class Part(NamedTuple):
    """What one machine holds of a matrix."""

    worker: str
    """Name of the machine."""
    rows: slice
    """Its rows of the matrix."""
    cols: slice
    """Its columns."""
    nbytes: int
    """Bytes of its elements."""


class Operand(NamedTuple):
    """An operand as the compiled module takes it."""

    native: Any
    shape: tuple[int, int]
    dtype: np.dtype
    is_placed: bool
    was_vector: bool


class DistArray:
    """A matrix, m × n, whose elements the machines of a cluster hold: float32, float64, int32 or int64.

    It comes from ``Cluster.put`` or from an operation on others. ``x @ W`` with an array ``x`` returns an array; ``W1 @ W2``,
    ``W + V``, ``W - V``, ``2 * W`` and ``W.T`` stay at the machines. ``W.numpy()`` fetches it; nothing else does: a function of
    NumPy that Bramble does not have raises ``TypeError``. It is freed with ``free``, or when the last reference is gone.

    Every method that asks the machines raises ``ValueError`` after ``free``, ``ClusterClosed`` after the end of the cluster,
    ``ForkedProcess`` in a fork, and ``PartLost`` if a part is lost and cannot be made again; every operation that leaves a matrix
    at the machines raises ``OutOfClusterMemory`` if they have no room for it. Operators raise ``TypeError`` for operands of two
    types and ``ValueError``, with NumPy's text, for shapes that do not fit.
    """

    __slots__ = ("_cluster", "_held", "_placed", "_report", "_transposed", "__weakref__")
    _cluster: Cluster
    _held: np.ndarray | None
    _placed: Any
    _report: Report
    _transposed: bool
    __array_priority__ = 1000

    def __init__(self) -> None:
        raise TypeError("a DistArray comes from Cluster.put, or from an operation on others")

    @classmethod
    def _of(
        cls, cluster: Cluster, placed: Any, report: Report, held: np.ndarray | None, transposed: bool = False
    ) -> Self:
        self = object.__new__(cls)
        self._cluster, self._placed, self._report = cluster, placed, report
        self._held, self._transposed = held, transposed
        return self

    @property
    def cluster(self) -> Cluster:
        """The cluster on which it is placed."""
        return self._cluster

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, m and n."""
        rows, cols = self._report["rows"], self._report["cols"]
        return (cols, rows) if self._transposed else (rows, cols)

    @property
    def ndim(self) -> Literal[2]:
        """Always 2."""
        return 2

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.shape[0] * self.shape[1]

    @property
    def dtype(self) -> np.dtype:
        """Type of the elements."""
        return _NAMES[self._report["dtype"]]

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, each counted once."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def placement(self) -> Placement:
        """How it is spread: the units are the rows (columns) of each part."""
        axis, parts = self._report["axis"], self._report["parts"]
        if axis is None:
            return Replicate()
        units = tuple(part["rows" if axis == 0 else "cols"] for part in parts)
        return Shard(1 - axis if self._transposed else axis, units)

    def parts(self) -> list[Part]:
        """Which machine holds which rows and columns, as they were placed; of replicas, each machine holds all."""
        parts = []
        for part in self._report["parts"]:
            rows = slice(part["row"], part["row"] + part["rows"])
            cols = slice(part["col"], part["col"] + part["cols"])
            if self._transposed:
                rows, cols = cols, rows
            parts.append(Part(part["machine"], rows, cols, part["bytes"]))
        return parts

    @property
    def T(self) -> DistArray:  # noqa: N802 (as in NumPy)
        """The transpose, n × m; nothing moves. It is the same matrix in the machines' memory, and freed with it."""
        return DistArray._of(self._cluster, self._placed, self._report, self._held, not self._transposed)

    def transpose(self) -> DistArray:
        """The transpose, as ``T``."""
        return self.T

    def numpy(self, rows: slice = slice(None), cols: slice = slice(None)) -> np.ndarray:
        """All elements, or those of some rows and columns, as an array of this process: ``W.numpy(rows=slice(0, 10))``.

        The slices are those of NumPy; only what is asked for travels. Raises ``ValueError`` for a step, ``TypeError`` for anything
        but a slice, and ``MemoryError`` if this process has no room for the array.
        """
        stored, across = (cols, rows) if self._transposed else (rows, cols)
        height, width = self._report["rows"], self._report["cols"]
        down, along = _span(stored, height, "rows"), _span(across, width, "cols")
        self._cluster._native.check(self._placed)
        if self._held is not None:
            found = np.array(self._held[slice(*down), slice(*along)], order="C")
        elif down[0] == down[1] or along[0] == along[1]:
            found = np.empty((down[1] - down[0], along[1] - along[0]), self.dtype)
        else:
            found = as_result(self._cluster._native.fetch(self._placed, down, along))
        return found.T if self._transposed else found

    def free(self) -> None:
        """Gives the memory at the machines back, and waits until they have it. Its transposes are gone, too; a second call is none."""
        self._cluster._native.free(self._placed)

    def redistribute(self, placement: Placement | Literal["auto"] | None = None) -> DistArray:
        """The same matrix, spread in another way; the elements travel between the machines.

        ``placement`` is that of ``Cluster.put``. Both matrices are held until one is freed.
        """
        made = self._cluster._native.make_sum(1.0, self._native, 0.0, None, native(placement))
        return self._cluster._placed(made)

    @property
    def _native(self) -> tuple[Any, bool]:
        return self._placed, self._transposed

    # Operations that stay at the machines.

    def __matmul__(self, other: Any) -> Any:
        return self._cluster.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return self._cluster.matmul(other, self)

    def __add__(self, other: Any) -> Any:
        return _sum(self, other, 1.0, 1.0)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return _sum(self, other, 1.0, -1.0)

    def __rsub__(self, other: Any) -> Any:
        return _sum(self, other, -1.0, 1.0)

    def __mul__(self, factor: Any) -> DistArray:
        """Times a number; the element type stays."""
        if isinstance(factor, np.ndarray) and factor.ndim == 0:
            factor = factor[()]
        if not isinstance(factor, numbers.Real) or isinstance(factor, (bool, np.bool_)):
            raise _lacks("multiplying by anything but a real number, element by element,")
        return self._scaled(_factor(factor, self.dtype))

    __rmul__ = __mul__

    def __neg__(self) -> DistArray:
        return self._scaled(-1.0)

    def _scaled(self, factor: float) -> DistArray:
        return self._cluster._placed(self._cluster._native.make_sum(factor, self._native, 0.0, None, None))

    # Reductions, at the machines.

    def topk(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Columns and values of the ``k`` largest elements of each row, largest first: two arrays, m × k, of int64 and of its type.

        Raises ``ValueError`` unless 1 ≤ ``k`` ≤ n.
        """
        return self._cluster._reduced("topk", k, self._native)

    def sum(self, axis: Literal[0, 1] | None = None) -> Any:
        """The sum of all elements, of each column (``axis=0``: n elements), or of each row (``axis=1``: m elements).

        Of the matrix's type, and of int64 for integers, which wrap around. Raises ``ValueError`` for another axis.
        """
        match axis:
            case None:
                return self.sum(1).sum()
            case 0 | -2:
                return self._cluster._reduced("colsum", 0, self._native).reshape(-1)
            case 1 | -1:
                return self._cluster._reduced("rowsum", 0, self._native).reshape(-1)
            case int():
                raise ValueError(f"axis {axis} is out of bounds for array of dimension 2")
        raise _lacks(f"a sum over axis={axis!r}")

    def max(self) -> Any:
        """The largest element, as a scalar of NumPy; NaN if one is NaN."""
        return self._cluster._reduced("max", 0, self._native).reshape(())[()]

    def min(self) -> Any:
        """The smallest element, as a scalar of NumPy; NaN if one is NaN."""
        return self._cluster._reduced("min", 0, self._native).reshape(())[()]

    def norm(self) -> Any:
        """The Frobenius norm; of integers as float64."""
        return self._cluster._reduced("norm", 0, self._native).reshape(())[()]

    def as_linear_operator(self) -> Any:
        """A ``scipy.sparse.linalg.LinearOperator``, m × n, for ``svds``, ``eigsh``, ``lobpcg``, ``cg`` and the like.

        Blocks of vectors travel at once. A product has the type to which NumPy promotes matrix and vectors, as with SciPy's own
        operators: for vectors of a wider type than the matrix (float64 for float32, floats for integers) the first product places
        the matrix a second time, in that type, for as long as the operator lives; ``OutOfClusterMemory`` if it does not fit. Raises
        ``ImportError`` without SciPy.
        """
        from bramble._operator import operator

        return operator(self)

    # NumPy's protocols.

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("a DistArray is not converted to an array behind your back; use .numpy()")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        name = ufunc.__name__
        if "out" in kwargs:
            raise _lacks(f"numpy.{name} with out= (write x = x @ W, not x @= W)")
        if method != "__call__" or len(inputs) > 2 or kwargs:
            raise _lacks(f"numpy.{name}" + (f".{method}" if method != "__call__" else f" with {', '.join(kwargs)}="))
        match ufunc, inputs:
            case (np.matmul, (a, b)):
                return self._cluster.matmul(a, b)
            case (np.add, (a, b)):
                return _sum(a, b, 1.0, 1.0)
            case (np.subtract, (a, b)):
                return _sum(a, b, 1.0, -1.0)
            case (np.negative, (a,)):
                return -a
            case (np.multiply, (a, b)):
                array, factor = (a, b) if isinstance(a, DistArray) else (b, a)
                return array.__mul__(factor)
        raise _lacks(f"numpy.{name}")

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        match func:
            case np.dot if len(args) == 2 and not kwargs:
                return self._cluster.matmul(*args)
            case np.transpose if len(args) == 1 and not kwargs:
                return self.T
            case np.linalg.norm if len(args) == 1 and not kwargs:
                return self.norm()
            case np.linalg.solve if len(args) == 2 and not kwargs:
                if not isinstance(args[0], DistArray):
                    raise _lacks("numpy.linalg.solve with a placed right-hand side")
                return self._cluster.solve(*args)
            case np.sum if not set(kwargs) - {"axis"} and len(args) <= 2:
                return self.sum(*args[1:], **kwargs)
            case np.max if len(args) == 1 and not kwargs:
                return self.max()
            case np.min if len(args) == 1 and not kwargs:
                return self.min()
            case np.shape:
                return self.shape
            case np.ndim:
                return 2
            case np.size if len(args) == 1 and not kwargs:
                return self.size
        raise _lacks(f"{func.__module__}.{func.__qualname__}")

    def __getitem__(self, key: Any) -> Any:
        raise _lacks("indexing a DistArray")

    def __iter__(self) -> Any:
        raise _lacks("iterating over a DistArray")

    def __bool__(self) -> bool:
        raise _lacks("the truth value of a DistArray")

    # Without these two, `W == V` would be whether both are one object.
    def __eq__(self, other: object) -> Any:
        raise _lacks("comparing with a DistArray")

    __hash__ = object.__hash__

    def __truediv__(self, other: Any) -> Any:
        raise _lacks("dividing a DistArray")

    def __pow__(self, other: Any) -> Any:
        raise _lacks("a power of a DistArray")

    def __repr__(self) -> str:
        rows, cols = self.shape
        workers = list(dict.fromkeys(part.worker for part in self.parts()))
        spread = {None: "a copy at each of", 0: "rows over", 1: "columns over"}[getattr(self.placement, "axis", None)]
        where = self._gone() or f"{spread} {', '.join(workers)}"
        return f"<bramble.DistArray {rows}x{cols} {self.dtype}, {where}>"

    def _gone(self) -> str | None:
        """Why no machine holds it any more."""
        if self._placed.freed:
            return "freed"
        return "its cluster is closed" if self._cluster.closed else None

    def _repr_html_(self) -> str:
        shape = f"{self.shape[0]} × {self.shape[1]} {self.dtype}"
        if gone := self._gone():
            return f"<div>{shape}, {gone}</div>"
        report = dict(self._report)
        if self._transposed:
            report.update(rows=report["cols"], cols=report["rows"])
            report["axis"] = None if report["axis"] is None else 1 - report["axis"]
            report["parts"] = [
                {**part, "row": part["col"], "rows": part["cols"], "col": part["row"], "cols": part["rows"]}
                for part in report["parts"]
            ]
        return f"{picture(report)}<div>{shape}</div>"


def factors(a: Any, b: Any) -> tuple[Operand, Operand]:
    """The operands of a product AB, whose shapes and types fit each other."""
    left, right = operand(a, is_left=True), operand(b, is_left=False)
    if left.shape[1] != right.shape[0]:
        raise ValueError(
            f"matmul: Input operand 1 has a mismatch in its core dimension 0, with gufunc signature (n?,k),(k,m?)->(n?,m?) "
            f"(size {right.shape[0]} is different from {left.shape[1]})"
        )
    same_dtype(left, right)
    return left, right


def operand(value: Any, is_left: bool) -> Operand:
    """The operand of a product."""
    if isinstance(value, DistArray):
        return Operand(value._native, value.shape, value.dtype, is_placed=True, was_vector=False)
    if isinstance(value, (str, os.PathLike)):
        source = module.Source(os.fspath(value))
        return Operand(source, source.shape, _NAMES[source.dtype], is_placed=False, was_vector=False)
    array = unmasked(value, "a product with a placed matrix")
    was_vector = array.ndim == 1
    if was_vector:
        array = array[np.newaxis, :] if is_left else array[:, np.newaxis]
    if array.ndim != 2:
        raise ValueError(f"a product with a placed matrix takes arrays of 1 or 2 dimensions, and this one has {array.ndim}")
    dtype = check_dtype(array.dtype, "a product with a placed matrix")
    return Operand(readable(array, dtype), array.shape, dtype, is_placed=False, was_vector=was_vector)


def same_dtype(left: Operand, right: Operand) -> None:
    """Refuses operands of two types: converting a placed matrix would move it."""
    if left.dtype != right.dtype:
        raise TypeError(f"operands of {left.dtype} and {right.dtype}: convert one with .astype before it is placed or multiplied")


def _factor(value: Any, dtype: np.dtype) -> float:
    """The factor of a matrix as the machines take it: in f64, and finite in the type of the matrix."""
    factor = float(value)
    if dtype.kind == "f":
        if not abs(factor) <= float(np.finfo(dtype).max):
            raise ValueError(f"a factor of {value} is no finite {dtype}")
    elif not isinstance(value, numbers.Integral):
        raise TypeError(f"a factor of {value!r} for a matrix of {dtype} is no integer: convert the array with .astype first")
    elif not np.iinfo(dtype).min <= int(value) <= np.iinfo(dtype).max or int(factor) != int(value):
        raise OverflowError(f"a factor of {value} for a matrix of {dtype}: it has to be of that type, and exact as a float64")
    return factor


def _sum(x: Any, y: Any, alpha: float, beta: float) -> Any:
    if np.ndim(x) == 0 and not isinstance(x, DistArray) or np.ndim(y) == 0 and not isinstance(y, DistArray):
        raise _lacks("adding a number to each element of a DistArray")
    cluster = (x if isinstance(x, DistArray) else y)._cluster
    left, right = operand(x, is_left=True), operand(y, is_left=True)
    if left.shape != right.shape or left.was_vector or right.was_vector:
        raise ValueError(f"operands could not be added with shapes {np.shape(x)} {np.shape(y)}: both need the same")
    same_dtype(left, right)
    return cluster._placed(cluster._native.make_sum(alpha, left.native, beta, right.native, None))


def _lacks(what: str) -> TypeError:
    return TypeError(f"{what} is not supported for placed matrices; fetch the matrix with .numpy() first")


def _span(part: slice, length: int, name: str) -> tuple[int, int]:
    """First line, and the one after the last."""
    if not isinstance(part, slice):
        raise TypeError(f"{name} is {part!r}; it takes a slice, as in {name}=slice(0, 10)")
    start, stop, step = part.indices(length)
    if step != 1:
        raise ValueError(f"{name} has step {step}; only slices with step 1 are supported")
    return start, max(start, stop)
