"""One way over loopback: frames of Bramble's link over TCP against iperf3, in turns.

`bramble bench link --link tcp --function bandwidth`: two processes, not encrypted, each with its own event loop; checksums of
all bodies are made and compared. iperf3 sends one buffer again and again, and does not read the received bytes; `-l` gives it
writes of the same size, of 1 MiB at most, so its memory stays in a cache. "sockets" are two processes without sums, frames and
event loop whose memory is as large as the message, as Bramble's is. No process is pinned to a core.
"""

import json
import multiprocessing
import shutil
import socket
import statistics
import subprocess
import sys
import time

from common import arguments, in_turns, parse, ratio, record, spread, table

SIZES = {"64K": 64 << 10, "1M": 1 << 20, "4M": 4 << 20, "16M": 16 << 20}
# The largest value of iperf3's -l.
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
            # The server may not listen yet.
            time.sleep(0.1)
        raise SystemExit("iperf3 gave no answer")
    finally:
        server.terminate()
        server.wait()


def sockets(size, total):
    """Seconds for a GB from one process to another."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        writer = multiprocessing.get_context("spawn").Process(target=write, args=(server.getsockname(), size, total))
        writer.start()
        into, came, began = memoryview(bytearray(b"2" * size)), 0, None
        with server.accept()[0] as connection:
            while part := connection.recv_into(into[came % size:][:LENGTH_MAX]):
                came += part
                # The first message warms up.
                if began is None and came >= size:
                    began, before = time.perf_counter(), came
        seconds = time.perf_counter() - began
        writer.join()
    return seconds / ((came - before) / 1e9)


def write(address, size, total):
    message = memoryview(bytearray(b"1" * size))
    with socket.create_connection(address) as connection:
        for _ in range(1 + max(1, total // size)):
            for start in range(0, size, LENGTH_MAX):
                connection.sendall(message[start:start + LENGTH_MAX])


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
            "sockets": lambda size=SIZES[size]: sockets(size, 10**9 if args.quick else 6 * 10**9),
        }, args.rounds)
        speeds = {name: [1 / one for one in all_of_it] for name, all_of_it in taken[size].items()}
        rows.append([size, *(spread(speeds[name]) for name in ("bramble", "iperf3", "sockets")),
                     *(f"{ratio(taken[size]['bramble'], taken[size][other]):.2f}" for other in ("iperf3", "sockets"))])
    table("one way over loopback", ["message", "bench link, GB/s: median (range)", "iperf3", "sockets", "of iperf3, by pairs",
                                    "of sockets"], rows)
    print(f"median of all sizes: {statistics.median(float(row[-2]) for row in rows):.2f} of iperf3")
    record(args, "loopback_tcp", "one way over loopback", taken)


if __name__ == "__main__":
    main()
