"""Systems of equations and the Linpack benchmark, against LAPACK by NumPy and SciPy, and against the HPL inside hpcc.

`--part solve`: n × n systems from .npy files. NumPy's and SciPy's seconds are those of the call `solve`, warm; Bramble's are those of
its factorisation and substitution, and, in a row of their own, those of the whole process beside NumPy's load, solve and save.
`--part hpl`: `bench hpl` and hpcc in turns, hpcc in every layout of two processors with every width of panels; its best counts. hpcc
runs all of its tests each time, so a round takes minutes. `--blas blis` links hpcc to BLIS where that is installed.
`--part mxp`: `bench hpl --mxp`, `bench hpl`, and LAPACK's mixed-precision solver `dsgesv` from SciPy's OpenBLAS on HPL-MxP's system, in turns.
dsgesv's seconds are those of the call alone, warm, with the system in memory.
`--part refine`: `solve --refine` and `solve` on systems of condition 1e8, where plain corrections do not converge.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys

import numpy as np
from common import arguments, bramble, in_turns, parse, ratio, record, scratch, spread, table, with_threads

SOLVE = """
import json, os, sys, time
import numpy as np, scipy.linalg
a, b, out = sys.argv[1:]
began = time.perf_counter()
a, b = np.load(a), np.load(b)
x = np.linalg.solve(a, b)
with open(out, "wb") as file:
    np.save(file, x)
    file.flush()
    os.fsync(file.fileno())
whole = time.perf_counter() - began
def timed(solve):
    began = time.perf_counter()
    solve(a, b)
    return time.perf_counter() - began
def error(x):
    scale = np.abs(a).sum(axis=1).max() * np.abs(x).max() + np.abs(b).max()
    return float(np.abs(b - a @ x).max() / scale)
print(json.dumps({"whole": whole, "numpy": timed(np.linalg.solve), "scipy": timed(scipy.linalg.solve), "error": error(x)}))
"""

DSGESV = """
import ctypes, json, pathlib, sys, time
import numpy as np, scipy
n = int(sys.argv[1])
pattern = str(pathlib.Path(scipy.__file__).parent.parent / "scipy.libs")
[library] = pathlib.Path(pattern).glob("libscipy_openblas-*.so")
dsgesv = ctypes.CDLL(str(library)).scipy_dsgesv_
def draws(state, count):
    for _ in range(count):
        state = (state * 6364136223846793005 + 1) % 2**64
        yield state
# One column after another: each is the one before it, jumped ahead by n draws.
a, c = 1, 0
for _ in range(n):
    a, c = a * 6364136223846793005 % 2**64, (c * 6364136223846793005 + 1) % 2**64
column = np.fromiter(draws(1, n), np.uint64, n)
A = np.empty((n, n), order="F")
sums = np.zeros(n)
for j in range(n):
    A[:, j] = column.astype(float) * 2.0**-64 - 0.5
    sums += np.abs(A[:, j])
    column = column * np.uint64(a) + np.uint64(c)
A[np.diag_indices(n)] = sums - np.abs(np.diag(A))
b = np.fromiter(draws(2, n), np.uint64, n).astype(float) * 2.0**-64 - 0.5
def solve(A, b):
    n = len(b)
    x, work, narrow = np.empty(n), np.empty(n), np.empty(n * (n + 1), np.float32)
    pivots, rounds, info = np.empty(n, np.int32), ctypes.c_int(), ctypes.c_int()
    narrow[:], size, one = 0, ctypes.c_int(n), ctypes.c_int(1)
    address = lambda of: of.ctypes.data_as(ctypes.c_void_p)
    began = time.perf_counter()
    dsgesv(ctypes.byref(size), ctypes.byref(one), address(A), ctypes.byref(size), address(pivots), address(b), ctypes.byref(size),
           address(x), ctypes.byref(size), address(work), address(narrow), ctypes.byref(rounds), ctypes.byref(info))
    seconds = time.perf_counter() - began
    assert info.value == 0 and rounds.value >= 0, (info.value, rounds.value)
    return x, seconds, rounds.value
solve(np.asfortranarray(np.eye(300) * 300 + A[:300, :300]), b[:300].copy())
x, seconds, rounds = solve(A, b)
scale = np.abs(A).sum(axis=1).max() * np.abs(x).max() + np.abs(b).max()
residual = float(np.abs(b - A @ x).max() / scale / n / 2.0**-53)
print(json.dumps({"seconds": seconds, "gflops": (2 / 3 * n + 1.5) * n * n / seconds / 1e9, "iterations": rounds, "residual": residual}))
"""

INPUT = """HPLinpack benchmark input file
generated
HPL.out
8
1
{n} Ns
{count}
{blocks} NBs
0 PMAP
1
{p} Ps
{q} Qs
16.0
1
2 PFACTs
1
4 NBMINs
1
2 NDIVs
1
1 RFACTs
1
1 BCASTs
1
1 DEPTHs
2 SWAP
64
0 L1
0 U
1 Equilibration
8 alignment
##### separator
0
1200
0
40
"""

BLIS = "/usr/lib/x86_64-linux-gnu/blis-pthread"


def hpcc(args, folder, n, blocks, layout, blas):
    """The best Gflop/s of HPL in a run of hpcc with that layout (P, Q, threads), and which NB it was; and its DGEMM on all."""
    p, q, threads = layout
    (folder / "hpccoutf.txt").unlink(missing_ok=True)
    text = INPUT.format(n=n, count=len(blocks), blocks=" ".join(map(str, blocks)), p=p, q=q)
    (folder / "hpccinf.txt").write_text(text)
    environment = with_threads(threads) | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if blas == "blis":
        environment["LD_LIBRARY_PATH"] = BLIS
    command = ["mpirun", "--bind-to", "none", "--oversubscribe", "-n", str(p * q), "hpcc"]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    out = (folder / "hpccoutf.txt").read_text()
    found = re.findall(r"^W[RC]\S+ +\d+ +(\d+) +\d+ +\d+ +[\d.]+ +(\S+)$", out, re.MULTILINE)
    assert len(found) == len(blocks) and out.count("PASSED") >= len(blocks), out[-3000:]
    gflops, block = max((float(rate), int(block)) for block, rate in found)
    dgemm = re.search(r"StarDGEMM_Gflops=([\d.]+)", out)
    return {"gflops": gflops, "block": block, "star_dgemm": float(dgemm[1]) * p * q}


def hpl_part(args):
    if not shutil.which("hpcc") or not shutil.which("mpirun"):
        print("hpcc is not installed (Debian: apt install hpcc); the part hpl is left out", file=sys.stderr)
        return
    blocks = [32, 64] if args.quick else [64, 128, 192, 256]
    half = max(1, args.threads // 2)
    layouts = {(1, 1, args.threads)} | ({(1, 2, half), (2, 1, half)} if args.threads > 1 and not args.one_process else set())
    rows = []
    with scratch(args) as folder:
        for n in [500] if args.quick else args.size or [8000]:
            def ours(n=n):
                return bramble(args, "bench", "hpl", "--size", n, "--threads", args.threads)

            contestants = {"bramble": ours} if args.bramble else {}
            for layout in sorted(layouts):
                for blas in args.blas or ["openblas"]:
                    name = f"hpcc, {blas}, {layout[0]} x {layout[1]} processes of {layout[2]} threads"
                    contestants[name] = lambda n=n, layout=layout, blas=blas: hpcc(args, folder, n, blocks, layout, blas)
            taken = in_turns(contestants, args.rounds, warm_up=0)
            rates = {name: [one["gflops"] for one in figures] for name, figures in taken.items()}
            record(args, "lu", f"hpl {n}", taken)
            for name, figures in taken.items():
                block = sorted({one.get("block", one.get("nb")) for one in figures})
                own = statistics.median(one.get("dgemm_gflops") or one["star_dgemm"] for one in figures)
                times = f"{statistics.median(a / b for a, b in zip(rates['bramble'], rates[name], strict=True)):.2f}" if args.bramble else ""
                rows.append([n, name, spread(rates[name]), " ".join(map(str, block)), f"{own:.0f}",
                             f"{statistics.median(rates[name]) / own:.2f}", times])
    table("HPL, Gflop/s: median (range)",
          ["N", "who", "Gflop/s", "NB", "own DGEMM", "of own DGEMM", "Bramble is faster by"], rows)


def solve_part(args):
    rows = []
    with scratch(args) as folder:
        for n in [300] if args.quick else args.size or [1000, 2000, 4096, 8000]:
            random = np.random.default_rng(n)
            a, b = folder / "a.npy", folder / "b.npy"
            np.save(a, random.standard_normal((n, n)))
            np.save(b, random.standard_normal(n))

            def numpy(n=n):
                words = [sys.executable, "-c", SOLVE, a, b, folder / "numpy.npy"]
                done = subprocess.run(list(map(str, words)), env=with_threads(args.threads), capture_output=True, text=True, check=True)
                return json.loads(done.stdout)

            words = ["solve", a, b, "-o", folder / "bramble.npy", "--threads", args.threads]
            contestants = {
                "bramble": lambda: bramble(args, *words),
                "bramble --refine": lambda: bramble(args, *words, "--refine"),
                "numpy": numpy,
            }
            os.sync()
            taken = in_turns(contestants, args.rounds)
            record(args, "lu", f"solve {n}", taken)
            lapack = taken["numpy"]
            for name in ["bramble", "bramble --refine"]:
                ours = taken[name]
                core = [one["seconds"]["factor"] + one["seconds"]["solve"] for one in ours]
                walls = [one["wall_s"] for one in ours]
                rows.append([n, name, spread(core), f"{ratio(core, [one['numpy'] for one in lapack]):.2f}",
                             f"{ratio(core, [one['scipy'] for one in lapack]):.2f}", spread(walls),
                             f"{ratio(walls, [one['whole'] for one in lapack]):.2f}",
                             f"{statistics.median(one['backward_error'] for one in ours):.1e}",
                             f"{statistics.median(one['error'] for one in lapack):.1e}"])
    table("Systems of equations, f64, one right-hand side, seconds: median (range)",
          ["n", "who", "factor and solve", "NumPy takes times", "SciPy takes times", "whole process", "NumPy load, solve, save takes times",
           "backward error", "NumPy's"], rows)


def mxp_part(args):
    if not args.bramble:
        return
    rows = []
    for n in [300] if args.quick else args.size or [4000, 8000, 12000]:
        def dsgesv(n=n):
            words = [sys.executable, "-c", DSGESV, str(n)]
            done = subprocess.run(words, env=with_threads(args.threads), capture_output=True, text=True, check=True)
            return json.loads(done.stdout)

        def ours(*words, n=n):
            return bramble(args, "bench", "hpl", "--size", n, "--threads", args.threads, *words)

        taken = in_turns({"HPL-MxP": lambda: ours("--mxp"), "HPL": ours, "dsgesv": dsgesv}, args.rounds, warm_up=0)
        record(args, "lu", f"mxp {n}", taken)
        rates = {name: [one.get("mxp_gflops") or one["gflops"] for one in figures] for name, figures in taken.items()}
        for name, figures in taken.items():
            own = [one.get("sgemm_gflops") or one.get("dgemm_gflops") for one in figures]
            of_own = f"{statistics.median(rate / one for rate, one in zip(rates[name], own, strict=True)):.2f}" if all(own) else ""
            measured = [one.get("mxp_seconds") or one["seconds"] for one in figures]
            predicted = "" if name == "dsgesv" else f"{statistics.median(one['predicted']['seconds'] for one in figures):.3g} : " \
                f"{statistics.median(measured):.3g}"
            times = statistics.median(a / b for a, b in zip(rates["HPL-MxP"], rates[name], strict=True))
            residual = max(one.get("mxp_residual", one.get("residual")) for one in figures)
            iterations = " ".join(map(str, sorted({one["iterations"] for one in figures}))) if name != "HPL" else ""
            rows.append([n, name, spread(rates[name]), of_own, predicted, iterations, f"{residual:.2g}", f"{times:.2f}"])
    table("HPL-MxP and HPL, Gflop/s by the same count of operations: median (range)",
          ["N", "who", "Gflop/s", "of own products", "predicted : measured, s", "iterations", "residual, below 16", "HPL-MxP is faster by"], rows)


def refine_part(args):
    if not args.bramble:
        return
    rows = []
    with scratch(args) as folder:
        for n in [300] if args.quick else args.size or [2000, 4096]:
            random = np.random.default_rng(n)
            (u, _), (v, _) = (np.linalg.qr(random.standard_normal((n, n))) for _ in range(2))
            a, b = folder / "a.npy", folder / "b.npy"
            np.save(a, (u * np.append(np.ones(n - 1), 1e-8)) @ v)
            np.save(b, random.standard_normal(n))
            words = ["solve", a, b, "--threads", args.threads, "--no-condition"]
            taken = in_turns({"f64": lambda: bramble(args, *words), "--refine": lambda: bramble(args, *words, "--refine")}, args.rounds)
            record(args, "lu", f"refine {n}", taken)
            core = {name: [one["seconds"]["total"] for one in figures] for name, figures in taken.items()}
            for name, figures in taken.items():
                done = figures[-1]["refinement"]
                how = f"{done['rounds']} corrections, {done['gmres_iterations']} of GMRES, converged: {done['converged']}" if done else ""
                rows.append([n, name, spread(core[name]), f"{ratio(core[name], core['f64']):.2f}", how,
                             f"{statistics.median(one['backward_error'] for one in figures):.1e}"])
    table("Systems of condition 1e8, seconds to read, factor, solve and check: median (range)",
          ["n", "who", "seconds", "f64 takes times", "how", "backward error"], rows)


def main():
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--part", choices=["solve", "hpl", "mxp", "refine"], action="append", help="which (all)")
    parser.add_argument("--size", type=int, action="append", help="orders")
    parser.add_argument("--one-process", action="store_true", help="hpcc as one process with all threads only")
    parser.add_argument("--blas", choices=["openblas", "blis"], action="append", help="of hpcc (openblas)")
    args = parse(parser)
    for part in args.part or ["solve", "hpl", "mxp", "refine"]:
        {"solve": solve_part, "hpl": hpl_part, "mxp": mxp_part, "refine": refine_part}[part](args)


if __name__ == "__main__":
    main()
