"""Machines with wrong results: other workers recompute the tiles, C is right, the machine is named, exit code 3."""

import re
import time

import numpy as np
import pytest
from helpers import assert_gone, assert_nothing_written, bramble, matrix, save, workers
from wire_worker import WireWorker, agreeing_liars

CUT = "--kernel", "simd", "--tile", 15, "--panel", 24
"""Tiles of so few rows are not spot-checked."""
TALL = "--kernel", "simd", "--tile", 16, "--panel", 24
"""Tiles of so many rows are spot-checked."""
A, B = matrix(70, 50, "i8", 1), matrix(50, 81, "i8", 2)
"""Integers: a correct C is correct to the bit."""


def multiply(tmp_path, liars, addresses=(), a=A, b=B, strategy="reuse", options=(), cut=CUT):
    for liar in liars:
        # It claims to be as fast as the fastest: it gets a share, and no worker steals that before it has lied (`--no-steal`).
        liar.gflops = 1000.0
        liar.start()
    team = ",".join([*addresses, *(liar.address for liar in liars)])
    left, right = save(tmp_path, "A.npy", a), save(tmp_path, "B.npy", b)
    result = bramble("multiply", left, right, "-o", tmp_path / "C.npy", "-w", team, "--strategy", strategy, *cut, *options,
                     "--no-steal", "--json")
    for liar in liars:
        liar.join(30)
        assert not liar.is_alive()
        if liar.error:
            raise liar.error
        assert liar.results > 0, "the plan gave it nothing, so it could not lie"
    return result


def assert_mended(result, tmp_path, names, tiles, want=None):
    """C is right; each liar is named on stderr and in the report with its number of tiles, and did not recompute them."""
    assert result.code == 3, result
    assert np.array_equal(np.load(tmp_path / "C.npy"), A @ B if want is None else want)
    report = result.report
    assert [(wrong["names"], wrong["tiles"]) for wrong in report["faults"]["wrong"]] == [(names, tiles)], report["faults"]
    assert report["verify"]["passed"] is True and not report["faults"]["lost"]
    assert re.search(r"C\[\d+, \d+\] is ", report["faults"]["wrong"][0]["text"])
    for name in names:
        assert re.search(rf"of C from .*{re.escape(name)}.* (was|were) wrong, and recomputed by other machines", result.err), result
    assert sum(worker["share"] for worker in report["workers"]) == pytest.approx(1, abs=1e-6)
    assert_gone(result.tag)


def add_one(tile):
    tile[0, 0] += 1


def once(number):
    """Spoils one given tile."""
    left = [number]

    def spoil(tile):
        left[0] -= 1
        if left[0] == 0:
            tile[-1, -1] ^= 1 << 40

    return spoil


def test_one_wrong_tile_is_made_again_and_no_other(tmp_path):
    with workers(2, "--threads", "1") as (addresses, _):
        liar = WireWorker(spoil=once(1))
        assert_mended(multiply(tmp_path, [liar], addresses), tmp_path, [liar.address], 1)


@pytest.mark.parametrize("helpers", [0, 2])
def test_all_that_a_machine_made_is_wrong(tmp_path, helpers):
    with workers(helpers, "--threads", "1") as (addresses, _):
        liar = WireWorker(spoil=add_one)
        result = multiply(tmp_path, [liar], addresses)
        made = liar.results
        assert made > (0 if helpers else 29)
        assert_mended(result, tmp_path, [liar.address], made)


@pytest.mark.parametrize("strategy", ["reuse", "row:2"])
def test_a_machine_that_is_always_wrong_is_left_out_before_the_end(tmp_path, strategy):
    """It takes 30 ms per result, so that a spot check detects it long before it has finished its share, a third or more."""
    a, b = matrix(480, 50, "i8", 1), matrix(50, 480, "i8", 2)

    def spoil(tile):
        time.sleep(0.03)
        tile[0, 0] += 1

    with workers(1, "--threads", "1") as (addresses, _):
        liar = WireWorker(spoil=spoil)
        result = multiply(tmp_path, [liar], addresses, a, b, strategy, cut=TALL)
    assert result.code == 3 and np.array_equal(np.load(tmp_path / "C.npy"), a @ b), result
    faults = result.report["faults"]
    (lost,), wrong = faults["lost"], faults["wrong"]
    assert lost["name"] == liar.address and re.fullmatch(r"\d+ of its results were spot-checked and wrong", lost["why"]), faults
    # Where k is cut, other workers have added their steps to some of its tiles.
    assert all(liar.address in some["names"] for some in wrong), faults
    assert 2 <= sum(some["tiles"] for some in wrong if some["names"] == [liar.address]) <= liar.results, (faults, liar.results)
    made = sum(some["tiles"] for some in wrong) / (480 // 16) ** 2
    assert 0 < made < 0.2, f"it made {made:.3f} of all"
    # Where work is assigned row by row, it may have no tile of its own at that moment.
    assert lost["part"] > made or strategy != "reuse", f"it made {made:.3f} of all, and {lost['part']:.3f} was left"
    assert "spot-checked and wrong; other machines take over its work" in result.err, result.err


def test_where_nobody_was_right_nobody_is_left_out_before_the_end(tmp_path):
    """Then the operands or the primary are more likely at fault. Each worker takes 10 ms per tile: time for many spot checks."""
    a, b = matrix(200, 50, "i8", 1), matrix(50, 200, "i8", 2)

    def spoil(tile):
        time.sleep(0.01)
        tile[0, 0] += 1

    liars = [WireWorker(spoil=spoil), WireWorker(spoil=spoil)]
    result = multiply(tmp_path, liars, a=a, b=b, cut=TALL)
    assert result.code == 3 and np.array_equal(np.load(tmp_path / "C.npy"), a @ b), result
    faults = result.report["faults"]
    assert not faults["lost"] and len(faults["wrong"]) == 2, faults
    assert sum(some["tiles"] for some in faults["wrong"]) == 13 * 13, faults


def test_who_is_right_stays(tmp_path):
    a, b = matrix(480, 50, "i8", 1), matrix(50, 480, "i8", 2)
    left, right = save(tmp_path, "A.npy", a), save(tmp_path, "B.npy", b)
    with workers(2, "--threads", "1") as (addresses, _):
        result = bramble("multiply", left, right, "-o", tmp_path / "C.npy", "-w", ",".join(addresses), *TALL, "--strategy",
                         "square:2", "--json")
    assert result.code == 0 and np.array_equal(np.load(tmp_path / "C.npy"), a @ b), result
    assert not result.report["faults"]["lost"] and not result.report["faults"]["wrong"]


def test_both_of_two_lie_and_this_machine_makes_it(tmp_path):
    liars = [WireWorker(spoil=add_one), WireWorker(spoil=add_one)]
    result = multiply(tmp_path, liars)
    assert result.code == 3 and np.array_equal(np.load(tmp_path / "C.npy"), A @ B), result
    wrong = {tuple(wrong["names"]): wrong["tiles"] for wrong in result.report["faults"]["wrong"]}
    assert wrong == {(liar.address,): liar.results for liar in liars}


def test_where_several_made_a_tile_all_are_named(tmp_path):
    with workers(1, "--threads", "1") as (addresses, _):
        liar = WireWorker(spoil=once(1))
        result = multiply(tmp_path, [liar], addresses, strategy="cuboid:1x1x2")
    assert result.code == 3 and np.array_equal(np.load(tmp_path / "C.npy"), A @ B), result
    (wrong,) = result.report["faults"]["wrong"]
    assert sorted(wrong["names"]) == sorted([*addresses, liar.address]) and wrong["tiles"] == 1, wrong
    assert re.search(r"one tile of C from .* together was wrong", result.err), result


@pytest.mark.parametrize("dtype, strategy", [("f8", "strassen:1"), ("f4", "row:3"), ("f8", "summa:1x3"), ("i4", "strassen:2")])
def test_whatever_the_product_is_cut_into(tmp_path, dtype, strategy):
    a, b, c = matrix(70, 50, dtype, 1), matrix(50, 81, dtype, 2), matrix(70, 81, dtype, 3)
    save(tmp_path, "C.npy", c)
    with workers(2, "--threads", "1") as (addresses, _):
        liar = WireWorker(spoil=lambda tile: tile.fill(7))
        result = multiply(tmp_path, [liar], addresses, a, b, strategy, ("--beta", "2", "--alpha", "3"))
    assert result.code == 3, result
    np.testing.assert_allclose(np.load(tmp_path / "C.npy"), 3 * (a @ b) + 2 * c, rtol=1e-4 if dtype == "f4" else 1e-9, atol=1e-4)
    (wrong,) = result.report["faults"]["wrong"]
    # With Strassen's method one fault at a time is located: first some of its tiles, then all.
    assert wrong["names"] == [liar.address] and 0 < wrong["tiles"] <= liar.results, (wrong, liar.results)
    assert wrong["tiles"] == liar.results or strategy == "strassen:1"


def test_nan_that_does_not_belong_there_is_made_again(tmp_path):
    def poison(tile):
        tile[-1, -1] = np.nan

    a, b = matrix(70, 50, "f4", 1), matrix(50, 81, "f4", 2)
    result = multiply(tmp_path, [WireWorker(spoil=poison)], a=a, b=b)
    assert result.code == 3 and "is NaN" in result.err, result
    np.testing.assert_allclose(np.load(tmp_path / "C.npy"), a @ b, rtol=1e-4, atol=1e-4)


def test_where_others_make_the_same_c_is_refused(tmp_path):
    """Two liars with the same wrong tiles: the primary cannot tell which machine is right, and C is not kept."""
    tiles = 5 * 6
    liars, made = agreeing_liars(tiles)
    result = multiply(tmp_path, liars)
    assert made[0] > tiles, "nothing was made again"
    assert result.code == 4 and "C is wrong" in result.err, result
    assert_nothing_written(tmp_path)


def test_what_nobody_looks_at_stays_as_it_is(tmp_path):
    liar = WireWorker(spoil=add_one)
    result = multiply(tmp_path, [liar], options=("--verify", "off"))
    assert result.code == 0 and result.report["verify"]["passed"] is None, result
    assert not np.array_equal(np.load(tmp_path / "C.npy"), A @ B)


def test_what_another_run_has_left_is_looked_at_too(tmp_path):
    """A liar's tiles are in the journal when the primary dies; the resumed run finds them wrong, and names none of its own machines."""
    a, b = matrix(420, 3200, "i8", 1), matrix(3200, 440, "i8", 2)
    left, right = save(tmp_path, "A.npy", a), save(tmp_path, "B.npy", b)
    product = "multiply", left, right, "-o", tmp_path / "C.npy", "--tile", 40, "--panel", 100, "--strategy", "row:1"
    for step in (16, 14, 12, 10, 9, 9, 9):
        liar = WireWorker(spoil=add_one)
        liar.start()
        env = {"BRAMBLE_JOURNAL_MS": "10", "BRAMBLE_DIE_AT": str(step)}
        died = bramble(*product, "-w", liar.address, env=env)
        liar.join(30)
        is_early = "may be wrong" not in died.err
        if died.code == 137 and is_early and not (tmp_path / "C.npy").exists():
            break
        for path in tmp_path.glob("C.npy*"):
            path.unlink()
    else:
        pytest.fail("the product ended before its journal had anything in it")
    result = bramble(*product, "--resume", "--json")
    assert result.code == 3 and np.array_equal(np.load(tmp_path / "C.npy"), a @ b), result
    (wrong,) = result.report["faults"]["wrong"]
    assert wrong["names"] == [] and wrong["tiles"] > 0 and "of the interrupted run" in result.err, wrong
    assert sorted(path.name for path in tmp_path.glob("C.npy*")) == ["C.npy"]
