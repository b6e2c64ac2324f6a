"""The same product on the same machines by Bramble and by its peers: Dask, mpi4py + NumPy, ScaLAPACK.

Part of lab_products.py (`--case peers`). Timed interval: from A and B in the primary's memory to C in the primary's memory.
The primary of all of them has the processors that the workers leave, and computes nothing of the product. Peers start anew
for each measurement, which is not counted, and do a small product first; no idle processes of a rival run beside a measurement. No
link is encrypted. Every C is compared with NumPy's: the peers' each time, Bramble's in a run that is not counted.

Each peer has settings (chunks, blocks); all are tried once, and the fastest takes part in the rounds.
"""

import json
import math
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack

import lab
import numpy as np
from common import ROOT, Side, in_turns, ratio, record, spread, table, with_threads
from lab import Cluster, Machine, figures_of, measured, operands

QUICK_N = 512
DEADLINE_S = 1800
SUBNET = "10.77.0.0/24"
"""The name of every lab."""
WHO = ["dask", "mpi4py", "scalapack"]


def arguments(parser):
    """The options of this case only."""
    group = parser.add_argument_group("--case peers")
    group.add_argument("--sizes", type=lab.numbers(int), help="rows and columns (4096,8192; -n for one)")
    group.add_argument("--rates", type=lab.numbers(float), help="Mbit/s (1000,200; --mbit for one)")
    group.add_argument("--peers", default=",".join(WHO), help=f"which of them ({','.join(WHO)})")
    group.add_argument("--chunks", type=lab.numbers(int), default=[1024, 2048, 4096], help="of Dask (1024,2048,4096)")
    group.add_argument("--blocks", type=lab.numbers(int), default=[64, 128, 256], help="of ScaLAPACK (64,128,256)")


def checked(folder, n, dtype, out, want):
    """The largest difference from NumPy's C, which must be within the rounding of k additions."""
    got = np.load(out, mmap_mode="r")
    assert got.shape == want.shape and got.dtype == want.dtype, (got.shape, got.dtype)
    worst = max(float(np.max(np.abs(got[row:row + 1024] - want[row:row + 1024]))) for row in range(0, n, 1024))
    allowed = n * np.finfo(want.dtype).eps
    if not worst <= allowed:
        raise SystemExit(f"{out.name}: off by {worst} from NumPy's C, {allowed} allowed")
    out.unlink()
    return worst


def processes(command, folder, **options):
    """Runs a command of a peer to its end; returns its output. The command and its children end with this script."""
    with open(folder / "stderr.txt", "w+") as errors:
        started = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                                   text=True, start_new_session=True, **options)
        try:
            out, _ = started.communicate(timeout=DEADLINE_S)
        except BaseException:
            # On SIGTERM mpirun ends its ranks.
            started.send_signal(signal.SIGTERM)
            try:
                started.wait(5)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()
            raise
        if started.returncode:
            errors.seek(0)
            raise SystemExit(f"{shlex.join(map(str, command))} ended with {started.returncode}: {errors.read()[-2000:]}")
        return out


class Mpi:
    """Ranks in the lab: rank 0 at the primary, and one rank at each worker."""

    def __init__(self, folder, cluster):
        self.folder, self.cluster = folder, cluster
        self.agent = folder / "agent.sh"
        cases = []
        for number, address in enumerate(cluster.addresses):
            enter = shlex.join([*cluster.at(number), "sh", "-c"])
            cases.append(f'{address}) exec {enter} "$*" ;;')
        self.agent.write_text("\n".join(["#!/bin/sh", "# HOST COMMAND…, as rsh has it.", "host=$1; shift", "case $host in",
                                         *cases, "esac", "exit 1", ""]))
        self.agent.chmod(0o755)

    def run(self, *program, first=0):
        """The output of rank 0, which runs in machine `first`; the others in those after it."""
        addresses = self.cluster.addresses[first:]
        hosts = ",".join(f"{address}:1" for address in addresses)
        mca = {"plm_rsh_agent": self.agent, "plm_rsh_no_tree_spawn": 1, "pml": "ob1", "btl": "tcp,self",
               "btl_tcp_if_include": SUBNET, "oob_tcp_if_include": SUBNET,
               "orte_tmpdir_base": self.folder, "mpi_yield_when_idle": 1,
               "hwloc_base_binding_policy": "none", "orte_keep_fqdn_hostnames": 1}
        words = [word for name, value in mca.items() for word in ("--mca", name, value)]
        names = [name for name in with_threads(1) if name.endswith("_NUM_THREADS")]
        # By default mpi4py takes the library that libmpi.so names, which may be a different one.
        passed = [word for name in (*names, "MPI4PY_MPIABI") for word in ("-x", name)]
        command = [*self.cluster.at(0), "mpirun", "--allow-run-as-root", "--host", hosts, "-n",
                   len(addresses), "--wdir", self.folder, *words, *passed, *program]
        return processes(command, self.folder, env={**with_threads(1), "MPI4PY_MPIABI": "openmpi"})


class Peers:
    """The needs of each peer for one product, and its command. Contestants are functions that return figures."""

    def __init__(self, args, folder, cluster, n, dtype, threads):
        self.args, self.folder, self.cluster, self.n, self.dtype = args, folder, cluster, n, dtype
        self.files = operands(folder, n, n, n, dtype)
        self.out = folder / "C.npy"
        a, b = map(np.load, self.files)
        self.want = a @ b
        self.workers = cluster.workers
        self.mpi = Mpi(folder, cluster)

    def figures(self, seconds):
        """The figures of a peer's run, which took `seconds` and left its C."""
        figures = {}
        with lab.load(figures):
            figures["seconds"] = seconds()
        return {**figures, "worst": checked(self.folder, self.n, self.dtype, self.out, self.want)}

    def dask(self, way, chunk):
        """One Dask product; its scheduler and client are at the primary, one worker process at each worker."""
        def run():
            with ExitStack() as stack:
                side = stack.enter_context(Side("dask_side.py", 1, "--listen", self.cluster.addresses[0],
                                                prefix=self.cluster.at(0)))
                address = side.ask(do="address")
                for number in range(1, self.workers + 1):
                    stack.enter_context(self.dask_worker(number, address))
                side.ask(do="enough", workers=self.workers)
                side.ask(do="product", way=way, n=256, dtype=self.dtype, chunk=128)
                side.ask(do="load", a=self.files[0], b=self.files[1])
                seconds = side.ask(do="saved", way=way, n=self.n, dtype=self.dtype, chunk=chunk, out=self.out)
                side.ask(do="close")
                return seconds

        return lambda: self.figures(run)

    def dask_worker(self, number, address):
        command = [*self.cluster.at(number), sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1",
                   "--no-nanny", "--no-dashboard", "--memory-limit", "0", "--local-directory", self.folder / f"dask{number}",
                   "--host", self.cluster.addresses[number]]
        return Started(command, with_threads(1))

    def mpi4py(self):
        """The simple way: B broadcast, rows of A scattered, rows of C gathered."""
        words = [sys.executable, ROOT / "bench" / "lab_mpi_side.py", *self.files, self.out]
        return lambda: self.figures(lambda: json.loads(self.mpi.run(*words)))

    def scalapack(self, block):
        """pdgemm or psgemm on the workers, with pdgemr2d from the primary and back."""
        rows = max(side for side in range(1, math.isqrt(self.workers) + 1) if self.workers % side == 0)
        words = [self.folder / "lab_scalapack", *self.files, self.out, self.n, self.dtype, block, rows, self.workers // rows]
        return lambda: self.figures(lambda: float(self.mpi.run(*words)))

    def bramble(self, *options):
        """Verified as by default, which `seconds` leaves out and `wall_s` has in it."""
        return lambda: measured(lambda: self.cluster.multiply(*self.files, *options, *self.args.words))

    def check_bramble(self, *options):
        figures_of(self.cluster.multiply(*self.files, "-o", self.out, *options, *self.args.words))
        return checked(self.folder, self.n, self.dtype, self.out, self.want)

    def candidates(self):
        """Peer -> setting -> function."""
        found = {}
        chunks = [chunk for chunk in self.args.chunks if chunk <= self.n // 2] or [self.n // 2]
        if self.has("dask"):
            found["dask"] = {f"{way}, chunks of {chunk}": self.dask(way, chunk)
                             for way in ("from_array", "scattered") for chunk in chunks}
            found["dask"]["futures, rows of A"] = self.dask("futures", 0)
        if self.has("mpi4py"):
            found["mpi4py + numpy"] = {"rows of A": self.mpi4py()}
        if self.has("scalapack"):
            found["scalapack"] = {f"blocks of {block}": self.scalapack(block) for block in self.args.blocks}
        return found

    def has(self, who):
        """Whether a peer is requested and installed."""
        if who not in self.args.peers.split(","):
            return False
        return not (why := lacking(who, self.folder)) or print(f"no {who}: {why}", file=sys.stderr)


def lacking(who, folder):
    """The reason why a peer is not available; empty where it is. Builds it if needed."""
    module = {"dask": "distributed", "mpi4py": "mpi4py"}.get(who)
    if module and subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True).returncode:
        return f"{module} is not installed: see bench/requirements.txt"
    if who != "dask" and not shutil.which("mpirun"):
        return "mpirun is not installed (openmpi-bin)"
    if who != "scalapack" or (folder / "lab_scalapack").exists():
        return ""
    if not shutil.which("mpicc"):
        return "mpicc is not installed (libopenmpi-dev)"
    built = subprocess.run(["mpicc", "-O2", ROOT / "bench" / "lab_scalapack_side.c", "-o", folder / "lab_scalapack",
                            "-lscalapack-openmpi"], capture_output=True, text=True)
    return built.stderr.strip() and f"it does not build (libscalapack-openmpi-dev): {built.stderr.strip()[-300:]}"


class Started:
    """A process of a peer that runs until the `with` ends."""

    def __init__(self, command, env):
        self.command, self.env = list(map(str, command)), env

    def __enter__(self):
        self.process = subprocess.Popen(self.command, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        start_new_session=True)
        return self.process

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def one_case(args, folder, n, dtype, cores, mbit):
    """All contestants on one product in one lab."""
    with Cluster(args, [Machine(part, mbit) for part in cores], mbit) as cluster:
        peers = Peers(args, folder, cluster, n, dtype, 1)
        ours = {f"bramble {strategy}": ["--strategy", strategy] for strategy in args.strategies}
        first = next(iter(ours))
        ours[f"{first}, openblas"] = [*ours[first], "--kernel", "openblas"]
        tried, contestants, worst = {}, {}, {}
        for name, options in ours.items():
            contestants[name] = peers.bramble(*options)
            worst[name] = peers.check_bramble(*options)
        for peer, settings in peers.candidates().items():
            trial = {name: run() for name, run in settings.items()} if len(settings) > 1 else dict.fromkeys(settings)
            best = min(settings, key=lambda name, trial=trial: trial[name]["seconds"] if trial[name] else 0)
            tried[peer], contestants[f"{peer}, {best}"] = trial, settings[best]
            shown = {name: round(one["seconds"], 2) for name, one in trial.items() if one}
            print(f"{peer}: {shown or ''} {best}", file=sys.stderr)
        # The checks and trials of all contestants were the warm-up.
        taken = in_turns(contestants, args.rounds, warm_up=0)
    about = f"n = {n}, {dtype}, workers of {'/'.join(f'{part:g}' for part in cores)} processors, {mbit:g} Mbit/s"
    record(args, "lab_peers", about, taken, n=n, dtype=dtype, worker_cores=cores, mbit=mbit, tried=tried, worst=worst)
    mine = [one["seconds"] for one in taken[first]]
    rows = []
    for name, rounds in taken.items():
        seconds = [one["seconds"] for one in rounds]
        walls = [one["wall_s"] for one in rounds if "wall_s" in one]
        rows.append([name, spread(seconds), spread(walls) if walls else "", f"{ratio(mine, seconds):.2f}"])
    table(f"peers: {about}", ["who", "seconds: median (range)", "whole command", f"times as long as {first}"], rows)
    print("\n" + lab.said([*taken.values()]))


def peers(args):
    """Every size, type and rate."""
    sizes = [args.n] if args.n else args.sizes or ([QUICK_N] if args.quick else [4096, 8192])
    rates = [args.mbit] if args.mbit is not None else args.rates or ([1000] if args.quick else [1000, 200])
    dtypes = [args.dtype] if args.dtype else ["f32"] if args.quick else ["f32", "f64"]
    for dtype in dtypes:
        for n in sizes:
            for mbit in rates:
                one_case(args, args.folder, n, dtype, args.cores or [0.25] * 4, mbit)
