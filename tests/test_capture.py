"""An eavesdropper sees neither matrices nor key with a cluster key, and the matrices without one.

Every element of A and B has a pattern of its own, so that any eight bytes of them can be told from chance.
The same recording without encryption must contain them, or the test would prove nothing.
"""

import os
import re
import shutil
import socket
import subprocess
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from helpers import assert_gone, assert_product, bramble, save, succeed, workers
from lacking import skip, unless

SIDE = 96
ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base32, which keys are written in."""

WAYS = {"encrypted": [], "insecure": ["--insecure"]}


def pattern(word, seed):
    """A matrix of i64 whose elements all contain the four letters of `word`, and are all different."""
    low = np.random.default_rng(seed).permutation(SIDE * SIDE).astype("<u4")
    both = np.empty((SIDE * SIDE, 2), "<u4")
    both[:, 0], both[:, 1] = low * 40_503 + 7, np.frombuffer(word, "<u4")[0]
    return both.view("<i8").reshape(SIDE, SIDE)


def windows(data):
    """Every eight bytes in a row, as numbers in order."""
    assert len(data) > 16, "nothing was recorded"
    return np.sort(np.concatenate([np.frombuffer(data, "<u8", (len(data) - at) // 8, at) for at in range(8)]))


def among(values, seen):
    """Which of the numbers are in the sorted list."""
    places = np.searchsorted(seen, values).clip(max=len(seen) - 1)
    return seen[places] == values


def share_seen(array, seen):
    """The number of elements in the recording."""
    return among(array.view("<u8"), seen).mean()


def key_bytes(text):
    """The 20 bytes of a key's text."""
    number = 0
    for char in text.strip().removeprefix("bramble1").replace("-", "")[:32]:
        number = number << 5 | ALPHABET.index(char)
    return number.to_bytes(20, "big")


class Key:
    """A new cluster key as bytes and text, and an environment with it."""

    def __init__(self, folder):
        self.env = {"BRAMBLE_KEY_FILE": str(folder / "key")}
        succeed("key", "new", env=self.env)
        self.text = succeed("key", "show", env=self.env).out.strip()
        self.raw = key_bytes(self.text)

    def assert_not_in(self, data):
        forms = [self.text, self.text.upper(), self.text.replace("-", ""), self.raw.hex()]
        for form in [*(form.encode() for form in forms), self.raw, self.raw[::-1]]:
            assert form not in data, "the key was sent"
        # Nor any group of it, alone.
        for group in self.text.split("-")[1:5]:
            assert group.encode() not in data, "a part of the key was sent"


def multiply_over(folder, way, key, address):
    """A product by the worker at an address; returns A, B and C."""
    a, b = pattern(b"BRAM", 1), pattern(b"BLE!", 2)
    env = key.env if way == "encrypted" else None
    result = bramble("multiply", save(folder, "A.npy", a), save(folder, "B.npy", b), "-o", folder / "C.npy",
                     "-w", address, "--strategy", "reuse", "--json", *WAYS[way], env=env)
    assert result.code == 0, result
    assert_gone(result.tag)
    assert not result.report["alone"]
    c = np.load(folder / "C.npy")
    assert_product(c, a, b)
    return a, b, c


def assert_nothing_seen(data, key, *arrays):
    seen = windows(data)
    for array in arrays:
        found = among(windows(array.tobytes()), seen)
        assert not found.any(), f"{found.sum()} sequences of eight bytes of a matrix were sent as they are"
    key.assert_not_in(data)


class Tap:
    """A TCP proxy that records each direction."""

    def __init__(self, address):
        host, port = address.split(":")
        self.target = host, int(port)
        self.there, self.back = bytearray(), bytearray()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.threads = [threading.Thread(target=self.serve, daemon=True)]
        self.threads[0].start()

    def serve(self):
        try:
            while True:
                inner, _ = self.listener.accept()
                outer = socket.create_connection(self.target)
                for job in ((inner, outer, self.there), (outer, inner, self.back)):
                    thread = threading.Thread(target=self.copy, args=job, daemon=True)
                    thread.start()
                    self.threads.append(thread)
        except OSError:
            pass  # The listener was closed.

    @staticmethod
    def copy(source, sink, kept):
        try:
            while some := source.recv(1 << 16):
                kept += some
                sink.sendall(some)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # One end has closed.

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Wakes the thread that waits in accept.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive(), "a connection was left open"


def recorded(folder, way, key):
    """A product through a tap: A, B, C, and the bytes to and from the worker."""
    env = key.env if way == "encrypted" else None
    with workers(1, "--threads", "1", *WAYS[way], env=env) as (addresses, _):
        with Tap(addresses[0]) as tap:
            arrays = multiply_over(folder, way, key, tap.address)
    return arrays, bytes(tap.there), bytes(tap.back)


def test_who_records_an_encrypted_product_has_neither_matrices_nor_key(tmp_path):
    key = Key(tmp_path)
    (a, b, c), there, back = recorded(tmp_path, "encrypted", key)
    assert len(there) > a.nbytes + b.nbytes and len(back) > c.nbytes
    assert_nothing_seen(there, key, a, b, c)
    assert_nothing_seen(back, key, a, b, c)
    for data in (there, back):
        assert data[:2] == b"\x16\x03", "it does not begin as TLS does"


def test_the_same_recording_of_an_insecure_product_has_all_of_them(tmp_path):
    key = Key(tmp_path)
    (a, b, c), there, back = recorded(tmp_path, "insecure", key)
    sent, came = windows(there), windows(back)
    assert share_seen(a, sent) == share_seen(b, sent) == share_seen(c, came) == 1
    key.assert_not_in(there)
    key.assert_not_in(back)


def test_the_bytes_of_a_key_are_those_that_its_text_stands_for():
    # Both are from the tests of the key itself.
    assert key_bytes("bramble1-ehvpavkm-f4g76sb3-e9jq8832-f5t6awse-qyr4") == b"twenty secret bytes."
    assert key_bytes("bramble1-00000000-00000000-00000000-00000000-81fn") == bytes(20)


@contextmanager
def captured(folder, port):
    """A packet capture of the port on loopback: returns the file, which is complete afterwards. Datagrams to the
    same port show when the capture has begun, and when it has recorded all earlier packets."""
    file = folder / "capture.pcapng"
    command = ["tshark", "-i", "lo", "-f", f"port {port}", "-B", "64", "-w", file]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(b"the capture begins", file, port, process)
        yield file
        wait_for(b"the capture ends", file, port, process)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def wait_for(mark, file, port, process, deadline_s=60):
    """Sends the mark until it is in the file."""
    end = time.monotonic() + deadline_s
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        while not (file.exists() and mark in file.read_bytes()):
            if process.poll() is not None:
                skip("capture", f"tshark cannot capture here: {process.stderr.read()[-500:]}")
            assert time.monotonic() < end, "tshark captured nothing"
            out.sendto(mark, ("127.0.0.1", port))
            time.sleep(0.1)


def dissected(file, port, which, *fields):
    """Tshark's reading of a capture: a list of values for each field, of all packets that the filter `which` accepts."""
    command = ["tshark", "-r", file, "-d", f"tcp.port=={port},tls", "-Y", which, "-T", "fields"]
    for field in fields:
        command += ["-e", field]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return [[value for row in rows for value in row[at].split(",") if value] for at in range(len(fields))]


@unless("" if shutil.which("tshark") else "tshark is not installed", "capture")
@unless("" if os.geteuid() == 0 else "only root may capture packets", "capture")
@pytest.mark.parametrize("way", WAYS)
def test_packets_of_a_product_are_tls_1_3_unless_it_is_insecure(tmp_path, way):
    key = Key(tmp_path)
    env = key.env if way == "encrypted" else None
    with workers(1, "--threads", "1", *WAYS[way], env=env) as (addresses, _):
        port = int(re.search(r":(\d+)$", addresses[0])[1])
        with captured(tmp_path, port) as file:
            a, b, c = multiply_over(tmp_path, way, key, addresses[0])
    data = file.read_bytes()
    key.assert_not_in(data)
    hellos = dissected(file, port, "tls.handshake.type == 2", "tls.handshake.extensions.supported_version")[0]
    if way == "insecure":
        seen = windows(data)
        # An element may lie across two packets.
        assert min(share_seen(x, seen) for x in (a, b, c)) > 0.9
        assert hellos == []
        return
    assert_nothing_seen(data, key, a, b, c)
    assert hellos == ["0x0304"], "the worker did not choose TLS 1.3"
    opaque, lengths = dissected(file, port, "tls.record", "tls.record.opaque_type", "tls.record.length")
    assert opaque and set(opaque) == {"23"}
    assert sum(map(int, lengths)) > a.nbytes + b.nbytes + c.nbytes
