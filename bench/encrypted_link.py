"""The cost of encrypted links between two machines: the same product with the cluster key and without, in turns.

The machines are those of a lab (`bramble lab`): network namespaces of this one, with links limited by `tc`, both
ways. The lab's own worker has the key; a second worker has none. The link limits the product: its operands are
files, a few hundred MB go each way, and k is small. It is not verified.

CPU seconds: the primary's own count, and of the worker only the thread that sends, receives and encrypts.
The machine's cores are shared by both ends and by the kernel that moves the packets between them.
Needs the requirements of a lab (docs/lab.md); where iperf3 is installed it also measures TCP alone.
"""

import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from common import Lab, arguments, bramble, environment, in_turns, parse, record, scratch, spread, table

WORKER = "10.77.0.2"
PORTS = {"encrypted": 7400, "plain": 7401}
TRUST = {"encrypted": [], "plain": ["--insecure", "--i-trust-this-network"]}
RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
TICKS = os.sysconf("SC_CLK_TCK")


def bits_per_s(rate):
    """The rate as `tc` takes it; none for no limit."""
    if rate == "none":
        return None
    found = re.fullmatch(r"([0-9.]+)(kbit|mbit|gbit)", rate)
    if not found:
        raise SystemExit(f"--rate {rate}: use for instance 1gbit, 500mbit or none")
    return float(found[1]) * RATES[found[2]]


def machines(args):
    """A primary and a worker, with a link of this rate."""
    link = "" if args.rate == "none" else f'link = "{args.rate}/s"'
    return Lab(args, f'[primary]\n{link}\n[[machines]]\nname = "worker"\nthreads = {args.threads}\n{link}\n')


@contextmanager
def process(lab, *words):
    """A process in the worker's machine, ended afterwards."""
    started = subprocess.Popen([*map(str, lab.inside("worker")), *map(str, words)], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True, start_new_session=True, env=environment())
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(5)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
        started.stdout.close()


@contextmanager
def plain_worker(args, lab):
    """A second worker: the lab has one worker per machine, which has the key."""
    command = [args.bramble, "worker", "--listen", f"{WORKER}:{PORTS['plain']}", "--threads", args.threads, "--no-pin"]
    with process(lab, *command, *TRUST["plain"]) as started:
        line = started.stdout.readline()
        if not line.startswith("listening on"):
            raise SystemExit(f"the worker did not start: {line!r}")
        yield started.pid


def cpu_s(stat):
    """utime + stime of a process or a thread."""
    fields = Path(stat).read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def product(args, folder, lab, way, pid):
    """One product, and its cost."""
    loop = f"/proc/{pid}/task/{pid}/stat"
    before, computing = cpu_s(loop), cpu_s(f"/proc/{pid}/stat")
    report = bramble(args, "multiply", folder / "A.npy", folder / "B.npy", "-w", f"{WORKER}:{PORTS[way]}",
                     "--strategy", "reuse", "--verify", "off", "--kernel", "simd", *TRUST[way],
                     prefix=lab.inside(), env=environment())
    # The worker counts its processor time until it has seen the end of the session.
    time.sleep(0.2)
    loop_s = cpu_s(loop) - before
    sent, received = report["primary"]["bytes_sent"], report["primary"]["bytes_received"]
    gb = (sent + received) / 1e9
    return {
        "cipher": report["workers"][0]["encryption"],
        "seconds": report["seconds"],
        "sent": sent,
        "received": received,
        "sent_per_s": sent / report["seconds"],
        "received_per_s": received / report["seconds"],
        "primary_cpu_s_per_gb": report["primary"]["cpu_s"] / gb,
        "worker_link_cpu_s_per_gb": loop_s / gb,
        "worker_compute_cpu_s": cpu_s(f"/proc/{pid}/stat") - computing - loop_s,
    }


def iperf3(lab, seconds):
    """Bytes a second of TCP alone, both ways at once; nothing where iperf3 is not installed."""
    if not shutil.which("iperf3"):
        print("iperf3 is not installed: no yardstick", file=sys.stderr)
        return None
    with process(lab, "iperf3", "-s", "-1", "-B", WORKER):
        client = [*lab.inside(), "iperf3", "-c", WORKER, "-t", str(seconds), "--bidir", "-J"]
        for _ in range(20):
            end = json.loads(subprocess.run(client, capture_output=True, text=True).stdout or "{}").get("end")
            if end and "sum_received_bidir_reverse" in end:
                ways = end["sum_received"], end["sum_received_bidir_reverse"]
                return [way["bits_per_second"] / 8 for way in ways]
            # It may not listen yet.
            time.sleep(0.2)
    print("iperf3 gave no answer (it has to know --bidir): no yardstick", file=sys.stderr)
    return None


def make_operands(folder, m, k, n):
    rng = np.random.default_rng(1)
    for name, shape in (("A", (m, k)), ("B", (k, n))):
        np.save(folder / f"{name}.npy", rng.random(shape, dtype=np.float32))


def measure(args, folder, lab):
    """Rounds in turns, encrypted and plain."""
    with plain_worker(args, lab) as plain:
        pids = {"encrypted": lab.made["machines"][0]["worker"]["pid"], "plain": plain}
        return in_turns({
            way: lambda way=way: product(args, folder, lab, way, pids[way]) for way in PORTS
        }, args.rounds)


def show(args, taken, line, yardstick, shape):
    def figures(way, name):
        return [one[name] for one in taken[way]]

    def share(per_s):
        return f" ({statistics.median(per_s) * 8 / line:.1%} of the line)" if line else ""

    rows = []
    for name, title in (("sent_per_s", "to the worker, MB/s"), ("received_per_s", "from the worker, MB/s")):
        cells = [spread([value / 1e6 for value in figures(way, name)]) + share(figures(way, name))
                 for way in ("plain", "encrypted")]
        rows.append([title, *cells, f"{paired(taken, name):.3f}"])
    for name, title in (("seconds", "product, s"), ("primary_cpu_s_per_gb", "primary, CPU s/GB"),
                        ("worker_link_cpu_s_per_gb", "worker's link, CPU s/GB"),
                        ("worker_compute_cpu_s", "worker's computing, CPU s")):
        rows.append([title, *(spread(figures(way, name)) for way in ("plain", "encrypted")),
                     f"{paired(taken, name):.3f}"])
    one = taken["encrypted"][0]
    sizes = f"{one['sent'] / 1e6:.0f} MB there, {one['received'] / 1e6:.0f} MB back"
    table(f"{shape} f32, {sizes}, {args.rate} both ways, {one['cipher']}",
          ["what", "plain: median (range)", "encrypted", "encrypted : plain"], rows)
    if yardstick:
        shares = [f"{way / 1e6:.1f} MB/s{share([way])}" for way in yardstick]
        print(f"\niperf3, both ways at once: {shares[0]} there, {shares[1]} back")


def paired(taken, name):
    """Median over the rounds of encrypted : plain."""
    pairs = zip(taken["encrypted"], taken["plain"], strict=True)
    # Short runs may take less CPU time than the system counts.
    return statistics.median(ours[name] / theirs[name] if theirs[name] else math.nan for ours, theirs in pairs)


def main():
    parser = arguments(__doc__.splitlines()[0], rounds=5)
    parser.add_argument("--rate", default="1gbit", help="of the link, each way, as in 2.5gbit; or none (1gbit)")
    parser.add_argument("--rows", type=int, help="of A and C (131072)")
    parser.add_argument("--side", type=int, default=512, help="k, and the columns of B and C (512)")
    args = parse(parser)
    line = bits_per_s(args.rate)
    if why := Lab.missing():
        print(f"encrypted links are not measured: {why}")
        return
    if not args.bramble:
        raise SystemExit("build it first: make build")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    m, side = args.rows or (4096 if args.quick else 131072), args.side
    shape = f"{m} x {side} x {side}"
    with scratch(args) as folder, machines(args) as lab:
        make_operands(folder, m, side, side)
        yardstick = iperf3(lab, 1 if args.quick else 5)
        taken = measure(args, folder, lab)
    show(args, taken, line, yardstick, shape)
    record(args, "encrypted_link", f"{shape} f32, {args.rate}", taken, iperf3=yardstick, line_bits_per_s=line)


if __name__ == "__main__":
    main()
