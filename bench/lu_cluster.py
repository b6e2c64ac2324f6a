"""The Linpack benchmark on a cluster in one machine: Bramble's workers, and the HPL inside hpcc over Open MPI, in turns.

Each machine is a network namespace; `tc tbf` limits its link, a cgroup its fraction of a processor. hpcc runs one process in each
machine, in every grid with every width of panels, and its best run counts. Both have the same quotas; hpcc's own DGEMM on all
processes at once (star DGEMM) shows what its BLAS gets under them. Needs Linux, root, iproute2; hpcc and openmpi-bin for the rival.
"""

import re
import shutil
import statistics
import sys

import lab
from common import arguments, bramble, in_turns, parse, ratio, record, scratch, spread, table
from lab import Cluster, Machine
from lab_peers import Mpi
from lu import INPUT

OPEN = "--insecure", "--i-trust-this-network"


def ours(args, cluster, n):
    """A run of Bramble, with the width of panels that it chooses, or the best of those that --own-nb names."""
    hosts = ",".join(f"{address}:7400" for address in cluster.addresses[1:])
    widths = [("--nb", width) for width in args.own_nb or []] or [()]
    runs = [bramble(args, "bench", "hpl", "--size", n, "-w", hosts, *width, *OPEN, prefix=cluster.at(0)) for width in widths]
    return max(runs, key=lambda run: run["gflops"])


def hpcc(mpi, folder, n, blocks, grid):
    """The best Gflop/s of HPL in a run of hpcc with that grid, which NB it was, and star DGEMM on all."""
    p, q = grid
    (folder / "hpccoutf.txt").unlink(missing_ok=True)
    (folder / "hpccinf.txt").write_text(INPUT.format(n=n, count=len(blocks), blocks=" ".join(map(str, blocks)), p=p, q=q))
    mpi.run("hpcc", first=1)
    out = (folder / "hpccoutf.txt").read_text()
    found = re.findall(r"^W[RC]\S+ +\d+ +(\d+) +\d+ +\d+ +[\d.]+ +(\S+)$", out, re.MULTILINE)
    assert len(found) == len(blocks) and out.count("PASSED") >= len(blocks), out[-3000:]
    gflops, block = max((float(rate), int(block)) for block, rate in found)
    dgemm = re.search(r"StarDGEMM_Gflops=([\d.]+)", out)
    return {"gflops": gflops, "nb": block, "dgemm_gflops": float(dgemm[1]) * p * q}


def main():
    parser = arguments(__doc__, rounds=1)
    lab.arguments(parser, sizes=False)
    parser.add_argument("--size", type=int, action="append", help="orders (12288)")
    parser.add_argument("--grid", action="append", help="hpcc's grids, as in 2x2 (1x4 and 2x2)")
    parser.add_argument("--nb", type=lab.numbers(int), default=[64, 128, 192, 256], help="hpcc's widths of panels (64,128,192,256)")
    parser.add_argument("--own-nb", type=lab.numbers(int), help="Bramble's widths of panels (its own choice)")
    parser.add_argument("--alone", action="store_true", help="without hpcc")
    args = parse(parser)
    cores = args.cores or [0.1] * 4
    machines = [Machine(part, args.mbit or 1000) for part in cores]
    grids = [tuple(map(int, grid.split("x"))) for grid in args.grid or ["1x4", "2x2"]]
    rows = []
    with scratch(args) as folder, Cluster(args, machines) as cluster:
        mpi = Mpi(folder, cluster)
        for n in args.size or [500 if args.quick else 12288]:
            contestants = {"bramble": lambda n=n: ours(args, cluster, n)}
            if not args.alone and shutil.which("hpcc") and shutil.which("mpirun"):
                for grid in grids:
                    contestants[f"hpcc {grid[0]} x {grid[1]}"] = lambda n=n, grid=grid: hpcc(mpi, folder, n, args.nb, grid)
            elif not args.alone:
                print("hpcc or mpirun is not installed (Debian: apt install hpcc openmpi-bin): no rival", file=sys.stderr)
            taken = in_turns(contestants, args.rounds, warm_up=0)
            record(args, "lu_cluster", f"{n} on {cores} at {args.mbit or 1000:g} Mbit/s", taken)
            seconds = [one["seconds"] for one in taken["bramble"]]
            for name, figures in taken.items():
                rates = [one["gflops"] for one in figures]
                own = statistics.median(one["dgemm_gflops"] for one in figures)
                times = [2 * n ** 3 / 3 / rate / 1e9 for rate in rates]
                told = figures[0].get("predicted", {}).get("seconds")
                bound = figures[0].get("bound", {})
                rows.append([n, name, spread(rates), " ".join(sorted({str(one["nb"]) for one in figures})), f"{own:.1f}",
                             f"{statistics.median(rates) / own:.2f}", f"{ratio(seconds, times):.2f}",
                             f"{told:.1f} s" if told else "", f"{bound['seconds']:.1f} s ({bound['by']})" if bound else ""])
    table(f"HPL on workers of {', '.join(f'{part:g}' for part in cores)} processors, links of {args.mbit or 1000:g} Mbit/s",
          ["N", "who", "Gflop/s", "NB", "own DGEMM on all", "of own DGEMM", "Bramble is faster by", "predicted", "bound"], rows)


if __name__ == "__main__":
    main()
