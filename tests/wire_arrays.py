"""Parts of arrays at a worker in Python, written from docs/wire-format.md alone: put, get, reduce, make."""

import struct
import time

import blake3
import numpy as np

PLACED, PART, REDUCED = 20, 22, 26
ROWSUM, COLSUM, NORM, MAX, MIN, TOPK = range(1, 7)
OPENS, PRODUCT, MORE_PRODUCT, SCALED, SUM = range(5)
DTYPES = [np.float32, np.float64, np.int32, np.int64]
LAST = 0x80


def digest_of(part):
    return blake3.blake3(struct.pack("<QQ", *part.shape) + part.tobytes()).digest()[:16]


class HeldArrays:
    """What `WireWorker` does with arrays; it has `send`, `arrays`, and the numbers so far."""

    def put(self, head, body):
        """Elements of a part; the last of them is answered. With `flips` one bit of the part is wrong."""
        number, row, rows, col, cols, first, dtype, source = struct.unpack("<QQQQQQBB", head)
        assert source == 0 and rows and cols, "this worker generates nothing"
        size = np.dtype(DTYPES[dtype]).itemsize
        part = self.open(number, row, rows, col, cols) if first == 0 else self.arrays[number]
        assert (part["row"], part["col"], part["rows"], part["cols"]) == (row, col, rows, cols)
        assert first * size == len(part["bytes"]) and body and len(body) % size == 0
        part["bytes"] += body
        if len(part["bytes"]) < rows * cols * size:
            return
        if self.flips:
            part["bytes"][7] ^= 16
        part["elements"] = np.frombuffer(bytes(part["bytes"]), DTYPES[dtype]).reshape(rows, cols)
        placed = struct.pack("<QBQ", number, 1, len(part["bytes"])) + digest_of(part["elements"])
        if self.late_s:
            self.confirmed.append((time.monotonic() + self.late_s, placed))
        else:
            self.send(PLACED, placed)

    def reduce(self, head):
        """The reduction of a rectangle of a part, or of a product of two."""
        number, which, count, dtype, row, rows, col, cols = struct.unpack("<QBQBQQQQ", head[:50])
        (depth, alpha, is_product), left, right = struct.unpack("<QdB", head[114:]), head[50:82], head[82:114]
        dtype = np.dtype(DTYPES[dtype])
        matrix = self.rectangle(left, rows, depth if is_product else cols)
        if is_product:
            matrix = (dtype.type(alpha) * (matrix @ self.rectangle(right, depth, cols))).astype(dtype)
        wide = np.float64 if dtype.kind == "f" else np.int64
        if which in (ROWSUM, COLSUM):
            body = matrix.sum(1 if which == ROWSUM else 0, dtype=wide).tobytes()
        elif which == NORM:
            body = struct.pack("<qd", 0, float(np.square(matrix.astype(np.float64)).sum()))
        elif which in (MAX, MIN):
            body = (matrix.max() if which == MAX else matrix.min()).tobytes()
        else:
            order = cols - 1 - np.argsort(matrix[:, ::-1], axis=1, kind="stable")[:, ::-1][:, :count]
            body = (order + col).astype(np.uint64).tobytes() + np.take_along_axis(matrix, order, 1).tobytes()
        if is_product:
            body += matrix.sum(1, dtype=wide).tobytes()
        # In two frames, to show that an answer may have several.
        half = len(body) // 2
        for first, some in ((0, body[:half]), (half, body[half:])):
            if some:
                self.send(REDUCED, struct.pack("<QQQ", number, first, len(body)), some)

    def rectangle(self, view, rows, cols):
        """A matrix that is a rectangle of a part, or its transpose."""
        number, transposed, row, col = struct.unpack("<QB7xQQ", view)
        part = self.arrays[number]
        if transposed:
            rows, cols = cols, rows
        row, col = row - part["row"], col - part["col"]
        assert 0 <= row <= row + rows <= part["rows"] and 0 <= col <= col + cols <= part["cols"]
        found = part["elements"][row:row + rows, col:col + cols]
        return found.T if transposed else found

    def open(self, number, row, rows, col, cols):
        assert number > self.last_array
        self.last_array = number
        self.arrays[number] = {"row": row, "col": col, "rows": rows, "cols": cols, "bytes": bytearray()}
        return self.arrays[number]

    def make(self, head):
        """A step that makes a rectangle of a part; the first one opens the part."""
        number, array, dtype, form = struct.unpack("<QQBB", head[:18])
        part, rect, (depth, alpha, beta) = head[18:50], head[50:82], struct.unpack("<Qdd", head[146:])
        left, right = head[82:114], head[114:146]
        row, rows, col, cols = struct.unpack("<QQQQ", rect)
        dtype, is_last, form = np.dtype(DTYPES[dtype]), form & LAST, form & ~LAST
        if form == OPENS:
            where = struct.unpack("<QQQQ", part)
            self.open(array, *where)["elements"] = np.zeros((where[1], where[3]), dtype)
            self.placed(number)
            return
        held = self.arrays[array]
        target = held["elements"][row - held["row"]:, col - held["col"]:][:rows, :cols]
        if form in (PRODUCT, MORE_PRODUCT):
            new = dtype.type(alpha) * (self.rectangle(left, rows, depth) @ self.rectangle(right, depth, cols))
            target[:] = target + new if form == MORE_PRODUCT else new
        else:
            target[:] = dtype.type(alpha) * self.rectangle(left, rows, cols)
            if form == SUM:
                target[:] += dtype.type(beta) * self.rectangle(right, rows, cols)
        if not is_last:
            self.placed(number)
            return
        self.made += 1
        if self.spoil_made:
            self.spoil_made(held["elements"])
        self.placed(number, held["elements"])
        if self.flips_made:
            held["elements"].view(np.uint8)[-1, 0] ^= 1

    def placed(self, number, part=None):
        size, digest = (part.nbytes, digest_of(part)) if part is not None else (0, bytes(16))
        self.send(PLACED, struct.pack("<QBQ", number, 1, size) + digest)

    def fetch(self, head):
        """This worker links with no other one."""
        number, = struct.unpack("<Q", head[:8])
        why = b"it does not relay"
        self.last_array = number
        self.arrays[number] = None
        self.send(PLACED, struct.pack("<QB", number, 0) + bytes([len(why)]) + why)

    def get(self, head):
        """The elements of a rectangle, in frames of whole rows, or of parts of a row."""
        array, row, rows, col, cols = struct.unpack("<QQQQQ", head)
        held = self.arrays[array]
        rect = np.ascontiguousarray(held["elements"][row - held["row"]:, col - held["col"]:][:rows, :cols])
        most = (1 << 20) // rect.itemsize
        down, across = (max(1, most // cols), cols) if cols <= most else (1, most)
        for top in range(0, rows, down):
            for first in range(0, cols, across):
                piece = rect[top:top + down, first:first + across]
                self.send(PART, struct.pack("<QQ", array, top * cols + first), piece.tobytes())
