"""A worker in Python, written from docs/wire-format.md alone: it shows that the page is right, and it can lie.

Slow, and for tests only: one connection, any number of products over it, one thread, matrices as NumPy arrays.
"""

import socket
import struct
import threading
import time

import numpy as np
from wire_arrays import DTYPES, HeldArrays

HELLO, WELCOME, STORE, RESULT, CREDIT, PING, PONG, ERROR, BYE, LOG = 1, 2, 3, 4, 5, 9, 10, 11, 12, 18
NEIGHBOUR, REACHED = 13, 14
FREE, PUT, PLACED, GET, REDUCE, MAKE, FETCH = 7, 19, 20, 21, 25, 27, 28
DATA, VACANT, GENERATED, PARTIAL, RESIDENT = 0, 1, 2, 3, 5
MULTIPLY, ADD, SUBTRACT = 0, 1, 2
CONTINUE, RETURN, CLOSE = 0, 1, 2
WANTS_LOG, WANTS_ACCOUNT = 1, 2


def _crc_table():
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


TABLE = _crc_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def text(string):
    raw = string.encode()
    return bytes([len(raw)]) + raw


class WireWorker(HeldArrays, threading.Thread):
    """Serves one primary. `spoil(tile)` may change a finished tile before it is sent; `protocol` is the version in the
    welcome; after `die_after` results it closes the connection."""

    def __init__(self, spoil=None, protocol=6, die_after=None, memory=1 << 24, raw_welcome=None, hold=0, flips=False, late_s=0,
                 spoil_made=None, flips_made=False):
        super().__init__(daemon=True)
        self.spoil, self.protocol, self.die_after = spoil, protocol, die_after
        self.memory, self.raw_welcome, self.hold, self.flips = memory, raw_welcome, hold, flips
        # `spoil_made(part)` may change a part that was made; with `flips_made` one bit of it changes after its digest was told.
        self.spoil_made, self.flips_made = spoil_made, flips_made
        self.arrays, self.last_array, self.views, self.made = {}, -1, 0, 0
        # Parts are confirmed that long after their last element; pings are answered meanwhile.
        self.late_s, self.confirmed = late_s, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.error, self.results, self.checked, self.products = None, 0, 0, 0
        self.gflops = 1.0

    def run(self):
        try:
            self.stream, _ = self.listener.accept()
            self.stream.settimeout(60)
            self.serve()
        except (ConnectionError, EOFError):
            pass
        except Exception as error:  # noqa: BLE001 - shown by the test that owns this thread
            self.error = error
        finally:
            self.listener.close()
            self.stream.close()

    def exactly(self, count):
        parts = bytearray()
        while len(parts) < count:
            part = self.stream.recv(count - len(parts))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def receive(self):
        header = self.exactly(16)
        body_bytes, head_bytes, kind, reserved, session, checksum = struct.unpack("<IHBBII", header)
        assert reserved == 0 and body_bytes <= 1 << 20
        head, body = self.exactly(head_bytes), self.exactly(body_bytes)
        if len(body) <= 1 << 16:  # The checksum is a byte at a time in Python: large bodies are not checked.
            assert checksum == crc32c(header[:8] + head + body), "the checksum is not what the page says"
            self.checked += 1
        return kind, session, head, body

    def send(self, kind, head=b"", body=b""):
        prefix = struct.pack("<IHBB", len(body), len(head), kind, 0)
        self.stream.sendall(prefix + struct.pack("<II", self.session, crc32c(prefix + head + body)) + head + body)

    def serve(self):
        """Serves products until the primary closes the connection."""
        before = 0
        while True:
            self.session = 0
            kind, session, head, _ = self.receive()
            assert session == 0
            if kind == PING and before:
                self.send(PONG, head + struct.pack("<Q", time.monotonic_ns()))
            elif kind == HELLO and self.product(head, before):
                before = self.session
                self.products += 1
            else:
                return

    def refuse(self, why):
        self.send(ERROR, text(why))

    def product(self, head, before):
        """Serves one product, whose number must not be that of the one before; whether both ends said goodbye."""
        assert head[:4] == b"BRMB" and struct.unpack_from("<H", head, 4) == (6,)
        at = 7 + head[6]
        hello = struct.unpack_from("<IBdddHQB", head, at)
        session, dtype, self.alpha, self.beta, _flops, _threads, self.wanted, self.wants = hello
        assert session not in (0, before)
        assert self.wants <= WANTS_LOG | WANTS_ACCOUNT
        self.dtype = np.dtype(DTYPES[dtype])
        welcome = b"BRMB" + struct.pack("<H", self.protocol) + text("0.1.0-python")
        self.granted = min(self.memory, self.wanted)
        welcome += struct.pack("<HQQddBH", 1, self.granted, self.hold, self.gflops, 2 * self.gflops, 0, 0) + text("numpy") + text("python")
        if self.raw_welcome is not None:
            self.stream.sendall(self.raw_welcome)
        else:
            self.send(WELCOME, welcome)
        self.session = session
        self.matrices, self.pending, self.jobs_done, self.held, self.records = {}, [], 0, 0, []
        while True:
            kind, session, head, body = self.receive()
            assert session == self.session
            while self.confirmed and time.monotonic() >= self.confirmed[0][0]:
                self.send(PLACED, self.confirmed.pop(0)[1])
            if kind == PING:
                self.send(PONG, head + struct.pack("<Q", time.monotonic_ns()))
            elif kind == STORE:
                self.store(head, body)
            elif kind == PUT:
                self.put(head, body)
            elif kind == FREE:
                del self.arrays[struct.unpack("<Q", head)[0]]
            elif kind == REDUCE:
                self.reduce(head)
            elif kind == GET:
                self.get(head)
            elif kind == MAKE:
                self.make(head)
            elif kind == FETCH:
                self.fetch(head)
            elif kind == BYE:
                self.log(1)
                self.send(BYE, struct.pack(
                    "<Q5QH4QQQ", 0, 10, 20, 30, 40, 200, 1, self.jobs_done, 1000, 2000, 900, 0, 0))
                return True
            elif kind == NEIGHBOUR:
                self.send(REACHED, head[:4] + b"\0" + text("it does not relay"))
            elif kind == ERROR:
                return False
            elif kind == HELLO:
                self.refuse("a hello in the middle of a product")
                return False
            else:
                raise AssertionError(f"kind {kind} has no place here")

    def store(self, head, body):
        matrices, jobs = struct.unpack_from("<HH", head)
        at, used = 4, 0
        for _ in range(matrices):
            number, rows, cols, first, lines, uses, flags, zero = struct.unpack_from("<IIIIIHBB", head, at)
            at += 24
            assert zero == 0 and DTYPES[flags & 3] == self.dtype.type
            by_rows, source = not flags & 4, flags >> 3
            total, length = (rows, cols) if by_rows else (cols, rows)
            if source == RESIDENT:
                assert used == 0 and len(body) == 32 and first == 0 and lines == total and uses
                self.matrices[number] = self.view(body, rows, cols, by_rows, uses)
                self.held += self.matrices[number]["charge"]
                used = len(body)
                continue
            assert source != GENERATED and not (source == PARTIAL and uses) and (by_rows or (uses and source != VACANT))
            if number not in self.matrices:
                memory = np.zeros((total, length), self.dtype)
                self.matrices[number] = {"lines": memory, "view": memory if by_rows else memory.T, "left": total,
                                         "uses": uses, "charge": max(memory.nbytes + -memory.nbytes % 64, 512) + 32 * uses,
                                         "source": source, "writing": source == VACANT or not uses, "steps": []}
                # Only the announced matrix has to be remembered.
                self.held += self.matrices[number]["charge"]
                assert self.held <= self.granted, "more than was granted"
            matrix = self.matrices[number]
            assert matrix["left"] == total - first and matrix["source"] == source and matrix["view"].shape == (rows, cols)
            if source in (DATA, PARTIAL):
                size = lines * length * self.dtype.itemsize
                part = np.frombuffer(body[used:used + size], self.dtype).reshape(lines, length)
                matrix["lines"][first:first + lines] = part
                used += size
            matrix["left"] -= lines
        assert used == len(body)
        for _ in range(jobs):
            job = struct.unpack_from("<BBHIIIII", head, at)
            at += 24
            operation, then, zero, a, b, c, step, _epoch = job
            assert operation <= SUBTRACT and then <= CLOSE and zero == 0 and len({a, b, c}) == 3
            assert self.matrices[c]["writing"] and then != (CLOSE if self.matrices[c]["uses"] == 0 else RETURN)
            assert all(self.matrices[operand]["uses"] for operand in (a, b))
            mine = [other for other in self.pending if other[5] == c]
            assert all(other[6] < step and other[1] == CONTINUE for other in mine) and step < 2**32 - 1
            self.pending.append(job)
        assert at == len(head)
        self.work()

    def view(self, body, rows, cols, by_rows, uses):
        """A panel that is a rectangle of a part, or its transpose."""
        number, transposed, row, col = struct.unpack("<QB7xQQ", body)
        assert by_rows == (not transposed)
        part = self.arrays[number]
        if transposed:
            rows, cols = cols, rows
        row, col = row - part["row"], col - part["col"]
        assert 0 <= row <= row + rows <= part["rows"] and 0 <= col <= col + cols <= part["cols"]
        self.views += 1
        view = part["elements"][row:row + rows, col:col + cols]
        return {"view": view.T if transposed else view, "left": 0, "uses": uses, "charge": 512 + 32 * uses, "source": RESIDENT,
                "writing": False, "steps": []}

    def ready(self, job):
        """Whether all its operands are stored, and no earlier job of its tile waits."""
        a, b, c = job[3:6]
        whole = all(self.matrices[m]["left"] == 0 and not self.matrices[m]["writing"] for m in (a, b))
        return whole and self.matrices[c]["left"] == 0 and next(o for o in self.pending if o[5] == c) is job

    def work(self):
        while (job := next(filter(self.ready, self.pending), None)) is not None:
            self.pending.remove(job)
            operation, then, _, a, b, c, step, epoch = job
            left, right = self.matrices[a]["view"], self.matrices[b]["view"]
            target, began = self.matrices[c], time.monotonic_ns()
            assert not target["steps"] or target["steps"][-1] < step
            with np.errstate(over="ignore"):
                if operation == MULTIPLY:
                    new = left @ right * self.dtype.type(self.alpha)
                else:
                    assert left.shape == right.shape == target["view"].shape
                    new = left + right if operation == ADD else left - right
                if target["steps"] or target["source"] == PARTIAL:
                    new = target["lines"] + new
                elif target["source"] == DATA:
                    new = self.dtype.type(self.beta) * target["lines"] + new
                target["lines"][:] = new
            target["steps"].append(step)
            self.jobs_done += 1
            took = time.monotonic_ns() - began
            self.records.append(struct.pack("<BBHIIQQ", operation, then == RETURN, 0, c, step, began, took))
            self.log(10)
            for operand in (a, b):
                self.use(operand)
            if then == CLOSE:
                target["writing"] = False
            elif then == RETURN:
                self.result(c, epoch)

    def log(self, enough):
        """Sends its records of jobs, if the primary asked and there are enough."""
        if self.wants & WANTS_LOG and len(self.records) >= enough:
            self.send(LOG, struct.pack("<QH", 0, len(self.records)) + b"".join(self.records))
            self.records = []

    def use(self, operand):
        matrix = self.matrices[operand]
        matrix["uses"] -= 1
        if matrix["uses"] == 0:
            self.free(operand)

    def free(self, number):
        charge = self.matrices.pop(number)["charge"]
        self.held -= charge
        self.send(CREDIT, struct.pack("<Q", charge))

    def result(self, number, epoch):
        tile, steps = self.matrices[number]["lines"], self.matrices[number]["steps"]
        if self.spoil:
            self.spoil(tile)
        if self.die_after is not None and self.results >= self.die_after:
            raise EOFError
        self.results += 1
        rows = len(tile)
        half = max(1, rows // 2)
        for first in range(0, rows, half):
            lines = min(half, rows - first)
            head = struct.pack("<IIIIII", number, epoch, steps[0], steps[-1] + 1, first, lines)
            self.send(RESULT, head, tile[first:first + lines].tobytes())
        self.free(number)


def agreeing_liars(tiles):
    """Two workers that spoil the same tiles: the one that makes the first tile from the start, since a plan may give the second no share,
    and the second once all `tiles` of C are complete. Also a list whose only element counts the tiles of both."""
    made, first, lock = [0], [], threading.Lock()

    def spoil(who):
        def change(tile):
            with lock:
                made[0] += 1
                first.append(who)
                # One element: a row sum detects it with certainty; spoiling all elements would escape once in seven times.
                tile[-1, -1] += first[0] == who or made[0] > tiles

        return change

    return [WireWorker(spoil=spoil(who)) for who in range(2)], made
