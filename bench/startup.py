"""The fixed cost of a product: start of local workers, and a tiny product in process."""

import statistics

from common import arguments, bramble, in_turns, parse, record, spread, table, timed


def main():
    parser = arguments(__doc__, rounds=50)
    parser.add_argument("--workers", type=int, default=4, help="local workers to start (4)")
    args = parse(parser)
    if not args.bramble:
        raise SystemExit("build it first: make build")
    tiny = ["multiply", "random:256x256:f64:1", "random:256x256:f64:2"]
    taken = in_turns({
        "version": lambda: timed([args.bramble, "--version"]),
        "tiny product": lambda: timed([args.bramble, *tiny, "--threads", args.threads]),
    }, args.rounds, warm_up=3)
    pairs = zip(taken["tiny product"], taken["version"], strict=True)
    beyond = [product - version for product, version in pairs]
    local = in_turns({"local": lambda: bramble(args, *tiny, "--local", args.workers)},
                     max(1, args.rounds // 3), warm_up=1)["local"]
    figures = {
        "process of --version": taken["version"],
        "process of a 256 × 256 product": taken["tiny product"],
        "of that, beyond --version": beyond,
        f"--local {args.workers}: start to first job": [report["first_job_seconds"] for report in local],
        f"--local {args.workers}: whole process": [report["wall_s"] for report in local],
    }
    in_ms = [[name, spread([1e3 * value for value in values])] for name, values in figures.items()]
    table("Start", ["what", "ms: median (range)"], in_ms)
    record(args, "startup", "start", {name: statistics.median(v) for name, v in figures.items()})


if __name__ == "__main__":
    main()
