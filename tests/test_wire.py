"""The binary as primary, against a worker in Python that was written from docs/wire-format.md."""

import re

import numpy as np
import pytest

from helpers import Run, bramble, matrix, save
from wire_primary import WirePrimary
from wire_worker import ADD, CLOSE, CONTINUE, DATA, HELLO, MULTIPLY, PARTIAL, RETURN, SUBTRACT, VACANT, WANTS_LOG, WireWorker


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


def test_a_worker_that_vanishes_is_named_and_done_without(tmp_path):
    worker = WireWorker(die_after=2)
    a, b = matrix(70, 50, "f8", 1), matrix(50, 81, "f8", 2)
    result = run(tmp_path, worker, a, b)
    assert result.code == 3 and worker.address in result.err, result
    np.testing.assert_allclose(np.load(tmp_path / "C.npy"), a @ b, rtol=1e-9, atol=1e-9)


def test_a_worker_of_another_protocol_is_named_with_both_versions(tmp_path):
    worker = WireWorker(protocol=7)
    result = run(tmp_path, worker, matrix(7, 5, "f8", 1), matrix(5, 8, "f8", 2))
    assert result.code == 5 and "protocol 7" in result.err and "protocol 6" in result.err, result
    assert "0.1.0-python" in result.err and worker.address in result.err


@pytest.mark.parametrize("junk", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 64, b"\xff" * 64], ids=["http", "zeros", "ones"])
def test_a_stranger_that_answers_is_no_worker(tmp_path, junk):
    worker = WireWorker(raw_welcome=junk)
    result = run(tmp_path, worker, matrix(7, 5, "f8", 1), matrix(5, 8, "f8", 2))
    assert result.code == 5 and worker.address in result.err, result


@pytest.fixture(params=["bramble", "python"])
def somebody(request):
    """The address of a worker, the binary or the one in Python. Both get the same messages."""
    if request.param == "python":
        worker = WireWorker()
        worker.start()
        yield worker.address
        worker.join(30)
        if worker.error:
            raise worker.error
        return
    worker = Run("worker", "--listen", "127.0.0.1:0", "--threads", 2)
    try:
        line = worker.process.stdout.readline()
        yield re.search(r"127\.0\.0\.1:\d+", line).group()
    finally:
        worker.end()


@pytest.mark.parametrize("dtype", ["f8", "i8", "i4"])
def test_a_step_of_strassen_in_winograds_form_is_22_jobs(somebody, dtype):
    m, k, n = 20, 12, 28
    a, b = matrix(2 * m, 2 * k, dtype, 1), matrix(2 * k, 2 * n, dtype, 2)
    parts = {f"{name}{i}{j}": part[i * part.shape[0] // 2:][:part.shape[0] // 2, j * part.shape[1] // 2:][:, :part.shape[1] // 2]
             for name, part in (("A", a), ("B", b)) for i in (0, 1) for j in (0, 1)}
    scheme = """S1 = A10 + A11; S2 = S1 - A00; S3 = A00 - A10; S4 = A01 - S2
        T1 = B01 - B00; T2 = B11 - T1; T3 = B11 - B01; T4 = T2 - B10
        P1 = A00 * B00; P2 = A01 * B10; P3 = S4 * B11; P4 = A11 * T4; P5 = S1 * T1; P6 = S2 * T2; P7 = S3 * T3
        C00 = P1 + P2; U2 = P1 + P6; U3 = U2 + P7; U4 = U2 + P5; C01 = U4 + P3; C10 = U3 - P4; C11 = U3 + P5"""
    lines = [re.split(r" ([=*+-]) ", line.strip()) for line in re.split("[;\n]", scheme)]
    names = [*parts, *(line[0] for line in lines)]
    number = {name: at for at, name in enumerate(names)}
    uses = {name: sum(name in line[2::2] for line in lines) for name in names}
    with WirePrimary(somebody, dtype) as primary:
        for at, (name, part) in enumerate(parts.items()):
            primary.store([primary.matrix(number[name], part.shape, DATA, uses[name], by_rows=at % 2 == 0, elements=part)])
        shapes = {name: part.shape for name, part in parts.items()}
        made, jobs = [], []
        for name, _, x, sign, y in lines:
            shapes[name] = (shapes[x][0], shapes[y][1])
            made.append(primary.matrix(number[name], shapes[name], VACANT, uses[name]))
            operation = {"*": MULTIPLY, "+": ADD, "-": SUBTRACT}[sign]
            jobs.append(primary.job(operation, CLOSE if uses[name] else RETURN, number[x], number[y], number[name], 0))
        # Jobs that read a matrix arrive before the jobs that make it.
        primary.store(made, jobs[::-1])
        tiles = primary.results([number[f"C{i}{j}"] for i in (0, 1) for j in (0, 1)])
        c = np.block([[tiles[number[f"C{i}{j}"]][2] for j in (0, 1)] for i in (0, 1)])
        primary.bye(len(jobs))
    with np.errstate(over="ignore"):
        wanted = a @ b
    np.testing.assert_allclose(c, wanted, rtol=0, atol=1e-10 if dtype == "f8" else 0)


def test_a_tile_is_overwritten_scaled_or_only_added_to(somebody):
    x, y, old = (matrix(9, 9, "f8", seed) for seed in (1, 2, 3))
    with WirePrimary(somebody, "f8", alpha=2.0, beta=-3.0) as primary:
        primary.store([primary.matrix(1, (9, 9), DATA, 9, by_rows=False, elements=x)])
        primary.store([primary.matrix(2, (9, 9), DATA, 9, elements=y)])
        for number, source in ((10, VACANT), (11, DATA), (12, PARTIAL)):
            primary.store([primary.matrix(number, (9, 9), source, 0, elements=None if source == VACANT else old)])
            primary.store([], [primary.job(SUBTRACT, CONTINUE, 1, 2, number, 4), primary.job(MULTIPLY, CONTINUE, 1, 2, number, 6),
                               primary.job(ADD, RETURN, 1, 2, number, 9)])
        tiles = primary.results([10, 11, 12])
        primary.bye(9)
    for number, scale in ((10, 0), (11, -3), (12, 1)):
        start, end, tile = tiles[number]
        assert (start, end) == (4, 10)
        np.testing.assert_allclose(tile, scale * old + (x - y) + 2 * (x @ y) + (x + y), rtol=1e-12, atol=1e-12)


def test_who_asks_is_told_of_every_job(somebody):
    with WirePrimary(somebody, "f8", wants=WANTS_LOG) as primary:
        primary.store([primary.matrix(1, (9, 9), DATA, 3, elements=matrix(9, 9, "f8", 1))])
        primary.store([primary.matrix(2, (9, 9), DATA, 3, elements=matrix(9, 9, "f8", 2)), primary.matrix(3, (9, 9), VACANT, 0)],
                      [primary.job(SUBTRACT, CONTINUE, 1, 2, 3, 4), primary.job(MULTIPLY, CONTINUE, 1, 2, 3, 6),
                       primary.job(ADD, RETURN, 1, 2, 3, 9)])
        primary.results([3])
        primary.bye(3)
    told = [(operation, returned, number, step) for operation, returned, _, number, step, _, _ in primary.records]
    assert told == [(SUBTRACT, 0, 3, 4), (MULTIPLY, 0, 3, 6), (ADD, 1, 3, 9)]
    starts = [(start, start + took) for *_, start, took in primary.records]
    assert all(before[1] <= after[0] for before, after in zip(starts, starts[1:])), starts


def product(primary, x, y):
    """C = XY as one tile."""
    primary.store([primary.matrix(1, x.shape, DATA, 1, elements=x)])
    primary.store([primary.matrix(2, y.shape, DATA, 1, elements=y), primary.matrix(3, (x.shape[0], y.shape[1]), VACANT, 0)],
                  [primary.job(MULTIPLY, RETURN, 1, 2, 3, 0)])
    return primary.results([3])[3][2]


def test_products_follow_each_other_over_one_connection(somebody):
    with WirePrimary(somebody, "f8") as primary:
        for number, dtype in enumerate(["f8", "i8", "f4"]):
            if number:
                primary.ping(number)
                primary.begin(dtype, 1000 + number)
            x, y = matrix(9, 7, dtype, number), matrix(7, 11, dtype, number + 9)
            # The same ids in each product.
            np.testing.assert_allclose(product(primary, x, y), x @ y, rtol=1e-5)
            primary.bye(1)
        primary.ping(8)


def test_a_hello_in_the_middle_of_a_product_is_refused(somebody):
    with WirePrimary(somebody, "f8") as primary:
        primary.store([primary.matrix(1, (9, 9), DATA, 1, elements=matrix(9, 9, "f8", 1))])
        primary.send(HELLO, primary.hello("f8", 1001))
        why = primary.error()
        assert "a hello in the middle" in why or "kind 1 has no place here" in why, why
