"""Addresses without a worker, or with another program: exit code 5, in bounded time, naming the machine."""

import os
import socket
import threading
from contextlib import contextmanager

import pytest
from helpers import assert_nothing_written, assert_refused, bramble, workers

UNREACHABLE = 5
OPERANDS = "random:300x300:f64:1", "random:300x300:f64:2"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def multiply(folder, machines):
    return bramble("multiply", *OPERANDS, "-o", folder / "C.npy", "-w", machines, deadline_s=45)


def test_nobody_listens(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    assert_refused(multiply(tmp_path, address), UNREACHABLE, [address])
    assert_nothing_written(tmp_path)


def test_one_of_two_is_missing(tmp_path):
    """Never a silent smaller run."""
    address = f"127.0.0.1:{free_port()}"
    with workers(1) as (addresses, runs):
        assert_refused(multiply(tmp_path, f"{addresses[0]},{address}"), UNREACHABLE, [address])
        assert runs[0].process.poll() is None
    assert_nothing_written(tmp_path)


def test_a_name_that_means_nothing(tmp_path):
    name = "no-such-machine.invalid"
    assert_refused(multiply(tmp_path, f"{name}:7400"), UNREACHABLE, [name])
    assert_nothing_written(tmp_path)


def hang_up(peer):
    pass


def web_server(peer):
    peer.recv(100)
    peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def noise(peer):
    peer.sendall(os.urandom(100_000))
    peer.recv(100)


def silence(peer):
    while peer.recv(4096):
        pass


@contextmanager
def impostor(behave):
    """Another program on a port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def serve():
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    peer.settimeout(60)
                    try:
                        behave(peer)
                    except OSError:
                        pass

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("behave", [hang_up, web_server, noise, silence], ids=lambda f: f.__name__)
def test_something_else_listens(tmp_path, behave):
    with impostor(behave) as address:
        assert_refused(multiply(tmp_path, address), UNREACHABLE, [address])
    assert_nothing_written(tmp_path)


def test_the_same_worker_twice(tmp_path):
    """Refused, or served twice by one worker, but never a hang."""
    with workers(1) as (addresses, runs):
        result = multiply(tmp_path, f"{addresses[0]},{addresses[0]}")
        assert result.code in (0, 1, 2, 5), result
        assert runs[0].process.poll() is None
