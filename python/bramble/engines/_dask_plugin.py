"""The parts that run inside Dask workers and the Dask scheduler."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin, WorkerPlugin

from bramble.engines._worker import WorkerProcess, command


class Plugin(WorkerPlugin):
    """Starts one worker of Bramble on each host: by the first Dask worker that binds a name that is unique on that host."""

    def __init__(self, name: str, key: str, words: list[str], patience_s: float) -> None:
        self.name, self._key, self._words, self._patience_s = name, key, words, patience_s
        self._claim: socket.socket | None = None
        self.process: WorkerProcess | None = None

    def setup(self, worker: Any) -> None:
        """Called by Dask in each worker, also in those that come later."""
        claim = socket.socket(socket.AF_UNIX)
        try:
            # No file: the name goes away with this process.
            claim.bind(f"\0{self.name}")
        except OSError:
            claim.close()
            return
        self._claim = claim
        self.process = WorkerProcess(command(self._words))
        self.process.go(self._key, self._patience_s)

    def teardown(self, worker: Any) -> None:
        """Called by Dask when the worker ends, or the cluster was closed."""
        if self.process is not None:
            self.process.stop()
        if self._claim is not None:
            self._claim.close()


class Guard(SchedulerPlugin):
    """Removes the plugin above from all Dask workers once the client that registered it is gone."""

    def __init__(self, plugin: str, client: str) -> None:
        self.name, self._plugin, self._client = f"{plugin}-guard", plugin, client

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Called by Dask when a client has closed its connection, or died."""
        if client == self._client:
            scheduler.remove_plugin(self.name)
            ending = asyncio.ensure_future(scheduler.unregister_worker_plugin(None, self._plugin))
            # The event loop alone would not keep it.
            _endings.add(ending)
            ending.add_done_callback(_endings.discard)


_endings: set[asyncio.Future[Any]] = set()


def last_line(name: str, dask_worker: Any) -> str:
    """What the worker process of this Dask worker said last."""
    plugin = dask_worker.plugins.get(name)
    return plugin.process.last_line() if plugin is not None and plugin.process is not None else ""
