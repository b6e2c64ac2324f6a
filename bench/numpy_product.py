"""One machine, one product: bramble in process against NumPy with as many threads.

1. Product time: `seconds` of the report (first job to last tile; operands are mapped files in the page cache)
   against A @ B of arrays in memory.
2. Files to file: the whole process `bramble multiply A.npy B.npy -o C.npy` (verified, synced, renamed)
   against NumPy's load + product + save, once measured inside Python, that is without the interpreter's start
   and the import of NumPy, and once as a whole process. NumPy's save with and without fsync. On a file system
   in memory (--dir /dev/shm) the disk does not count.
"""

import sys

from common import (SECONDS_HEAD, Side, arguments, bramble, compare, parse, scratch, table, timed,
                    with_threads)

WHOLE = """
import os, sys, numpy as np
c = np.load(sys.argv[1]) @ np.load(sys.argv[2])
with open(sys.argv[3], "wb") as file:
    np.save(file, c)
    if sys.argv[4] == "sync":
        file.flush()
        os.fsync(file.fileno())
"""


def product_rows(args, rival, folder, n, dtype):
    contestants = {"numpy": lambda: rival.ask(do="product", n=n, dtype=dtype)}
    if args.bramble:
        words = ["multiply", folder / "A.npy", folder / "B.npy", "--threads", args.threads]
        contestants["bramble"] = lambda: bramble(args, *words)["seconds"]
    return compare(args, "numpy_product", f"product {dtype} n={n}", contestants, threads=args.threads)


def file_rows(args, rival, folder, n, dtype):
    out = folder / "C.npy"

    def inside(sync):
        return rival.ask(do="files", folder=folder, out=out, sync=sync)["total"]

    def whole(sync):
        operands = [folder / "A.npy", folder / "B.npy", out]
        return timed([sys.executable, "-c", WHOLE, *operands, sync], env=with_threads(args.threads))

    contestants = {
        "numpy inside": lambda: inside(False),
        "numpy inside, fsync": lambda: inside(True),
        "numpy process": lambda: whole("no"),
        "numpy process, fsync": lambda: whole("sync"),
    }
    if args.bramble:
        words = ["multiply", folder / "A.npy", folder / "B.npy", "-o", out, "--threads", args.threads]
        contestants["bramble"] = lambda: bramble(args, *words)["wall_s"]
        contestants["bramble, not verified"] = lambda: bramble(args, *words, "--verify", "off")["wall_s"]
    case = f"files {dtype} n={n} on {args.dir or 'disk'}"
    return compare(args, "numpy_product", case, contestants, threads=args.threads)


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["product", "files"], help="one of the two parts")
    args = parse(parser)
    sizes = [256] if args.quick else [1024, 2048, 4096]
    with scratch(args) as folder, Side("numpy_side.py", args.threads) as rival:
        rows = {"product": [], "files": []}
        for dtype in ("f64", "f32"):
            for n in sizes:
                rival.ask(do="make", n=n, dtype=dtype, folder=folder)
                if args.only != "files":
                    rows["product"] += product_rows(args, rival, folder, n, dtype)
                if args.only != "product":
                    rows["files"] += file_rows(args, rival, folder, n, dtype)
        for part, title in (("product", "Product, operands in memory"), ("files", "Files to file")):
            if rows[part]:
                table(f"{title}, {args.threads} threads", SECONDS_HEAD, rows[part])


if __name__ == "__main__":
    main()
