"""The binary as primary, against a worker in Python that was written from docs/wire-format.md."""

import numpy as np
import pytest

from helpers import bramble, matrix, save
from wire_worker import WireWorker


def run(tmp_path, worker, a, b, *options):
    worker.start()
    left, right = save(tmp_path, "A.npy", a), save(tmp_path, "B.npy", b)
    result = bramble("multiply", left, right, "-o", tmp_path / "C.npy", "-w", worker.address,
                     "--strategy", "reuse", "--kernel", "simd", "--tile", 32, "--panel", 24, *options)
    worker.join(30)
    assert not worker.is_alive()
    if worker.error:
        raise worker.error
    return result


@pytest.mark.parametrize("dtype", ["f8", "f4", "i4", "i8"])
def test_a_worker_written_from_the_page_computes(tmp_path, dtype):
    a, b = matrix(70, 50, dtype, 1), matrix(50, 81, dtype, 2)
    worker = WireWorker()
    result = run(tmp_path, worker, a, b, "--json")
    assert result.code == 0, result
    np.testing.assert_allclose(np.load(tmp_path / "C.npy"), a @ b, rtol=1e-5, atol=1e-5)
    assert worker.checked > 10
    assert result.report["workers"][0]["jobs"] == 3 * 3 * 3


def test_transposed_operands_and_the_old_c_travel_as_the_page_says(tmp_path):
    a, b, c = matrix(50, 70, "f8", 1), matrix(81, 50, "f8", 2), matrix(70, 81, "f8", 3)
    np.save(tmp_path / "C.npy", np.asfortranarray(c))
    result = run(tmp_path, WireWorker(), a, b, "--transpose-a", "--transpose-b", "--alpha", "2", "--beta", "-0.5")
    assert result.code == 0, result
    np.testing.assert_allclose(np.load(tmp_path / "C.npy"), 2 * (a.T @ b.T) - 0.5 * c, rtol=1e-9, atol=1e-9)


def nothing_left(tmp_path):
    return not list(tmp_path.glob("C.npy*"))


def test_a_worker_that_lies_is_caught_and_named(tmp_path):
    def lie(tile):
        tile[0, 0] += 1

    worker = WireWorker(spoil=lie)
    result = run(tmp_path, worker, matrix(70, 50, "f8", 1), matrix(50, 81, "f8", 2))
    assert result.code == 4, result
    assert worker.address in result.err and "C is wrong" in result.err
    assert nothing_left(tmp_path)


def test_nan_that_does_not_belong_there_is_caught(tmp_path):
    def poison(tile):
        tile[-1, -1] = np.nan

    result = run(tmp_path, WireWorker(spoil=poison), matrix(70, 50, "f4", 1), matrix(50, 81, "f4", 2))
    assert result.code == 4, result
    assert nothing_left(tmp_path)


def test_a_worker_that_vanishes_is_named(tmp_path):
    worker = WireWorker(die_after=2)
    result = run(tmp_path, worker, matrix(70, 50, "f8", 1), matrix(50, 81, "f8", 2))
    assert result.code == 1 and worker.address in result.err, result
    assert nothing_left(tmp_path)


def test_a_worker_of_another_protocol_is_named_with_both_versions(tmp_path):
    worker = WireWorker(protocol=7)
    result = run(tmp_path, worker, matrix(7, 5, "f8", 1), matrix(5, 8, "f8", 2))
    assert result.code == 5 and "protocol 7" in result.err and "protocol 2" in result.err, result
    assert "0.1.0-python" in result.err and worker.address in result.err


@pytest.mark.parametrize("junk", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 64, b"\xff" * 64], ids=["http", "zeros", "ones"])
def test_a_stranger_that_answers_is_no_worker(tmp_path, junk):
    worker = WireWorker(raw_welcome=junk)
    result = run(tmp_path, worker, matrix(7, 5, "f8", 1), matrix(5, 8, "f8", 2))
    assert result.code == 5 and worker.address in result.err, result
