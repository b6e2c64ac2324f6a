"""The kernel that Bramble picks against each kernel forced: is `auto` the fastest on this machine?"""

import statistics
import subprocess

from common import arguments, bramble, in_turns, parse, ratio, record, scratch, spread, table, Side

KERNELS = ["auto", "simd", "openblas", "blis"]


def main():
    args = parse(arguments(__doc__))
    if not args.bramble:
        raise SystemExit("build it first: make build")
    cases = [(dtype, n) for dtype in ("f64", "f32") for n in ([256] if args.quick else [2048, 4096])]
    rows = []
    with scratch(args) as folder, Side("numpy_side.py", args.threads) as maker:
        for dtype, n in cases:
            maker.ask(do="make", n=n, dtype=dtype, folder=folder)
            words = ["multiply", folder / "A.npy", folder / "B.npy", "--threads", args.threads]
            contestants = {kernel: lambda kernel=kernel: bramble(args, *words, "--kernel", kernel)
                           for kernel in KERNELS if available(args, words, kernel)}
            taken = in_turns(contestants, args.rounds)
            auto = [report["seconds"] for report in taken["auto"]]
            for kernel, reports in taken.items():
                seconds = [report["seconds"] for report in reports]
                gflops = 2 * n**3 / statistics.median(seconds) / 1e9
                picked = reports[0]["kernel"]
                rows.append([f"{dtype} n={n}", kernel, picked, spread(seconds), f"{gflops:.1f}",
                             f"{ratio(auto, seconds):.2f}"])
            figures = {kernel: [report["seconds"] for report in reports] for kernel, reports in taken.items()}
            record(args, "kernels", f"product {dtype} n={n}", figures, picked=taken["auto"][0]["kernel"])
    head = ["case", "asked", "ran", "seconds: median (range)", "Gflop/s", "times as long as auto"]
    table(f"Kernels, {args.threads} threads", head, rows)


def available(args, words, kernel):
    """Whether this kernel runs here."""
    command = [args.bramble, *map(str, words), "--kernel", kernel]
    return subprocess.run(command, capture_output=True).returncode == 0


if __name__ == "__main__":
    main()
