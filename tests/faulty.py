"""Products with a kernel that spoils some elements: seeded cases, the error of C, and the program's verdict.

`library()` builds tests/faulty_blas, which the program opens as OpenBLAS. A case is a product (sizes, element type,
scaling of A and B, alpha, beta, cut into tiles and steps) and a fault; both follow from one seed. The library logs
each spoiled element, and the operands are known. So this file computes, independently of the program, whether an element is wrong by more than
16 times its rounding bound.
"""

import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from helpers import DTYPES, ROOT, bramble, save

CLASSES = ["zero", "scale", "stale", "twice", "short", "swap", "flip", "sign", "add", "nan", "inf"]
SHAPES = ["element", "row", "column", "alternate", "part", "tile"]
SIZES = ["square", "wide", "tall", "short sums", "one term", "long sums"]

FACTOR = 16
"""Faults above this many rounding bounds of an element have to be detected."""
SMALLEST = {"f32": float(np.finfo(np.float32).tiny), "f64": float(np.finfo(np.float64).tiny)}
LARGEST = {"f32": float(np.finfo(np.float32).max), "f64": float(np.finfo(np.float64).max)}
BITS = {"f32": 32, "f64": 64}

Wide = np.longdouble
"""Has the exponents for products and sums of f64; on x86-64 eleven bits more as well."""


def library(folder):
    """Compiles the faulty library and returns its path."""
    source, path = ROOT / "tests" / "faulty_blas" / "faulty_blas.c", Path(folder) / "libfaulty.so"
    words = ["-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread"]
    subprocess.run(["cc", *words, "-o", path, source, "-lm"], check=True)
    return path


# Operands

def uniform(rng, shape):
    return rng.uniform(-1, 1, shape)


def powers(rng, count, most=20):
    return 2.0 ** rng.integers(-most, most, count, endpoint=True)


def graded(count, bits):
    """1, 1/2, 1/4 ..., with a ratio closer to 1 where the last would be below 2^-bits."""
    return 2.0 ** -np.floor(np.arange(count) * min(1, bits / max(count - 1, 1)))


def bits_of(dtype, f32, f64):
    return f32 if dtype == "f32" else f64


def one_factor(rng, count, factor):
    scale = np.ones(count)
    scale[rng.integers(count)] = factor
    return scale


def even(rng, dtype, a, b):
    return a, b


def positive(rng, dtype, a, b):
    return abs(a), abs(b)


def rows(rng, dtype, a, b):
    return a * powers(rng, len(a))[:, None], b


def columns(rng, dtype, a, b):
    return a, b * powers(rng, b.shape[1])


def rows_and_columns(rng, dtype, a, b):
    return a * powers(rng, len(a))[:, None], b * powers(rng, b.shape[1])


def graded_rows(rng, dtype, a, b):
    return a * graded(len(a), bits_of(dtype, 100, 900))[:, None], b


def graded_columns(rng, dtype, a, b):
    return a, b * graded(b.shape[1], bits_of(dtype, 100, 900))


def graded_both(rng, dtype, a, b):
    bits = bits_of(dtype, 50, 450)
    return a * graded(len(a), bits)[:, None], b * graded(b.shape[1], bits)


def depth(rng, dtype, a, b):
    scale = powers(rng, len(b))
    return a * scale, b / scale[:, None]


def one_term_leads(rng, dtype, a, b):
    return a, b * one_factor(rng, len(b), 1e6)[:, None]


def one_column(rng, dtype, a, b):
    return a, b * one_factor(rng, b.shape[1], bits_of(dtype, 1e6, 1e16))


def one_row(rng, dtype, a, b):
    return a * one_factor(rng, len(a), bits_of(dtype, 1e6, 1e16))[:, None], b


def elements(rng, dtype, a, b):
    return a * powers(rng, a.shape), b * powers(rng, b.shape)


def integers(rng, dtype, a, b):
    return np.round(8 * a), np.round(8 * b)


def sparse(rng, dtype, a, b):
    return a * (rng.random(a.shape) < 0.1), b * (rng.random(b.shape) < 0.1)


def blocks(rng, dtype, a, b):
    """Two blocks on the diagonal, and zeros elsewhere."""
    a, b = a.copy(), b.copy()
    half = len(b) // 2
    a[: len(a) // 2, half:] = a[len(a) // 2 :, :half] = 0
    b[:half, b.shape[1] // 2 :] = b[half:, : b.shape[1] // 2] = 0
    return a, b


def cancelling(rng, dtype, a, b):
    """The second half of each sum cancels the first, up to a thousandth."""
    half = len(b) // 2
    a, b = a.copy(), b.copy()
    a[:, half : 2 * half] = a[:, :half]
    b[half : 2 * half] = -b[:half] * (1 + 1e-3 * uniform(rng, (half, b.shape[1])))
    return a, b


def tenths(rng, dtype, a, b):
    """The rounding errors of all sums have the same sign."""
    return np.full_like(a, 0.1), np.full_like(b, 0.1)


def near_underflow(rng, dtype, a, b):
    scale = SMALLEST[dtype] ** 0.5 * 2.0 ** rng.integers(-4, 12)
    return a * scale, b * scale


def near_overflow(rng, dtype, a, b):
    """Finite sums of mixed signs whose partial sums may overflow."""
    scale = (LARGEST[dtype] / len(b)) ** 0.5 * rng.choice([0.2, 1.0, 1.9])
    return a * scale, b * scale


def one_sign_near_overflow(rng, dtype, a, b):
    """Sums of one sign: finite or infinite in every order."""
    scale = (LARGEST[dtype] / len(b)) ** 0.5 * rng.choice([0.5, 1.0, 1.5, 2.5])
    a, b = 0.5 + abs(a) / 2, 0.5 + abs(b) / 2
    return np.minimum(a * scale, LARGEST[dtype]), np.minimum(b * scale, LARGEST[dtype])


SCALINGS = {
    name.__name__.replace("_", " "): name
    for name in [
        even, positive, rows, columns, rows_and_columns, graded_rows, graded_columns, graded_both, depth, one_term_leads,
        one_column, one_row, elements, integers, sparse, blocks, cancelling, tenths, near_underflow, near_overflow,
        one_sign_near_overflow,
    ]
}
EXTREME = {"near underflow", "near overflow", "one sign near overflow"}
"""Scalings that leave no room for factors, old values of C or sums by steps."""


@dataclass(frozen=True)
class Case:
    """A product and a fault."""

    seed: int
    dtype: str
    m: int
    k: int
    n: int
    scaling: str
    fault: str
    shape: str
    at: tuple
    other: tuple
    term: int
    tile: int
    panel: int
    alpha: float = 1.0
    beta: float = 0.0
    bit: int = 0
    value: float | None = None
    """For `scale` the factor. For `add` the addend in rounding bounds of the element at `at`."""
    operands: tuple | None = field(default=None, compare=False, repr=False)
    """A and B, unless the seed decides them."""

    def matrices(self):
        """A, B and the old C (or None)."""
        rng = np.random.default_rng([self.seed, 1])
        kind = DTYPES[self.dtype]
        a, b = uniform(rng, (self.m, self.k)), uniform(rng, (self.k, self.n))
        old = uniform(rng, (self.m, self.n)) if self.beta else None
        if self.operands:
            a, b = self.operands
        else:
            a, b = SCALINGS[self.scaling](rng, self.dtype, a, b)
        a, b = a.astype(kind), b.astype(kind)
        if old is not None:
            # As large as the product that is added to it, element by element.
            old *= np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)) / max(self.k, 1) ** 0.5
            old = old.astype(kind)
        return a, b, old


def sizes(rng, kind):
    """m, k, n of at most 12 million multiplications."""
    some = lambda low, high: int(np.exp(rng.uniform(np.log(low), np.log(high + 1))))
    side = some(32, 224)
    return {
        "square": (side, side, side),
        "wide": (some(16, 64), some(32, 128), some(200, 512)),
        "tall": (some(200, 512), some(32, 128), some(16, 64)),
        "short sums": (some(48, 384), some(2, 8), some(48, 384)),
        "one term": (some(48, 384), 1, some(48, 384)),
        "long sums": (some(16, 64), some(800, 3000), some(16, 64)),
    }[kind]


def case_of(seed):
    """The case of a seed. Faults and scalings take turns, so that a few hundred seeds have each pair of them."""
    rng = np.random.default_rng([seed, 0])
    fault = CLASSES[seed % len(CLASSES)]
    scaling = list(SCALINGS)[seed // len(CLASSES) % len(SCALINGS)]
    shape = str(rng.choice(SHAPES, p=[0.4, 0.12, 0.12, 0.12, 0.12, 0.12]))
    dtype = str(rng.choice(["f32", "f64"]))
    m, k, n = sizes(rng, str(rng.choice(SIZES, p=[0.4, 0.15, 0.15, 0.1, 0.08, 0.12])))
    if scaling in ("blocks", "cancelling"):
        k = max(k, 4)
    tile = int(rng.choice([32, 64, 128]))
    panel = k if scaling in EXTREME else int(rng.choice([k, max(1, k // 2 + 1), max(1, k // 3 + 1)]))
    alpha, beta = (1.0, 0.0) if scaling in EXTREME else ((1.0, 0.0), (1.0, 0.0), (2.5, 1.0), (-0.75, 0.5))[rng.integers(4)]
    value = {
        # From far below the rounding bound to a factor of a thousand.
        "scale": 1 + float(rng.choice([-1, 1]) * 10 ** rng.uniform(-7 if dtype == "f32" else -15, 3)),
        "add": float(rng.choice([-1, 1]) * 2 ** rng.uniform(1, 14)),
    }.get(fault)
    return Case(
        seed, dtype, m, k, n, scaling, fault, shape, (int(rng.integers(m)), int(rng.integers(n))),
        (int(rng.integers(1000)), int(rng.integers(1000))), int(rng.integers(k)), tile, panel, alpha, beta,
        int(rng.integers(BITS[dtype])), value,
    )


# The expected C

class Truth:
    """The values that C may have in some rows and columns, in the operands' own arithmetic."""

    def __init__(self, case, a, b, old, effort="full"):
        a, b = a.astype(Wide), b.astype(Wide)
        base = np.zeros((len(a), b.shape[1]), Wide) if old is None else Wide(case.beta) * old.astype(Wide)
        alpha, k = Wide(DTYPES[case.dtype](case.alpha)), a.shape[1]
        terms = np.abs(a) @ np.abs(b)
        self.exact = alpha * (a @ b) + base
        self.size = abs(alpha) * terms + np.abs(base)
        unit = Wide(np.finfo(DTYPES[case.dtype]).eps) / 2
        self.relative = (k + 3) * unit
        self.bound = self.relative * self.size + (2 * k + 4) * max(Wide(1), abs(alpha)) * Wide(SMALLEST[case.dtype])
        # Elsewhere an element is 0 with any rounding, and its bound is the underflow alone. Faults above that bound can be
        # so small beside their row and column that only recomputing the element detects them: full effort does so.
        self.is_seen = (self.size > 0) | (effort == "full")
        most = max(Wide(1), abs(alpha)) * terms + np.abs(base)
        least = min(Wide(1), abs(alpha)) * terms + np.abs(base)
        largest = Wide(LARGEST[case.dtype])
        self.may_overflow = most * (1 + self.relative) >= largest
        self.has_one_sign = np.abs(self.exact) * (1 + 1e-9) >= self.size
        self.must_overflow = self.has_one_sign & (least * (1 - self.relative) > largest)

    def is_wrong(self, c, factor):
        """Elements that no order of summation explains, nor an error of `factor` rounding bounds."""
        c = c.astype(Wide)
        with np.errstate(invalid="ignore"):
            is_off = ~(np.abs(c - self.exact) <= factor * self.bound)
        infinite = np.where(self.exact > 0, np.inf, -np.inf)
        # Sums of one sign overflow to its infinity; mixed sums to any value that is not finite.
        may_be = ~np.isfinite(c) & (~self.has_one_sign | (c == infinite))
        wrong = np.where(self.may_overflow & may_be, False, is_off)
        return np.where(self.must_overflow, c != infinite, wrong)


def read_log(path, dtype):
    """Each spoiled tile: its position, depth, process, and its correct and spoiled elements."""
    data, found = Path(path).read_bytes() if Path(path).exists() else b"", []
    while data:
        line, _, data = data.partition(b"\n")
        size, row, col, rows_, cols, depth_, pid = map(int, line.split())
        count = rows_ * cols
        both = np.frombuffer(data[: 2 * size * count], DTYPES[dtype]).reshape(2, rows_, cols)
        data = data[2 * size * count :]
        found.append((row, col, depth_, pid, both[0], both[1]))
    return found


# Runs

@dataclass
class Outcome:
    """The outcome of a case."""

    case: Case
    effort: str
    is_due: bool
    """Some element is wrong by more than 16 times its bound; for fast effort, one that has terms other than 0."""
    is_changed: bool
    """The bits of some element differ from the correct kernel's."""
    verdict: str
    """found, partial (C is kept, and reported as not wholly verified), passed; or an outcome that must never occur."""
    repeat: str
    """The command that repeats the case."""
    detail: str = ""

    @property
    def is_missed(self):
        return self.is_due and self.verdict != "found"


def addend(case, a, b, old):
    """The number for FAULTY_VALUE."""
    if case.fault != "add":
        return case.value
    row, col = case.at
    there = Truth(case, a[row : row + 1], b[:, col : col + 1], None if old is None else old[row : row + 1, col : col + 1])
    bound = float(there.bound[0, 0])
    return case.value * (bound if np.isfinite(bound) else LARGEST[case.dtype] * 1e-3)


def run(case, effort, folder, shared_object, *options):
    """Multiplies with the fault, and returns the outcome."""
    folder = Path(folder)
    log = folder / "log"
    for path in (log, folder / "C.npy"):
        path.unlink(missing_ok=True)
    a, b, old = case.matrices()
    save(folder, "A.npy", a), save(folder, "B.npy", b)
    if old is not None:
        save(folder, "C.npy", old)
    env = {
        "BRAMBLE_OPENBLAS": shared_object, "FAULTY_CLASS": case.fault, "FAULTY_SHAPE": case.shape, "FAULTY_LOG": log,
        "FAULTY_A": folder / "A.npy", "FAULTY_B": folder / "B.npy", "FAULTY_SIDES": f"{case.m} {case.k} {case.n}",
        "FAULTY_AT": "{} {}".format(*case.at), "FAULTY_TERM": case.term, "FAULTY_OTHER": "{} {}".format(*case.other),
        "FAULTY_BIT": case.bit,
    }
    if case.value is not None:
        env["FAULTY_VALUE"] = repr(addend(case, a, b, old))
    env = {name: str(value) for name, value in env.items()}
    words = ["multiply", folder / "A.npy", folder / "B.npy", "-o", folder / "C.npy", "--kernel", "openblas", "--verify", effort,
             "--json", "--tile", case.tile, "--panel", case.panel, f"--alpha={case.alpha}", f"--beta={case.beta}", *options]
    result = bramble(*words, env=env)
    again = " ".join([*(f"{name}={shlex.quote(value)}" for name, value in env.items()), *map(shlex.quote, map(str, result.command))])
    repeat = f"{case}\n  matrices: tests/faulty.py case_of({case.seed}).matrices()\n  {again}"
    spoiled = read_log(log, case.dtype)
    assert len(spoiled) == 1, f"{len(spoiled)} products were spoiled instead of one\n{repeat}\n{result}"
    row, col, _, _, right, wrong = spoiled[0]
    where = slice(row, row + len(right)), slice(col, col + right.shape[1])
    truth = Truth(case, a[where[0]], b[:, where[1]], None if old is None else old[where], effort)
    return Outcome(case, effort, is_due(case, truth, right, wrong), right.tobytes() != wrong.tobytes(),
                   verdict_of(result, folder, repeat), repeat, result.err[-400:])


def is_due(case, truth, right, wrong):
    """Whether the fault is above 16 rounding bounds of some element that the effort has to see."""
    is_sign = abs(case.alpha) == 1
    if is_sign and -(-case.k // case.panel) == 1:
        return bool((truth.is_wrong(wrong, FACTOR) & truth.is_seen).any())
    # Later steps add correct sums, so the error does not change. The library gets only 1 and -1 as alpha; the program
    # multiplies by any other alpha itself.
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(wrong.astype(Wide) - right.astype(Wide)) * (1 if is_sign else abs(Wide(case.alpha)))
    return bool((~(error <= FACTOR * truth.bound) & (wrong != right) & truth.is_seen).any())


def verdict_of(result, folder, repeat):
    """The program's verdict on C; a run that ends differently, or keeps a C that it calls wrong, is no verdict."""
    kept = (Path(folder) / "C.npy").exists()
    if result.code == 4 and "C is wrong" in result.err:
        return "found"
    state = result.report["verify"]["state"] if result.code in (0, 6) else None
    if kept and (result.code, state) in [(0, "passed"), (6, "partial")]:
        return state
    raise AssertionError(f"neither kept nor refused\n{repeat}\n{result}")
