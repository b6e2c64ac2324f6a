"""Predicted against measured seconds of a product, for mixed cases: in process, local processes, and workers with slow
links and slow processors.

Compares the plan's prediction, made before the first byte from the machines' own measurements, with the
seconds from the first job to the last tile.
"""

import signal
import statistics
import sys
from contextlib import nullcontext

from common import Lab, arguments, bramble, environment, parse, record, spread, table

# name, (m, k, n), dtype, generated?, workers as (Mbit/s, part of a processor), the primary's Mbit/s, more options
CASES = [
    ("alone", (3072, 3072, 3072), "f64", None, 0, []),
    ("alone, flat, f32", (6000, 500, 6000), "f32", None, 0, []),
    ("2 local processes", (2500, 2500, 2500), "f64", 2, 0, ["--strategy", "reuse"]),
    ("2 local processes, auto", (3072, 3072, 3072), "f32", 2, 0, []),
    ("1 worker, 400 Mbit/s", (2048, 1024, 2048), "f64", [(400, 1.0)], 0, ["--strategy", "reuse"]),
    ("2 workers, 200 Mbit/s, square:4", (1536, 1536, 1536), "f32", [(200, 0.5), (200, 0.5)], 0,
     ["--strategy", "square:4", "--tile", "128", "--panel", "128"]),
    ("2 workers behind 300 Mbit/s", (1800, 1800, 1800), "f64", [(0, 0.5), (0, 0.5)], 300, ["--strategy", "reuse"]),
    ("3 unequal workers", (2000, 2000, 2000), "f64", [(500, 0.5), (200, 0.25), (200, 0.12)], 0, ["--strategy", "reuse"]),
    ("2 slow processors, generated", (3000, 3000, 3000), "f64", [(1000, 0.25), (1000, 0.1)], 0, ["--strategy", "reuse"]),
    ("naive, 2 workers, 500 Mbit/s", (1024, 1024, 1024), "f32", [(500, 0.4), (500, 0.4)], 0,
     ["--strategy", "naive", "--tile", "128", "--panel", "128"]),
    ("row:4, 2 workers, 300 Mbit/s", (1280, 1280, 1280), "f32", [(300, 0.4), (300, 0.4)], 0,
     ["--strategy", "row:4", "--tile", "128", "--panel", "128"]),
    ("long k, cuboid, 2 workers", (700, 24000, 700), "f32", [(300, 0.5), (300, 0.5)], 0, ["--strategy", "cuboid"]),
    ("strassen:1, 1 worker", (2048, 2048, 2048), "f64", [(300, 0.8)], 0, ["--strategy", "strassen:1"]),
    ("chained cuboid", (700, 12000, 700), "f32", [(300, 0.5), (300, 0.5)], 0,
     ["--strategy", "cuboid", "--reproducible"]),
]


TRUST = ["--insecure", "--i-trust-this-network"]


def cluster(args, workers, primary_mbit):
    """A lab with these workers; none where the workers are processes of this machine, or absent."""
    if not isinstance(workers, list):
        return nullcontext()
    text = ["key = false", "[primary]", link(primary_mbit)]
    for number, (mbit, part) in enumerate(workers, 1):
        text += ["[[machines]]", f'name = "w{number}"', f"cores = {part}", "threads = 1", link(mbit)]
    return Lab(args, "\n".join(text))


def link(mbit):
    return f'link = "{mbit}Mbit/s"' if mbit else ""


def measure(args, case):
    """Predicted and measured seconds of every round."""
    name, (m, k, n), dtype, workers, primary_mbit, options = case
    sizes = [m, k, n] if not args.quick else [max(64, side // 8) for side in (m, k, n)]
    operands = [f"random:{sizes[0]}x{sizes[1]}:{dtype}:1", f"random:{sizes[1]}x{sizes[2]}:{dtype}:2"]
    rounds = []
    with cluster(args, workers, primary_mbit) as lab:
        if lab and "generated" not in name:
            operands = files(args, operands, sizes, dtype)
        where, prefix = [], []
        if lab:
            where, prefix = TRUST, lab.inside()
        elif workers:
            where = ["--local", workers]
        for turn in range(args.rounds + 1):
            report = bramble(args, "multiply", *operands, *where, *options, "--verify", "off", "--kernel", "simd",
                             prefix=prefix, env=environment())
            if turn:
                rounds.append({
                    "predicted_s": report["predicted"]["seconds"], "measured_s": report["seconds"],
                    "by": report["predicted"]["by"],
                    "predicted_bytes": report["predicted"]["bytes_sent"] + report["predicted"]["bytes_received"],
                    "measured_bytes": report["primary"]["bytes_sent"] + report["primary"]["bytes_received"],
                    "strategy": report["strategy"],
                })
    return rounds


def files(args, operands, sizes, dtype):
    """The same operands as files, which must be sent."""
    import numpy as np

    paths = []
    rng = np.random.default_rng(1)
    kind = {"f32": np.float32, "f64": np.float64}[dtype]
    for name, shape in (("A", (sizes[0], sizes[1])), ("B", (sizes[1], sizes[2]))):
        path = args.folder / f"{name}.npy"
        np.save(path, rng.random(shape, dtype=kind))
        paths.append(path)
    assert len(paths) == len(operands)
    return paths


def main():
    from common import scratch

    parser = arguments(__doc__.splitlines()[0], rounds=5)
    parser.add_argument("--only", help="cases whose name has this in it")
    args = parse(parser)
    if not args.bramble:
        raise SystemExit("build it first: make build")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    why = Lab.missing()
    if why:
        print(f"only what needs no cluster is measured: {why}")
    rows, worst = [], []
    with scratch(args) as args.folder:
        for case in CASES:
            if (why and isinstance(case[3], list)) or (args.only and args.only not in case[0]):
                continue
            rounds = measure(args, case)
            ratios = [one["predicted_s"] / one["measured_s"] for one in rounds]
            moved = [one["predicted_bytes"] / one["measured_bytes"] for one in rounds if one["measured_bytes"]]
            rows.append([case[0], rounds[0]["strategy"], spread([one["predicted_s"] for one in rounds]),
                         spread([one["measured_s"] for one in rounds]), spread(ratios),
                         f"{statistics.median(moved):.4f}" if moved else "–", rounds[-1]["by"]])
            worst.append(abs(statistics.median(ratios) - 1))
            record(args, "predicted_time", case[0], rounds)
            print(f"{case[0]}: {spread(ratios)}", file=sys.stderr)
    table("Predicted and measured seconds, median (range)",
          ["case", "strategy", "predicted", "measured", "predicted : measured", "bytes, predicted : measured", "by"], rows)
    near = sum(one <= 0.15 for one in worst)
    print(f"\n{near} of {len(worst)} cases within 15 % (medians); the worst is off by {max(worst):.0%}")


if __name__ == "__main__":
    main()
