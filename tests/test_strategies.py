"""Every strategy end to end: in process, on local workers, on workers started by hand; always the right C, with
`--reproducible` always the same bits, and the traffic that the plan predicted."""

import json

import numpy as np
import pytest
from helpers import DTYPES, assert_product, assert_refused, bramble, matrix, multiply, save, succeed, workers

PLAIN = ["naive", "row:3", "square:2", "reuse", "cuboid", "cuboid:2x1x3", "summa:2x2"]
STRASSEN = ["strassen:1", "strassen:2", "strassen:1+square:2", "strassen:1+cuboid", "strassen:2+naive"]
SHAPES = {
    "square": (157, 163, 151),
    "tall": (700, 40, 60),
    "flat": (40, 700, 60),
    "long k": (30, 40, 2000),
    "row": (1, 300, 200),
    "column": (300, 1, 200),
    "outer": (150, 170, 1),
    "inner": (1, 1, 900),
    "one": (1, 1, 1),
}
EMPTY = [(0, 5, 4), (5, 0, 4), (5, 4, 0), (0, 0, 0)]
SMALL_TILES = "--tile", "32", "--panel", "24"


@pytest.mark.parametrize("team", [(), ("--local", "3")], ids=["alone", "local"])
@pytest.mark.parametrize("strategy", PLAIN + STRASSEN)
def test_every_strategy_gives_the_product(tmp_path, strategy, team):
    for number, dtype in enumerate(DTYPES):
        a, b = matrix(157, 151, dtype, number), matrix(151, 163, dtype, number + 9)
        c = multiply(tmp_path, a, b, "--strategy", strategy, *team, *SMALL_TILES)
        if dtype.startswith("f") and strategy.startswith("strassen"):
            assert_normwise(c, a, b, levels=int(strategy[9]))
        else:
            assert_product(c, a, b)


def assert_normwise(c, a, b, levels):
    """Within the norm-wise bound of Strassen-Winograd, and at most 4 * 2^L times the classical error bound."""
    exact = a.astype(np.longdouble) @ b.astype(np.longdouble)
    unit = np.finfo(c.dtype).eps / 2
    classical = a.shape[1] * unit * np.abs(a).max() * np.abs(b).max() * a.shape[1]
    assert np.abs(c - exact).max() <= 4 * 2**levels * classical


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("strategy", [*PLAIN, "strassen:1"])
def test_any_shape(tmp_path, shape, strategy):
    m, n, k = SHAPES[shape]
    a, b = matrix(m, k, "i64", 1), matrix(k, n, "i64", 2)
    if strategy == "strassen:1" and min(m, n, k) < 2:
        result = bramble("multiply", save(tmp_path, "A.npy", a), save(tmp_path, "B.npy", b), "--strategy", strategy)
        return assert_refused(result, 2, ["strassen:1", "halved"])
    c = multiply(tmp_path, a, b, "--strategy", strategy, "--local", "2", *SMALL_TILES)
    assert_product(c, a, b)


@pytest.mark.parametrize("strategy", [*PLAIN, "auto"])
def test_nothing_to_multiply(tmp_path, strategy):
    for m, n, k in EMPTY:
        a, b = np.ones((m, k)), np.ones((k, n))
        c = multiply(tmp_path, a, b, "--strategy", strategy)
        np.testing.assert_array_equal(c, np.zeros((m, n)))


@pytest.mark.parametrize("strategy", [*PLAIN, "strassen:1"])
def test_the_old_c_and_transposed_operands(tmp_path, strategy):
    a, b, old = matrix(151, 90, "i32", 1), matrix(117, 151, "i32", 2), matrix(90, 117, "i32", 3)
    for team in [(), ("--local", "2")]:
        for more in [(), ("--reproducible",)]:
            if more and strategy.startswith("strassen"):
                continue
            save(tmp_path, "C.npy", old)
            c = multiply(tmp_path, a, b, "--strategy", strategy, "--transpose-a", "--transpose-b", "--alpha", "3",
                         "--beta", "-2", *team, *more, *SMALL_TILES)
            assert_product(c, a.T, b.T, 3, -2, old)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ["square", "tall", "flat", "long k", "row", "column", "one"])
def test_reproducible_bits(tmp_path, dtype, shape):
    m, n, k = SHAPES[shape]
    operands = f"random:{m}x{k}:{dtype}:5", f"random:{k}x{n}:{dtype}:6"

    def digest(strategy, *team):
        result = succeed("multiply", *operands, "--json", "--reproducible", "--strategy", strategy, *SMALL_TILES, *team)
        return result.report["digest"]

    want = digest("auto")
    for strategy in PLAIN:
        assert digest(strategy) == want, strategy
    for count, strategy in [(1, "naive"), (2, "row:3"), (3, "square:2"), (5, "cuboid"), (2, "cuboid:1x1x2"),
                            (3, "summa:1x3"), (5, "reuse"), (3, "naive"), (5, "row:3"), (2, "auto")]:
        assert digest(strategy, "--local", count) == want, (strategy, count)


def test_strassen_is_refused_where_it_cannot_keep_what_is_asked():
    operands = "random:64x64:f64:1", "random:64x64:f64:2"
    for flag in ["--reproducible", "--elementwise"]:
        result = bramble("multiply", *operands, "--strategy", "strassen:1", flag)
        assert_refused(result, 2, ["strassen:1"])
    # Integers are exact either way.
    succeed("multiply", "random:64x64:i64:1", "random:64x64:i64:2", "--strategy", "strassen:1", "--elementwise")


def test_workers_by_hand_run_every_strategy(tmp_path):
    a, b = matrix(157, 151, "f64", 1), matrix(151, 163, "f64", 2)
    with workers(2, "--threads", "1") as (addresses, _):
        for strategy in [*PLAIN, "strassen:1"]:
            c = multiply(tmp_path, a, b, "-w", ",".join(addresses), "--strategy", strategy, *SMALL_TILES)
            if strategy == "strassen:1":
                assert_normwise(c, a, b, 1)
            else:
                assert_product(c, a, b)


# Strassen's method is refused with --reproducible.
MODES = [*((strategy, ()) for strategy in [*PLAIN, "strassen:1"]), *((strategy, ("--reproducible",)) for strategy in PLAIN)]


@pytest.mark.parametrize("strategy, mode", MODES)
def test_a_run_sends_what_its_plan_said(tmp_path, strategy, mode):
    a, b = save(tmp_path, "A.npy", matrix(900, 800, "f64", 1)), save(tmp_path, "B.npy", matrix(800, 1000, "f64", 2))
    report = succeed("multiply", a, b, "--local", "2", "--strategy", strategy, "--tile", "64", "--panel", "64",
                     "--json", "--no-steal", *mode).report
    said, did = report["predicted"], report["primary"]
    for direction in ["bytes_sent", "bytes_received"]:
        assert abs(did[direction] - said[direction]) <= 0.01 * said[direction], (strategy, direction, said, did)
    for worker in report["workers"]:
        assert worker["memory_bytes"] <= said["worker_memory_bytes"]


def test_small_memories_take_waves(tmp_path):
    a, b = matrix(900, 700, "f32", 1), matrix(700, 800, "f32", 2)
    for strategy in ["reuse", "cuboid", "summa:2x1", "naive"]:
        left, right = save(tmp_path, "A.npy", a), save(tmp_path, "B.npy", b)
        result = succeed("multiply", left, right, "-o", tmp_path / "C.npy", "--local", "2", "--credits", "300K",
                         "--strategy", strategy, "--tile", "64", "--panel", "64", "--json")
        assert_product(np.load(tmp_path / "C.npy"), a, b)
        for worker in result.report["workers"]:
            assert worker["memory_bytes"] <= 300 * 1024


def test_a_block_that_fits_nowhere_is_refused_with_the_numbers():
    result = bramble("multiply", "random:900x900:f64:1", "random:900x900:f64:2", "--local", "2", "--credits", "300K",
                     "--strategy", "square:12", "--tile", "64", "--panel", "64")
    assert_refused(result, 2, ["square:12", "bytes", "--credits [0-9]+K or more"])


def test_the_workers_to_a_mesh_that_is_too_small_are_named():
    result = succeed("multiply", "random:300x300:f64:1", "random:300x300:f64:2", "--local", "3",
                     "--strategy", "summa:1x2", *SMALL_TILES, "--json")
    assert len(result.report["workers"]) == 2
    assert len(result.report["faults"]["excluded"]) == 1
    assert "mesh" in json.dumps(result.report["faults"]["excluded"])
