"""Workers beside Dask's."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from bramble.engines._opening import HERE, Launch, Opening, towards
from bramble.engines._worker import describe


def from_dask(
    cls: Any,
    client: Any,
    *,
    address: str | None = None,
    timeout: str = "2m",
    worker_threads: int | None = None,
    worker_memory: str | int | None = None,
    **options: Any,
) -> Any:
    """Opens a cluster with one worker on each host of a Dask cluster.

    Parameters
    ----------
    client : distributed.Client
        Client of the Dask cluster. Keep it open as long as the cluster of Bramble.
    address : str, optional
        What the workers dial to reach this process: ``"HOST"`` or ``"HOST:PORT"``. By default this machine's address on the way
        to the Dask workers, and a free port.
    timeout : str
        How long to wait for the workers.
    worker_threads, worker_memory : optional
        Of each worker; by default all cores that the Dask worker may use, and three quarters of the memory that is free.
    **options
        As for ``bramble.Cluster``.

    What starts: on each host one Dask worker, whichever is first, starts a worker of Bramble as a child process, by a plugin.
    Dask workers that come later, on other hosts or after a loss, do the same: their workers join the open cluster. Dask does not
    count the memory of a child process: leave it some with ``worker_memory``, or with Dask's ``memory_limit``.

    Security: the cluster has a key of its own. It is part of the plugin and so passes over Dask's connections: they are encrypted
    if the addresses begin with ``tls://``. Who can reach a Dask scheduler without TLS can run any code on its workers anyway. The
    key is on no command line; the worker reads it from its stdin.

    How it ends: with the cluster of Bramble, with this process (even one that is killed), with the client's connection to the
    scheduler, and with the Dask worker that started it.

    Raises ``BrambleError`` if Dask is not installed, has no workers, or scheduler or workers lack this version of Bramble, and
    ``Unreachable`` if workers did not connect.
    """
    opening = Opening("from_dask", 0, timeout)
    try:
        from bramble.engines._dask_plugin import Guard, Plugin
    except ImportError as error:
        raise opening.failed(f"Dask is not installed here ({error}); pip install distributed") from None
    if getattr(client, "asynchronous", True):
        raise opening.failed("it takes an open distributed.Client that is not asynchronous; make one with Client(address)")
    hosts = _hosts(opening, client)
    opening.workers = len(hosts)
    here, _ = describe()
    opening.dial(address, HERE if set(hosts) == {here} else towards(hosts.values()))
    plugin = Plugin(opening.name, opening.key, opening.words(worker_threads, worker_memory), opening.patience_s)
    guard = Guard(opening.name, client.id)
    try:
        client.register_plugin(guard)
    except Exception as error:
        raise opening.failed(f"the Dask scheduler cannot run Bramble: {_why(error)}") from error
    return opening.open(cls, options, _Plugins(client, plugin, guard))


class _Plugins(Launch):
    """The plugins at Dask's workers and its scheduler."""

    def __init__(self, client: Any, plugin: Any, guard: Any) -> None:
        self._client, self._plugin, self._guard = client, plugin, guard
        self._background = ThreadPoolExecutor(1, "bramble dask")
        self._begun: Future[Any] | None = None

    def go(self) -> None:
        # The workers dial as soon as they have started, while the caller's thread already listens.
        self._begun = self._background.submit(self._client.register_plugin, self._plugin)

    def end(self) -> None:
        self._background.shutdown()
        # Without its client, the guard has removed both.
        if self._client.status == "running":
            self._client.unregister_scheduler_plugin(self._guard.name)
            self._client.unregister_worker_plugin(self._plugin.name)

    def hint(self) -> str:
        from bramble.engines._dask_plugin import last_line

        if self._begun is not None and (error := self._begun.exception()):
            return _why(error)
        return next(filter(None, self._client.run(last_line, self._plugin.name).values()), "")


def _hosts(opening: Opening, client: Any) -> dict[str, str]:
    """The hosts of the Dask workers, and an address of each. All of them have to have this version of Bramble."""
    from distributed.comm.addressing import get_address_host

    _, version = describe()
    try:
        found = client.run(describe)
    except Exception as error:
        raise opening.failed(f"the Dask workers cannot run Bramble: {_why(error)}") from error
    if not found:
        raise opening.failed("the Dask cluster has no workers; start some, and wait with client.wait_for_workers(1)")
    hosts: dict[str, str] = {}
    for at, (host, there) in found.items():
        if there != version:
            raise opening.failed(f"the Dask worker {at} has Bramble {there}, and this process {version}; {_advice()}")
        hosts.setdefault(host, get_address_host(at))
    return hosts


def _why(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}; {_advice()}"


def _advice() -> str:
    return f"install the package bramble {describe()[1]} where the Dask scheduler and workers run"
