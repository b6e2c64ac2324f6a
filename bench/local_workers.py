"""Two worker processes on this machine: bramble --local 2 --link tcp --threads 1 against other ways.

1. Files to file: the whole process of bramble against NumPy's load + product + save with two threads,
   measured inside Python (without the interpreter's start and imports).
2. Product, operands and result at the primary: bramble against mpi4py + NumPy (2 ranks of one thread;
   broadcast B, scatter rows of A, gather C) and against Dask (2 one-thread processes, the cluster already
   started).
3. The same product over each link to the workers, and by two threads of one process, against NumPy with two threads.
"""

import json
import shutil
import subprocess
import sys

from common import (ROOT, SECONDS_HEAD, Side, arguments, bramble, compare, parse, scratch, table,
                    with_threads)

WORKERS = 2


def mpi_product(n, dtype):
    """Seconds of one product, after a warm-up product."""
    command = ["mpirun", "-n", str(WORKERS), "--oversubscribe"]
    if subprocess.run(["id", "-u"], capture_output=True, text=True).stdout.strip() == "0":
        command.append("--allow-run-as-root")
    command += [sys.executable, str(ROOT / "bench" / "mpi_side.py"), str(n), dtype, "2"]
    # These options are Open MPI's. By default mpi4py takes the library that libmpi.so names, which may be a different one.
    env = {**with_threads(1), "MPI4PY_MPIABI": "openmpi"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(f"mpirun ended with {done.returncode}: {done.stderr[-500:]}")
    return json.loads(done.stdout)[-1]


def product_rows(args, folder, n, dtype, chunks):
    contestants = {}
    if args.bramble:
        generated = [f"random:{n}x{n}:{dtype}:{seed}" for seed in (1, 2)]
        operands = {"bramble": [folder / "A.npy", folder / "B.npy"],
                    "bramble, generated at the workers": generated}
        options = ["--local", WORKERS, "--link", "tcp", "--threads", 1]
        for name, pair in operands.items():
            contestants[name] = lambda pair=pair: bramble(args, "multiply", *pair, *options)["seconds"]
    if shutil.which("mpirun"):
        contestants["mpi4py + numpy"] = lambda: mpi_product(n, dtype)
    else:
        print("mpirun is not installed: no comparison with MPI", file=sys.stderr)
    with Side("dask_side.py", 1, WORKERS) as dask:
        print(f"Dask's cluster started in {dask.ask(do='start'):.2f} s (not counted)", file=sys.stderr)
        for way in ("from_array", "scattered", "generated"):
            for chunk in chunks:
                contestants[f"dask {way}, chunk {chunk}"] = lambda way=way, chunk=chunk: dask.ask(
                    do="product", way=way, n=n, dtype=dtype, chunk=chunk)
        contestants["dask futures"] = lambda: dask.ask(do="product", way="futures", n=n, dtype=dtype, chunk=0)
        return compare(args, "local_workers", f"product {dtype} n={n}", contestants, workers=WORKERS)


def file_rows(args, folder, n, dtype):
    with Side("numpy_side.py", args.threads) as rival:
        def inside(sync):
            return rival.ask(do="files", folder=folder, out=folder / "C.npy", sync=sync)["total"]

        contestants = {"numpy inside": lambda: inside(False), "numpy inside, fsync": lambda: inside(True)}
        if args.bramble:
            words = ["multiply", folder / "A.npy", folder / "B.npy", "-o", folder / "C.npy",
                     "--local", WORKERS, "--link", "tcp", "--threads", 1]
            contestants["bramble"] = lambda: bramble(args, *words)["wall_s"]
            contestants["bramble, not verified"] = lambda: bramble(args, *words, "--verify", "off")["wall_s"]
        place = args.dir or "disk"
        return compare(args, "local_workers", f"files {dtype} n={n} on {place}", contestants, workers=WORKERS)


def link_rows(args, folder, n, dtype):
    """Operands in files that are in memory, C in memory, for all contestants; not verified, since NumPy's is not."""
    words = ["multiply", folder / "A.npy", folder / "B.npy", "--verify", "off", "--strategy", "reuse"]
    ways = {f"{WORKERS} workers, {link}": ["--local", WORKERS, "--link", link, "--threads", 1] for link in ("tcp", "pipe", "shm")}
    ways["threads of one process"] = ["--threads", WORKERS]
    with Side("numpy_side.py", WORKERS) as rival:
        contestants = {"numpy": lambda: rival.ask(do="product", n=n, dtype=dtype)}
        for name, way in ways.items():
            contestants[name] = lambda way=way: bramble(args, *words, *way)["seconds"]
        return compare(args, "local_workers", f"links {dtype} n={n}", contestants, f"{WORKERS} workers, shm", workers=WORKERS)


def main():
    parser = arguments(__doc__.splitlines()[0], rounds=5)
    parser.add_argument("--only", choices=["product", "files", "links"], help="one of the parts")
    parser.add_argument("--dtype", choices=["f32", "f64"], default="f64")
    parser.add_argument("-n", type=int, help="rows and columns (4096)")
    args = parse(parser)
    n = args.n or (512 if args.quick else 4096)
    rows = []
    with scratch(args) as folder:
        with Side("numpy_side.py", args.threads) as maker:
            maker.ask(do="make", n=n, dtype=args.dtype, folder=folder)
        if args.only in (None, "files"):
            rows += file_rows(args, folder, n, args.dtype)
        if args.only in (None, "links"):
            rows += link_rows(args, folder, n, args.dtype)
        if args.only in (None, "product"):
            rows += product_rows(args, folder, n, args.dtype, [n // 2, n // 4])
    table(f"{WORKERS} workers of one thread, on this machine", SECONDS_HEAD, rows)


if __name__ == "__main__":
    main()
