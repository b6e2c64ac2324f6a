"""Systems from a file on a cluster in one machine: `solve`, `solve --refine`, and NumPy on one of its machines, in turns.

Each machine is a network namespace; `tc tbf` limits its link and that of the primary, a cgroup its fraction of a processor. The matrix
lies in the primary's page cache. Seconds are those from the first column that is sent to the last element of the solution, with the
corrections; NumPy's are those of the call `solve`, and it need not send anything. `bench hpl` of the same order, whose columns the
workers generate, shows what the elimination takes alone: with the bytes of the matrix at the rate of the primary's link before it, it
would take the sum. `--depth 3` keeps as few panels at the workers as systems whose columns are there. Needs Linux, root, iproute2, NumPy.
"""

import json
import statistics
import subprocess
import sys

import numpy as np

import lab
from common import arguments, bramble, in_turns, parse, ratio, record, scratch, spread, table, with_threads
from lab import Cluster, Machine
from lu_cluster import OPEN

NUMPY = """
import json, sys, time
import numpy as np
a, b = map(np.load, sys.argv[1:])
began = time.perf_counter()
x = np.linalg.solve(a, b)
seconds = time.perf_counter() - began
scale = np.abs(a).sum(axis=1).max() * np.abs(x).max() + np.abs(b).max()
print(json.dumps({"seconds": seconds, "backward_error": float(np.abs(b - a @ x).max() / scale)}))
"""


def solved(args, cluster, a, b, *options):
    hosts = ",".join(f"{address}:7400" for address in cluster.addresses[1:])
    report = bramble(args, "solve", a, b, "-w", hosts, *OPEN, *options, prefix=cluster.at(0))
    parts = report["seconds"]
    refinement = report["refinement"] or {}
    return {"seconds": parts["factor"] + parts["solve"], "factor": parts["factor"], "solve": parts["solve"], "sent": parts["sent"],
            "backward_error": report["backward_error"], "early_panels": report["early_panels"], "nb": report["block"],
            "converged": refinement.get("converged")}


def generated(args, cluster, n):
    hosts = ",".join(f"{address}:7400" for address in cluster.addresses[1:])
    report = bramble(args, "bench", "hpl", "--size", n, "-w", hosts, *OPEN, prefix=cluster.at(0))
    return {"seconds": report["seconds"], "nb": report["nb"]}


def numpy_alone(cluster, a, b):
    words = [*cluster.at(1), sys.executable, "-c", NUMPY, str(a), str(b)]
    done = subprocess.run(words, env=with_threads(1), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main():
    parser = arguments(__doc__, rounds=1)
    lab.arguments(parser, sizes=False)
    parser.add_argument("--size", type=int, default=8192, help="order of the system (8192)")
    parser.add_argument("--no-numpy", action="store_true", help="without NumPy on one machine")
    args = parse(parser)
    cores, mbit = args.cores or [0.2] * 4, args.mbit or 1000
    n = 600 if args.quick else args.size
    rows = []
    with scratch(args) as folder, Cluster(args, [Machine(part, mbit) for part in cores], primary_mbit=mbit) as cluster:
        random = np.random.default_rng(n)
        a, b = folder / "a.npy", folder / "b.npy"
        np.save(a, random.standard_normal((n, n)))
        np.save(b, random.standard_normal(n))
        contestants = {"solve": lambda: solved(args, cluster, a, b), "solve --depth 3": lambda: solved(args, cluster, a, b, "--depth", 3),
                       "solve --refine": lambda: solved(args, cluster, a, b, "--refine"),
                       "bench hpl": lambda: generated(args, cluster, n)}
        if not args.no_numpy:
            contestants["NumPy on the first machine"] = lambda: numpy_alone(cluster, a, b)
        taken = in_turns(contestants, args.rounds, warm_up=0)
        record(args, "lu_given", f"{n} on {cores} at {mbit:g} Mbit/s", taken)
        ours = [one["seconds"] for one in taken["solve"]]
        sending = n * n * 8 / (mbit * 1e6 / 8)
        for name, figures in taken.items():
            seconds = [one["seconds"] for one in figures]
            of = {key: [one[key] for one in figures if one.get(key) is not None] for key in ["sent", "solve", "backward_error", "early_panels"]}
            sums = [sending + one for one in seconds] if name == "bench hpl" else []
            rows.append([n, name, spread(seconds), f"{ratio(ours, seconds):.2f}", spread(of["sent"]) if of["sent"] else "",
                         spread(of["solve"]) if of["solve"] else "", f"{ratio(ours, sums):.2f}" if sums else "",
                         " ".join(sorted({str(one["nb"]) for one in figures if "nb" in one})),
                         f"{statistics.median(of['early_panels']):.0f}" if of["early_panels"] else "",
                         f"{max(of['backward_error']):.1e}" if of["backward_error"] else ""])
    table(f"Given systems on workers of {', '.join(f'{part:g}' for part in cores)} processors, links of {mbit:g} Mbit/s: the matrix takes "
          f"{sending:.2f} s to send in f64; seconds: median (range)",
          ["n", "who", "seconds", "takes times `solve`", "of it sending", "corrections", "after sending, times `solve`", "NB",
           "panels before the last column", "backward error"], rows)


if __name__ == "__main__":
    main()
