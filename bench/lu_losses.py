"""The cost of a lost worker in the Linpack benchmark: three workers of this machine, one thread each, without a loss and with one
killed when it has used half of the processor time that it used in a run without a loss; `bench hpl --survive 1` in both cases, in
turns. The ratio is that of the times that the reports state."""

import json
import signal
import statistics
import subprocess
import time

from common import arguments, parse, record, spread, table
from losses import Workers, cpu_seconds

VICTIM = 1


def run(args, n, victim_s=None):
    """A run of the benchmark; its report, and the processor time of the second worker, which is killed when it has used `victim_s`."""
    with Workers(args) as workers:
        command = [args.bramble, "bench", "hpl", "--size", n, "-w", workers.addresses(), "--survive", 1, "--json"]
        primary = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        victim = workers.all[VICTIM][0]
        if victim_s is not None:
            while cpu_seconds(victim.pid) < victim_s and primary.poll() is None:
                time.sleep(0.01)
            victim.send_signal(signal.SIGKILL)
        out, err = primary.communicate()
        used_s = cpu_seconds(victim.pid)
    if primary.returncode:
        raise SystemExit(f"bramble ended with {primary.returncode}: {err.strip()}")
    return json.loads(out), used_s


def main():
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--size", type=int, default=8000, help="order of the system (8000)")
    args = parse(parser)
    if args.bramble is None:
        raise SystemExit("nothing to measure")
    n = 4000 if args.quick else args.size
    clean, struck, without_loss = [], [], 0
    for _ in range(args.rounds):
        report, used_s = run(args, n)
        clean.append(report["seconds"])
        report, _ = run(args, n, used_s / 2)
        # A worker that is killed after the end costs nothing, and shows nothing.
        if report["lost"]["count"] == 1:
            struck.append((clean[-1], report["seconds"], report["lost"]["workers"][0]["at_s"], report["lost"]["seconds"]))
        else:
            without_loss += 1
    if not struck:
        raise SystemExit("each run ended before its worker was killed: take a larger --size")
    ratios = [seconds / alone for alone, seconds, _, _ in struck]
    rows = [[n, spread(clean), spread([row[1] for row in struck]), spread([row[2] for row in struck]),
             spread([row[3] for row in struck]), f"{statistics.median(ratios):.2f}", without_loss]]
    table("`bench hpl --survive 1` on three workers of one thread each, seconds: median (range)",
          ["N", "no loss", "one loss", "lost after", "last start after", "ratio", "ended before the loss"], rows)
    record(args, "lu_losses", f"N = {n}", {"clean": clean, "struck": struck, "ratios": ratios})


if __name__ == "__main__":
    main()
