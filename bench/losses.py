"""The cost of losing a machine: the time until the loss is noticed, until a new machine computes, the extra time of the
product, and the cost of losing the primary. Three workers of this machine, one thread each; generated operands."""

import os
import signal
import statistics
import subprocess
import sys
import time

from common import arguments, parse, record, scratch, spread, table


class EndedEarly(Exception):
    """A process ended without the line that was awaited."""


class Watched:
    """A process whose lines are read with their arrival times."""

    def __init__(self, command):
        self.process = subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)

    def until(self, mark, stream="stderr"):
        """Reads lines until one contains the text; returns its arrival time."""
        lines = []
        for line in getattr(self.process, stream):
            if mark in line:
                return time.monotonic()
            lines.append(line)
        raise EndedEarly(f"{self.process.args}: ended without saying {mark!r}, but:\n{''.join(lines)}")

    def end(self):
        self.process.stdout.read()
        self.process.stderr.read()
        return self.process.wait()


def cpu_seconds(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Workers:
    def __init__(self, args, count=3):
        self.args = args
        self.all = [self.start("127.0.0.1:0") for _ in range(count)]

    def start(self, address):
        process = subprocess.Popen([str(self.args.bramble), "worker", "--listen", address, "--threads", "1", "--quiet"],
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return process, process.stdout.readline().split()[-1]

    def addresses(self):
        return ",".join(address for _, address in self.all)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process, _ in self.all:
            process.kill()
            process.wait()


def product(args, workers, out, size):
    operands = f"random:{size}x{size}:f64:1", f"random:{size}x{size}:f64:2"
    return Watched([args.bramble, "multiply", *operands, "-o", out, "--strategy", "reuse", "--kernel", "simd",
                    "-w", workers.addresses()])


def work(workers, seconds):
    """Waits until the workers have used this much processor time since the first call."""
    pids = [process.pid for process, _ in workers.all]
    begun = sum(map(cpu_seconds, pids))
    while sum(map(cpu_seconds, pids)) < begun + seconds:
        time.sleep(0.005)


def busy_seconds(size):
    """Processor time of a tenth of such a product, at some 40 Gflop/s."""
    return 2 * size**3 / 4e10 / 10


def lost(args, number, out):
    """Kills or stops one worker of three in mid-product: seconds until the report of its loss, and of the product."""
    with Workers(args) as workers:
        began = time.monotonic()
        run = product(args, workers, out, args.size)
        work(workers, busy_seconds(args.size))
        process, address = workers.all[1]
        process.send_signal(number)
        at = time.monotonic()
        said = run.until(f"worker {address} was lost")
        assert run.end() == 3
        process.send_signal(signal.SIGCONT)
        return said - at, time.monotonic() - began


def undisturbed(args, out):
    with Workers(args) as workers:
        began = time.monotonic()
        assert product(args, workers, out, args.size).end() == 0
        return time.monotonic() - began


def again(args, out):
    """Kills a worker and starts a new one: seconds from the moment that the new one listens until it has joined, and until it
    computes. A fast machine ends a short product before the new worker joins; then a larger product is measured."""
    for size in args.size, 2 * args.size:
        try:
            return again_in(args, out, size)
        except EndedEarly as ended:
            print(f"n = {size} ended before the new worker joined, so a larger product follows: {ended}", file=sys.stderr)
    return again_in(args, out, 4 * args.size)


def again_in(args, out, size):
    """The same in a product of this order."""
    with Workers(args) as workers:
        run = product(args, workers, out, size)
        work(workers, busy_seconds(size))
        process, address = workers.all[1]
        process.kill()
        process.wait()
        workers.all[1] = workers.start(address)
        at, pid = time.monotonic(), workers.all[1][0].pid
        joined = run.until("has joined")
        idle = cpu_seconds(pid)
        while cpu_seconds(pid) < idle + 0.03 and run.process.poll() is None:
            time.sleep(0.002)
        computes = time.monotonic()
        run.end()
        return joined - at, computes - at


def main():
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--size", type=int, default=8000, help="m = n = k (8000)")
    args = parse(parser)
    if not args.bramble:
        raise SystemExit("build it first: make build")
    if args.quick:
        args.size = 3000
    whole, killed, stopped, returned = [], [], [], []
    with scratch(args) as folder:
        out = folder / "C.npy"
        for _ in range(args.rounds):
            whole.append(undisturbed(args, out))
            killed.append(lost(args, signal.SIGKILL, out))
            stopped.append(lost(args, signal.SIGSTOP, out))
            returned.append(again(args, out))
    figures = {
        "killed: until it is said, s": [said for said, _ in killed],
        "stopped: until it is said, s": [said for said, _ in stopped],
        "started again: until it has joined, s": [joined for joined, _ in returned],
        "started again: until it computes, s": [computes for _, computes in returned],
        "time with one of three killed : undisturbed": [a / b for (_, a), b in zip(killed, whole, strict=True)],
    }
    table(f"Losing a machine, n = {args.size}", ["what", "median (range)"],
          [[name, spread(values)] for name, values in figures.items()])
    record(args, "losses", "losses", {name: statistics.median(v) for name, v in figures.items()})


if __name__ == "__main__":
    main()
