"""The processor time of moving matrices: a network-bound product against iperf3 in the same lab, and where it goes.

The machines are those of a lab (`bramble lab`) with one worker, links limited by `tc`, not encrypted. A product with
hardly any computing moves bytes in (a long k: operands to the worker), out (a short k: C returns) or both ways;
iperf3 moves bytes the same way. The figure is for the event-loop thread of an end, from /proc (schedstat), not the
compute threads; of iperf3 the whole process. Products are not verified.

A product reads and writes matrices, while iperf3 sends and receives one buffer of 128 KiB, over and over. So there are two
pairs: a product whose C stays in memory against plain iperf3, and one with `-o` against iperf3 with `-F` at the primary,
which sends a file and writes what it receives to a new one, in the same folder (`--dir`). iperf3 cannot do that both ways
at once, so for that case two of them run.

Between namespaces the kernel charges the network's work to the process that runs when a packet is due, sender or receiver: so the sum
of both ends compares better than each. The cost of C at the primary beyond the link is the first touch of its pages. Memory is
touched and freed before every run of both: a virtual machine's host reclaims memory that was free for seconds.

`--account` samples the two threads with `perf` and reports their work by kind (only where perf is installed).
Needs the requirements of a lab (docs/lab.md), and iperf3.
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
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from common import Lab, arguments, environment, parse, record, scratch, spread, table
from echo import cpu_of, iperf3, lab, started
from lab import touch_memory

HOST = "10.77.0.2"
WORKER = f"{HOST}:7400"
IPERF3 = {"in": [], "out": ["-R"], "both": ["--bidir"]}
WITH_FILES = {"in": [[]], "out": [["-R"]], "both": [[], ["-R"]]}
SHAPES = {"in": (512, 524288, 512), "out": (16384, 64, 16384), "both": (262144, 512, 512)}
QUICK = {"in": (512, 16384, 512), "out": (2048, 64, 2048), "both": (8192, 512, 512)}
WORDS = ["--strategy", "reuse", "--verify", "off", "--kernel", "simd", "--json"]
TRUST = ["--insecure", "--i-trust-this-network"]
HERTZ = 1000

# The kind of a sample: the first of these patterns that matches a function of its call chain.
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
    """CPU seconds of a process's first thread; none after its end."""
    try:
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def watched(pid):
    """The last figure of a process's first thread, sampled 100 times a second until it ends."""
    last = 0.0
    while (now := loop_s(pid)) is not None:
        last = now or last
        time.sleep(0.01)
    return last


def iperf3_with_files(made, seconds, folder, ways):
    """CPU seconds per GB of both ends of iperf3, each of the `ways` at the same time; at the primary it sends a file, and
    writes what it receives to a new one."""
    received = folder / "received"
    with ExitStack() as stack:
        servers, clients = [], []
        for port, way in enumerate(ways, 5201):
            servers.append(stack.enter_context(started(made, "worker", "iperf3", "-s", "-1", "-B", HOST, "-p", port)))
            file = received if way else folder / "source"
            clients.append(["iperf3", "-c", HOST, "-p", port, "-t", seconds, "-J", *way, "-F", file])
        time.sleep(0.5)
        clients = [stack.enter_context(started(made, "primary", *words)) for words in clients]
        ends = [json.loads(client.stdout.read() or "{}").get("end", {}) for client in clients]
        if not all("sum_received" in end for end in ends):
            raise SystemExit("iperf3 with files gave no answer")
        gb = sum(end["sum_received"]["bytes"] for end in ends) / 1e9
        figures = {"gb": gb, "client_cpu_s_per_gb": sum(map(cpu_of, clients)) / gb,
                   "server_cpu_s_per_gb": sum(map(cpu_of, servers)) / gb}
    received.unlink(missing_ok=True)
    return figures


def process_s(pid):
    """CPU seconds of a process, including ended threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def product(args, made, files, worker, sample=None, output=None):
    """One product: bytes, and CPU seconds per GB of both event loops. `sample` is the file for perf's samples."""
    before, process_before = loop_s(worker), process_s(worker)
    words = [args.bramble, "multiply", *files, "-w", WORKER, *WORDS, *TRUST, *(["-o", output] if output else [])]
    running = subprocess.Popen(list(map(str, [*made.inside(), *words])), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, env=environment())
    seen = []
    watching = threading.Thread(target=lambda: seen.append(watched(running.pid)))
    watching.start()
    perf = sample and subprocess.Popen(["perf", "record", "-q", "-F", str(HERTZ), "-e", "cpu-clock", "-g", "-t",
                                        f"{running.pid},{worker}", "-o", str(sample)], stderr=subprocess.DEVNULL)
    out, err = running.communicate()
    watching.join()
    time.sleep(0.2)
    if perf:
        perf.send_signal(2)
        perf.wait()
    if running.returncode:
        raise SystemExit(f"bramble ended with {running.returncode}: {err.strip()}")
    if output:
        output.unlink()
    report, after = json.loads(out), loop_s(worker)
    sent, received = report["primary"]["bytes_sent"], report["primary"]["bytes_received"]
    gb = (sent + received) / 1e9
    return {"pid": running.pid, "gb": gb, "seconds": report["seconds"], "there": sent / report["seconds"],
            "back": received / report["seconds"], "primary": seen[0] / gb, "worker": (after - before) / gb,
            "worker_process": (process_s(worker) - process_before) / gb,
            "primary_process": report["primary"]["cpu_s"] / gb}


def account(sample, ends, gb):
    """CPU seconds per GB by kind of work, for each end; `ends`: name -> thread."""
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
    """Rounds of iperf3 and the product in turns, without the first; the account of one more product."""
    worker = made.made["machines"][0]["worker"]["pid"]
    touch = (lambda: None) if args.quick else touch_memory
    rounds = []
    for turn in range(args.rounds + 1):
        touch()
        theirs = iperf3(made, 2 if args.quick else 8, *IPERF3[case])
        touch()
        ours = product(args, made, files, worker)
        touch()
        theirs_with_files = iperf3_with_files(made, 2 if args.quick else 4, files[0].parent, WITH_FILES[case])
        touch()
        ours_with_files = product(args, made, files, worker, output=files[0].parent / "C.npy")
        if turn or args.quick:
            rounds.append({"bramble": ours, "iperf3": theirs, "bramble_with_files": ours_with_files,
                           "iperf3_with_files": theirs_with_files})
    parts = {}
    if args.account and shutil.which("perf"):
        with tempfile.NamedTemporaryFile(prefix="bramble-perf-") as file:
            ours = product(args, made, files, worker, file.name)
            parts = account(file.name, {"primary": ours["pid"], "worker": worker}, ours["gb"])
    return rounds, parts


def show(case, shape, rounds, parts):
    rows = []
    ends = {"primary": "client_cpu_s_per_gb", "worker": "server_cpu_s_per_gb"}
    for kind, title in (("", "C in memory"), ("_with_files", "files")):
        for name in (*ends, "both ends"):
            pick = ends if name == "both ends" else {name: ends[name]}
            ours = [sum(one[f"bramble{kind}"][end] for end in pick) for one in rounds]
            theirs = [sum(one[f"iperf3{kind}"][end] for end in pick.values()) for one in rounds]
            ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
            rows.append([f"{name}, {title}", spread(ours), spread(theirs), f"{ratio:.2f}"])
        for name in ends:
            rows.append([f"{name}, {title}: all threads", spread([one[f"bramble{kind}"][f"{name}_process"] for one in rounds]),
                         "", ""])
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
            (folder / "source").write_bytes(rng.bytes(512 << 20))
            rounds, parts = measure(args, made, files, case)
            show(case, shape, rounds, parts)
            record(args, "light_transport", f"{case}, {m} x {k} x {n} f32, {args.rate}", rounds,
                   account={end: dict(counted) for end, counted in parts.items()})


if __name__ == "__main__":
    main()
