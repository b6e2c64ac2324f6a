"""One way over loopback: frames of our link over TCP against iperf3, in turns.

`bramble bench link --link tcp --function bandwidth`: two processes, not encrypted, each with its own event loop; checksums of
all bodies are made and compared. iperf3 sends one buffer again and again, and looks at nothing that it receives; `-l` gives it
writes of the same size. Neither is tied to a core.
"""

import json
import shutil
import socket
import statistics
import subprocess
import sys
import time

from common import arguments, in_turns, parse, ratio, record, spread, table

SIZES = {"64K": 64 << 10, "1M": 1 << 20, "4M": 4 << 20, "16M": 16 << 20}
# What iperf3 takes for -l.
LENGTH_MAX = 1 << 20


def ours(args, size):
    """Seconds for a GB."""
    command = [args.bramble, "bench", "link", "--link", "tcp", "--function", "bandwidth", "--size", size,
               "--rounds", "3", "--json"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return 1e9 / next(one for one in lines if one["schema"] == "bramble.bench.link/1")["bytes_per_s"]


def iperf3(seconds, length):
    """Seconds for a GB."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    server = subprocess.Popen(["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", port], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    client = ["iperf3", "-c", "127.0.0.1", "-p", port, "-t", str(seconds), "-l", str(length), "-J"]
    try:
        for _ in range(20):
            done = subprocess.run(client, capture_output=True, text=True, timeout=60)
            end = json.loads(done.stdout or "{}").get("end")
            if end and "sum_received" in end:
                return 8e9 / end["sum_received"]["bits_per_second"]
            # It may not listen yet.
            time.sleep(0.1)
        raise SystemExit("iperf3 gave no answer")
    finally:
        server.terminate()
        server.wait()


def main():
    parser = arguments(__doc__.splitlines()[0], rounds=3)
    parser.add_argument("--sizes", default=",".join(SIZES), help=f"of messages ({','.join(SIZES)})")
    args = parse(parser)
    if not args.bramble:
        raise SystemExit("build it first: make build")
    if not shutil.which("iperf3"):
        print("loopback is not measured: iperf3 is not installed", file=sys.stderr)
        return
    rows, taken = [], {}
    for size in args.sizes.split(","):
        if size not in SIZES:
            raise SystemExit(f"--sizes {size}: use some of {','.join(SIZES)}")
        length = min(SIZES[size], LENGTH_MAX)
        taken[size] = in_turns({
            "bramble": lambda size=size: ours(args, size),
            "iperf3": lambda length=length: iperf3(1 if args.quick else 2, length),
        }, args.rounds)
        speeds = {name: [1 / one for one in all_of_it] for name, all_of_it in taken[size].items()}
        rows.append([size, *(spread(speeds[name]) for name in ("bramble", "iperf3")),
                     f"{ratio(taken[size]['bramble'], taken[size]['iperf3']):.2f}"])
    table("one way over loopback", ["message", "bench link, GB/s: median (range)", "iperf3", "of iperf3, by pairs"], rows)
    print(f"median of all sizes: {statistics.median(float(row[-1]) for row in rows):.2f}")
    record(args, "loopback_tcp", "one way over loopback", taken)


if __name__ == "__main__":
    main()
