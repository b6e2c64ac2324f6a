"""Workers on the nodes of a Slurm allocation."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from bramble.engines._opening import Launch, Opening, towards
from bramble.engines._worker import WorkerProcess, command
from bramble.errors import BrambleError


def from_slurm(
    cls: Any,
    *,
    address: str | None = None,
    timeout: str = "2m",
    worker_threads: int | None = None,
    worker_memory: str | int | None = None,
    srun_options: Sequence[str] = (),
    python: str | None = None,
    **options: Any,
) -> Any:
    """Opens a cluster with one worker on each node of the Slurm allocation in which this process runs.

    Parameters
    ----------
    address : str, optional
        What the workers dial to reach this process: ``"HOST"`` or ``"HOST:PORT"``. By default this machine's address on the way
        to the other nodes, and a free port.
    timeout : str
        How long to wait for the tasks, and then for the workers.
    worker_threads, worker_memory : optional
        Of each worker; by default all cores and three quarters of the free memory that Slurm leaves the task.
    srun_options : list of str
        Further options of srun, such as ``["--partition=fast"]``.
    python : str, optional
        The Python interpreter on the nodes; by default this one's path.
    **options
        As for ``bramble.Cluster``.

    What starts: one ``srun`` with one task a node, for all nodes of the allocation (of sbatch or salloc), beside other steps.
    Each task is a worker of Bramble. The package has to be installed at the same path on every node, as on a shared file system.

    Security: the cluster has a key of its own. It is on no command line and in no environment that Slurm passes on: the tasks
    read it from their stdin. Slurm does not encrypt that connection: who can read the network between the nodes can join.

    How it ends: srun passes the end of its stdin on to all tasks. So they end with the cluster, and with this process, even one
    that is killed; and with the allocation.

    Raises ``BrambleError`` if this is no allocation or srun fails, and ``Unreachable`` if workers did not connect.
    """
    opening = Opening("from_slurm", 0, timeout)
    if not os.environ.get("SLURM_JOB_ID"):
        raise opening.failed("this process is in no Slurm allocation; start it by sbatch, or in a shell of salloc")
    for program in ("srun", "scontrol"):
        if not shutil.which(program):
            raise opening.failed(f"{program} is not installed here; install Slurm's client programs on this machine")
    nodes = _nodes(opening)
    opening.workers = len(nodes)
    own = os.environ.get("SLURMD_NODENAME")
    opening.dial(address, towards(sorted(nodes.values(), key=lambda at: at == nodes.get(own or ""))))
    words = command(opening.words(worker_threads, worker_memory), python)
    tasks = WorkerProcess([*srun(len(nodes), srun_options), *words], len(nodes))
    try:
        tasks.wait_until_ready(opening.seconds)
    except BrambleError as error:
        raise opening.failed(f"srun: {error}; see srun_options= and python=") from None
    except BaseException:
        tasks.stop()
        raise
    return opening.open(cls, options, _Step(opening, tasks))


class _Step(Launch):
    """The running srun."""

    def __init__(self, opening: Opening, tasks: WorkerProcess) -> None:
        self._opening, self._tasks = opening, tasks

    def go(self) -> None:
        self._tasks.go(self._opening.key, self._opening.patience_s)

    def end(self) -> None:
        self._tasks.stop()

    def hint(self) -> str:
        return self._tasks.last_line()


def srun(nodes: int, more: Sequence[str] = ()) -> list[str]:
    """The command that starts one task on each node of the allocation, with all that the allocation has there."""
    return [
        "srun",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        # Beside other steps of the job, of which this process may be one.
        "--overlap",
        "--mem=0",
        "--cpu-bind=none",
        "--mpi=none",
        "--input=all",
        "--label",
        # A lost worker is the cluster's matter.
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--job-name=bramble",
        *more,
    ]


def _nodes(opening: Opening) -> dict[str, str]:
    """The nodes of the allocation, with their addresses."""
    names = os.environ.get("SLURM_JOB_NODELIST", "")
    shown = subprocess.run(["scontrol", "--oneliner", "show", "node", names], capture_output=True, text=True)
    if not names or shown.returncode:
        raise opening.failed(f"the nodes of job {os.environ['SLURM_JOB_ID']} are not known: scontrol: {shown.stderr.strip()}")
    fields = [dict(word.partition("=")[::2] for word in line.split()) for line in shown.stdout.splitlines() if line.strip()]
    return {node["NodeName"]: node.get("NodeAddr") or node["NodeName"] for node in fields}
