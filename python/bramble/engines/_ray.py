"""Workers in actors of Ray."""

from __future__ import annotations

from typing import Any

from bramble.engines._opening import HERE, Launch, Opening, towards
from bramble.engines._worker import WorkerProcess, command, describe


class Host:
    """The actor on a node."""

    def __init__(self) -> None:
        self._worker: WorkerProcess | None = None

    def describe(self) -> tuple[str, str]:
        """This host, and the version of Bramble on it."""
        return describe()

    def start(self, words: list[str], key: str, patience_s: float) -> None:
        """Starts the worker process."""
        self._worker = WorkerProcess(command(words))
        self._worker.go(key, patience_s)

    def last_line(self) -> str:
        """What the worker process said last."""
        return self._worker.last_line() if self._worker else ""

    def stop(self) -> None:
        """Ends the worker process."""
        if self._worker:
            self._worker.stop()


def from_ray(
    cls: Any,
    *,
    address: str | None = None,
    timeout: str = "2m",
    num_cpus: float = 1,
    worker_threads: int | None = None,
    worker_memory: str | int | None = None,
    **options: Any,
) -> Any:
    """Opens a cluster with one worker on each node of the Ray cluster to which this process is connected.

    Parameters
    ----------
    address : str, optional
        What the workers dial to reach this process: ``"HOST"`` or ``"HOST:PORT"``. By default this machine's address on the way
        to the nodes, and a free port.
    timeout : str
        How long to wait for the actors, and then for the workers.
    num_cpus : float
        CPUs that Ray reserves for each worker; nodes with fewer get none.
    worker_threads, worker_memory : optional
        Of each worker; by default all cores of the node, whatever Ray has reserved, and three quarters of its free memory.
    **options
        As for ``bramble.Cluster``.

    What starts: a placement group (``STRICT_SPREAD``) with one actor a node, of which each starts a worker of Bramble as a child
    process.

    Security: the cluster has a key of its own, which the actors get as an argument: Ray encrypts it if it was set up with TLS
    (``RAY_USE_TLS``). Who may use a Ray cluster can run any code there anyway. The key is on no command line; the worker reads it
    from its stdin.

    How it ends: with the cluster of Bramble; with this process, even one that is killed, since Ray then ends its actors; and with
    Ray. A lost actor is not started again.

    Raises ``BrambleError`` if Ray is not installed or not connected, has no room for the actors, or a node lacks this version of
    Bramble, and ``Unreachable`` if workers did not connect.
    """
    opening = Opening("from_ray", 0, timeout)
    try:
        import ray
    except ImportError as error:
        raise opening.failed(f"Ray is not installed here ({error}); pip install ray") from None
    if not ray.is_initialized():
        raise opening.failed("this process is not connected to Ray; call ray.init(address='auto') first")
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= num_cpus]
    if not nodes:
        raise opening.failed(f"no node of the Ray cluster has {num_cpus} CPUs; say num_cpus=, or start nodes")
    opening.workers = len(nodes)
    actors = _Actors(opening, num_cpus)
    try:
        hosts = actors.hosts()
        here, _ = describe()
        opening.dial(address, HERE if hosts == {here} else towards(node["NodeManagerAddress"] for node in nodes))
        actors.words = opening.words(worker_threads, worker_memory)
    except BaseException:
        actors.end()
        raise
    return opening.open(cls, options, actors)


class _Actors(Launch):
    """One actor on each node."""

    def __init__(self, opening: Opening, num_cpus: float) -> None:
        from ray.util.placement_group import placement_group

        self._opening, self._num_cpus = opening, num_cpus
        self._group = placement_group([{"CPU": num_cpus}] * opening.workers, strategy="STRICT_SPREAD")
        self._actors: list[Any] = []
        self.words: list[str] = []

    def hosts(self) -> set[str]:
        """Starts the actors; their hosts. All of them have to have this version of Bramble."""
        import ray

        opening, (_, version) = self._opening, describe()
        wanted = f"{self._num_cpus} CPUs on each of {opening.workers} nodes"
        if not self._group.wait(opening.seconds):
            raise opening.failed(f"Ray had no {wanted} free within {opening.timeout}; say num_cpus=, or a longer timeout=")
        self._actors = [self._on(bundle) for bundle in range(opening.workers)]
        advice = f"install the package bramble {version} on every node"
        try:
            found = ray.get([actor.describe.remote() for actor in self._actors], timeout=opening.seconds)
        except ray.exceptions.GetTimeoutError:
            raise opening.failed(f"not all of {opening.workers} actors started within {opening.timeout}; say timeout=") from None
        except Exception as error:
            raise opening.failed(f"the nodes cannot run Bramble: {type(error).__name__}: {error}; {advice}") from error
        for _, there in found:
            if there != version:
                raise opening.failed(f"a node has Bramble {there}, and this process {version}; {advice}")
        return {host for host, _ in found}

    def _on(self, bundle: int) -> Any:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(placement_group=self._group, placement_group_bundle_index=bundle)
        return ray.remote(Host).options(num_cpus=self._num_cpus, scheduling_strategy=strategy).remote()

    def go(self) -> None:
        for actor in self._actors:
            actor.start.remote(self.words, self._opening.key, self._opening.patience_s)

    def end(self) -> None:
        import ray
        from ray.util.placement_group import remove_placement_group

        # A call after its end would start another Ray.
        if ray.is_initialized():
            if stopped := [actor.stop.remote() for actor in self._actors]:
                ray.wait(stopped, num_returns=len(stopped), timeout=5)
            for actor in self._actors:
                ray.kill(actor)
            remove_placement_group(self._group)

    def hint(self) -> str:
        import ray

        return next(filter(None, ray.get([actor.last_line.remote() for actor in self._actors], timeout=5)), "")
