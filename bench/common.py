"""Shared by all measurements: rounds in turns, medians of ratios, tables, and a record of where it ran.

Machines drift by more than the differences compared here. So rivals run in turns (A B A B …), and the result is
the median of the ratios within the rounds, not the ratio of two times taken minutes apart.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
ITEM_BYTES = {"f32": 4, "f64": 8, "i32": 4, "i64": 8}


def arguments(description, rounds=7):
    """The options that all scripts share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--bramble", type=Path, default=ROOT / "target" / "release" / "bramble",
                        help="the binary to measure; where it is missing the rivals are measured alone")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"rounds in turns ({rounds})")
    parser.add_argument("--threads", type=int, default=2, help="threads of every contestant together (2)")
    parser.add_argument("--dir", type=Path, help="where matrix files go (a new directory beside the results)")
    parser.add_argument("--quick", action="store_true", help="small sizes and one round, to try the script")
    parser.add_argument("--no-record", action="store_true", help="append nothing to bench/results")
    return parser


def parse(parser):
    args = parser.parse_args()
    if args.quick:
        args.rounds = 1
    if not args.bramble.is_file():
        print(f"there is no {args.bramble}: only the others are measured", file=sys.stderr)
        args.bramble = None
    return args


@contextmanager
def scratch(args):
    """A new directory for matrix files, removed afterwards."""
    parent = args.dir or ROOT / "target"
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def in_turns(contestants, rounds, warm_up=1):
    """Runs every contestant once a round. `contestants`: name -> function that gives figures, either
    seconds or a dictionary of figures. Returns name -> list of the rounds' figures, without the warm-up."""
    taken = {name: [] for name in contestants}
    for turn in range(warm_up + rounds):
        for name, run in contestants.items():
            figures = run()
            if turn >= warm_up:
                taken[name].append(figures)
    return taken


def ratio(ours, theirs):
    """Median over the rounds of theirs / ours: above 1 where we are faster."""
    return statistics.median(other / mine for mine, other in zip(ours, theirs, strict=True))


def spread(values):
    """Median and range, as text."""
    return f"{statistics.median(values):.4g} ({min(values):.4g}–{max(values):.4g})"


def table(title, head, rows):
    """Prints a Markdown table."""
    print(f"\n{title}\n", flush=True)
    cells = [list(map(str, row)) for row in [head, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    for number, row in enumerate(cells):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    sys.stdout.flush()


def compare(args, script, case, contestants, ours="bramble", **facts):
    """Measures contestants that return seconds, records them, and returns one table row for each."""
    taken = in_turns(contestants, args.rounds)
    rows = []
    for name, seconds in taken.items():
        faster = f"{ratio(taken[ours], seconds):.2f}" if ours in taken and name != ours else ""
        rows.append([case, name, spread(seconds), faster])
    record(args, script, case, {name: seconds for name, seconds in taken.items()}, **facts)
    return rows


SECONDS_HEAD = ["case", "who", "seconds: median (range)", "times as long as bramble"]


def record(args, script, case, figures, **facts):
    """Appends one line to bench/results/SCRIPT.jsonl."""
    if args.no_record:
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    line = {"script": script, "case": case, "figures": figures, **facts, **where_and_when(args)}
    with open(RESULTS / f"{script}.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")


def where_and_when(args):
    """The machine, the commit and the command."""
    def git(*words):
        done = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "--short=12", "HEAD")
    if commit and git("status", "--porcelain", "--untracked-files=no"):
        commit += "+changes"
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit,
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "rounds": args.rounds,
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_1min": os.getloadavg()[0],
    }


def cpu_model():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.lower().startswith(("model name", "hardware")):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def with_threads(threads):
    """The environment in which every BLAS and OpenMP uses this many threads."""
    names = ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"]
    return {**os.environ, **{name: str(threads) for name in names}}


def timed(command, **options):
    """Wall seconds of a whole process."""
    begun = time.perf_counter()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(list(map(str, command)), check=True, **quiet, **options)
    return time.perf_counter() - begun


def bramble(args, *words, prefix=(), **options):
    """Runs `bramble … --json`, after the words of `prefix`; returns its report with the wall seconds of the
    process as `wall_s`. The options are those of `subprocess.run`."""
    begun = time.perf_counter()
    done = subprocess.run([*prefix, args.bramble, *map(str, words), "--json"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, **options)
    wall_s = time.perf_counter() - begun
    if done.returncode != 0:
        raise SystemExit(f"bramble ended with {done.returncode}: {done.stderr.strip()}")
    return {**json.loads(done.stdout), "wall_s": wall_s}


class Lab:
    """A cluster of network namespaces on this machine, made by `bramble lab` from a description (docs/lab.md), removed
    afterwards. `made` is the output of `lab up`."""

    def __init__(self, args, description):
        self.bramble, self.description, self.name = args.bramble, description, f"bench{os.getpid()}"

    @staticmethod
    def missing():
        """The reason why this machine cannot have such a cluster; empty where it can."""
        lacking = [tool for tool in ("ip", "tc") if not shutil.which(tool)]
        if os.geteuid() != 0:
            return "only root may make network namespaces"
        return f"not installed: {' '.join(lacking)} (iproute2)" if lacking else ""

    def __enter__(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(self.description)
            file.flush()
            self.made = json.loads(self.verb("up", file.name, "--json"))
        return self

    def verb(self, verb, *words):
        command = [self.bramble, "lab", verb, *words, "--name", self.name]
        # In a group of its own: a second Ctrl-C must not leave anything behind.
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0)
        if done.returncode:
            raise SystemExit(done.stderr.strip())
        return done.stdout

    def inside(self, machine="primary"):
        """The words before a command that runs in a machine."""
        return [self.bramble, "lab", "exec", "--name", self.name, "--at", machine, "--"]

    def __exit__(self, *_):
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.verb("down")
        finally:
            signal.signal(signal.SIGINT, before)


def environment():
    """The environment without the user's settings for Bramble."""
    return {name: value for name, value in os.environ.items() if not name.startswith("BRAMBLE")}


class Side:
    """A rival in a process of its own, with its own thread count: takes one JSON request a line, answers
    with one JSON line."""

    def __init__(self, script, threads, *words, prefix=()):
        self.process = subprocess.Popen(
            [*prefix, sys.executable, ROOT / "bench" / script, *map(str, words)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=with_threads(threads))

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request, default=str) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a rival ended early with {self.process.wait()}")
        return json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind:
            # The rival may be in a long computation that no caller waits for.
            self.process.terminate()
        self.process.stdin.close()
        self.process.wait()


def serve(handlers):
    """The other end of `Side`: answers each request by the handler named in its `do`."""
    for line in sys.stdin:
        request = json.loads(line)
        answer = handlers[request.pop("do")](**request)
        print(json.dumps(answer), flush=True)
