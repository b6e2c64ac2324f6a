"""Kernels that spoil some elements: the faults that verification detects, against the rates that it promises.

1,000 seeded cases with each effort; docs/verification.md has the table of many more (bench/fault_rates.py makes it).
"""

import collections
import os
from concurrent.futures import ThreadPoolExecutor

import faulty
import numpy as np
import pytest
from helpers import assert_gone, assert_nothing_written, assert_product, bramble, matrix, save, workers

CASES = 1000
FEW = 400
"""Enough seeds for every class of fault with every shape, and with every scaling."""
RATES = {"full": 0.999, "fast": 0.98}
"""The detection rate for faults above 16 rounding bounds of an element."""


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return faulty.library(tmp_path_factory.mktemp("faulty"))


def test_the_few_cases_have_every_fault_in_every_shape():
    cases = [faulty.case_of(seed) for seed in range(FEW)]
    assert {(case.fault, case.shape) for case in cases} == {(fault, shape) for fault in faulty.CLASSES for shape in faulty.SHAPES}
    assert {(case.fault, case.scaling) for case in cases} == {(fault, scaling) for fault in faulty.CLASSES for scaling in faulty.SCALINGS}


@pytest.mark.parametrize("count", [FEW, pytest.param(CASES, marks=pytest.mark.soak("verification"))])
@pytest.mark.parametrize("effort", RATES)
def test_faults_are_found_at_the_stated_rate(tmp_path, library, effort, count):
    def outcome(seed):
        folder = tmp_path / str(seed)
        folder.mkdir()
        done = faulty.run(faulty.case_of(seed), effort, folder, library)
        for path in folder.iterdir():
            path.unlink()
        return done

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = list(pool.map(outcome, range(count)))
    due = [one for one in outcomes if one.is_due]
    assert len(due) > 0.7 * count
    missed = [one for one in due if one.verdict != "found"]
    by_class = collections.Counter(one.case.fault for one in missed)
    text = "\n\n".join(f"{one.verdict}: {one.repeat}" for one in missed)
    told = f"{len(missed)} of {len(due)} missed: {by_class}\n{text}"
    # Of few cases one may be missed: it is as rare as stated among all of them.
    assert len(missed) <= max((1 - RATES[effort]) * len(due), count < CASES), told
    # Where partial sums may overflow, the report counts the elements that cannot be verified.
    untrue = [one for one in missed if one.verdict == "passed" and "overflow" in one.case.scaling]
    assert not untrue, "\n\n".join(one.repeat for one in untrue)


def test_a_right_kernel_is_not_accused(tmp_path, library):
    """Without a fault the library is a kernel like any other."""
    for seed in range(0, CASES, 20):
        case = faulty.case_of(seed)
        a, b, old = case.matrices()
        save(tmp_path, "A.npy", a), save(tmp_path, "B.npy", b)
        if old is not None:
            save(tmp_path, "C.npy", old)
        result = bramble("multiply", tmp_path / "A.npy", tmp_path / "B.npy", "-o", tmp_path / "C.npy", "--kernel", "openblas",
                         "--verify", "full", f"--alpha={case.alpha}", f"--beta={case.beta}", "--tile", case.tile,
                         "--panel", case.panel, "--json", env={"BRAMBLE_OPENBLAS": str(library)})
        assert result.code == 0, (case, result)
        truth = faulty.Truth(case, a, b, old)
        assert not truth.is_wrong(np.load(tmp_path / "C.npy"), 1).any(), case


def one_large_column(dtype, factor, n=512):
    """A product in which one column of B is larger than the rest."""
    a, b = matrix(n, n, dtype, 1), matrix(n, n, dtype, 2)
    b[:, 100] *= factor
    return a, b


def constant(dtype, n, k, x):
    return np.full((n, k), x, faulty.DTYPES[dtype]), np.full((k, n), x, faulty.DTYPES[dtype])


def case_with(operands, dtype, **about):
    a, b = operands
    whole = {"seed": 1, "dtype": dtype, "m": len(a), "k": len(b), "n": b.shape[1], "scaling": "its own", "at": (0, 0), "other": (0, 0),
             "term": 0, "tile": len(a), "panel": len(b), "operands": operands}
    return faulty.Case(**{**whole, **about})


@pytest.mark.parametrize("effort", RATES)
@pytest.mark.parametrize("dtype, factor", [("f32", 1e6), ("f64", 1e16)])
def test_zeroed_columns_beside_a_large_one_are_found(tmp_path, library, dtype, factor, effort):
    case = case_with(one_large_column(dtype, factor), dtype, fault="zero", shape="alternate", at=(0, 1))
    outcome = faulty.run(case, effort, tmp_path, library)
    assert outcome.is_due and outcome.verdict == "found", outcome.repeat
    assert_nothing_written(tmp_path)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("size", [64, 100, 400])
def test_an_element_of_a_small_column_that_is_off_by_half_is_found(tmp_path, library, dtype, size):
    a, b = matrix(size, size, dtype, 1), matrix(size, size, dtype, 2)
    b *= faulty.graded(size, 100 if dtype == "f32" else 900).astype(b.dtype)
    for part in (0.5, 0.75, 0.95):
        at = size // 3, int(size * part)
        case = case_with((a, b), dtype, fault="scale", shape="element", value=1.5, at=at)
        outcome = faulty.run(case, "full", tmp_path, library)
        assert outcome.is_due and outcome.verdict == "found", outcome.repeat


@pytest.mark.parametrize("effort", RATES)
@pytest.mark.parametrize("fault", ["zero", "nan", "inf", "sign"])
@pytest.mark.parametrize("dtype, x, k", [("f32", 5e18, 64), ("f32", 5e18, 8), ("f64", 5e153, 64), ("f64", 5e153, 2)])
def test_wrong_sums_of_one_sign_near_overflow_do_not_pass(tmp_path, library, dtype, x, k, fault, effort):
    """Of 64 terms the right answer is infinite, of few it is finite."""
    case = case_with(constant(dtype, 64, k, x), dtype, fault=fault, shape="tile")
    outcome = faulty.run(case, effort, tmp_path, library)
    if fault == "inf" and k == 64:
        assert not outcome.is_due and outcome.verdict == "passed", outcome.repeat
    else:
        assert outcome.is_due and outcome.verdict == "found", outcome.repeat


FAULTS = [(fault, shape, dtype) for at, fault in enumerate(["zero", "sign", "nan", "swap", "twice", "short", "stale"])
          for shape in ("row", "column", "tile") for dtype in (("f32", "f64")[(at + len(shape)) % 2],)]


@pytest.mark.parametrize("fault, shape, dtype", FAULTS)
def test_a_machine_with_a_faulty_kernel_is_named_and_its_work_done_again(tmp_path, library, fault, shape, dtype):
    a, b, old = matrix(150, 90, dtype, 1), matrix(90, 140, dtype, 2), matrix(150, 140, dtype, 3)
    left, right = save(tmp_path, "A.npy", a), save(tmp_path, "B.npy", b)
    save(tmp_path, "C.npy", old)
    right_kernel = {"BRAMBLE_OPENBLAS": str(library)}
    # Products of 40 terms are the first two steps of each tile.
    wrong_kernel = {**right_kernel, "FAULTY_CLASS": fault, "FAULTY_SHAPE": shape, "FAULTY_DEPTH": "40", "FAULTY_AT": "7 11",
                    "FAULTY_OTHER": "20 3"}
    options = "--kernel", "openblas", "--threads", 1
    with workers(1, *options, env=right_kernel) as (sound, _), workers(1, *options, env=wrong_kernel) as (broken, _):
        result = bramble("multiply", left, right, "-o", tmp_path / "C.npy", "-w", ",".join([*sound, *broken]), "--kernel", "openblas",
                         "--strategy", "row:3", "--tile", 32, "--panel", 40, "--no-steal", "--alpha", 2, "--beta", 3, "--json",
                         env=right_kernel)
    assert result.code == 3, result
    assert_product(np.load(tmp_path / "C.npy"), a, b, 2, 3, old)
    faults = result.report["faults"]
    named = [name for wrong in faults["wrong"] for name in wrong["names"]] + [lost["name"] for lost in faults["lost"]]
    assert set(named) == set(broken), faults
    assert_gone(result.tag)


@pytest.mark.parametrize("seed", range(4))
def test_of_processes_of_this_machine_the_faulty_one_is_named(tmp_path, library, seed):
    """The first process that reaches a product of 40 terms spoils all its products; the other processes spoil none."""
    fault = ["zero", "sign", "nan", "scale"][seed]
    a, b = matrix(200, 80, "f64", seed), matrix(80, 160, "f64", seed + 10)
    left, right = save(tmp_path, "A.npy", a), save(tmp_path, "B.npy", b)
    env = {"BRAMBLE_OPENBLAS": str(library), "FAULTY_CLASS": fault, "FAULTY_SHAPE": "part", "FAULTY_DEPTH": "40",
           "FAULTY_AT": "3 5", "FAULTY_OTHER": "17 29", "FAULTY_VALUE": "1.001", "FAULTY_OWNER": str(tmp_path / "owner")}
    result = bramble("multiply", left, right, "-o", tmp_path / "C.npy", "--local", 2, "--kernel", "openblas", "--strategy", "row:3",
                     "--tile", 32, "--panel", 40, "--no-steal", "--json", env=env)
    assert result.code == 3, result
    assert_product(np.load(tmp_path / "C.npy"), a, b)
    faults = result.report["faults"]
    named = [name for wrong in faults["wrong"] for name in wrong["names"]] + [lost["name"] for lost in faults["lost"]]
    assert len(set(named)) == 1, faults
