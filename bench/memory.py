"""The largest resident sets: the primary's beyond its mapped files, each worker's against its --memory."""

import re
import subprocess
from contextlib import contextmanager
from pathlib import Path

from common import ITEM_BYTES, Side, arguments, bramble, parse, record, scratch, table

MIB = 2**20


@contextmanager
def workers(args, count, memory_mib):
    """Workers of one thread on loopback; returns their addresses and process ids."""
    command = [args.bramble, "worker", "--listen", "127.0.0.1:0", "--threads", "1",
               "--memory", f"{memory_mib}M"]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    processes = [subprocess.Popen(command, **quiet) for _ in range(count)]
    try:
        lines = [process.stdout.readline() for process in processes]
        yield [re.search(r"listening on (\S+)", line)[1] for line in lines], [p.pid for p in processes]
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def peak_bytes(pid):
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) * 1024


def mib(size):
    return f"{size / MIB:.0f}"


def main():
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--memory", type=int, default=512, help="MiB that each of two workers may take (512)")
    args = parse(parser)
    if not args.bramble:
        raise SystemExit("build it first: make build")
    rows = []
    for dtype in ("f64", "f32"):
        for n in [512] if args.quick else [1024, 4096, 8192]:
            with scratch(args) as folder, Side("numpy_side.py", args.threads) as rival:
                rival.ask(do="make", n=n, dtype=dtype, folder=folder)
                numpy_peak = rival.ask(do="peak")
                operands = [folder / "A.npy", folder / "B.npy", "-o", folder / "C.npy"]
                with workers(args, 2, args.memory) as (addresses, pids):
                    report = bramble(args, "multiply", *operands, "-w", ",".join(addresses),
                                     "--strategy", "reuse")
                    peaks = [peak_bytes(pid) for pid in pids]
                alone = bramble(args, "multiply", *operands, "--threads", args.threads)
            mapped = 3 * n * n * ITEM_BYTES[dtype]
            beyond = report["primary"]["rss_peak_bytes"] - mapped
            beyond_alone = alone["primary"]["rss_peak_bytes"] - mapped
            rows.append([f"{dtype} n={n}", mib(mapped), mib(beyond), mib(max(peaks)), args.memory,
                         mib(beyond_alone)])
            record(args, "memory", f"{dtype} n={n}", {
                "mapped": mapped, "primary": report["primary"]["rss_peak_bytes"], "workers": peaks,
                "in_process": alone["primary"]["rss_peak_bytes"], "numpy_making_operands": numpy_peak,
            }, worker_limit_bytes=args.memory * MIB)
    table("Peak resident sets, MiB", ["case", "A, B and C", "primary beyond them", "largest worker",
                                      "its --memory", "in process beyond them"], rows)


if __name__ == "__main__":
    main()
