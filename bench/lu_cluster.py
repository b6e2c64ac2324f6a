"""The Linpack benchmark on a cluster in one machine: Bramble's workers, and official HPL over Open MPI, in turns; with --mxp also HPL-MxP,
whose products are those of f32.

Each machine is a network namespace; `tc tbf` limits its link, a cgroup its fraction of a processor. hpcc runs one process in each
machine, in every grid with every width of panels, and its best run counts; or xhpl, if --xhpl names it, since hpcc's other tests take
longer than its HPL at a tenth of a processor. Both have the same quotas; hpcc's own DGEMM on all processes at once (star DGEMM) shows
what its BLAS gets under them, and products of 2048 x 2048 in all machines at once what the fastest kernel of Bramble's workers gets. Needs Linux,
root, iproute2; hpcc and openmpi-bin for the rival.
"""

import json
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import lab
from common import arguments, bramble, in_turns, parse, ratio, record, scratch, spread, table
from lab import Cluster, Machine
from lab_peers import Mpi
from lu import INPUT

OPEN = "--insecure", "--i-trust-this-network"


def ours(args, cluster, n, *options, key="gflops"):
    """A run of Bramble, with the width of panels that it chooses, or the best of those that --own-nb names."""
    hosts = ",".join(f"{address}:7400" for address in cluster.addresses[1:])
    widths = [("--nb", width) for width in args.own_nb or []] or [()]
    runs = [bramble(args, "bench", "hpl", "--size", n, "-w", hosts, *width, *options, *OPEN, prefix=cluster.at(0)) for width in widths]
    return max(runs, key=lambda run: run[key])


def mxp(args, cluster, n):
    """A run of HPL-MxP, under the names of HPL's figures."""
    found = ours(args, cluster, n, "--mxp", key="mxp_gflops")
    names = {"mxp_gflops": "gflops", "mxp_seconds": "seconds", "sgemm_gflops": "dgemm_gflops"}
    return {names.get(name, name): value for name, value in found.items()}


def star_dgemm(args, cluster, size, kernels):
    """Gflop/s of products of that size by all machines at once, each alone and with the fastest of these kernels: the sum."""
    command = [args.bramble, "bench", "kernel", "--size", size, "--kernel", ",".join(sorted(kernels)), "--rounds", 3, "--json"]
    running = [subprocess.Popen(list(map(str, [*cluster.at(number), *command])), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
               for number in range(1, cluster.workers + 1)]
    outputs = [one.communicate()[0] for one in running]
    # The first line describes the machine.
    rates = [max(json.loads(line).get("gflops", 0) for line in out.splitlines()) for out in outputs]
    return {"gflops": sum(rates), "each": rates}


def official(mpi, folder, n, blocks, grid, program):
    """The best Gflop/s of HPL in a run of hpcc or xhpl with that grid, which NB it was, and hpcc's star DGEMM on all."""
    p, q = grid
    is_hpcc = Path(program).name == "hpcc"
    asks, tells = (folder / name for name in (("hpccinf.txt", "hpccoutf.txt") if is_hpcc else ("HPL.dat", "HPL.out")))
    tells.unlink(missing_ok=True)
    asks.write_text(INPUT.format(n=n, count=len(blocks), blocks=" ".join(map(str, blocks)), p=p, q=q))
    mpi.run(program, first=1)
    out = tells.read_text()
    found = re.findall(r"^W[RC]\S+ +\d+ +(\d+) +\d+ +\d+ +[\d.]+ +(\S+)$", out, re.MULTILINE)
    assert len(found) == len(blocks) and out.count("PASSED") >= len(blocks), out[-3000:]
    gflops, block = max((float(rate), int(block)) for block, rate in found)
    dgemm = re.search(r"StarDGEMM_Gflops=([\d.]+)", out)
    return {"gflops": gflops, "nb": block, "dgemm_gflops": float(dgemm[1]) * p * q if dgemm else None}


def main():
    parser = arguments(__doc__, rounds=1)
    lab.arguments(parser, sizes=False)
    parser.add_argument("--size", type=int, action="append", help="orders (12288)")
    parser.add_argument("--grid", action="append", help="hpcc's grids, as in 2x2 (1x4 and 2x2)")
    parser.add_argument("--nb", type=lab.numbers(int), default=[64, 128, 192, 256], help="hpcc's widths of panels (64,128,192,256)")
    parser.add_argument("--own-nb", type=lab.numbers(int), help="Bramble's widths of panels (its own choice)")
    parser.add_argument("--mxp", action="store_true", help="HPL-MxP on the same workers, too")
    parser.add_argument("--alone", action="store_true", help="without a rival")
    parser.add_argument("--xhpl", metavar="PATH", help="this program instead of hpcc; it needs an MPI of the same kind as mpirun")
    args = parse(parser)
    cores = args.cores or [0.1] * 4
    machines = [Machine(part, args.mbit or 1000) for part in cores]
    grids = [tuple(map(int, grid.split("x"))) for grid in args.grid or ["1x4", "2x2"]]
    rows = []
    with scratch(args) as folder, Cluster(args, machines) as cluster:
        mpi = Mpi(folder, cluster)
        for n in args.size or [500 if args.quick else 12288]:
            kernels = {"simd"}

            def own(n=n, kernels=kernels):
                found = ours(args, cluster, n)
                # A name ends before a remark, as in "simd without fused multiply-add".
                kernels.update(worker["kernel"].split()[0] for worker in found["workers"])
                return found

            contestants = {"bramble": own}
            if args.mxp:
                contestants["bramble --mxp"] = lambda n=n: mxp(args, cluster, n)
            contestants |= {"DGEMM, each alone": lambda kernels=kernels: star_dgemm(args, cluster, 2048, kernels)}
            rival = args.xhpl or shutil.which("hpcc")
            if not args.alone and rival and shutil.which("mpirun"):
                for grid in grids:
                    contestants[f"{Path(rival).name} {grid[0]} x {grid[1]}"] = (
                        lambda n=n, grid=grid: official(mpi, folder, n, args.nb, grid, rival))
            elif not args.alone:
                print("hpcc or mpirun is not installed (Debian: apt install hpcc openmpi-bin): no rival", file=sys.stderr)
            taken = in_turns(contestants, args.rounds, warm_up=0)
            record(args, "lu_cluster", f"{n} on {cores} at {args.mbit or 1000:g} Mbit/s", taken)
            alone = statistics.median(one["gflops"] for one in taken.pop("DGEMM, each alone"))
            rates = {name: [one["gflops"] for one in figures] for name, figures in taken.items()}
            for name, figures in taken.items():
                measured = [one["dgemm_gflops"] for one in figures if one["dgemm_gflops"]]
                told = figures[0].get("predicted", {}).get("seconds")
                bound = figures[0].get("bound", {})
                rows.append([n, name, spread(rates[name]), " ".join(sorted({str(one["nb"]) for one in figures})),
                             f"{statistics.median(measured):.1f}" if measured else "", f"{statistics.median(rates[name]) / alone:.2f}",
                             f"{ratio(rates[name], rates['bramble']):.2f}", f"{told:.1f} s" if told else "",
                             f"{statistics.median(one['seconds'] for one in figures):.1f} s" if told else "",
                             f"{bound['seconds']:.1f} s ({bound['by']})" if bound else "", f"{alone:.1f}" if name == "bramble" else ""])
    table(f"HPL on workers of {', '.join(f'{part:g}' for part in cores)} processors, links of {args.mbit or 1000:g} Mbit/s",
          ["N", "who", "Gflop/s", "NB", "own DGEMM on all", "of Bramble's, each alone", "Bramble is faster by", "predicted", "taken", "bound",
           "DGEMM, each alone"], rows)


if __name__ == "__main__":
    main()
