"""A soak: products one after the other on real workers, of which a random one is killed every few seconds (another is started
in its place), some are stopped for a while, and primaries are killed and resumed. Every C must have the bits of an
undisturbed run; no process, file or memory may be left behind or grow.

Every random choice comes from `--seed`, but its moment in a product depends on the machine. Workers take products over TLS
with a key of their own, as in a cluster; `--insecure` turns that off. One worker is never killed, only stopped: a leak would
show there. Exit code 1 after any failure; each is printed when it is seen, with the command.
"""

import hashlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import threading
import time
import uuid
from pathlib import Path

import numpy as np
from common import arguments, environment, parse, record, scratch, table

TAG = "BRAMBLE_SOAK"
MIB = 2**20
WORKER_MIB = 400
DEADLINE_S = 240
"""Time limit of one life of a primary, on a shared machine."""
SETTLE_S = 40
"""A worker waits 22 s for a silent primary."""

BIG = [(3000, 25000, 3000, "f64"), (3500, 40000, 3000, "f32"), (5000, 9000, 4500, "f64"), (2500, 9000, 2500, "i64"),
       (3000, 12000, 2800, "i32"), (800, 200000, 900, "f64")]
"""m, k, n: seconds of work with the simd kernel, from generated operands."""
SMALL = [(420, 15000, 440, "f64"), (700, 8000, 600, "f32"), (500, 12000, 450, "i64"), (600, 8000, 900, "i32")]
"""Seconds of work with the reference kernel, from files."""
NUMPY = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64}
CUTS = ["auto", "naive", "row:1", "row:3", "square:2", "reuse", "reuse", "summa:2x2", "summa:1x3",
        "cuboid", "cuboid:1x1x3", "cuboid:1x2x2"]
DEPTH = {"auto", "cuboid", "cuboid:1x1x3", "cuboid:1x2x2"}
"""These cut k by the connected machines: without --reproducible float sums depend on the machines."""


def cases(rng, quick):
    """Products without end: shape, type, whether from files, options that change the bits, and other options."""
    while True:
        small = rng.random() < 0.4
        m, k, n, dtype = rng.choice(SMALL if small else BIG)
        k = k // 8 if quick else k
        whole = dtype.startswith("i")
        fast = ["strassen:1+reuse", "strassen:1+cuboid" if whole else "strassen:1+row:2"]
        strategy = rng.choice(CUTS + ([] if small else fast))
        options = ["--kernel", "reference", "--tile", "40", "--panel", "100"] if small else ["--kernel", "simd", "--tile", "256"]
        options += ["--strategy", strategy]
        if strategy not in fast and not whole and (strategy in DEPTH or rng.random() < 0.3):
            options += ["--reproducible"]
        beta = small and rng.random() < 0.3
        options += ["--beta", "-2"] if beta else []
        how = ["--relay", rng.choice(["auto", "on", "off"]), "--verify", rng.choice(["fast", "fast", "fast", "full"])]
        if rng.random() < 0.2:
            how += ["--no-steal"]
        if rng.random() < 0.5 and strategy not in fast:
            # Small blocks: tiles are complete early, and in the journal.
            how += ["--credits", "1M" if small else "40M"]
        yield {"m": m, "k": k, "n": n, "dtype": dtype, "files": small, "beta": beta, "options": options, "how": how}


def processes_of(tag):
    """Live processes whose environment has a tag with this prefix."""
    found, mark = [], f"{TAG}={tag}".encode()
    for entry in os.scandir("/proc"):
        try:
            words = Path(entry.path, "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if any(word.startswith(mark) for word in words):
                found.append(int(entry.name))
        except OSError:
            pass
    return found


def status(pid, field):
    """Bytes of a line of /proc/PID/status; `None` after the process has ended."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def descriptors(pid):
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None


class Worker:
    def __init__(self, soak, port):
        self.soak, self.port, self.log = soak, port, open(soak.folder / f"worker-{port}.log", "a")
        words = ["worker", "--listen", f"127.0.0.1:{port}", "--threads", "1", "--memory", f"{WORKER_MIB}M", *soak.insecure]
        self.process = soak.start(words, uuid.uuid4().hex, stderr=self.log)
        self.pid, line = self.process.pid, self.process.stdout.readline()
        if not line.startswith("listening on"):
            soak.fail(f"a worker on port {port} did not start: {line!r}, see {self.log.name}")

    def kill(self):
        """Returns its largest resident set."""
        peak = status(self.pid, "VmHWM") or 0
        if self.process.poll() is not None:
            self.soak.fail(f"worker {self.port} ended by itself with {self.process.returncode}, see {self.log.name}")
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()
        return peak


class Soak:
    """The workers, the faults that strike them, and the observations."""

    def __init__(self, args, folder):
        self.args, self.folder, self.failures = args, folder, []
        self.insecure = ["--insecure"] if args.insecure else []
        self.environment = {**environment(), "BRAMBLE_KEY_FILE": str(folder / "key"), "BRAMBLE_JOURNAL_MS": "200"}
        subprocess.run([args.bramble, "key", "new"], env=self.environment, check=True, capture_output=True)
        self.over = threading.Event()
        self.counts = {"workers killed": 0, "workers stopped 3 s": 0, "workers stopped 10 s": 0, "primaries killed": 0}
        self.peaks, self.idle = [], []
        self.tag = uuid.uuid4().hex
        self.workers = [Worker(self, port) for port in free_ports(args.workers)]
        time.sleep(0.5)
        self.base = descriptors(self.workers[0].pid)
        self.thread = threading.Thread(target=self.disturb)

    def start(self, words, tag, **streams):
        """In a session of its own: a Ctrl-C ends this script, which then ends them."""
        command = [str(self.args.bramble), *map(str, words)]
        return subprocess.Popen(command, env={**self.environment, TAG: f"{self.tag} {tag}"}, stdin=subprocess.DEVNULL, text=True,
                                stdout=subprocess.PIPE, start_new_session=True, **streams)

    def fail(self, what):
        self.failures.append(what)
        print(f"FAILED: {what}", flush=True)

    def hosts(self):
        return ",".join(f"127.0.0.1:{worker.port}" for worker in self.workers)

    def disturb(self):
        """Kills until it is over, and now and then a stop."""
        rng = random.Random(f"{self.args.seed} disturb")
        try:
            while not self.over.wait(self.args.every):
                self.kill_one(rng)
                if rng.random() < 0.25:
                    self.stop_one(rng, 10 if rng.random() < 0.2 else 3)
        except Exception as error:
            self.fail(f"nothing is killed any more: {error!r}")

    def kill_one(self, rng):
        number = rng.randrange(1, len(self.workers))
        self.peaks.append(self.workers[number].kill())
        self.over.wait(rng.choice([0, 0, 1, 3]))
        self.workers[number] = Worker(self, self.workers[number].port)
        self.counts["workers killed"] += 1

    def stop_one(self, rng, seconds):
        """The primary reports a loss after 8 s without a sign of life."""
        worker = rng.choice(self.workers)
        worker.process.send_signal(signal.SIGSTOP)
        self.over.wait(seconds)
        worker.process.send_signal(signal.SIGCONT)
        self.counts[f"workers stopped {seconds} s"] += 1

    def look(self):
        """The memory of the never-killed worker while no product runs."""
        veteran = self.workers[0].pid
        self.idle.append((self.calm(self.workers[0]), (status(veteran, "RssAnon") or 0) / MIB))

    def calm(self, worker):
        """Descriptors of a worker, once it has no more than a new worker, or after a time limit."""
        end = time.monotonic() + SETTLE_S
        while (descriptors(worker.pid) or 0) > self.base and time.monotonic() < end:
            time.sleep(0.1)
        return descriptors(worker.pid) or 0

    def end(self):
        """Ends the workers, after a last look at all of them."""
        self.over.set()
        self.thread.join()
        for worker in self.workers:
            if self.calm(worker) > self.base:
                names = [os.readlink(fd) for fd in Path(f"/proc/{worker.pid}/fd").iterdir()]
                self.fail(f"worker {worker.port} has {len(names)} descriptors, a new one {self.base}: {names}")
            self.peaks.append(worker.kill())
        if left := processes_of(self.tag):
            self.fail(f"processes are left: {left}")
        for log in self.folder.glob("*.log"):
            if "panicked" in log.read_text():
                self.fail(f"a panic in {log.name}: {log.read_text()[-2000:]}")
        if max(self.peaks) > (WORKER_MIB + 64) * MIB:
            self.fail(f"a worker had {max(self.peaks) / MIB:.0f} MiB, of {WORKER_MIB} MiB that it may use")
        self.quarters = self.judge_growth()

    def judge_growth(self):
        """The idle memory of the never-killed worker, by quarters of the soak: in the first it meets each kind of product for the
        first time, and its allocator keeps the memory of small matrices. Returns the medians, in MiB."""
        quarter = len(self.idle) // 4
        if quarter < 3:
            return []
        medians = [statistics.median(rss for _, rss in self.idle[n * quarter : (n + 1) * quarter]) for n in range(4)]
        if medians[3] > medians[1] + 16:
            self.fail(f"a worker grows: {medians} MiB")
        return medians


def free_ports(count):
    """Ports below the system's ephemeral range: a restarted worker must get its port again."""
    found = []
    for port in random.sample(range(20000, 32000), 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
        if len(found) == count:
            return found
    raise SystemExit("no free ports")


class Products:
    """Runs one after the other, each checked."""

    def __init__(self, soak):
        self.soak, self.folder, self.known = soak, soak.folder, {}
        self.rng = random.Random(f"{soak.args.seed} primaries")
        self.out = self.folder / "C.npy"
        self.done, self.lost, self.resumed = 0, 0, 0

    def operands(self, case):
        sides = (case["m"], case["k"]), (case["k"], case["n"])
        if not case["files"]:
            return [f"random:{rows}x{cols}:{case['dtype']}:{seed}" for seed, (rows, cols) in enumerate(sides)]
        return [self.file(*shape, case["dtype"], seed) for seed, shape in enumerate(sides)]

    def file(self, rows, cols, dtype, seed):
        path = self.folder / f"{rows}x{cols}-{dtype}-{seed}.npy"
        if not path.exists():
            rng = np.random.default_rng([rows, cols, seed])
            values = rng.integers(-9999, 9999, (rows, cols)) if dtype.startswith("i") else rng.uniform(-1, 1, (rows, cols))
            np.save(path, values.astype(NUMPY[dtype]))
        return path

    def expected(self, case):
        """Digest, hash of the file, and seconds of the same product, undisturbed on this machine alone."""
        key = json.dumps([case[name] for name in ("m", "k", "n", "dtype", "files", "options")])
        if key not in self.known:
            self.begin(case)
            words = ["multiply", *self.operands(case), "-o", self.out, *case["options"], "--json"]
            began = time.monotonic()
            code, out, err = self.life(words, None)
            if code != 0:
                raise SystemExit(f"the undisturbed product fails: {words}: {err}")
            self.known[key] = json.loads(out)["digest"], self.hash(), time.monotonic() - began
            self.out.unlink()
        return self.known[key]

    def begin(self, case):
        """The old C, where the product reads it."""
        for path in self.folder.glob("C.npy*"):
            path.unlink()
        if case["beta"]:
            old = self.file(case["m"], case["n"], case["dtype"], 7)
            self.out.write_bytes(old.read_bytes())

    def hash(self):
        with open(self.out, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def life(self, words, seconds):
        """A run of the primary, killed after the given seconds, if any."""
        tag = uuid.uuid4().hex
        process = self.soak.start(words, tag, stderr=subprocess.PIPE)
        try:
            out, err = process.communicate(timeout=seconds or DEADLINE_S)
        except subprocess.TimeoutExpired:
            if not seconds:
                self.soak.fail(f"no end within {DEADLINE_S} s: {words}; {where_it_waits(process.pid)}")
            process.kill()
            out, err = process.communicate()
        end = time.monotonic() + 5
        while left := processes_of(f"{self.soak.tag} {tag}"):
            if time.monotonic() > end:
                self.soak.fail(f"left behind by {words}: {left}")
                break
            time.sleep(0.02)
        return process.returncode, out, err

    def one(self, case):
        """A product from its primary's first life to the last; returns a line about it."""
        digest, whole, seconds = self.expected(case)
        self.begin(case)
        words = ["multiply", *self.operands(case), "-o", self.out, *case["options"], *case["how"], "--degraded", "--threads", "1",
                 "-w", self.soak.hosts(), "--json", *self.soak.insecure]
        lives, said = self.rng.choice([0, 0, 0, 1, 2]), []
        began = time.monotonic()
        code, out, err = self.life(words, seconds * self.rng.uniform(0.1, 1.2) if lives else None)
        while code == -signal.SIGKILL:
            self.soak.counts["primaries killed"] += 1
            lives, said = lives - 1, [*said, f"killed at {time.monotonic() - began:.1f} s"]
            if self.out.exists() and not list(self.folder.glob("C.npy.*")) and self.hash() == whole:
                code, out, said = 0, "", [*said, "C was complete"]
                break
            code, out, err = self.life([*words, "--resume"], seconds * self.rng.uniform(0.1, 1.2) if lives > 0 else None)
        self.check(words, code, out, err, digest, whole, said)
        return f"{time.monotonic() - began:6.1f} s  {' '.join(said)}"

    def check(self, words, code, out, err, digest, whole, said):
        self.done += 1
        command = " ".join(map(str, words))
        if code not in (0, 3) or "panicked" in err:
            return self.soak.fail(f"exit code {code}: {command}: {' '.join(said)}: {err[-3000:]}")
        if out:
            report = json.loads(out)
            lost = len(report["faults"]["lost"])
            self.lost += lost
            self.resumed += report["decision"].startswith("goes on")
            said.append(f"{lost} lost, {len(report['faults']['missing'])} missing, {len(report['workers'])} took part")
            if report["digest"] != digest:
                self.soak.fail(f"the digest is {report['digest']}, not {digest}: {command}: {err[-3000:]}")
            if report["verify"]["passed"] is not True:
                self.soak.fail(f"not verified: {command}")
        elif "complete already" not in err and "C was complete" not in said:
            self.soak.fail(f"no report: {command}: {err[-3000:]}")
        if self.hash() != whole:
            self.soak.fail(f"the file differs from the undisturbed one: {command}: {err[-3000:]}")
        left = sorted(path.name for path in self.folder.glob("C.npy*"))
        if left != ["C.npy"]:
            self.soak.fail(f"left behind: {left}: {command}")
        self.out.unlink(missing_ok=True)


def where_it_waits(pid):
    """The states of its threads, for the record of a failure."""
    said = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        said.append(f"{(task / 'comm').read_text().strip()}: {(task / 'wchan').read_text().strip()}")
    return "; ".join(said)


def words_of(case):
    files = ", files" if case["files"] else ""
    return f"{case['dtype']} {case['m']}x{case['k']}x{case['n']}{files} {' '.join([*case['options'], *case['how']])}"


def main():
    parser = arguments(__doc__.splitlines()[0], rounds=1)
    parser.add_argument("--minutes", type=float, default=60, help="how long (60)")
    parser.add_argument("--seed", type=int, default=1, help="of every random choice (1)")
    parser.add_argument("--workers", type=int, default=5, help="workers, one of which is never killed (5)")
    parser.add_argument("--every", type=float, default=5, help="seconds between two kills (5)")
    parser.add_argument("--insecure", action="store_true", help="plain links")
    args = parse(parser)
    if not args.bramble:
        raise SystemExit("build it first: make build")
    if args.quick:
        args.minutes, args.every = 0.2, 2
    began, shared = time.monotonic(), set(os.listdir("/dev/shm"))
    with scratch(args) as folder:
        soak = Soak(args, folder)
        products = Products(soak)
        soak.thread.start()
        try:
            for case in cases(random.Random(f"{args.seed} cases"), args.quick):
                if time.monotonic() - began > args.minutes * 60:
                    break
                said = products.one(case)
                soak.look()
                minutes, mib = (time.monotonic() - began) / 60, soak.idle[-1][1]
                print(f"{minutes:5.1f} min {said}  {mib:.1f} MiB  {words_of(case)}", flush=True)
        finally:
            soak.end()
        if left := {name for name in set(os.listdir("/dev/shm")) - shared if "bramble" in name}:
            soak.fail(f"left in /dev/shm: {left}")
    minutes = (time.monotonic() - began) / 60
    figures = {"minutes": round(minutes), "products": products.done, **soak.counts, "machines lost in a product": products.lost,
               "products resumed from a journal": products.resumed,
               "most descriptors of the worker that was never killed, idle": max(count for count, _ in soak.idle),
               "of a new one": soak.base,
               "its idle memory, by quarters of the time, MiB": " ".join(f"{mib:.1f}" for mib in soak.quarters) or "–",
               "largest resident set of a worker, MiB": round(max(soak.peaks) / MIB),
               "failures": len(soak.failures)}
    table(f"A soak, seed {args.seed}", ["what", "how many"], figures.items())
    record(args, "soak", "soak", figures, failed=soak.failures)
    if soak.failures:
        raise SystemExit("\n".join(soak.failures))


if __name__ == "__main__":
    main()
