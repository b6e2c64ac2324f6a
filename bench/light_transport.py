"""What moving matrices costs in processor time: a network-bound product against iperf3 in the same lab, and where it goes.

The machines are those of a lab (`bramble lab`) with one worker, links held to a rate by `tc`, not encrypted. A product of
which hardly anything is computed moves bytes in (a long k: operands to the worker), out (a short k: C comes home) or both ways;
iperf3 moves as many the same way. Counted is the thread that does the event loop of an end, from /proc (schedstat), not the
compute threads; of iperf3 the whole process. Products are not verified.

Between namespaces the kernel does the network's work for whoever runs when a packet is due, sender or receiver: so the sum
of both ends compares better than each. What C costs the primary beyond the link is the first touch of its pages.

`--account` samples the two threads with `perf` and says what they do (only where perf is installed).
Needs what a lab needs (docs/lab.md) and iperf3.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
from common import Lab, arguments, environment, parse, record, scratch, spread, table
from echo import iperf3, lab

WORKER = "10.77.0.2:7400"
IPERF3 = {"in": [], "out": ["-R"], "both": ["--bidir"]}
SHAPES = {"in": (512, 524288, 512), "out": (16384, 64, 16384), "both": (262144, 512, 512)}
QUICK = {"in": (512, 16384, 512), "out": (2048, 64, 2048), "both": (8192, 512, 512)}
WORDS = ["--strategy", "reuse", "--verify", "off", "--kernel", "simd", "--json"]
TRUST = ["--insecure", "--i-trust-this-network"]
HERTZ = 1000

# What a sample is, by the first of these that some function of its call chain has.
ACCOUNT = [
    ("the network's own work (interrupts)", r"handle_softirq|do_softirq|net_rx_action|__napi_poll"),
    ("first touch of memory", r"exc_page_fault|handle_mm_fault|clear_page|populate|munmap|unmap_page|memset"),
    ("checksums", r"crc32|crc_fast|checksum"),
    ("sending", r"sendmsg|writev|write_frame"),
    ("receiving", r"recvmsg|readv|read_frame"),
    ("event loop", r"epoll|tokio|mio|futex|eventfd|schedule_hrtimeout"),
    ("scheduling, messages", r"bramble_schedule|bramble_plan|bramble_primary|bramble_worker"),
    ("computing", r"bramble_kernel|gemm"),
]


def loop_s(pid):
    """CPU seconds of a process's first thread, and of all its threads; nothing once it is gone."""
    try:
        every = {int(task.name): int((task / "schedstat").read_text().split()[0]) / 1e9
                 for task in Path(f"/proc/{pid}/task").iterdir()}
        return every[pid], sum(every.values())
    except (OSError, ValueError, IndexError, KeyError):
        return None


def watched(pid):
    """The last that was seen of a process's first thread: it is looked at 100 times a second until it ends."""
    last = 0.0
    while (now := loop_s(pid)) is not None:
        last = now[0] or last
        time.sleep(0.01)
    return last


def product(args, made, files, worker, sample=None):
    """One product: bytes, and CPU seconds per GB of both event loops. `sample` is where perf shall put its samples."""
    before = loop_s(worker)
    words = [args.bramble, "multiply", *files, "-w", WORKER, *WORDS, *TRUST]
    started = subprocess.Popen(list(map(str, [*made.inside(), *words])), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, env=environment())
    seen = []
    watching = threading.Thread(target=lambda: seen.append(watched(started.pid)))
    watching.start()
    perf = sample and subprocess.Popen(["perf", "record", "-q", "-F", str(HERTZ), "-e", "cpu-clock", "-g", "-t",
                                        f"{started.pid},{worker}", "-o", str(sample)], stderr=subprocess.DEVNULL)
    out, err = started.communicate()
    watching.join()
    time.sleep(0.2)
    if perf:
        perf.send_signal(2)
        perf.wait()
    if started.returncode:
        raise SystemExit(f"bramble ended with {started.returncode}: {err.strip()}")
    report, after = json.loads(out), loop_s(worker)
    sent, received = report["primary"]["bytes_sent"], report["primary"]["bytes_received"]
    gb = (sent + received) / 1e9
    return {"pid": started.pid, "gb": gb, "seconds": report["seconds"], "there": sent / report["seconds"],
            "back": received / report["seconds"], "primary": seen[0] / gb, "worker": (after[0] - before[0]) / gb,
            "worker_computing": (after[1] - before[1] - after[0] + before[0]) / gb,
            "primary_process": report["primary"]["cpu_s"] / gb}


def account(sample, ends, gb):
    """CPU seconds per GB by what was done, for each end; `ends`: name -> thread."""
    script = ["perf", "script", "-i", str(sample), "-F", "tid,ip,sym"]
    text = subprocess.run(script, capture_output=True, text=True).stdout
    counted = {name: Counter() for name in ends}
    for block in text.split("\n\n"):
        lines = block.strip().splitlines()
        if not lines:
            continue
        name = next((name for name, tid in ends.items() if lines[0].strip() == str(tid)), None)
        if name:
            chain = " ".join(lines[1:])
            what = next((what for what, pattern in ACCOUNT if re.search(pattern, chain)), "other")
            counted[name][what] += 1 / HERTZ / gb
    return counted


def measure(args, made, files, case):
    """Rounds of iperf3 and the product in turns, the first one left out; the account of one more product."""
    worker = made.made["machines"][0]["worker"]["pid"]
    rounds = []
    for turn in range(args.rounds + 1):
        theirs = iperf3(made, 2 if args.quick else 8, *IPERF3[case])
        ours = product(args, made, files, worker)
        if turn or args.quick:
            rounds.append({"bramble": ours, "iperf3": theirs})
    parts = {}
    if args.account and shutil.which("perf"):
        with tempfile.NamedTemporaryFile(prefix="bramble-perf-") as file:
            ours = product(args, made, files, worker, file.name)
            parts = account(file.name, {"primary": ours["pid"], "worker": worker}, ours["gb"])
    return rounds, parts


def show(case, shape, rounds, parts):
    rows = []
    ends = {"primary": "client_cpu_s_per_gb", "worker": "server_cpu_s_per_gb"}
    for name in (*ends, "both ends"):
        pick = ends if name == "both ends" else {name: ends[name]}
        ours = [sum(one["bramble"][end] for end in pick) for one in rounds]
        theirs = [sum(one["iperf3"][end] for end in pick.values()) for one in rounds]
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        rows.append([name, spread(ours), spread(theirs), f"{ratio:.2f}"])
    m, k, n = shape
    one = rounds[-1]["bramble"]
    table(f"{case}: {m} x {k} x {n} f32, {one['gb']:.2f} GB, {one['there'] / 1e6:.0f} MB/s there, {one['back'] / 1e6:.0f} back",
          ["CPU s per GB", "bramble: median (range)", "iperf3", "bramble : iperf3"], rows)
    if parts:
        whats = [what for what, _ in ACCOUNT] + ["other"]
        table(f"{case}: where it goes, CPU s per GB", ["what", *parts],
              [[what, *(f"{parts[end][what]:.3f}" for end in parts)] for what in whats])


def main():
    parser = arguments(__doc__.splitlines()[0], rounds=5)
    parser.add_argument("--rate", default="1Gbit/s", help="of the links, each way (1Gbit/s)")
    parser.add_argument("--cases", nargs="+", choices=list(SHAPES), default=list(SHAPES), help="which ways bytes move")
    parser.add_argument("--account", action="store_true", help="with perf: what the threads do")
    args = parse(parser)
    why = Lab.missing() or ("" if shutil.which("iperf3") else "iperf3 is not installed")
    if why or not args.bramble:
        print(f"transport is not measured: {why or 'there is no bramble'}")
        return
    with scratch(args) as folder, lab(args) as made:
        for case in args.cases:
            m, k, n = shape = (QUICK if args.quick else SHAPES)[case]
            rng, files = np.random.default_rng(1), [folder / "A.npy", folder / "B.npy"]
            for path, size in zip(files, ((m, k), (k, n)), strict=True):
                np.save(path, rng.random(size, dtype=np.float32))
            rounds, parts = measure(args, made, files, case)
            show(case, shape, rounds, parts)
            record(args, "light_transport", f"{case}, {m} x {k} x {n} f32, {args.rate}", rounds,
                   account={end: dict(counted) for end, counted in parts.items()})


if __name__ == "__main__":
    main()
