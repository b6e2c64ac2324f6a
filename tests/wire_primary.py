"""A primary in Python, written from docs/wire-format.md alone: it sends the messages that a test asks for.

For tests only: one connection, any number of products over it, matrices as NumPy arrays.
"""

import socket
import struct

import numpy as np

from wire_worker import (BYE, CREDIT, DATA, DTYPES, ERROR, HELLO, LOG, PARTIAL, PING, PONG, RESULT, STORE, WELCOME, crc32c, text)

SESSION = 77
MEMORY = 1 << 20


class WirePrimary:
    """A context manager: a connection to the worker of this address, with a product."""

    def __init__(self, address, dtype, alpha=1.0, beta=0.0, wants=0):
        host, port = address.rsplit(":", 1)
        self.stream = socket.create_connection((host, int(port)), timeout=30)
        self.session = 0
        self.begin(dtype, SESSION, alpha, beta, wants)

    def hello(self, dtype, session, alpha=1.0, beta=0.0, wants=0):
        return b"BRMB" + struct.pack("<H", 6) + text("0.1.0-python") + struct.pack(
            "<IBdddHQB", session, DTYPES.index(np.dtype(dtype).type), alpha, beta, 1e6, 0, MEMORY, wants) + text("simd") + text("python")

    def begin(self, dtype, session, *options):
        """Begins a product, the first of the connection or another one after `bye`."""
        self.dtype, self.spent, self.shapes, self.records = np.dtype(dtype), 0, {}, []
        self.send(HELLO, self.hello(dtype, session, *options))
        kind, head, _ = self.receive()
        assert kind == WELCOME and head[:6] == b"BRMB" + struct.pack("<H", 6), (kind, head)
        self.session = session

    def ping(self, nonce):
        self.send(PING, struct.pack("<Q", nonce))
        kind, head, _ = self.receive()
        assert kind == PONG and head[:8] == struct.pack("<Q", nonce), (kind, head)

    def error(self):
        """The worker's reason for closing the connection; what it sent before does not matter."""
        kind, head, _ = self.receive()
        while kind != ERROR:
            kind, head, _ = self.receive()
        assert len(head) == 1 + head[0]
        return head[1:].decode()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stream.close()

    def send(self, kind, head, body=b""):
        prefix = struct.pack("<IHBB", len(body), len(head), kind, 0)
        self.stream.sendall(prefix + struct.pack("<II", self.session, crc32c(prefix + head + body)) + head + body)

    def exactly(self, count):
        parts = bytearray()
        while len(parts) < count:
            part = self.stream.recv(count - len(parts))
            assert part, "the worker has closed the connection"
            parts += part
        return bytes(parts)

    def receive(self):
        header = self.exactly(16)
        body_bytes, head_bytes, kind, reserved, session, checksum = struct.unpack("<IHBBII", header)
        head, body = self.exactly(head_bytes), self.exactly(body_bytes)
        assert (reserved, session, checksum) == (0, self.session, crc32c(header[:8] + head + body)), (kind, head)
        return kind, head, body

    def matrix(self, number, shape, source, uses, by_rows=True, elements=None):
        """(header, body) of a matrix that comes whole."""
        rows, cols = shape
        self.shapes[number] = shape
        size = rows * cols * self.dtype.itemsize
        self.spent += max(size + -size % 64, 512) + 32 * uses
        flags = DTYPES.index(self.dtype.type) | (not by_rows) << 2 | source << 3
        header = struct.pack("<IIIIIHBB", number, rows, cols, 0, rows if by_rows else cols, uses, flags, 0)
        assert (source in (DATA, PARTIAL)) == (elements is not None)
        return header, b"" if elements is None else (elements if by_rows else elements.T).astype(self.dtype).tobytes()

    def job(self, operation, then, a, b, c, step):
        return struct.pack("<BBHIIIII", operation, then, 0, a, b, c, step, 0)

    def store(self, matrices, jobs=()):
        head = struct.pack("<HH", len(matrices), len(jobs))
        head += b"".join(header for header, _ in matrices) + b"".join(jobs)
        self.send(STORE, head, b"".join(body for _, body in matrices))

    def results(self, numbers):
        """(first step, step after the last, elements) of these tiles, once all spent credit has returned."""
        tiles, rows, credit = {}, {}, 0
        while credit < self.spent:
            kind, head, body = self.receive()
            if kind == CREDIT:
                credit += struct.unpack("<Q", head)[0]
                continue
            if kind == LOG:
                self.log(head)
                continue
            assert kind == RESULT, (kind, head)
            number, epoch, start, end, first, lines = struct.unpack("<IIIIII", head)
            cols = self.shapes[number][1]
            assert epoch == 0 and first == rows.get(number, 0)
            part = np.frombuffer(body, self.dtype).reshape(lines, cols)
            before = tiles[number][2] if number in tiles else part[:0]
            tiles[number] = (start, end, np.concatenate([before, part]))
            rows[number] = first + lines
        assert credit == self.spent and rows == {number: self.shapes[number][0] for number in numbers}
        return tiles

    def bye(self, jobs):
        """Ends a product; the goodbye's account has this number of jobs. The connection is idle afterwards."""
        self.send(BYE, struct.pack("<Q5QHQQ", *[0] * 9))
        kind, head, _ = self.receive()
        while kind == LOG:
            self.log(head)
            kind, head, _ = self.receive()
        assert kind == BYE, (kind, head)
        count = struct.unpack_from("<H", head, 48)[0]
        assert len(head) == 66 + 32 * count
        assert sum(struct.unpack_from("<Q", head, 50 + 32 * at)[0] for at in range(count)) == jobs
        self.session = 0

    def log(self, head):
        """Keeps the worker's records of its jobs: (operation, returned, thread, matrix, step, start, took)."""
        dropped, count = struct.unpack_from("<QH", head)
        assert dropped == 0 and count >= 1 and len(head) == 10 + 28 * count
        self.records += [struct.unpack_from("<BBHIIQQ", head, 10 + 28 * at) for at in range(count)]
