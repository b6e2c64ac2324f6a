"""``bramble.Cluster``: machines that stay connected, and matrices that stay placed on them."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from bramble import _array, _solve
from bramble._native import module, program
from bramble._operands import as_result, check_dtype, in_class, readable, unmasked
from bramble._placement import Placement, native
from bramble._progress import ProgressLine
from bramble._report import Plan, Report
from bramble.errors import BrambleError


class Node(NamedTuple):
    """A machine of a cluster."""

    name: str
    """Its name or address."""
    is_primary: bool
    """Whether it is this process."""
    threads: int
    """Threads that compute."""
    kernel: str
    """Kernel that it multiplies with."""
    gflops: float
    """10⁹ operations a second, multiplying large matrices of float32 with all threads."""
    held_bytes: int
    """Bytes of matrices that this cluster has placed there."""
    left_bytes: int
    """Bytes that are left for more of them."""
    link: str
    """``thread``, ``tcp``, ``pipe``, ``shm`` or ``mpi``."""
    encryption: str | None
    """Cipher of its link; ``None`` without encryption."""
    bytes_per_s: float | None
    """Of its link with this process; ``None`` where both share memory."""
    round_trip_s: float | None
    """Seconds there and back; ``None`` where both share memory."""


Factor: TypeAlias = ArrayLike | _array.DistArray | str | os.PathLike[str]
"""An operand of a product: an array, a placed matrix, or the name of a file or generator."""


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
        Whether a call of more than a second shows a line on a terminal (stderr) and in notebooks, and removes it at its end: what
        is done, the speed, and the time left. Elsewhere nothing is shown.

    Without workers (no ``hosts``, ``local``, ``hostfile`` or ``wait_for``) it consists of the threads of this process. Without
    ``key``, the cluster key is found as the command ``bramble`` finds it: in ``BRAMBLE_KEY``, in the file that
    ``BRAMBLE_KEY_FILE`` names, or in ``~/.config/bramble/``.

    Calls are carried out one after another, on a thread of their own that keeps the connections alive. Use the cluster in a
    ``with`` statement, or call ``close``. Ctrl-C raises ``KeyboardInterrupt`` at once; the cluster ends the interrupted call
    before the next.

    Raises ``ValueError`` for options that are wrong or do not go together, ``Unreachable`` if a worker does not answer (with what
    to do), ``BrambleError`` if the key is missing or wrong, or workers cannot be started. Every call raises ``ClusterClosed`` after
    ``close`` and ``ForkedProcess`` in a fork of this process.
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
        progress: bool = True,
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
        }
        if local is not None and program() is None:
            raise BrambleError(
                "local=: this program names no Python interpreter (sys.executable) that could run a worker, as in a frozen application: "
                "start workers with the command `bramble worker`, and name them in hosts="
            )
        words = [f"--{name}={value}" for name, value in values.items() if value is not None]
        words += [f"--{name}" for name, is_set in flags.items() if is_set]
        module.guest()
        self._native = module.Cluster(words, key, ProgressLine() if progress else None)
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
        """Says goodbye to the machines; local workers end. Matrices that are placed on it are lost. A second call does nothing."""
        self._end()

    @property
    def closed(self) -> bool:
        """Whether the cluster was closed."""
        return self._native.closed

    @property
    def last_report(self) -> Report | None:
        """How the last call went; ``None`` before the first. ``plan``, ``nodes``, ``numpy`` and ``free`` leave none."""
        if isinstance(self._last, str):
            self._last = Report._of(self._last)
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
            An array of two dimensions, m × n, of float32, float64, int32 or int64; a file that the command ``bramble`` reads (``W.npy``, ``model.safetensors:wte``), or a
            generator (``random:4096x4096:f32:1``). Files are mapped and stay open; they may be larger than memory.
        placement : Shard, Replicate or "auto"
            How it is spread; by default its size and the machines' speeds decide.
        copy : bool
            Whether an array is copied first. Without a copy the array must not change while it is placed: results are checked
            against it, and lost parts are put again from it.

        Returns
        -------
        DistArray
            The matrix; its last reference frees it.

        Raises ``ValueError`` for an array without two dimensions or without elements and for units that do not fit the machines,
        ``TypeError`` for other elements, ``OSError`` or ``ValueError`` for a file that cannot be read, ``OutOfClusterMemory`` if it
        does not fit (with what each machine has left).
        """
        held = None
        if isinstance(source, (str, os.PathLike)):
            operand: Any = os.fspath(source)
        else:
            array = unmasked(source, "put")
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
        a: Factor,
        b: Factor,
        *,
        keep: bool | None = None,
        placement: Placement | Literal["auto"] | None = None,
    ) -> Any:
        """The product of two matrices, of which either may be placed; ``x @ W`` calls it.

        Parameters
        ----------
        a, b : array, DistArray, path or generator
            m × k and k × n, of one type. An array of one dimension is a row on the left and a column on the right, as in NumPy; a
            text or path names a file or a generator, as for ``put``.
        keep : bool, optional
            Whether the result stays at the machines. By default it does if both operands are placed (``W1 @ W2``), and otherwise
            comes back as an array (``x @ W``).
        placement : Shard, Replicate or "auto"
            Where a kept result lies; by default so that few bytes travel.

        Returns
        -------
        ndarray or DistArray
            m × n, or one dimension for each operand that had one less. Checked before it is returned.

        Raises ``ValueError`` with NumPy's text for shapes, ``TypeError`` for types, ``VerificationError`` if the result is wrong and
        other machines could not correct it, ``PartLost`` if a part of an operand is lost for good, ``OutOfClusterMemory`` if a kept
        result does not fit, ``MemoryError`` if this process has no room for the result.
        """
        left, right = _array.factors(a, b)
        if keep is None:
            keep = left.is_placed and right.is_placed
        if keep:
            return self._placed(self._native.make_product(left.native, right.native, native(placement)))
        if placement is not None:
            raise ValueError("placement= says where a kept result lies; add keep=True")
        memory, self._last = self._native.multiply(left.native, right.native)
        result = as_result(memory)
        shape = (() if left.was_vector else result.shape[:1]) + (() if right.was_vector else result.shape[1:])
        return in_class(result.reshape(shape), a, b, None)

    def plan(self, a: Factor, b: Factor, *, keep: bool | None = None) -> Plan:
        """How the cluster would compute ``c.matmul(a, b, keep=keep)`` now; nothing is computed, and the elements do not travel.

        The machines are asked and measured, and the plan is chosen, as for the product itself, which would so be computed by this
        plan. A ``Plan`` is a dictionary with the fields of the command's ``bramble plan --json``; ``print(plan)`` shows which machine
        would compute what, the predicted time, bytes and memory, the bound, and the other plans that were considered.

        ``a``: m × k, ``b``: k × n: arrays, files, generators, or matrices that were placed with ``put``. For an array that is not
        there yet, pass ``numpy.zeros(shape, dtype)``, which takes no memory as long as nobody writes to it.

        Only products whose result comes back have a plan: which machine computes what of ``W1 @ W2`` follows from where W1 and W2
        lie. Raises ``ValueError`` for these, for a matrix that was made at the machines, and for an empty product; and what
        ``matmul`` would raise before it computes.
        """
        left, right = _array.factors(a, b)
        if keep or (keep is None and left.is_placed and right.is_placed):
            raise ValueError(
                "plan: the result stays at the machines, and which machine computes what follows from where the operands lie; "
                "keep=False plans the product whose result comes back"
            )
        return Plan._of(self._native.plan(left.native, right.native))

    @property
    def nodes(self) -> list[Node]:
        """The machines that answer, this process first; asked and measured now. Speeds are for float32."""
        return [Node(**fields) for fields in json.loads(self._native.nodes("f32"))]

    def solve(
        self, a: ArrayLike | _array.DistArray | str | os.PathLike[str], b: ArrayLike, *, survive: int = 0
    ) -> np.ndarray:
        """Solves A X = B on the workers, as ``bramble.solve`` does in this process.

        ``a``: n × n, an array, a file or a matrix that was placed with ``put``; ``b``: a vector of n elements, or n × k. The
        workers share the columns by their speed, and compute in float64 (``bramble solve``); the result has the wider type of
        both operands. Its backward error is in ``last_report``. Without workers it is ``bramble.solve``.

        A lost worker ends the call with ``Unreachable``. With ``survive=N``, 0 to 8, the elimination starts again on the others
        after the loss of up to N workers, and ``last_report`` names these. At least N + 1 workers have to be there, and the
        system has to fit without any N of them.
        """
        return _solve.on_cluster(self, a, b, survive)

    def lu(self, a: ArrayLike | _array.DistArray | str | os.PathLike[str], *, survive: int = 0) -> _solve.LU:
        """Factors a square matrix on the workers, for many right-hand sides: ``f = c.lu(A)``, ``x = f.solve(b)``.

        ``a`` as for ``solve``. The workers share the columns by their speed, and compute in float64. Then the factors come into
        this process's memory, which needs room for them; nothing stays at the workers. So ``f.solve(b)`` sends nothing: this
        process's threads read factors and matrix once for each call, also after the cluster is closed. ``last_report`` says how
        long the elimination and the way home took. Lost workers and ``survive`` are as for ``solve``. Without workers it is
        ``bramble.lu``.
        """
        return _solve.lu_on_cluster(self, a, survive)

    def topk(self, a: Factor, b: Factor, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Columns and values of the ``k`` largest elements of each row of ``a @ b``, largest first.

        The machines reduce their parts, so that the product itself never travels.

        Parameters
        ----------
        a, b : array, DistArray, path or generator
            m × p and p × n, of one type; at least one is placed.
        k : int
            Elements of each row, 1 to n.

        Returns
        -------
        columns, values : ndarray
            m × k each, of int64 and of the operands' type; one dimension if ``a`` has one.

        Raises as ``matmul``; ``TypeError`` if neither operand is placed; ``ValueError`` for another ``k``, and if the operand's parts
        are cut across the sums, since no machine has whole elements then: place ``b`` with ``Shard(1)``, or ``a`` with ``Shard(0)``.
        """
        left, right = _array.operand(a, is_left=True), _array.operand(b, is_left=False)
        if not (left.is_placed or right.is_placed):
            raise TypeError("topk: neither operand is placed; place one with put")
        if left.shape[1] != right.shape[0]:
            raise ValueError(f"topk: {left.shape} and {right.shape} do not form a product")
        _array.same_dtype(left, right)
        columns, values = self._reduced("topk", k, left.native, right.native)
        return (columns[0], values[0]) if left.was_vector else (columns, values)

    def _reduced(self, kind: str, count: int, a: Any, b: Any = None) -> Any:
        if kind == "topk" and count < 1:
            raise ValueError(f"{kind}: {count} elements are asked for; ask for at least 1")
        results, self._last = self._native.reduce(kind, count, a, b)
        arrays = [as_result(memory) for memory in results]
        return tuple(arrays) if len(arrays) > 1 else arrays[0]

    def _placed(self, made: tuple[Any, str], held: np.ndarray | None = None) -> _array.DistArray:
        placed, text = made
        self._last = report = Report._of(text)
        return _array.DistArray._of(self, placed, report, held)
