"""Products with little work for each byte, from .npy files, against NumPy in a fresh interpreter.

A round is one process of each. NumPy's seconds are those of its load, product and save, without the start of the
interpreter; Bramble's are those of the whole process. The outer product is written to a file: NumPy's save waits for no
disk, so a second contestant calls fsync as Bramble does.
"""

import os
import statistics
import subprocess
import sys

import numpy as np
from common import arguments, bramble, in_turns, parse, ratio, record, scratch, spread, table, with_threads

NUMPY = """
import os, sys, time
import numpy as np
a, b, turned, out, sync = sys.argv[1:]
began = time.perf_counter()
a, b = np.load(a), np.load(b) if b != a else None
b = a if b is None else b
c = (a.T if turned == "1" else a) @ b
if out:
    with open(out, "wb") as file:
        np.save(file, c)
        if sync == "1":
            file.flush()
            os.fsync(file.fileno())
print(time.perf_counter() - began)
"""


def cases(quick):
    """name -> (shape of A, shape of B or None for A again, A transposed, C written)."""
    part = 50 if quick else 1
    side = 400 if quick else 8000
    return {
        "dot product, 2e7": ((1, 20_000_000 // part), (20_000_000 // part, 1), False, False),
        "X'X, 2e6 x 8": ((2_000_000 // part, 8), None, True, False),
        "X'X, 1e6 x 64": ((1_000_000 // part, 64), None, True, False),
        "A x, 8000 x 8000": ((side, side), (side, 1), False, False),
        "outer product, 8000 x 1 x 8000": ((side, 1), (1, side), False, True),
    }


def numpy_side(args, a, b, turned, out, sync):
    environment = with_threads(args.threads)
    # These variables may name a different processor than this one.
    for name in ["OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"]:
        environment.pop(name, None)
    words = [str(a), str(b), "1" if turned else "0", str(out or ""), "1" if sync else "0"]
    done = subprocess.run([sys.executable, "-c", NUMPY, *words], capture_output=True, text=True, check=True,
                          env=environment)
    return {"wall_s": float(done.stdout)}


def measured(args, folder, name, case, verify):
    shape_a, shape_b, turned, writes = case
    random = np.random.default_rng(1)
    a, b = folder / "a.npy", folder / "b.npy"
    np.save(a, random.standard_normal(shape_a))
    if shape_b is None:
        b = a
    else:
        np.save(b, random.standard_normal(shape_b))
    ours = ["multiply", a, b, "--threads", args.threads, "--verify", verify]
    ours += ["--transpose-a"] if turned else []
    ours += ["-o", folder / "c.npy"] if writes else []
    theirs = folder / "numpy.npy" if writes else None
    contestants = {
        "bramble": lambda: bramble(args, *ours),
        "numpy": lambda: numpy_side(args, a, b, turned, theirs, False),
    }
    if writes:
        contestants["numpy, fsync"] = lambda: numpy_side(args, a, b, turned, theirs, True)
    os.sync()
    taken = in_turns(contestants, args.rounds)
    reports = taken["bramble"]
    walls = {who: [one["wall_s"] for one in figures] for who, figures in taken.items()}
    predicted = [r["seconds"] / r["predicted"]["seconds"] for r in reports]
    record(args, "thin_shapes", name, {**walls, "measured_by_predicted": predicted}, verify=verify)
    return [
        name, verify, spread(walls["bramble"]), spread(walls["numpy"]),
        f"{1 / ratio(walls['bramble'], walls['numpy']):.2f}",
        f"{1 / ratio(walls['bramble'], walls['numpy, fsync']):.2f}" if writes else "",
        f"{statistics.median(predicted):.2f}", reports[0]["predicted"]["by"],
        f"{statistics.median(r['verify']['seconds'] / r['seconds'] for r in reports):.2f}",
    ]


def main():
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--verify", choices=["fast", "full", "off"], action="append", help="how (fast and off)")
    args = parse(parser)
    rows = []
    with scratch(args) as folder:
        for name, case in cases(args.quick).items():
            for verify in args.verify or ["fast", "off"]:
                rows.append(measured(args, folder, name, case, verify))
    table("Thin shapes, seconds: median (range)",
          ["case", "verify", "bramble", "numpy", "of numpy", "of numpy with fsync", "measured / predicted",
           "limited by", "verification / product"], rows)


if __name__ == "__main__":
    main()
