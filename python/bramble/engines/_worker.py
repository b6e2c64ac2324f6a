"""A worker process on this host, as a process of an engine starts it: a Dask worker, an actor of Ray, a rank of MPI, or srun.

Invariants: the key goes to the process over its stdin, never by its command line. Closing stdin ends the process, so it ends when
its parent dies, too. A process that never reaches a primary is ended after a time.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path

from bramble.errors import BrambleError

_SERVE = str(Path(__file__).with_name("_serve.py"))
_READY, _CONNECTED = "bramble: ready", "connected to "
_END_S = 5.0
_LINES_MAX = 50

_log = logging.getLogger("bramble.worker")


def command(words: list[str], python: str | None = None) -> list[str]:
    """The command of a worker process with these options."""
    return [python or sys.executable, "-I", "-S", _SERVE, *words]


def describe() -> tuple[str, str]:
    """This host and the version of Bramble on it. Containers with networks of their own count as hosts."""
    from bramble import __version__

    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/net').st_ino}", __version__
    except OSError:
        return socket.gethostname(), __version__


class WorkerProcess:
    """A running command that serves ``tasks`` workers (srun: one on each node; otherwise one)."""

    def __init__(self, words: list[str], tasks: int = 1) -> None:
        hidden = ("BRAMBLE_KEY", "BRAMBLE_ONE_TIME")
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if not name.startswith(hidden)},
            # Ctrl-C at a terminal is for the primary.
            start_new_session=True,
        )
        self._tasks, self._ready, self._connected, self._is_over = tasks, 0, 0, False
        self._lines: deque[str] = deque(maxlen=_LINES_MAX)
        self._changed = threading.Condition()
        self._patience: threading.Timer | None = None
        threading.Thread(target=self._read, name="bramble worker", daemon=True).start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            text = line.decode(errors="replace").strip()
            _log.info("%s", text)
            with self._changed:
                self._ready += text.endswith(_READY)
                self._connected += _CONNECTED in text
                if not text.endswith(_READY):
                    self._lines.append(text)
                self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def wait_until_ready(self, seconds: float) -> None:
        """Waits until all tasks run. The error says what the command said."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready >= self._tasks or self._is_over, seconds)
            if self._ready >= self._tasks:
                return
            came = f"{self._ready} of {self._tasks} tasks started"
        self.stop()
        raise BrambleError(f"{came}: {self.last_line() or f'nothing was said for {seconds:g} s'}")

    def go(self, key: str, patience_s: float) -> None:
        """Passes the key on; the workers dial. They are ended if they have not reached the primary after this time."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{key}\n".encode())
            self._process.stdin.flush()
        except OSError:
            pass  # It has ended, and its lines say why.
        self._patience = threading.Timer(patience_s, self._lose_patience)
        self._patience.daemon = True
        self._patience.start()

    def _lose_patience(self) -> None:
        with self._changed:
            is_connected = self._connected >= self._tasks
        if not is_connected:
            self.stop()

    def last_line(self) -> str:
        """The last line that the command wrote to stderr, or nothing."""
        with self._changed:
            return self._lines[-1] if self._lines else ""

    def wait(self) -> int:
        """Waits for the end; the exit code."""
        code = self._process.wait()
        with self._changed:
            self._changed.wait_for(lambda: self._is_over, _END_S)
        return code

    def stop(self) -> None:
        """Ends the process."""
        if self._patience is not None:
            self._patience.cancel()
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError:
            pass  # It ended without reading.
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
