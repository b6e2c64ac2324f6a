"""Bramble's products on a cluster in one machine: against the bound, the network's least traffic, the workers' own speeds, and
one worker.

  compute  four equal workers at 1 Gbit/s: time against their time for the same jobs with nothing else to do, and
           against the bound that no plan can beat (the peak of the cores, which no kernel reaches)
  network  the same at 200 Mbit/s: bytes that leave and reach the primary against |A| + |B| and |C|, and the bound
  mixed    a fast, two middling, a slow worker: speed against the summed speeds of each alone, and against equal shares
  scaling  one to five workers by the strategies of a table for five Raspberry Pis: the speed-up over one
  peers    the product of four workers by Dask, mpi4py and ScaLAPACK (lab_peers.py)

Each machine is a network namespace; `tc tbf` limits its link, a cgroup its fraction of a processor. The primary does not compute.
Needs Linux, root, iproute2. Operands are files of the primary in the page cache; `seconds` is from the first job to the last
tile.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import lab
import lab_peers
from common import ITEM_BYTES, ROOT, arguments, in_turns, parse, record, scratch, spread, table
from lab import Cluster, Machine, measured, operands

QUICK_N = 768
ALWAYS = ["--verify", "off"]


def settings(args, n, dtype, cores, mbit):
    """The case's own sizes, unless the user gave others."""
    n = args.n or (QUICK_N if args.quick else n)
    return n, args.dtype or dtype, args.cores or cores, mbit if args.mbit is None else args.mbit


def described(n, dtype, cores, mbit):
    return f"n = {n}, {dtype}, workers of {'/'.join(f'{part:g}' for part in cores)} processors, {mbit:g} Mbit/s"


def can_do_jobs(args):
    """Whether the program exists; without it the measurements that need it are skipped."""
    return os.access(args.jobs, os.X_OK)


def by_themselves(args, cluster, kernel, tile, depth, rows, cols):
    """All workers at once run jobs like those of the product, with a block of C and the panels of two steps in memory and nothing
    else to do (crates/kernel/examples/jobs.rs): their highest rate together."""
    command = [args.jobs, tile, depth, rows, cols, 2 if args.quick else 12, kernel]

    def one(worker):
        done = subprocess.run([*cluster.at(worker), *map(str, command)], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["gflops"]

    figures = {}
    with lab.load(figures), ThreadPoolExecutor(cluster.workers) as pool:
        speeds = list(pool.map(one, range(1, cluster.workers + 1)))
    return {"gflops": sum(speeds), "speeds": speeds, **figures}


OWN = "the workers' jobs by themselves"
BEFORE = f"{OWN}, before"


def against_bound(args, case, n_default, mbit_default):
    """One product by each strategy; time against the bound, bytes against the least possible traffic."""
    n, dtype, cores, mbit = settings(args, n_default, "f32", [0.25] * 4, mbit_default)
    edge, words = 128 if args.quick else 1024, args.words
    if case == "compute" and not words:
        words = ["--tile", edge, "--panel", 512]
    a, b = operands(args.folder, n, n, n, dtype)
    matrix = n * n * ITEM_BYTES[dtype]
    with Cluster(args, [Machine(part, mbit) for part in cores], mbit) as cluster:
        def alone():
            return by_themselves(args, cluster, "simd", edge, 512, n // edge // 2, n // edge // 2)

        # A shared machine's speed changes from minute to minute: before and after, and the mean of both.
        does_jobs = case == "compute" and can_do_jobs(args)
        contestants = {BEFORE: alone} if does_jobs else {}
        contestants |= {
            strategy: lambda strategy=strategy: measured(
                lambda: cluster.multiply(a, b, "--strategy", strategy, *words, *ALWAYS))
            for strategy in args.strategies
        }
        if does_jobs:
            contestants[OWN] = alone
        taken = in_turns(contestants, args.rounds, warm_up=0)
    rows = []
    own = [(before["gflops"] + after["gflops"]) / 2 for before, after in zip(taken.get(BEFORE, []), taken.get(OWN, []))]
    for strategy in args.strategies:
        rounds = taken[strategy]
        slower = [each / one["gflops"] for one, each in zip(rounds, own)]

        def over(name, of, rounds=rounds):
            return [one[name] / of(one) for one in rounds]

        rows.append([
            strategy, spread([one["seconds"] for one in rounds]), spread(slower) if slower else "", rounds[-1]["bound_by"],
            spread(over("seconds", lambda one: one["bound_s"])), spread(over("predicted_s", lambda one: one["seconds"])),
            f"{statistics.median(over('sent', lambda _: 2 * matrix)):.3f}",
            f"{statistics.median(over('received', lambda _: matrix)):.3f}",
            spread([one["gflops"] for one in rounds]),
        ])
    about = described(n, dtype, cores, mbit)
    record(args, "lab_products", f"{case}: {about}", taken, n=n, dtype=dtype, worker_cores=cores, mbit=mbit)
    table(f"{case}: {about}", ["strategy", "seconds: median (range)", "seconds : by themselves", "bound by",
                               "seconds : bound", "predicted : seconds",
                               "sent : (A + B)", "received : C", "Gflop/s"], rows)
    if own:
        print(f"\nWith nothing else to do the workers do {spread(own)} Gflop/s.")
    print("\n" + lab.said(taken.values()))


def mixed(args):
    """A product of unequal workers, each worker alone, and equal shares."""
    n, dtype, cores, mbit = settings(args, 12_288, "f32", [0.4, 0.2, 0.2, 0.1], 1000)
    a, b = operands(args.folder, n, n, n, dtype)

    def part(cluster, worker, rows):
        """The product of this many rows of A on one worker. A worker alone takes about as long as all together,
        so the fixed cost of a product weighs the same."""
        left, _ = operands(args.folder, max(64, round(rows / 64) * 64), n, n, dtype)
        return measured(lambda: cluster.multiply(left, b, "--strategy", "reuse", *args.words, *ALWAYS, only=[worker]))

    with Cluster(args, [Machine(part, mbit) for part in cores], mbit) as cluster:
        contestants = {
            strategy: lambda strategy=strategy: measured(
                lambda: cluster.multiply(a, b, "--strategy", strategy, *args.words, *ALWAYS))
            for strategy in args.strategies
        }
        for worker, speed in enumerate(cores, 1):
            contestants[f"worker {worker} alone"] = lambda worker=worker, speed=speed: part(
                cluster, worker, n * speed / sum(cores))
        slowest = cores.index(min(cores)) + 1
        contestants["equal shares"] = lambda: part(cluster, slowest, n / len(cores))
        taken = in_turns(contestants, args.rounds, warm_up=0)
    about = described(n, dtype, cores, mbit)
    record(args, "lab_products", f"mixed: {about}", taken, n=n, dtype=dtype, worker_cores=cores, mbit=mbit)
    show_mixed(args, about, taken, len(cores))


def show_mixed(args, about, taken, workers):
    alone = [taken[f"worker {worker} alone"] for worker in range(1, workers + 1)]
    summed = [sum(one["gflops"] for one in turn) for turn in zip(*alone, strict=True)]
    rows = []
    for strategy in args.strategies:
        rounds = taken[strategy]
        reached = [one["gflops"] / whole for one, whole in zip(rounds, summed, strict=True)]
        equal = [other["seconds"] / one["seconds"] for one, other in zip(rounds, taken["equal shares"], strict=True)]
        rows.append([strategy, spread([one["seconds"] for one in rounds]), spread([one["gflops"] for one in rounds]),
                     spread(reached), spread(equal)])
    rows.append(["the workers' own speeds, summed", "", spread(summed), "", ""])
    rows += [[f"worker {number} alone", spread([one["seconds"] for one in rounds]),
              spread([one["gflops"] for one in rounds]), "", ""] for number, rounds in enumerate(alone, 1)]
    rows.append(["equal shares: the slowest worker's", spread([one["seconds"] for one in taken["equal shares"]]), "", "", ""])
    table(f"mixed: {about}", ["who", "seconds: median (range)", "Gflop/s", "of the summed speeds",
                              "times as fast as equal shares"], rows)
    print("\n" + lab.said(taken.values()))


def scaling(args):
    """One worker, then more, by each strategy. The side is a multiple of five times the largest aggregate. The kernel is the
    slow one, so that the ratio of processor to network is that of a Raspberry Pi: with vectors of
    512 bits it computes a hundred times as fast, and moving bytes costs it as much as before."""
    n, dtype, cores, mbit = settings(args, 1920, "f32", [0.2] * 5, 1000)
    words = args.words or ["--kernel", "reference", "--tile", 48, "--panel", 192]
    a, b = operands(args.folder, n, n, n, dtype)
    strategies = args.strategies if args.named else ["row:4", "row:8", "square:4", "square:8", "reuse"]
    counts = range(1, len(cores) + 1)
    with Cluster(args, [Machine(part, mbit) for part in cores], mbit) as cluster:
        contestants = {
            f"{strategy}, {count}": lambda strategy=strategy, count=count: measured(lambda: cluster.multiply(
                a, b, "--strategy", strategy, *words, *ALWAYS, only=list(range(1, count + 1))))
            for strategy in strategies for count in counts
        }
        if can_do_jobs(args):
            contestants[OWN] = lambda: by_themselves(args, cluster, "reference", 48, 192, n // 48 // len(cores), n // 48)
        taken = in_turns(contestants, args.rounds, warm_up=0)
    own = [one["gflops"] for one in taken.get(OWN, [])]
    rows = []
    for strategy in strategies:
        one = [each["seconds"] for each in taken[f"{strategy}, 1"]]
        seconds = [[each["seconds"] for each in taken[f"{strategy}, {count}"]] for count in counts]
        times = [statistics.median(first / now for first, now in zip(one, each, strict=True)) for each in seconds]
        reached = [one["gflops"] / whole for one, whole in zip(taken[f"{strategy}, {counts[-1]}"], own)]
        rows.append([strategy, *(f"{statistics.median(each):.4g}" for each in seconds), *(f"{t:.2f}" for t in times[1:]),
                     f"{statistics.median(reached):.3f}" if reached else ""])
    about = " ".join([described(n, dtype, cores, mbit), *map(str, words)])
    record(args, "lab_products", f"scaling: {about}", taken, n=n, dtype=dtype, worker_cores=cores, mbit=mbit)
    table(f"scaling: {about}", ["strategy", *(f"seconds, {count}" for count in counts),
                                *(f"{count} workers: times as fast" for count in counts[1:]),
                                f"{counts[-1]}: of their rate alone"], rows)
    if own:
        print(f"\nWith nothing else to do they do {spread(own)} Gflop/s together.")
    print("\n" + lab.said(taken.values()))


CASES = {
    "compute": lambda args: against_bound(args, "compute", 16_384, 1000),
    "network": lambda args: against_bound(args, "network", 8192, 200),
    "mixed": mixed,
    "scaling": scaling,
    "peers": lab_peers.peers,
}


def ended(*_):
    """Ends once, even if it is asked again: the lab must be removed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


def main():
    parser = arguments(__doc__.splitlines()[0], rounds=3)
    lab.arguments(parser)
    lab_peers.arguments(parser)
    parser.add_argument("--case", choices=[*CASES, "all"], default="all")
    parser.add_argument("--strategies", default="", help="of Bramble, as in reuse,cuboid (reuse; in scaling five)")
    parser.add_argument("--jobs", default=ROOT / "target" / "release" / "examples" / "jobs", help="the program that does jobs alone: "
                        "cargo build --release -p bramble-kernel --example jobs (without it that case is skipped)")
    parser.add_argument("--words", default="", help="more options of bramble multiply, as in '--tile 512'")
    args = parse(parser)
    if args.quick:
        lab.measure_quickly()
    args.named, args.words = bool(args.strategies), args.words.split()
    args.strategies = args.strategies.split(",") if args.named else ["reuse"]
    if why := Cluster.missing():
        print(f"a cluster in this machine cannot be made: {why}")
        return
    if not args.bramble:
        raise SystemExit("build it first: make build")
    os.nice(args.nice)
    signal.signal(signal.SIGTERM, ended)
    with scratch(args) as args.folder:
        for name, run in CASES.items():
            if args.case in (name, "all"):
                run(args)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
