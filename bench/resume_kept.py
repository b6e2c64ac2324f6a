"""The work that a killed run keeps, and the cost of the journal.

Kills default runs of one product at given percentages of the processor time of an undisturbed run (processor time does not depend on the
machine's load), counts the tiles in the journal, resumes, and compares the digests. Processor time includes the
start and the digests of the operands, so the multiplications done are fewer: a traced run says how many a run has done
when it has used so much processor time. Then undisturbed runs of this binary and of a second one (--other) in turns.
"""

import bisect
import json
import math
import os
import signal
import statistics
import subprocess
import time
from pathlib import Path

from common import Side, arguments, bramble, parse, ratio, record, scratch, spread, table

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_s(pid):
    """Processor seconds of a process, without its ended children."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * TICK_S


def watched(command, until_s=float("inf")):
    """Runs the product until it has used this much processor time, then kills it. Returns the time used."""
    process, taken = subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL), 0.0
    while process.poll() is None and taken < until_s:
        taken = max(taken, cpu_s(process.pid))
        time.sleep(0.005)
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()
    return taken


def interrupted(command, until_s, target):
    """As `watched`, until a run is killed before it has ended: processor time varies from run to run."""
    for _ in range(20):
        taken = watched(command, until_s)
        if not target.exists():
            return taken
        target.unlink()
    raise SystemExit(f"20 runs ended before they had used {until_s:.2f} s of processor time; use a larger --size")


def multiplications(command, trace, size_of):
    """A function from processor seconds to the fraction of the multiplications that an undisturbed run has done by then.
    `size_of` says how many multiplications a job is."""
    process, began = subprocess.Popen([*map(str, command), "--trace", str(trace)], stderr=subprocess.DEVNULL), time.monotonic()
    at_s, used_s = [], []
    while process.poll() is None:
        at_s.append(time.monotonic() - began)
        used_s.append(max(cpu_s(process.pid), used_s[-1] if used_s else 0.0))
        time.sleep(0.005)
    jobs = [event for event in json.loads(trace.read_text())["traceEvents"] if event["name"] == "multiply"]
    trace.unlink()
    whole = sum(size_of(job["args"]) for job in jobs)

    def done(processor_s):
        now_us = at_s[min(bisect.bisect_left(used_s, processor_s), len(at_s) - 1)] * 1e6
        part = sum(min(max((now_us - job["ts"]) / job["dur"], 0.0), 1.0) * size_of(job["args"]) for job in jobs)
        return part / whole

    return done


def kept(journal):
    """Tiles that the journal names (docs/journal.md)."""
    data = journal.read_bytes() if journal.exists() else b""
    if len(data) < 14:
        return 0
    first = 14 + int.from_bytes(data[10:14], "little") + 16
    records = [data[at : at + 32] for at in range(first, len(data) - 31, 32)]
    return len({record[1:2] + record[8:16] for record in records if record[0] == 1})


def killed(args, folder, words):
    """Kills and resumes at each fraction of the work; returns table rows."""
    target, rows = folder / "C.npy", []
    whole = bramble(args, *words)
    rows_of, cols_of = whole["grid"]["tile_rows"], whole["grid"]["tile_cols"]
    tiles = -(-whole["m"] // rows_of) * -(-whole["n"] // cols_of)
    command = [args.bramble, *words, "-q", "--verify", "off"]
    target.unlink()
    all_s = statistics.median(watched(command) for _ in range(max(1, args.rounds // 2)))
    target.unlink()
    grid = whole["grid"]

    def size_of(job):
        # A job whose tile another machine returned has no place in the trace; most tiles are as large as the first.
        row, col = job.get("row", 0), job.get("col", 0)
        sides = (rows_of, whole["m"], row), (cols_of, whole["n"], col), (grid["depth"], whole["k"], job["step"] * grid["depth"])
        return math.prod(min(side, all_of - start) for side, all_of, start in sides)

    multiplied = multiplications(command, folder / "trace.json", size_of)
    target.unlink()
    for percent in args.percent:
        for _ in range(args.rounds):
            used_s = interrupted(command, all_s * percent / 100, target)
            used, done = used_s / all_s, multiplied(used_s)
            there = kept(folder / "C.npy.journal") / tiles
            resumed = bramble(args, *words, "--resume")
            same = resumed["digest"] == whole["digest"]
            target.unlink()
            of_done = f"{there / done:.0%}" if done else "-"
            rows.append([f"{percent} %", f"{used:.1%}", f"{done:.1%}", f"{there:.1%}", of_done, "same" if same else "OTHER"])
            values = {"processor_time": used, "multiplied": done, "kept": there, "same": same}
            record(args, "resume_kept", f"killed at {percent} %", values, tiles=tiles)
    return rows


def undisturbed(args, folder, words, name):
    """Both binaries in turns; returns table rows."""
    target, taken = folder / "C.npy", {"this": [], "other": []}

    def one(binary):
        target.unlink(missing_ok=True)
        args.bramble, before = binary, args.bramble
        try:
            return bramble(args, *words)["wall_s"]
        finally:
            args.bramble = before

    for turn in range(args.rounds + 1):
        for who, binary in (("this", args.bramble), ("other", args.other)):
            seconds = one(binary)
            if turn:
                taken[who].append(seconds)
    target.unlink()
    record(args, "resume_kept", f"undisturbed, {name}", taken, other=str(args.other))
    longer = 1 / ratio(taken["this"], taken["other"]) - 1
    return [[name, spread(taken["this"]), spread(taken["other"]), f"{longer:+.1%}"]]


def main():
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--size", type=int, default=8000, help="rows and columns of all matrices (8000)")
    parser.add_argument("--percent", type=int, nargs="*", default=[10, 30, 50, 70, 90], help="when to kill")
    parser.add_argument("--other", type=Path, help="another binary, to compare undisturbed runs with")
    args = parse(parser)
    if not args.bramble:
        raise SystemExit("build it first: make build")
    n = 1500 if args.quick else args.size
    with scratch(args) as folder, Side("numpy_side.py", args.threads) as side:
        side.ask(do="make", n=n, dtype="f64", folder=folder)
        words = ["multiply", folder / "A.npy", folder / "B.npy", "-o", folder / "C.npy"]
        rows = killed(args, folder, words)
        table(f"Killed and resumed, f64 n={n}", ["killed at", "processor time", "multiplied", "kept", "kept of that", "digest"], rows)
        if args.other:
            rows = undisturbed(args, folder, words, "in process")
            rows += undisturbed(args, folder, [*words, "--local", "2"], "--local 2")
            table("Undisturbed, seconds", ["case", "this binary", "the other", "this takes longer by"], rows)


if __name__ == "__main__":
    main()
