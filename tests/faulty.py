"""Products with a kernel that spoils some elements: seeded cases, how wrong C is, and what the program says of it.

`library()` builds tests/faulty_blas, which the program opens as OpenBLAS. A case is a product (sizes, element type,
scaling of A and B, alpha, beta, cut into tiles and steps) and a fault; both follow from one seed. The library writes
down what it spoiled, and the operands are known, so whether an element is wrong by more than 16 times its rounding
bound is computed here and owes nothing to the program.
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
"""Faults of so many rounding bounds of an element have to be found."""
SMALLEST = {"f32": float(np.finfo(np.float32).tiny), "f64": float(np.finfo(np.float64).tiny)}
LARGEST = {"f32": float(np.finfo(np.float32).max), "f64": float(np.finfo(np.float64).max)}
BITS = {"f32": 32, "f64": 64}

Wide = np.longdouble
"""Has the exponents for products and sums of f64; on x86-64 eleven bits more as well."""


def library(folder):
    """Compiles the faulty library and gives its path."""
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
    """1, 1/2, 1/4 ..., at a slower pace where the last would be below 2^-bits."""
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
    """Two blocks on the diagonal, and nothing beside them."""
    a, b = a.copy(), b.copy()
    half = len(b) // 2
    a[: len(a) // 2, half:] = a[len(a) // 2 :, :half] = 0
    b[:half, b.shape[1] // 2 :] = b[half:, : b.shape[1] // 2] = 0
    return a, b


def cancelling(rng, dtype, a, b):
    """The second half of each sum takes away the first, but for a thousandth."""
    half = len(b) // 2
    a, b = a.copy(), b.copy()
    a[:, half : 2 * half] = a[:, :half]
    b[half : 2 * half] = -b[:half] * (1 + 1e-3 * uniform(rng, (half, b.shape[1])))
    return a, b


def tenths(rng, dtype, a, b):
    """All sums err to the same side."""
    return np.full_like(a, 0.1), np.full_like(b, 0.1)


def near_underflow(rng, dtype, a, b):
    scale = SMALLEST[dtype] ** 0.5 * 2.0 ** rng.integers(-4, 12)
    return a * scale, b * scale


def near_overflow(rng, dtype, a, b):
    """Sums of mixed signs that are finite, and whose terms together may not be."""
    scale = (LARGEST[dtype] / len(b)) ** 0.5 * rng.choice([0.2, 1.0, 1.9])
    return a * scale, b * scale


def one_sign_near_overflow(rng, dtype, a, b):
    """Sums of one sign: finite, or infinite, whatever the order."""
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
    """A and B where they do not follow from the seed."""

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
            # As large as what is added to it, element by element.
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


# What is right

class Truth:
    """What C may be in some rows and columns, by the operands' own arithmetic."""

    def __init__(self, case, a, b, old):
        a, b = a.astype(Wide), b.astype(Wide)
        base = np.zeros((len(a), b.shape[1]), Wide) if old is None else Wide(case.beta) * old.astype(Wide)
        alpha, k = Wide(DTYPES[case.dtype](case.alpha)), a.shape[1]
        terms = np.abs(a) @ np.abs(b)
        self.exact = alpha * (a @ b) + base
        self.size = abs(alpha) * terms + np.abs(base)
        unit = Wide(np.finfo(DTYPES[case.dtype]).eps) / 2
        self.relative = (k + 3) * unit
        self.bound = self.relative * self.size + (2 * k + 4) * max(Wide(1), abs(alpha)) * Wide(SMALLEST[case.dtype])
        # Elsewhere an element is 0 whatever the rounding: its bound is only what underflow does, so that faults are above
        # it which nothing but recomputing the element can see beside the rest of its row and column.
        self.has_terms = self.size > 0
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
        # Sums of one sign end on its infinity; others anywhere that is no finite number.
        may_be = ~np.isfinite(c) & (~self.has_one_sign | (c == infinite))
        wrong = np.where(self.may_overflow & may_be, False, is_off)
        return np.where(self.must_overflow, c != infinite, wrong)


def read_log(path, dtype):
    """Each spoiled tile: its place, depth, process, right and spoiled elements."""
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
    """What became of a case."""

    case: Case
    effort: str
    is_due: bool
    """Some element that has terms is wrong by more than 16 times its bound."""
    is_changed: bool
    """Some element has other bits than the right kernel gave it."""
    verdict: str
    """found, partial (C is kept, and said not to be verified wholly), passed; or something that must never be."""
    repeat: str
    """How to do it again."""
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
    """Multiplies with the fault, and says what came of it."""
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
    truth = Truth(case, a[where[0]], b[:, where[1]], None if old is None else old[where])
    return Outcome(case, effort, is_due(case, truth, right, wrong), right.tobytes() != wrong.tobytes(),
                   verdict_of(result, folder, repeat), repeat, result.err[-400:])


def is_due(case, truth, right, wrong):
    """Whether the fault is above 16 rounding bounds of some element that has terms other than 0."""
    is_sign = abs(case.alpha) == 1
    if is_sign and -(-case.k // case.panel) == 1:
        return bool((truth.is_wrong(wrong, FACTOR) & truth.has_terms).any())
    # What later steps add is right: the error stays what it is. The library is given no alpha but 1 and -1; the program
    # multiplies its product by any other.
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(wrong.astype(Wide) - right.astype(Wide)) * (1 if is_sign else abs(Wide(case.alpha)))
    return bool((~(error <= FACTOR * truth.bound) & (wrong != right) & truth.has_terms).any())


def verdict_of(result, folder, repeat):
    """What the program says of C; a run that ends otherwise, or keeps a C that it calls wrong, is no verdict."""
    kept = (Path(folder) / "C.npy").exists()
    if result.code == 4 and "C is wrong" in result.err:
        return "found"
    state = result.report["verify"]["state"] if result.code in (0, 6) else None
    if kept and (result.code, state) in [(0, "passed"), (6, "partial")]:
        return state
    raise AssertionError(f"neither kept nor refused\n{repeat}\n{result}")
