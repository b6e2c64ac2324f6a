"""Systems of equations and the Linpack benchmark, against LAPACK by NumPy and SciPy, and against the HPL inside hpcc.

`--part solve`: n × n systems from .npy files. NumPy's and SciPy's seconds are those of the call `solve`, warm; Bramble's are those of
its factorisation and substitution, and, in a row of their own, those of the whole process beside NumPy's load, solve and save.
`--part hpl`: `bench hpl` and hpcc in turns, hpcc in every layout of two processors with every width of panels; its best counts. hpcc
runs all of its tests each time, so a round takes minutes. `--blas blis` links hpcc to BLIS where that is installed.
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


def main():
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--part", choices=["solve", "hpl"], action="append", help="which (both)")
    parser.add_argument("--size", type=int, action="append", help="orders")
    parser.add_argument("--one-process", action="store_true", help="hpcc as one process with all threads only")
    parser.add_argument("--blas", choices=["openblas", "blis"], action="append", help="of hpcc (openblas)")
    args = parse(parser)
    for part in args.part or ["solve", "hpl"]:
        {"solve": solve_part, "hpl": hpl_part}[part](args)


if __name__ == "__main__":
    main()
