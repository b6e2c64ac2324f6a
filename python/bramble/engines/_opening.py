"""What all engines share: the key of one cluster, the address that its workers dial, and its opening and end.

Invariants: each cluster has a key of its own, which lies in the memory of its processes and in no file. A cluster that could not
be opened leaves no process behind; one that is closed, garbage, or open at the end of the interpreter ends its workers.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import logging
import re
import secrets
import socket
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from bramble.errors import BrambleError, Unreachable

HERE = "127.0.0.1"
WORKERS_MAX = 256
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_LATER_S = 10.0
_log = logging.getLogger("bramble")


def new_key() -> str:
    """A cluster key: 160 random bits and a checksum, as ``bramble key new`` writes them."""
    key = secrets.token_bytes(20)
    check = int.from_bytes(hashlib.sha256(b"bramble cluster key 1" + key).digest()[:3]) >> 4
    groups = [_chars(int.from_bytes(key[at : at + 5]), 8) for at in range(0, 20, 5)]
    return "-".join(["bramble1", *groups, _chars(check, 4)])


def _chars(number: int, chars: int) -> str:
    return "".join(_ALPHABET[number >> 5 * at & 31] for at in reversed(range(chars)))


def seconds_of(time: str) -> float:
    """A time as ``timeout=`` has it: ``"90s"``, ``"2m"``, ``"12h"``."""
    found = re.fullmatch(r"([0-9.]+)(s|m|min|h|)", time)
    try:
        assert found is not None
        return float(found[1]) * _UNITS_S[found[2]]
    except (AssertionError, ValueError):
        raise ValueError(f"timeout={time!r}: use a number with s, m or h, as in '90s' or '10m'") from None


def towards(hosts: Iterable[str]) -> str | None:
    """The address of this machine on the way to these hosts; one that other machines can reach if there is any."""
    found: str | None = None
    for host in hosts:
        with contextlib.suppress(OSError):
            family, _, _, _, at = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as way:
                # Nothing is sent.
                way.connect(at)
                found = str(way.getsockname()[0])
            if not ipaddress.ip_address(found).is_loopback:
                return found
    return found


class Launch:
    """How an engine starts and ends the workers of one cluster."""

    def go(self) -> None:
        """Has the workers dial; does not wait for them."""

    def end(self) -> None:
        """Ends them, also those that did not reach the primary."""

    def hint(self) -> str:
        """What is known about workers that did not come."""
        return ""


class Opening:
    """A cluster that is about to be opened: ``engine`` is the function's name, for messages."""

    def __init__(self, engine: str, workers: int, timeout: str) -> None:
        self.engine, self.workers, self.timeout = engine, workers, timeout
        self.seconds = seconds_of(timeout)
        self.patience_s = self.seconds + _LATER_S
        self.key = new_key()
        self.name = f"bramble-{secrets.token_hex(4)}"
        self.join = self._listen = ""

    def failed(self, text: str) -> BrambleError:
        """An error of this engine."""
        return BrambleError(f"{self.engine}: {text}")

    def dial(self, address: str | None, found: str | None) -> None:
        """Decides where the workers dial: at ``address`` (a host, or host and port), else at the address that was found."""
        if address is None and found is None:
            raise self.failed("the workers' way to this machine is not known; say address='HOST' or 'HOST:PORT'")
        host, port = _split(address or found or "")
        self._listen = f"{_listened(host)}:{port or _free_port()}"
        self.join = f"{f'[{host}]' if ':' in host else host}:{self._listen.rpartition(':')[2]}"

    def words(self, threads: int | None, memory: str | int | None) -> list[str]:
        """The options of each worker."""
        words = ["--join", self.join, "--no-pin"]
        words += [] if threads is None else ["--threads", str(threads)]
        return words + ([] if memory is None else ["--memory", str(memory)])

    def open(self, cls: Any, options: dict[str, Any], launch: Launch) -> Any:
        """Opens the cluster. It ends its workers when it is closed."""
        if self.workers > WORKERS_MAX:
            _quietly(launch.end)
            raise self.failed(f"{self.workers} hosts have room for a worker, and a cluster waits for at most {WORKERS_MAX}")
        try:
            launch.go()
            cluster = cls(wait_for=self.workers, listen=self._listen, timeout=self.timeout, key=self.key, **options)
        except Unreachable as error:
            said = _quietly(launch.hint) or ""
            _quietly(launch.end)
            raise Unreachable(self._missing(str(error), said)) from None
        except BaseException:
            _quietly(launch.end)
            raise
        detached = cluster._end.detach()
        assert detached is not None
        cluster._end = weakref.finalize(cluster, _end_both, detached[1], launch.end)
        return cluster

    def _missing(self, error: str, said: str) -> str:
        came = re.search(r": (\d+) workers? dialled in", error)
        refused = re.search(r"the last connection, from .*?, was refused: [^;]*", error)
        parts = [
            f"{self.engine}: {came[1] if came else 'not all'} of {self.workers} workers connected to {self.join} within "
            f"{self.timeout}",
            *([refused[0]] if refused else []),
            *([f"a worker said: {said}"] if said else []),
            f"open port {self.join.rpartition(':')[2]} of this machine to them, or say address='HOST:PORT' as they reach it",
        ]
        return "; ".join(parts)


def _end_both(close: Callable[[], None], end: Callable[[], Any]) -> None:
    try:
        close()
    finally:
        _quietly(end)


def _quietly(call: Callable[[], Any]) -> Any:
    """The engine may be gone already, and its processes with it."""
    try:
        return call()
    except Exception as error:
        _log.info("at the end of a cluster: %s", error)
        return None


def _split(address: str) -> tuple[str, str]:
    """Host and port; the port may be missing."""
    found = re.fullmatch(r"\[([^]]+)\](?::(\d+))?", address) or re.fullmatch(r"([^:\s]+)(?::(\d+))?", address)
    if found:
        return found[1], found[2] or ""
    try:
        return str(ipaddress.ip_address(address)), ""
    except ValueError:
        raise ValueError(f"address={address!r}: use HOST or HOST:PORT, as in '10.0.0.5:7401' or '[fd00::5]:7401'") from None


def _listened(host: str) -> str:
    """Where the primary listens: on this machine alone if the workers dial its loopback address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return HERE if host == "localhost" else "0.0.0.0"
    if address.version == 6:
        return "[::1]" if address.is_loopback else "[::]"
    return str(address) if address.is_loopback else "0.0.0.0"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])
