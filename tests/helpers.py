"""Shared by all tests: running the binary, making matrices, comparing with NumPy.

The tests use only Bramble's public interface: command line, exit codes, streams and files.
"""

import json
import os
import re
import signal
import subprocess
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
BRAMBLE = Path(os.environ.get("BRAMBLE") or ROOT / "target" / "debug" / "bramble").absolute()

DEADLINE_S = 60
"""No run in this suite may take longer; most take milliseconds."""

TAG = "BRAMBLE_TEST_RUN"
"""Every run carries its own value of this variable, so that the processes it leaves behind can be listed."""

DTYPES = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64}


class Result:
    """The outcome of a finished run."""

    def __init__(self, command, code, out, err, tag):
        self.command, self.code, self.out, self.err, self.tag = command, code, out, err, tag

    @property
    def report(self):
        """The one JSON object on stdout."""
        return json.loads(self.out)

    def __repr__(self):
        command = " ".join(str(part) for part in self.command)
        return f"{command}\nexit code {self.code}\nstdout: {self.out[-2000:]}\nstderr: {self.err[-2000:]}"


class Run:
    """A run of the binary, possibly unfinished, in a process group of its own."""

    def __init__(self, *args, cwd=None, env=None, binary=BRAMBLE):
        self.tag = uuid.uuid4().hex
        clean = {key: value for key, value in os.environ.items() if not key.startswith("BRAMBLE")}
        self.command = [binary, *map(str, args)]
        self.process = subprocess.Popen(
            self.command,
            cwd=cwd,
            env={**clean, **(env or {}), TAG: self.tag},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self, deadline_s=DEADLINE_S):
        """Waits for the end. Death by signal N counts as exit code 128 + N, as in a shell."""
        try:
            out, err = self.process.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"no end within {deadline_s} s: {self.command}") from None
        code = self.process.returncode
        return Result(self.command, 128 - code if code < 0 else code, out, err, self.tag)

    def end(self):
        """Kills all remaining processes of the run; for clean-up only."""
        for pid in processes_of(self.tag):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            stream.close()

    def workers(self):
        """Process ids of the run other than the primary's own."""
        return [pid for pid in processes_of(self.tag) if pid != self.process.pid]


def bramble(*args, cwd=None, env=None, deadline_s=DEADLINE_S):
    """Runs the binary to its end."""
    return Run(*args, cwd=cwd, env=env).finish(deadline_s)


def succeed(*args, **options):
    """Runs the binary, which must succeed and leave no process behind."""
    result = bramble(*args, **options)
    assert result.code == 0, result
    assert_gone(result.tag)
    return result


def cpu_seconds(pid):
    """Processor time of a process; 0 after its end."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for_work(pids, run, seconds, deadline_s=60):
    """Waits until these processes have this much processor time together. False if the product ends before."""
    end, pids = time.monotonic() + deadline_s, list(pids)
    before = sum(map(cpu_seconds, pids))
    while sum(map(cpu_seconds, pids)) < before + seconds:
        if run.process.poll() is not None:
            return False
        assert time.monotonic() < end, "the product does not go on"
        time.sleep(0.02)
    return True


def processes_of(tag):
    """Ids of all live processes of the run with this tag."""
    found, mark = [], f"{TAG}={tag}".encode()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            if mark in Path(entry.path, "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            pass  # The process ended meanwhile, or belongs to another user.
    return found


def assert_gone(tag, deadline_s=3):
    """No process of the run is left."""
    end = time.monotonic() + deadline_s
    while left := processes_of(tag):
        names = [Path(f"/proc/{pid}/cmdline") for pid in left]
        assert time.monotonic() < end, f"left behind: {[n.read_bytes() for n in names if n.exists()]}"
        time.sleep(0.02)


def assert_refused(result, codes, culprits, begun=False):
    """One line on stderr that starts with `bramble:` and names every culprit; nothing on stdout, or with `--json` the error
    as an object. A run that has `begun` to compute may have printed its plan before."""
    codes = {codes} if isinstance(codes, int) else set(codes)
    assert result.code in codes, result
    lines = result.err.splitlines()
    if begun:
        lines = [line for line in lines if line.startswith("bramble:")]
    assert len(lines) == 1, f"expected one line on stderr\n{result}"
    assert lines[0].startswith("bramble: "), result
    for culprit in culprits:
        assert re.search(culprit, lines[0], re.IGNORECASE), f"/{culprit}/ is not named\n{result}"
    assert_no_result(result)
    assert_gone(result.tag)


def assert_no_result(result):
    """Nothing on stdout, or with `--json` an object that describes the failure."""
    if "--json" not in result.command:
        assert result.out == "", result
        return
    assert result.report["schema"] == "bramble.error/1" and result.report["error"]["exit_code"] == result.code, result


def assert_nothing_written(folder):
    """Neither C.npy nor its unfinished form."""
    left = [path.name for path in Path(folder).rglob("*") if path.name.startswith("C.npy")]
    assert not left, f"left behind: {left}"


@contextmanager
def workers(count, *options, env=None):
    """Starts workers on loopback; returns their addresses and runs."""
    runs = [Run("worker", "--listen", "127.0.0.1:0", *options, env=env) for _ in range(count)]
    try:
        addresses = []
        for run in runs:
            line = run.process.stdout.readline()
            found = re.fullmatch(r"listening on (127\.0\.0\.1:\d+)\n", line)
            assert found, f"first line of a worker: {line!r}"
            addresses.append(found[1])
        yield addresses, runs
    finally:
        for run in runs:
            run.end()


def matrix(rows, cols, dtype, seed=0):
    """Random elements: floats around zero, integers over their whole range so that products wrap."""
    rng = np.random.default_rng([seed, rows, cols])
    kind = np.dtype(DTYPES.get(dtype, dtype))
    if kind.kind == "f":
        return rng.uniform(-1, 1, (rows, cols)).astype(kind)
    limits = np.iinfo(kind)
    return rng.integers(limits.min, limits.max, (rows, cols), dtype=kind, endpoint=True)


def save(folder, name, array):
    """Writes an .npy file and returns its path."""
    path = Path(folder) / name
    np.save(path, array)
    return path


def assert_product(c, a, b, alpha=1, beta=0, old=None):
    """C = αAB + βC: integers exactly, floats within the rounding model's bound."""
    assert c.shape == (a.shape[0], b.shape[1]), (c.shape, a.shape, b.shape)
    if c.dtype.kind == "i":
        with np.errstate(over="ignore"):
            want = c.dtype.type(alpha) * (a.astype(c.dtype) @ b.astype(c.dtype))
            if beta:
                want = want + c.dtype.type(beta) * old
        np.testing.assert_array_equal(c, want)
        return
    a, b = a.astype(np.float64), b.astype(np.float64)
    want, size = alpha * (a @ b), abs(alpha) * (np.abs(a) @ np.abs(b))
    if beta:
        want, size = want + beta * old, size + abs(beta) * np.abs(old)
    # The reference rounds too, in f64: for an f64 C both errors count.
    allowed = 2 * (a.shape[1] + 3) * np.finfo(c.dtype).eps * size
    worst = np.max(np.abs(c - want) - allowed, initial=-1.0)
    assert worst <= 0, f"off by {worst} more than rounding allows"


def multiply(folder, a, b, *options, out="C.npy"):
    """Saves A and B, multiplies them, and loads C."""
    left, right = save(folder, "A.npy", a), save(folder, "B.npy", b)
    succeed("multiply", left, right, "-o", Path(folder) / out, *options)
    assert not (Path(folder) / f"{out}.part").exists()
    return np.load(Path(folder) / out)
