"""``bramble.Cluster``: machines that stay connected, and matrices that stay placed on them."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bramble import _array, _solve
from bramble._native import module
from bramble._operands import as_array, as_result, check_dtype, readable
from bramble._placement import Placement, native
from bramble._report import Report


class Node(NamedTuple):
    """A machine of a cluster."""

    name: str
    is_primary: bool
    threads: int
    kernel: str
    gflops: float
    """Multiplying large matrices with all threads."""
    held_bytes: int
    """Of matrices that this cluster has placed there."""
    left_bytes: int
    """For more of them."""
    link: str
    encryption: str | None
    bytes_per_s: float | None
    """Of its link with this process; ``None`` where both share memory."""
    round_trip_s: float | None


class Cluster:
    """An open cluster.

    Parameters
    ----------
    hosts : str or list of str, optional
        Workers: ``"pi[1-8],10.0.0.7:7401"``, as ``bramble worker --listen`` serves them.
    local : int, optional
        Start this many workers as processes of this machine; they end with the cluster.
    hostfile : path, optional
        File of workers.
    wait_for : int, optional
        Wait for this many workers that connect by themselves (``bramble worker --join``), at ``listen``, for ``timeout``.
    listen, timeout : str, optional
        Address and port, by default ``"0.0.0.0:7401"``; a time such as ``"2m"``.
    threads, memory : optional
        Compute threads, and a limit such as ``"4G"``, of this machine; with ``local``, of each worker.
    kernel : str, optional
        Kernel that the workers use: ``auto``, ``simd``, ``openblas``, ``blis``, …
    strategy : str, optional
        How products are partitioned, as ``bramble multiply --strategy``. By default the fastest by prediction, which may be this
        machine alone; any other uses the workers.
    verify : {"fast", "full", "off"}
        How thoroughly results are checked.
    reproducible : bool
        The same bits on every set of machines.
    degraded : bool
        Go on without workers that do not answer.
    key : str, optional
        The cluster key itself (``bramble key show``), for programs that have it from elsewhere.
    insecure, trust_network : bool
        No encryption and no cluster key: within this machine, or with ``trust_network`` on a network that nobody else uses.
    progress : bool
        Show the progress of products on a terminal.

    Without workers (no ``hosts``, ``local``, ``hostfile`` or ``wait_for``) it consists of the threads of this process. Without
    ``key``, the cluster key is found as the command ``bramble`` finds it: in ``BRAMBLE_KEY``, in the file that
    ``BRAMBLE_KEY_FILE`` names, or in ``~/.config/bramble/``.

    Calls are carried out one after another, on a thread of their own that keeps the connections alive. Use the cluster in a
    ``with`` statement, or call ``close``. Ctrl-C raises ``KeyboardInterrupt`` at once; the cluster ends the interrupted call
    before the next.
    """

    def __init__(
        self,
        hosts: str | Iterable[str] | None = None,
        *,
        local: int | None = None,
        hostfile: str | os.PathLike[str] | None = None,
        wait_for: int | None = None,
        listen: str | None = None,
        timeout: str | None = None,
        threads: int | None = None,
        memory: str | int | None = None,
        kernel: str | None = None,
        strategy: str | None = None,
        verify: Literal["fast", "full", "off"] = "fast",
        reproducible: bool = False,
        degraded: bool = False,
        key: str | None = None,
        insecure: bool = False,
        trust_network: bool = False,
        progress: bool = False,
    ) -> None:
        if hosts is not None and not isinstance(hosts, str):
            hosts = ",".join(hosts)
        values = {
            "workers": hosts,
            "local": local,
            "hostfile": None if hostfile is None else os.fspath(hostfile),
            "await": wait_for,
            "listen": listen,
            "await-timeout": timeout,
            "threads": threads,
            "memory": memory,
            "kernel": kernel,
            "strategy": strategy,
            "verify": verify,
        }
        flags = {
            "reproducible": reproducible,
            "degraded": degraded,
            "insecure": insecure,
            "i-trust-this-network": trust_network,
            "progress": progress,
        }
        words = [f"--{name}={value}" for name, value in values.items() if value is not None]
        words += [f"--{name}" for name, is_set in flags.items() if is_set]
        module.guest()
        self._native = module.Cluster(words, key)
        self._has_workers = any(given is not None for given in (hosts, local, hostfile, wait_for))
        self._threads = threads
        # Parsed when it is asked for: that takes as long as a small product.
        self._last: Report | str | None = None
        self._end = weakref.finalize(self, self._native.close)

    @classmethod
    def from_dask(cls, client: Any, **options: Any) -> Cluster:
        """A cluster with a worker on each host of a Dask cluster; ``help(bramble.engines.from_dask)``."""
        from bramble import engines

        return engines.from_dask(cls, client, **options)

    @classmethod
    def from_mpi(cls, comm: Any = None, **options: Any) -> Cluster | None:
        """A cluster of the other ranks of an ``mpirun``, at rank 0; ``help(bramble.engines.from_mpi)``."""
        from bramble import engines

        return engines.from_mpi(cls, comm, **options)

    @classmethod
    def from_slurm(cls, **options: Any) -> Cluster:
        """A cluster with a worker on each node of a Slurm allocation; ``help(bramble.engines.from_slurm)``."""
        from bramble import engines

        return engines.from_slurm(cls, **options)

    @classmethod
    def from_ray(cls, **options: Any) -> Cluster:
        """A cluster with a worker on each node of a Ray cluster; ``help(bramble.engines.from_ray)``."""
        from bramble import engines

        return engines.from_ray(cls, **options)

    @classmethod
    def from_kubernetes(cls, workers: int, image: str, **options: Any) -> Cluster:
        """A cluster of pods; ``help(bramble.engines.from_kubernetes)``."""
        from bramble import engines

        return engines.from_kubernetes(cls, workers, image, **options)

    def close(self) -> None:
        """Says goodbye to the machines; local workers end. Arrays that are placed on it are lost."""
        self._end()

    @property
    def closed(self) -> bool:
        """Whether the cluster was closed."""
        return self._native.closed

    @property
    def last_report(self) -> Report | None:
        """How the last call went."""
        if isinstance(self._last, str):
            self._last = Report.of(self._last)
        return self._last

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<bramble.Cluster{' (closed)' if self.closed else ''}>"

    def put(
        self,
        source: ArrayLike | str | os.PathLike[str],
        placement: Placement | Literal["auto"] | None = None,
        *,
        copy: bool = True,
    ) -> _array.DistArray:
        """Places a matrix on the machines.

        Parameters
        ----------
        source : array, path or generator
            An array of two dimensions; a file that the command ``bramble`` reads (``W.npy``, ``model.safetensors:wte``), or a
            generator (``random:4096x4096:f32:1``). Files are mapped and stay open; they may be larger than memory.
        placement : Shard, Replicate or "auto"
            How it is spread.
        copy : bool
            Whether an array is copied first. Without a copy the array must not change while it is placed: results are checked
            against it, and lost parts are put again from it.
        """
        held = None
        if isinstance(source, (str, os.PathLike)):
            operand: Any = os.fspath(source)
        else:
            array = as_array(source)
            if array.ndim != 2:
                raise ValueError(f"put: a matrix has 2 dimensions, and this array has {array.ndim}; reshape it")
            dtype = check_dtype(array.dtype, "put")
            operand = readable(array, dtype)
            if copy and np.may_share_memory(operand, array):
                operand = operand.copy(order="K")
            held = operand
        return self._placed(self._native.put(operand, native(placement)), held)

    def matmul(
        self,
        a: ArrayLike | _array.DistArray,
        b: ArrayLike | _array.DistArray,
        *,
        keep: bool | None = None,
        placement: Placement | Literal["auto"] | None = None,
    ) -> Any:
        """The product of two matrices, of which either may be placed.

        ``keep``: whether the result stays at the machines, as a ``DistArray``. By default it does if both operands are placed
        (``W1 @ W2``), and otherwise comes back as an array (``x @ W``). An array of one dimension is a row on the left and a
        column on the right, as in NumPy.
        """
        left, right = _array.operand(self, a, is_left=True), _array.operand(self, b, is_left=False)
        if left.shape[1] != right.shape[0]:
            raise ValueError(
                f"matmul: Input operand 1 has a mismatch in its core dimension 0, with gufunc signature (n?,k),(k,m?)->(n?,m?) "
                f"(size {right.shape[0]} is different from {left.shape[1]})"
            )
        _array.same_dtype(left, right)
        if keep is None:
            keep = left.is_placed and right.is_placed
        if keep:
            return self._placed(self._native.make_product(left.native, right.native, native(placement)))
        if placement is not None:
            raise ValueError("placement= says where a kept result lies; add keep=True")
        memory, self._last = self._native.multiply(left.native, right.native)
        result = as_result(memory)
        shape = (() if left.was_vector else result.shape[:1]) + (() if right.was_vector else result.shape[1:])
        return result.reshape(shape)[()]

    @property
    def nodes(self) -> list[Node]:
        """The machines that answer, this process first; asked now. Speeds are for float32."""
        return [Node(**fields) for fields in json.loads(self._native.nodes("f32"))]

    def solve(self, a: ArrayLike | _array.DistArray | str | os.PathLike[str], b: ArrayLike) -> np.ndarray:
        """Solves A X = B on the workers, as ``bramble.solve`` does in this process.

        ``a``: n × n, an array, a file or a matrix that was placed with ``put``; ``b``: a vector of n elements, or n × k. The
        workers share the columns by their speed, and compute in float64 (``bramble solve``); the result has the wider type of
        both operands. Its backward error is in ``last_report``. A lost worker ends the call. Without workers it is
        ``bramble.solve``.
        """
        return _solve.on_cluster(self, a, b)

    def lu(self, a: ArrayLike | _array.DistArray | str | os.PathLike[str]) -> _solve.LU:
        """Factors a square matrix on the workers, for many right-hand sides: ``f = c.lu(A)``, ``x = f.solve(b)``.

        ``a`` as for ``solve``. The workers share the columns by their speed, and compute in float64. Then the factors come into
        this process's memory, which needs room for them; nothing stays at the workers. So ``f.solve(b)`` sends nothing: this
        process's threads read factors and matrix once for each call, also after the cluster is closed. ``last_report`` says how
        long the elimination and the way home took. A lost worker ends the call. Without workers it is ``bramble.lu``.
        """
        return _solve.lu_on_cluster(self, a)

    def topk(self, a: ArrayLike | _array.DistArray, b: _array.DistArray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Columns and values of the ``k`` largest elements of each row of ``a @ b``, largest first.

        The machines reduce their parts, so that the product itself never travels. ``b`` (or ``a``) is placed, with whole columns
        (rows) at each machine. If ``a`` has one dimension, so have the results.
        """
        left, right = _array.operand(self, a, is_left=True), _array.operand(self, b, is_left=False)
        if not (left.is_placed or right.is_placed):
            raise TypeError("topk: neither operand is placed; place one with put")
        if left.shape[1] != right.shape[0]:
            raise ValueError(f"topk: {left.shape} and {right.shape} do not form a product")
        _array.same_dtype(left, right)
        columns, values = self._reduced("topk", k, left.native, right.native)
        return (columns[0], values[0]) if left.was_vector else (columns, values)

    def _reduced(self, kind: str, count: int, a: Any, b: Any = None) -> Any:
        if count < 0:
            raise ValueError(f"{kind}: {count} elements are asked for; ask for at least 1")
        results, self._last = self._native.reduce(kind, count, a, b)
        arrays = [as_result(memory) for memory in results]
        return tuple(arrays) if len(arrays) > 1 else arrays[0]

    def _placed(self, made: tuple[Any, str], held: np.ndarray | None = None) -> _array.DistArray:
        placed, text = made
        self._last = report = Report.of(text)
        return _array.DistArray._of(self, placed, report, held)
