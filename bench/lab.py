"""The cluster in one machine, for the scripts that measure on it: machines by number (the primary is 0), the words
that run a command in one of them, a product from the primary's side; and the other load of this machine.

Every command runs in its machine's network namespace and under its machine's share of the processors, so rivals get
exactly the resources of Bramble's workers.
"""

import os
import signal
import time
from contextlib import contextmanager, suppress
from typing import NamedTuple

import numpy as np

from common import Lab, bramble, environment

KINDS = {"f32": np.float32, "f64": np.float64}
TICKS = os.sysconf("SC_CLK_TCK")


class Machine(NamedTuple):
    """A worker: its fraction of a processor, and its link in Mbit/s, each way."""

    cores: float
    mbit: float


class Cluster(Lab):
    """A primary with all processors that the workers leave, and workers `w1`, `w2`, …; without a key. A context
    manager: it removes the whole lab at its end, also after a signal."""

    def __init__(self, args, machines, primary_mbit=0):
        lines = ["key = false", "[primary]", *link(primary_mbit)]
        for number, machine in enumerate(machines, 1):
            lines += ["[[machines]]", f'name = "w{number}"', f"cores = {float(machine.cores)}", "threads = 1",
                      *link(machine.mbit)]
        super().__init__(args, "\n".join([*lines, ""]))
        self.args, self.workers = args, len(machines)

    def __enter__(self):
        try:
            super().__enter__()
        except KeyboardInterrupt:
            # Remove the machines made so far, if any.
            with suppress(SystemExit):
                self.__exit__()
            raise
        self.addresses = [machine["address"] for machine in [self.made["primary"], *self.made["machines"]]]
        return self

    def __exit__(self, *_):
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            super().__exit__()
        finally:
            signal.signal(signal.SIGTERM, before)

    def at(self, number):
        """The words before a command that runs in this machine."""
        return [str(word) for word in self.inside(f"w{number}" if number else "primary")]

    def multiply(self, *words, only=None):
        """A product's report. `only`: the numbers of the workers that take part; by default all."""
        hosts = ",".join(f"w{number}" for number in only or range(1, self.workers + 1))
        return bramble(self.args, "lab", "run", "--name", self.name, "--", "multiply", *words, "-w", hosts,
                       env=environment())


@contextmanager
def processors(which):
    """What starts here runs on these processors only, and so does everything that it starts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, which)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def link(mbit):
    return [f'link = "{mbit:g}Mbit/s"'] if mbit else []


def arguments(parser, sizes=True):
    """The options that all lab scripts share."""
    parser.add_argument("--cores", type=numbers(float), help="parts of a processor of the workers, as in 0.25,0.25")
    parser.add_argument("--nice", type=int, default=0, help="of all that is measured, as in -10 on a machine that is "
                        "busy with other things (0)")
    parser.add_argument("--mbit", type=float, help="link of every machine, each way, in Mbit/s")
    if sizes:
        parser.add_argument("-n", type=int, help="rows and columns")
        parser.add_argument("--dtype", choices=list(KINDS), help="element type")


def numbers(kind):
    """The parser of a list of numbers."""
    def parsed(text):
        return [kind(one) for one in text.split(",")]

    parsed.__name__ = f"list of {kind.__name__}"
    return parsed


def operands(folder, m, k, n, dtype, seed=1):
    """A and B as files at the primary; their paths."""
    rng = np.random.default_rng(seed)
    paths = []
    for name, shape in (("A", (m, k)), ("B", (k, n))):
        path = folder / f"{name}-{m}x{k}x{n}-{dtype}.npy"
        if not path.is_file():
            np.save(path, rng.random(shape, dtype=KINDS[dtype]) * 2 - 1)
        paths.append(path)
    return paths


def cpu_seconds():
    """Seconds that all processors of the machine were busy since it started."""
    with open("/proc/stat") as file:
        fields = [int(field) for field in file.readline().split()[1:9]]
    user, nice, system, _idle, _wait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / TICKS


# Memory is touched in pieces of this size, so that Ctrl-C works between them: on a host short of memory it takes minutes.
TOUCH_S = 20
TOUCH_BYTES = 16 << 20
most_touched = 4 << 30


def measure_quickly():
    """Touches little memory before each run: --quick only tries the scripts, and touching all costs more than its runs."""
    global most_touched
    most_touched = TOUCH_BYTES


def touch_memory():
    """Writes to half of the free memory and gives it back, before every run of every contestant. A virtual machine's host reclaims
    pages that were free for some seconds, and returns them at one to two processor seconds per GB, which a run would
    pay in its first seconds; on a real machine this does next to nothing. Not for longer than TOUCH_S. Bytes touched."""
    with open("/proc/meminfo") as file:
        free = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable")) * 1024
    memory = np.empty(min(free // 2, most_touched), np.uint8)
    end = time.monotonic() + TOUCH_S
    for start in range(0, memory.size, TOUCH_BYTES):
        memory[start:start + TOUCH_BYTES].fill(1)
        if time.monotonic() > end:
            return start + TOUCH_BYTES
    return memory.size


def beside(seconds=0.5):
    """The number of processors busy with other work while nothing is measured: the machine may be shared."""
    before = cpu_seconds()
    time.sleep(seconds)
    return (cpu_seconds() - before) / seconds


@contextmanager
def load(figures):
    """Adds to the figures the other load of the machine just before, and its total load during a measurement."""
    figures["beside_cores"] = beside()
    figures["touched_bytes"] = touch_memory()
    begun, before = time.perf_counter(), cpu_seconds()
    yield
    figures["busy_cores"] = (cpu_seconds() - before) / (time.perf_counter() - begun)


def figures_of(report):
    """The part of a product's report that the scripts keep."""
    return {
        "seconds": report["seconds"], "wall_s": report["wall_s"], "gflops": report["gflops"],
        "bound_s": report["bound"]["seconds"], "bound_by": report["bound"]["by"],
        "predicted_s": report["predicted"]["seconds"], "strategy": report["strategy"], "kernel": report["kernel"],
        "sent": report["primary"]["bytes_sent"], "received": report["primary"]["bytes_received"],
        "primary_cpu_s": report["primary"]["cpu_s"], "workers": len(report["workers"]),
        "measured_gflops": [worker["gflops"] for worker in report["workers"]],
        "shares": [worker["share"] for worker in report["workers"]],
    }


def measured(run):
    """The figures of a product, with the load of the machine beside them."""
    figures = {}
    with load(figures):
        report = run()
    return {**figures_of(report), **figures}


def said(cases):
    """One line on how busy the machine was with other things: `cases` gives lists of figures."""
    others = [one["beside_cores"] for rounds in cases for one in rounds]
    busy = [one["busy_cores"] for rounds in cases for one in rounds]
    return (f"Others kept {np.median(others):.2f} of {os.cpu_count()} processors busy (median; at most {max(others):.2f}) "
            f"just before the runs; during them {np.median(busy):.2f} were busy in all.")
