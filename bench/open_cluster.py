"""Products one after another over one open cluster: latency of the first and of the later ones, and whether memory, threads and
descriptors stay what they were.

  products  `bramble batch -` with local workers: 64 × 64 × 64, and 64 × 256 × 256; from the line that is written to the object that
            is read. Beside it the same product as a process of its own (`bramble multiply`), and NumPy's
  endurance the same small product many times: resident memory, threads and descriptors of every process after a tenth of them and
            after all
"""

import json
import os
import statistics
import subprocess
import time
from pathlib import Path

import numpy as np
from common import arguments, bramble, parse, record, spread, table

CASES = {"64 x 64 x 64, f32": (64, 64, 64), "64 x 256 x 256, f32": (64, 256, 256)}


class Batch:
    """A batch whose tasks are written one by one."""

    def __init__(self, args, *words, prefix=()):
        self.codes, self.began = {0}, time.perf_counter()
        command = [*prefix, args.bramble, "batch", "-", "--json", *map(str, words)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={key: value for key, value in os.environ.items() if not key.startswith("BRAMBLE")})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.stdout.close()
        if self.process.wait(timeout=60) not in self.codes:
            raise SystemExit(f"the batch ended with code {self.process.returncode}")

    def task(self, line):
        """Runs a task; its object, with the seconds from writing the line to reading the object."""
        began = time.perf_counter()
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        report = json.loads(self.process.stdout.readline())
        report["round_trip_s"] = time.perf_counter() - began
        if "product" in report and report["product"]["verify"]["passed"] is False:
            raise SystemExit(f"not verified: {report}")
        return report

    def held(self):
        """Resident bytes, threads and descriptors of the batch and its workers, the batch first."""
        return [held_by(pid) for pid in tree_of(self.process.pid)]


def tree_of(pid):
    """A process and those that its threads have started."""
    return [pid, *(int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split())]


def held_by(pid):
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return {"rss": int(fields["VmRSS"].split()[0]) * 1024, "threads": int(fields["Threads"]),
            "descriptors": len(os.listdir(f"/proc/{pid}/fd"))}


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def ms(seconds):
    return f"{1e3 * seconds:.3g}"


def products(args, words):
    rows = []
    for case, (m, k, n) in CASES.items():
        a, b = f"random:{m}x{k}:f32:1", f"random:{k}x{n}:f32:2"
        with Batch(args, *words) as batch:
            reports = [batch.task(f"C = {a} @ {b}") for _ in range(args.rounds + 1)]
        first, later = reports[0], reports[1:]
        alone = [bramble(args, "multiply", a, b, *words)["wall_s"] for _ in range(max(3, min(20, args.rounds // 20)))]
        left, right = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
        numpy = []
        for _ in range(args.rounds):
            began = time.perf_counter()
            left @ right
            numpy.append(time.perf_counter() - began)
        to_job = [one["product"]["first_job_seconds"] for one in later]
        trip = [one["round_trip_s"] for one in later]
        rows.append([case, ms(first["product"]["first_job_seconds"]), ms(statistics.median(to_job)), ms(percentile(to_job, 0.99)),
                     ms(statistics.median(trip)), ms(percentile(trip, 0.99)), spread([1e3 * one for one in alone]),
                     ms(statistics.median(numpy))])
        record(args, "open_cluster", case, {"first_job": to_job, "round_trip": trip, "process": alone, "numpy": numpy})
    table("Products over one open cluster, ms", ["product", "first: to its first job", "later: to their first job, p50", "p99",
                                                 "later: task to report, p50", "p99", "a process each: median (range)",
                                                 "NumPy in process"], rows)


def endurance(args, words, count):
    with Batch(args, *words) as batch:
        task = "C = random:64x64:f32:1 @ random:64x64:f32:2"
        for _ in range(count // 10):
            batch.task(task)
        before = batch.held()
        for _ in range(count - count // 10):
            batch.task(task)
        after = batch.held()
    rows = []
    for at, (one, other) in enumerate(zip(before, after, strict=True)):
        name = "primary" if at == 0 else f"worker {at}"
        rows.append([name, f"{one['rss'] / 2**20:.1f}", f"{other['rss'] / 2**20:.1f}", f"{other['rss'] / one['rss'] - 1:+.1%}",
                     f"{one['threads']} and {other['threads']}", f"{one['descriptors']} and {other['descriptors']}"])
    record(args, "open_cluster", f"{count} products", {"before": before, "after": after})
    table(f"{count} small products: after {count // 10} and after all",
          ["process", "MiB before", "MiB after", "more", "threads", "descriptors"], rows)


def main():
    parser = arguments(__doc__, rounds=300)
    parser.add_argument("--workers", type=int, default=4, help="local workers (4)")
    parser.add_argument("--link", default="tcp", help="their link: tcp, pipe or shm (tcp)")
    parser.add_argument("--count", type=int, default=10_000, help="products of the endurance run (10,000)")
    args = parse(parser)
    if not args.bramble:
        raise SystemExit("build it first: make build")
    args.rounds = 20 if args.quick else args.rounds
    words = ["--local", args.workers, "--link", args.link]
    products(args, words)
    endurance(args, words, 100 if args.quick else args.count)


if __name__ == "__main__":
    main()
