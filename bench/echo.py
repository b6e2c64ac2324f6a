"""How much of the line a link uses both ways at once: frames to a worker's machine and back, against `iperf3 --bidir`.

The machines are those of a lab (`bramble lab`), with links limited by `tc`. Two programs echo frames of 1 MiB over a
link as products use it, checksums included (crates/link/examples/echo.rs); iperf3 runs before and after in the same lab.
The result is the ratio of the two, each way: bytes of frames a second against bytes of TCP. Memory must not grow.

`--sealed` encrypts as between real machines. Needs the requirements of a lab (docs/lab.md), iperf3, and
`cargo build --release -p bramble -p bramble-link --example echo`.
"""

import json
import os
import shutil
import statistics
import subprocess
import time
from contextlib import contextmanager

from common import ROOT, Lab, arguments, environment, parse, record, spread, table

WORKER = "10.77.0.2"


def lab(args):
    """A primary's machine and a worker's, with a link of this rate."""
    link = f'link = "{args.rate}"'
    return Lab(args, f'key = false\n[primary]\n{link}\n[[machines]]\nname = "worker"\nthreads = 1\n{link}\n')


@contextmanager
def started(made, machine, *words):
    process = subprocess.Popen([*map(str, made.inside(machine)), *map(str, words)], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True, env=environment())
    try:
        yield process
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def cpu_of(process):
    """Waits for a process; returns its CPU seconds."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def iperf3(made, seconds, *way):
    """Bytes a second each way of TCP alone, and CPU seconds per GB of both ends."""
    for _ in range(20):
        with started(made, "worker", "iperf3", "-s", "-1", "-B", WORKER) as server:
            time.sleep(0.5)
            with started(made, "primary", "iperf3", "-c", WORKER, "-t", seconds, "-J", *way) as client:
                end = json.loads(client.stdout.read() or "{}").get("end")
                client_s = cpu_of(client)
            if end and "sum_received" in end:
                sums = [end["sum_received"], end.get("sum_received_bidir_reverse", {"bytes": 0, "seconds": 1})]
                gb = sum(one["bytes"] for one in sums) / 1e9
                there, back = (one["bytes"] / one["seconds"] for one in sums)
                return {"there": there, "back": back, "client_cpu_s_per_gb": client_s / gb,
                        "server_cpu_s_per_gb": cpu_of(server) / gb}
    raise SystemExit("iperf3 gave no answer")


def echo(args, made, seconds):
    """One echo of this many seconds: the lines of both ends."""
    sealed = ["--sealed"] if args.sealed else []
    with started(made, "worker", args.echo, "--listen", f"{WORKER}:7500", *sealed) as server:
        server.stdout.readline()
        words = [args.echo, "--connect", f"{WORKER}:7500", "--seconds", seconds, *sealed]
        with started(made, "primary", *words) as client:
            ends = [[json.loads(line) for line in process.stdout.read().splitlines()] for process in (client, server)]
    if not all(lines and lines[-1]["what"] == "whole" for lines in ends):
        raise SystemExit("the echo did not end well")
    return ends


def figures(ends, seconds):
    """The figures of an echo: rates over its whole seconds except the first, and the growth of memory."""
    drive, serve = ([line for line in lines if line["what"] == "second"] for lines in ends)
    whole, steady = ends[0][-1], drive[1:int(seconds)]
    gb = (whole["bytes_sent"] + whole["bytes_received"]) / 1e9
    return {
        "there": statistics.mean(line["sent_per_s"] for line in steady),
        "back": statistics.mean(line["received_per_s"] for line in steady),
        "least_second": min(min(line["sent_per_s"], line["received_per_s"]) for line in steady),
        "gb": gb,
        "client_cpu_s_per_gb": ends[0][-1]["cpu_s"] / gb,
        "server_cpu_s_per_gb": ends[1][-1]["cpu_s"] / gb,
        "resident_kib_by_minute": [[lines[min(at, len(lines) - 1)]["resident_kib"] for at in range(1, len(lines), 60)]
                                   for lines in (drive, serve)],
        "resident_kib_max": [max(line["resident_kib"] for line in lines) for lines in (drive, serve)],
    }


def main():
    parser = arguments(__doc__.splitlines()[0], rounds=1)
    parser.add_argument("--rate", default="1Gbit/s", help="of the links, each way (1Gbit/s)")
    parser.add_argument("--seconds", type=int, default=300, help="of one echo (300); iperf3 has a tenth, twice")
    parser.add_argument("--sealed", action="store_true", help="encrypted")
    parser.add_argument("--echo", default=ROOT / "target" / "release" / "examples" / "echo", help="the echo program")
    args = parse(parser)
    seconds = 5 if args.quick else args.seconds
    why = Lab.missing() or ("" if shutil.which("iperf3") else "iperf3 is not installed")
    if why or not args.bramble:
        print(f"the echo is not measured: {why or 'there is no bramble'}")
        return
    rounds = []
    with lab(args) as made:
        for _ in range(args.rounds):
            before = iperf3(made, max(seconds // 10, 5), "--bidir")
            ours = figures(echo(args, made, seconds), seconds)
            after = iperf3(made, max(seconds // 10, 5), "--bidir")
            theirs = {name: (before[name] + after[name]) / 2 for name in before}
            rounds.append({"echo": ours, "iperf3": theirs})
    rows = []
    for name, title, unit in (("there", "there, MB/s", 1e6), ("back", "back, MB/s", 1e6),
                              ("client_cpu_s_per_gb", "here, CPU s/GB", 1), ("server_cpu_s_per_gb", "there, CPU s/GB", 1)):
        ours, theirs = ([one[who][name] / unit for one in rounds] for who in ("echo", "iperf3"))
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        rows.append([title, spread(ours), spread(theirs), f"{ratio:.3f}"])
    table(f"echo of 1 MiB frames, {seconds} s, {args.rate} each way{', encrypted' if args.sealed else ''}",
          ["what", "echo: median (range)", "iperf3 --bidir", "echo : iperf3"], rows)
    for one in rounds:
        ours = one["echo"]
        print(f"\nleast second {ours['least_second'] / 1e6:.1f} MB/s; {ours['gb']:.1f} GB; resident memory by minute, KiB: here "
              f"{ours['resident_kib_by_minute'][0]}, there {ours['resident_kib_by_minute'][1]}")
    record(args, "echo", f"{seconds} s, {args.rate}", rounds, sealed=args.sealed)


if __name__ == "__main__":
    main()
