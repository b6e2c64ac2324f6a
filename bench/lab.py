"""The cluster in one machine as the lab scripts see it, whoever builds it: machines by number (the primary is 0), their
addresses, what goes before a command to run it at a machine, and a product from the primary's side.

Every command runs in its machine's network namespace and under its machine's share of the processors, so rivals get
exactly what Bramble's workers get. `open_lab` is the only place that knows which builder is used: `bramble lab`, or
`small_lab.py` where the binary does not have that verb.
"""

import json
import os
import signal
import subprocess
import time
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

import small_lab
from common import bramble

KINDS = {"f32": np.float32, "f64": np.float64}
TICKS = os.sysconf("SC_CLK_TCK")


class Machine(NamedTuple):
    """A worker: its part of a processor, and its link in Mbit/s, each way."""

    cores: float
    mbit: float


class SmallLab:
    """A lab by `small_lab.py`. Its primary has all processors that the workers leave."""

    def __init__(self, args, machines, primary_mbit):
        self.args = args
        self.lab = small_lab.Lab(args.bramble, [(m.mbit, m.cores) for m in machines], primary_mbit)
        self.addresses = [self.lab.address(number) for number in range(len(machines) + 1)]
        self.subnet = "10.77.0.0/24"

    def __enter__(self):
        self.lab.__enter__()
        return self

    def __exit__(self, *_):
        self.lab.__exit__()

    def at(self, number):
        """What goes before a command that shall run at that machine."""
        return self.lab.at(number)

    def multiply(self, *words, only=None):
        """A product's report. `only`: the numbers of the workers that take part, all of them if left out."""
        numbers = only or range(1, len(self.addresses))
        hosts = ",".join(f"{self.addresses[number]}:7400" for number in numbers)
        return bramble(self.args, "multiply", *words, "-w", hosts, *small_lab.TRUST, prefix=self.at(0),
                       env=self.lab.environment())


class BrambleLab:
    """A lab by `bramble lab`, without a key. Its primary has all processors that the workers leave."""

    def __init__(self, args, machines, primary_mbit):
        self.args, self.name = args, f"bench{os.getpid()}"
        lines = ["key = false", "[primary]", *self.link(primary_mbit)]
        for number, machine in enumerate(machines, 1):
            lines += ["[[machines]]", f'name = "w{number}"', f"cores = {float(machine.cores)}", "threads = 1",
                      *self.link(machine.mbit)]
        self.description = "\n".join([*lines, ""])
        self.subnet = "10.77.0.0/24"

    @staticmethod
    def link(mbit):
        return [f'link = "{mbit:g}Mbit/s"'] if mbit else []

    def __enter__(self):
        file = self.args.folder / f"{self.name}.toml"
        file.write_text(self.description)
        try:
            up = self.call("up", file, "--json")
        except BaseException:
            # Up removes what it made when it fails, unless it was killed.
            self.__exit__()
            raise
        finally:
            file.unlink()
        made = json.loads(up)
        self.addresses = [machine["address"] for machine in [made["primary"], *made["machines"]]]
        return self

    def __exit__(self, *_):
        # A second Ctrl-C must not leave anything behind.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.call("down", must=False)
        signal.signal(signal.SIGINT, before)

    def call(self, verb, *words, must=True):
        command = [self.args.bramble, "lab", verb, "--name", self.name, *words]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=small_lab.Lab.environment())
        if must and done.returncode:
            raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
        return done.stdout

    def at(self, number):
        """What goes before a command that shall run at that machine."""
        where = f"w{number}" if number else "primary"
        return [str(self.args.bramble), "lab", "exec", "--name", self.name, "--at", where, "--"]

    def multiply(self, *words, only=None):
        """A product's report. `only`: the numbers of the workers that take part, all of them if left out."""
        numbers = only or range(1, len(self.addresses))
        hosts = ",".join(f"w{number}" for number in numbers)
        return bramble(self.args, "lab", "run", "--name", self.name, "--", "multiply", *words, "-w", hosts,
                       env=small_lab.Lab.environment())


def missing():
    """Why this machine cannot have a lab; empty where it can."""
    return small_lab.missing()


def open_lab(args, machines, primary_mbit=0):
    """The lab of a primary and those workers, to be used in a `with`; nothing is left of it afterwards."""
    known = subprocess.run([args.bramble, "lab", "--help"], capture_output=True).returncode == 0
    builder = BrambleLab if known and not args.small_lab else SmallLab
    return builder(args, machines, primary_mbit)


def arguments(parser, sizes=True):
    """The options that all lab scripts share."""
    parser.add_argument("--cores", type=numbers(float), help="parts of a processor of the workers, as in 0.25,0.25")
    parser.add_argument("--small-lab", action="store_true", help="build the lab by small_lab.py, not by bramble lab")
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


def beside(seconds=0.5):
    """How many processors others keep busy while nothing is measured: the machine may be shared."""
    before = cpu_seconds()
    time.sleep(seconds)
    return (cpu_seconds() - before) / seconds


@contextmanager
def load(figures):
    """Adds to the figures what others used of the machine just before, and how busy it was during a measurement."""
    figures["beside_cores"] = beside()
    begun, before = time.perf_counter(), cpu_seconds()
    yield
    figures["busy_cores"] = (cpu_seconds() - before) / (time.perf_counter() - begun)


def figures_of(report):
    """What the scripts keep of a product's report."""
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
