"""Runs the end-to-end tests again and again beside a busy process on each core: which of them depend on a quiet machine?

    BRAMBLE=target/release/bramble .venv/bin/python tests/soak_tests.py --rounds 10 -- -n 2 --dist worksteal tests

Arguments after `--` go to pytest. Exits with 1 if a test failed in any round, or a round did not finish.
"""

import argparse
import collections
import os
import signal
import subprocess
import sys
import time
import uuid
import xml.etree.ElementTree
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARK = "SOAK_TESTS_ROUND"
"""Every process of a round carries this variable, with the round's value."""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10, metavar="N")
    parser.add_argument("--busy", type=int, default=os.cpu_count(), metavar="N", help="busy processes (default: one for each core)")
    parser.add_argument("--minutes", type=float, default=90, help="a round that takes longer has hung and is ended (default: %(default)s)")
    parser.add_argument("--keep", type=Path, default=ROOT / "target" / "soak-tests", metavar="DIR", help="where output is kept")
    parser.add_argument("pytest", nargs="*", default=["tests"], help="arguments of pytest, after `--`")
    return parser.parse_args()


@contextmanager
def busy(count):
    """Processes that compute all the time."""
    spin = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(spin, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def marked(mark):
    """Ids and command lines of the processes with the mark in their environment."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                if mark.encode() in Path(entry.path, "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                pass  # The process ended meanwhile, or belongs to another user.
    return found


def run(command, log, limit_s):
    """Runs pytest; returns whether it finished, and its exit code. Remaining processes are noted and ended."""
    mark = f"{MARK}={uuid.uuid4().hex}"
    name, value = mark.split("=")
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, name: value}, stdin=subprocess.DEVNULL, stdout=log,
                               stderr=subprocess.STDOUT, start_new_session=True)
    try:
        return True, process.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return False, None
    finally:
        # Also where this script is interrupted.
        for pid, what in marked(mark).items():
            log.write(f"left behind: {pid} {what}\n")
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def outcomes(report):
    """Names of the failed tests, and the numbers of passed and skipped ones."""
    failed, counts = [], collections.Counter()
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
            counts["failed"] += 1
        else:
            counts["skipped" if "skipped" in kinds else "passed"] += 1
    return failed, counts


def main():
    args = arguments()
    # A shell without job control starts its background processes with SIGINT ignored, and the tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    args.keep.mkdir(parents=True, exist_ok=True)
    all_failed, unfinished = collections.Counter(), 0
    for number in range(1, args.rounds + 1):
        log, report = args.keep / f"{number}.log", args.keep / f"{number}.xml"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", f"--junit-xml={report}", *args.pytest]
        began = time.monotonic()
        with busy(args.busy), log.open("w") as out:
            is_ended, code = run(command, out, args.minutes * 60)
        took = f"round {number} of {args.rounds}: {time.monotonic() - began:.0f} s"
        if not is_ended or not report.exists():
            unfinished += 1
            why = f"exit code {code}" if is_ended else f"not over after {args.minutes:g} minutes"
            print(f"{took}, {why}: see {log}", flush=True)
            continue
        failed, counts = outcomes(report)
        all_failed.update(failed)
        print(f"{took}, " + ", ".join(f"{counts[kind]} {kind}" for kind in ("passed", "failed", "skipped")), flush=True)
        for name in failed:
            print(f"  failed: {name} (see {log})", flush=True)
    print(f"{args.rounds} rounds, {unfinished} of them without an end, {sum(all_failed.values())} failures")
    for name, times in all_failed.most_common():
        print(f"  {times} times: {name}")
    return 1 if all_failed or unfinished else 0


if __name__ == "__main__":
    sys.exit(main())
