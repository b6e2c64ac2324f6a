"""Workers in the processes of an mpirun."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

from bramble.engines._opening import HERE, Launch, Opening, towards
from bramble.engines._worker import WorkerProcess, command, describe


def from_mpi(
    cls: Any,
    comm: Any = None,
    *,
    address: str | None = None,
    timeout: str = "2m",
    worker_threads: int | None = None,
    worker_memory: str | int | None = None,
    **options: Any,
) -> Any:
    """Opens a cluster of the processes that ``mpirun -n N python PROGRAM`` has started; all of them call this.

    Rank 0 gets the cluster. Every other rank serves it as a worker, and gets ``None`` when it is closed::

        cluster = bramble.Cluster.from_mpi()
        if cluster is not None:
            with cluster as c:
                ...

    Parameters
    ----------
    comm : mpi4py.MPI.Comm, optional
        The processes; by default ``MPI.COMM_WORLD``.
    address : str, optional
        What the workers dial to reach rank 0: ``"HOST"`` or ``"HOST:PORT"``. By default the address of its machine on the way to
        the others, and a free port.
    timeout : str
        How long to wait for the workers.
    worker_threads, worker_memory : optional
        Of each worker. By default ranks on one machine divide the cores on which they may run, and its free memory.
    **options
        As for ``bramble.Cluster``, of rank 0.

    What starts: each rank but 0 starts a worker of Bramble as a child process and waits for it. Only the key and the address
    travel by MPI; matrices use Bramble's own encrypted connections (``bramble multiply --link mpi`` uses MPI for all). One rank a
    machine with all its cores is the usual choice: ``mpirun --map-by ppr:1:node --bind-to none`` (Open MPI).

    Security: the cluster has a key of its own, which the ranks get by MPI. MPI libraries do not encrypt: who can read their
    traffic can join. The key is on no command line; the worker reads it from its stdin.

    How it ends: with the cluster, which rank 0 closes at the end of its interpreter at the latest. If a rank is killed, mpirun
    ends all, and each worker ends with its rank. If a worker alone is lost, the cluster goes on without it, and its rank says so
    and gets ``None``. A worker that does not reach rank 0 ends after ``timeout``.

    Raises ``BrambleError`` on every rank if mpi4py is not installed, there is only one process, or they have different versions
    of Bramble; on rank 0 ``Unreachable`` if workers did not connect.
    """
    opening = Opening("from_mpi", 0, timeout)
    comm = comm or _world(opening)
    if comm.size == 1:
        raise opening.failed(_alone())
    ranks = [Rank(*rank) for rank in comm.allgather((*describe(), os.uname().nodename, sorted(os.sched_getaffinity(0))))]
    for number, rank in enumerate(ranks):
        if rank.version != ranks[0].version:
            versions = f"rank {number} at {rank.name} has Bramble {rank.version}, and rank 0 {ranks[0].version}"
            raise opening.failed(f"{versions}; install one version")
    threads, memory = worker_threads or _threads(ranks, comm.rank), worker_memory or _memory(ranks, comm.rank)
    if comm.rank > 0:
        key, words = comm.bcast(None)
        return _serve(opening, key, [*words, "--threads", str(threads), "--memory", str(memory)])
    opening.workers = comm.size - 1
    others = [rank.name for rank in ranks if rank.host != ranks[0].host]
    try:
        opening.dial(address, towards(others) if others else HERE)
    except BaseException:
        # The others wait.
        comm.bcast(("", []))
        raise
    comm.bcast((opening.key, opening.words(None, None)))
    if "threads" not in options and sum(rank.host == ranks[0].host for rank in ranks) > 1:
        options["threads"] = threads
    return opening.open(cls, options, Launch())


class Rank(NamedTuple):
    """A process of the mpirun."""

    host: str
    version: str
    name: str
    cores: list[int]


def _world(opening: Opening) -> Any:
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise opening.failed(f"mpi4py or its MPI library is not installed here ({error}); pip install mpi4py") from None
    return MPI.COMM_WORLD


def _serve(opening: Opening, key: str, words: list[str]) -> None:
    """A worker for as long as the cluster is open."""
    if not key:
        raise opening.failed("rank 0 could not begin; it says why")
    worker = WorkerProcess(command(words))
    worker.go(key, opening.patience_s)
    try:
        code = worker.wait()
    finally:
        worker.stop()
    if code:
        # The cluster does without this worker. An exception here would have mpirun end all ranks.
        print(f"bramble: the worker of an MPI rank ended with exit code {code}: {worker.last_line()}", file=sys.stderr)


def _alone() -> str:
    """Why there is only one process."""
    started = max(int(os.environ.get(name) or 1) for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"))
    if started > 1:
        return f"mpirun has started {started} processes, but mpi4py uses another MPI library and sees one; set MPI4PY_MPIABI"
    return "this is the only process of its mpirun; start several with mpirun -n N python SCRIPT"


def _threads(ranks: list[Rank], number: int) -> int:
    """The cores of this rank, divided by the ranks of its machine that may run on some of them."""
    mine = ranks[number]
    sharing = sum(rank.host == mine.host and bool(set(rank.cores) & set(mine.cores)) for rank in ranks)
    return max(1, len(mine.cores) // sharing)


def _memory(ranks: list[Rank], number: int) -> int:
    """Three quarters of the free memory of this machine, divided by its ranks, bytes."""
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) * 1024 * 3 // 4 // sum(rank.host == ranks[number].host for rank in ranks)
