"""`bramble sim` against measurements: a published table of Raspberry Pis, real products in a lab, and the simulator's own
speed.

  table     the times of one to five Raspberry Pi 5 by four strategies, published beside simulated
  lab       seven products in a lab (root, iproute2), each beside a simulation of the machines as they described themselves
            (probe), as fast as they were in the product itself (in it), and as fast as their processor time implies, part of
            which goes to moving bytes (moving)
  thousand  a thousand machines: simulated seconds over its own

`table` and `thousand` give the same figures on every machine, except their own duration.
"""

import json
import os
import re
import signal
import statistics
import subprocess
import sys

import lab
from common import ROOT, arguments, environment, in_turns, parse, record, scratch, spread, table
from lab import Cluster, Machine, operands

FIVE = ROOT / "bench" / "clusters" / "five-pi5.toml"
THOUSAND = ROOT / "examples" / "clusters" / "lab1000.toml"
# Seconds with one to five workers.
PUBLISHED = {
    "row:4": [25.341, 14.691, 9.772, 8.416, 7.531],
    "row:8": [26.638, 14.234, 9.628, 7.587, 7.176],
    "square:4": [27.908, 14.278, 9.738, 7.517, 6.127],
    "square:8": [27.817, 14.234, 9.719, 7.373, 6.094],
}
# 23,716 jobs of 73 x 73 x 73 are a product of this side.
SIDE, TILE = 2097, 73
# The primary's processors were full with `row:4` and five workers: 7.531 s divided by the bytes moved there.
MOVE_NS = 10.9

# name, (m, k, n), dtype, workers as (part of a processor, Mbit/s), options
FAST = ["--strategy", "reuse", "--kernel", "simd"]
# As slow against its link as a small board: then a worker's quota goes to computing, not to moving bytes.
SLOW = ["--strategy", "reuse", "--kernel", "reference", "--tile", "48", "--panel", "192"]
CASES = [
    ("slow kernel, 4 equal workers of 0.05", (960, 960, 960), "f32", [(0.05, 1000)] * 4, SLOW),
    ("slow kernel, unequal: 0.08, 0.04, 0.04, 0.02", (960, 960, 960), "f32",
     [(0.08, 1000), (0.04, 1000), (0.04, 1000), (0.02, 1000)], SLOW),
    ("4 equal workers, 1 Gbit/s", (6144, 6144, 6144), "f32", [(0.25, 1000)] * 4, FAST),
    ("the same at 200 Mbit/s", (4096, 4096, 4096), "f32", [(0.25, 200)] * 4, FAST),
    ("unequal: 0.4, 0.2, 0.2, 0.1", (6144, 6144, 6144), "f32", [(0.4, 1000), (0.2, 1000), (0.2, 1000), (0.1, 1000)],
     FAST),
    ("square:4, 2 workers, 200 Mbit/s", (1536, 1536, 1536), "f32", [(0.3, 200)] * 2,
     ["--strategy", "square:4", "--kernel", "simd", "--tile", "128", "--panel", "128"]),
    ("long k, cuboid, 2 workers, 300 Mbit/s", (700, 24000, 700), "f32", [(0.3, 300)] * 2,
     ["--strategy", "cuboid", "--kernel", "simd"]),
]


def simulate(args, *words):
    """The object that `bramble sim --json` prints."""
    command = [args.bramble, "sim", *map(str, words), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    if done.returncode:
        raise SystemExit(f"bramble sim ended with {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def machines(args, count, speed=None):
    """The cluster file with this many of the five workers, at this speed each."""
    text = FIVE.read_text().replace("pi[1-5]", f"pi[1-{count}]")
    if speed:
        text = re.sub(r"f32 = 0\.\d+", f"f32 = {speed:.6f}", text)
    path = args.folder / "five.toml"
    path.write_text(text)
    return path


def published(args):
    """The published table beside the simulated one."""
    rows, worst, figures = [], {}, {}
    for strategy, seconds in PUBLISHED.items():
        if args.quick and strategy != "square:8":
            continue
        # By the published time of a job; and by the published time of one worker, so that only the scaling is predicted.
        for what, speed in [("job", None), ("one", 2 * SIDE**3 / seconds[0] / 1e9)]:
            told = [
                simulate(args, f"{SIDE}x{SIDE}x{SIDE}:f32", "--cluster", machines(args, count, speed), "--strategy", strategy,
                         "--tile", TILE, "--panel", TILE, "--relay", "off", "--move-ns", MOVE_NS)["undisturbed"]["seconds"]
                for count in range(1, 6)
            ]
            off = [mine / theirs - 1 for mine, theirs in zip(told, seconds, strict=True)]
            worst.setdefault(what, []).extend(off if what == "job" else off[1:])
            figures[f"{strategy}, {what}"] = told
            if what == "job":
                rows.append([strategy, "published", *(f"{one:.2f}" for one in seconds), ""])
            name = "simulated, speed of the job" if what == "job" else "simulated, speed of one worker"
            rows.append(["", name, *(f"{one:.2f}" for one in told), ", ".join(f"{one:+.0%}" for one in off)])
    record(args, "simulated", "table", figures)
    table(f"One to five Raspberry Pi 5, seconds: n = {SIDE}, tiles of {TILE}", ["strategy", "", *"12345", "off by"], rows)
    for what, off in worst.items():
        near = sum(abs(one) <= 0.1 for one in off)
        print(f"speed of {'the job' if what == 'job' else 'one worker'}: {near} of {len(off)} within 10 %, "
              f"median {statistics.median(map(abs, off)):.1%}, worst {max(map(abs, off)):.0%}")


def described(report, speeds, mbits):
    """The machines of a report as a cluster file, with these Gflop/s and links in Mbit/s."""
    memory = 4 << 30
    # The rate of `tc` includes packet headers.
    links = [0.94 * mbit / 8 for mbit in mbits]
    # The primary's own link has no limit in these labs: it carries the sum of the workers' links.
    lines = ["[primary]", 'name = "primary"', f"cores = {os.cpu_count()}", f"memory = {memory}",
             f"gflops = {{ {report['dtype']} = 1 }}", f"link_mb_s = {sum(links)}"]
    for worker, speed, link in zip(report["workers"], speeds, links, strict=True):
        lines += ["[[machines]]", f'name = "{worker["name"]}"', f"cores = {max(1, len(worker['threads']))}",
                  f"memory = {max(worker['memory_bytes'], memory)}", f"gflops = {{ {report['dtype']} = {speed} }}",
                  f"link_mb_s = {link}", f"latency_us = {worker['round_trip_s'] * 1e6}"]
    return "\n".join(lines) + "\n"


def named(workers):
    """Members that computed over links, with names that a cluster file allows."""
    movers = [worker for worker in workers if worker["link_bytes_per_s"]]
    return [{**worker, "name": f"w{number}"} for number, worker in enumerate(movers, 1)]


def moved(worker):
    """Bytes that a worker sent and received."""
    return max(1, sum(worker[way] for way in ("bytes_in", "bytes_out", "relayed_bytes_in", "relayed_bytes_out")))


def beside(args, report, parts, mbits, options):
    """The same product simulated: with the machines' own measurements before it, and with their speeds in it."""
    workers = named(report["workers"])
    flops = 2 * report["m"] * report["n"] * report["k"]
    busy = [max(worker["busy_s"], 1e-9) / max(1, len(worker["threads"])) for worker in workers]
    speeds = {"probe": [worker["gflops"] for worker in workers],
              "in it": [worker["share"] * flops / seconds / 1e9 for worker, seconds in zip(workers, busy, strict=True)]}
    shape = f"{report['m']}x{report['k']}x{report['n']}:{report['dtype']}"
    # Of its fraction of a processor: the time of computing, and of moving bytes.
    computing = [sum(thread["cpu_s"] for thread in worker["threads"]) for worker in workers]
    speeds["moving"] = [worker["share"] * flops / max(cpu, 1e-9) / 1e9 * part
                        for worker, cpu, part in zip(workers, computing, parts, strict=True)]
    moves = [1e9 * sum(worker["io"].values()) / moved(worker) / part for worker, part in zip(workers, parts, strict=True)]
    told = {"move_ns": [ns * part for ns, part in zip(moves, parts, strict=True)]}
    for name, each in speeds.items():
        own = ["--worker-move-ns", ",".join(f"{ns:.3f}" for ns in moves)] if name == "moving" else []
        path = args.folder / "machines.toml"
        path.write_text(described({**report, "workers": workers}, each, mbits))
        told[name] = simulate(args, shape, "--cluster", path, *options, *own)["undisturbed"]["seconds"]
    return told


def lab_case(args, case):
    """Rounds of one case: measured and simulated seconds."""
    _, (m, k, n), dtype, workers, options = case
    if args.quick:
        m, k, n = (max(256, side // 8) for side in (m, k, n))
    a, b = operands(args.folder, m, k, n, dtype)
    with Cluster(args, [Machine(*worker) for worker in workers], 0) as cluster:
        def once():
            others = lab.beside()
            report = cluster.multiply(a, b, *options, "--verify", "off", "-v")
            return {"seconds": report["seconds"], "predicted_s": report["predicted"]["seconds"], "beside_cores": others,
                    **beside(args, report, *zip(*workers, strict=True), options)}

        return in_turns({"all": once}, args.rounds, warm_up=0 if args.quick else 1)["all"]


def in_labs(args):
    """Real products in labs beside simulated ones."""
    if why := Cluster.missing():
        print(f"a lab cannot be made: {why}")
        return
    rows, off, used = [], {"probe": [], "in it": [], "moving": []}, []
    for case in CASES:
        if args.only and args.only not in case[0]:
            continue
        rounds = lab_case(args, case)
        ratios = {name: [one[name] / one["seconds"] for one in rounds] for name in off}
        rows.append([case[0], spread([one["seconds"] for one in rounds]), spread([one["predicted_s"] for one in rounds]),
                     *(spread(ratios[name]) for name in off)])
        for name, all_off in off.items():
            all_off.append(abs(statistics.median(ratios[name]) - 1))
        used += [one["beside_cores"] for one in rounds]
        record(args, "simulated", f"lab: {case[0]}", rounds)
        print(f"{case[0]}: {rows[-1][1:]}", file=sys.stderr)
    table("Products in a lab, and simulated", ["product", "measured, s", "predicted, s", "simulated (probe) : measured",
                                               "simulated (in it) : measured", "simulated (moving) : measured"], rows)
    for name, all_off in off.items():
        if all_off:
            print(f"{name}: {sum(one <= 0.15 for one in all_off)} of {len(all_off)} within 15 %, worst {max(all_off):.0%}")
    if used:
        print(f"others used {spread(used)} of {os.cpu_count()} processors before each run")


def thousand(args):
    """The speed of the simulator itself."""
    shape = "10000x10000x10000" if args.quick else "50000x50000x50000"
    rows = []
    for faults in ([], ["--faults", "kill:w3@50%,off:w700@30%"]):
        report = simulate(args, shape, "--cluster", THOUSAND, "--strategy", "reuse", *faults)
        simulated, own, cpu = report["simulated_seconds"], report["own_seconds"], report["own_cpu_seconds"]
        told = report["disturbed"] or report["undisturbed"]
        rows.append([" ".join(faults) or "undisturbed", len(told["machines"]), f"{told['seconds']:.1f}", f"{simulated:.1f}",
                     f"{own:.1f}", f"{cpu:.1f}", f"{simulated / own:.1f}", f"{simulated / cpu:.1f}", report["events"]])
    record(args, "simulated", "thousand", rows)
    table(f"A thousand machines, {shape}", ["", "machines", "the product, s", "simulated in all, s", "own, s", "of processors, s",
                                            "times real time", "by processors", "events"], rows)


PARTS = {"table": published, "lab": in_labs, "thousand": thousand}


def main():
    parser = arguments(__doc__.splitlines()[0], rounds=2)
    parser.add_argument("--nice", type=int, default=0, help="of all that is measured, as in -10 on a machine that is busy (0)")
    parser.add_argument("--part", choices=[*PARTS, "all"], default="all")
    parser.add_argument("--only", help="products in labs whose name has this in it")
    args = parse(parser)
    if not args.bramble:
        raise SystemExit("build it first: make build")
    os.nice(args.nice)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with scratch(args) as args.folder:
        for name, run in PARTS.items():
            if args.part in (name, "all"):
                run(args)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
