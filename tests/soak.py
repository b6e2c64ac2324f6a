"""The soak tier: tests that are slow or rare. Which of them a change needs, how they are run, and where their results are kept.

    tests/soak.py parts [--base COMMIT]     the parts that a change needs, one a line
    tests/soak.py run [--rounds N] [PART …] runs parts (default: all), and records each that passes
    tests/soak.py rounds [--rounds N] -- -n 2 tests   any tests, N times beside a busy process on each core

A test joins a part by the mark `soak("PART")` (pytest.ini). `make test` leaves marked tests out; `.ci/run` adds those of the parts that
the first form prints. SOURCES is the one table of paths: a path that no part names is covered by `make test` alone.
"""

import argparse
import collections
import fnmatch
import json
import os
import platform
import signal
import subprocess
import sys
import time
import uuid
import xml.etree.ElementTree
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "soak"
MARK = "SOAK_TESTS_ROUND"
"""Every process of a round carries this variable, with the round's value."""
CHANGE_HOURS = 12
"""Commits of the last hours before HEAD are one change, unless a base is named."""

BUILD = ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml", "Makefile", "tests/soak.py", "tests/conftest.py", "tests/helpers.py"]
"""Sources of every part."""
ENGINE = ["crates/base/*", "crates/matrix/*", "crates/wire/*", "crates/schedule/*", "crates/link/*", "crates/worker/*",
          "crates/sessions/*", "crates/primary/*", "crates/plan/*"]
"""What moves matrices between machines."""

SOURCES = {
    "arm": ["crates/base/*", "crates/kernel/*", "crates/matrix/*", "crates/link/*", "crates/wire/*", "crates/lu/*", "crates/verify/*", "python/*",
            "dist/*", "tests/test_arm.py", "tests/test_python_wheels.py", "tests/arm-python"],
    "bench-scripts": ["bench/*", "crates/bench/*", "crates/report/*", "crates/lab/*", "crates/cli/*", "crates/solve/*", "tests/test_bench_scripts.py",
                      "tests/test_hpl_official.py"],
    "leaks": [*ENGINE, "crates/arrays/*", "crates/client/*", "crates/cluster/*", "crates/kernel/*", "python/*", "tests/test_python_leaks.py"],
    "losses": [*ENGINE, "crates/arrays/*", "crates/client/*", "crates/cluster/*", "crates/record/*", "crates/lab/*", "bench/soak.py",
               "tests/test_digests.py", "tests/test_endurance.py", "tests/test_lab_faults.py", "tests/test_journal.py", "tests/test_loss.py"],
    "release": ["README.md", "crates/kernel/*", "tests/test_release.py"],
    "simulator": ["sim/*", "crates/schedule/*", "crates/arrays/*", "crates/plan/*", "crates/wire/*", "crates/lu/*", "tests/test_simulator.py"],
    "stress": [*ENGINE, "crates/record/*", "crates/cluster/*", "tests/test_stress.py"],
    "verification": ["crates/verify/*", "crates/kernel/*", "crates/matrix/*", "crates/primary/*", "crates/base/*", "tests/faulty.py",
                     "tests/faulty_blas/*", "tests/test_faulty_kernels.py"],
}
"""Each part with the paths that it tests, as shell patterns where `*` also matches `/`."""


def git(*words):
    """The output of git; `None` where there is no history."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def parts_of(paths):
    """The parts whose sources these paths are."""
    return [part for part, patterns in SOURCES.items()
            if any(fnmatch.fnmatchcase(path, pattern) for path in paths for pattern in (*BUILD, *patterns))]


def changed_paths(base=None):
    """Paths that differ between a commit and the files here; `None` where that cannot be told.

    Without a base: the newest commit that is CHANGE_HOURS older than HEAD."""
    if base is None:
        newest = git("show", "-s", "--format=%ct", "HEAD")
        base = newest and git("rev-list", "-1", f"--before={int(newest) - CHANGE_HOURS * 3600}", "HEAD")
    if not base:
        return None
    differing, unknown = git("diff", "--name-only", base), git("ls-files", "--others", "--exclude-standard")
    return None if differing is None else sorted({*differing.splitlines(), *(unknown or "").splitlines()})


def has_passed(part):
    """Whether the part has passed with its sources as they are here, as far as the files of results say."""
    path = RESULTS / f"{part}.json"
    if not path.exists():
        return False
    result = json.loads(path.read_text())
    paths = None if result["has_changes"] else changed_paths(result["commit"])
    return paths is not None and part not in parts_of(paths)


def selected_parts(base=None):
    """The parts that a change needs: those whose sources it touches (all where its paths are not known), less those that have passed
    since."""
    paths = changed_paths(base)
    return [part for part in (SOURCES if paths is None else parts_of(paths)) if not has_passed(part)]


# Running

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
    """Names of the failed tests, and the numbers of passed, failed and skipped ones."""
    failed, counts = [], collections.Counter()
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
            counts["failed"] += 1
        else:
            counts["skipped" if "skipped" in kinds else "passed"] += 1
    return failed, counts


def round_of(name, words, told, load):
    """One run of pytest with these arguments: the failed tests (`None`: it did not finish), the counts and the seconds."""
    told.keep.mkdir(parents=True, exist_ok=True)
    log, report = told.keep / f"{name}.log", told.keep / f"{name}.xml"
    report.unlink(missing_ok=True)
    began = time.monotonic()
    with load, log.open("w") as out:
        is_ended, code = run([sys.executable, "-m", "pytest", f"--junit-xml={report}", *words], out, told.minutes * 60)
    took_s = time.monotonic() - began
    if not is_ended or not report.exists():
        why = f"exit code {code}" if is_ended else f"not over after {told.minutes:g} minutes"
        print(f"{name}: {took_s:.0f} s, {why}: see {log}", flush=True)
        return None, {}, took_s
    failed, counts = outcomes(report)
    print(f"{name}: {took_s:.0f} s, " + ", ".join(f"{counts[kind]} {kind}" for kind in ("passed", "failed", "skipped")), flush=True)
    for test in failed:
        print(f"  failed: {test} (see {log})", flush=True)
    return failed, counts, took_s


def record(part, counts, took_s):
    """Writes the file that says when a part last passed."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    # Results of other parts are no change.
    changes = git("status", "--porcelain", "--", ".", f":!{RESULTS.relative_to(ROOT)}")
    result = {"part": part, "commit": git("rev-parse", "HEAD"), "has_changes": changes != "",
              "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}", "seconds": round(took_s),
              "passed": counts["passed"], "skipped": counts["skipped"], "ended": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    (RESULTS / f"{part}.json").write_text(json.dumps(result, indent=2) + "\n")


def run_parts(told):
    """Runs parts, and records those that passed in every round."""
    is_green = True
    for part in told.parts or SOURCES:
        words = ["-n", "2", "--dist", "worksteal", "--tier", part, "tests"]
        rounds = [round_of(f"{part}, round {number}", words, told, nullcontext()) for number in range(1, told.rounds + 1)]
        if all(failed == [] for failed, _, _ in rounds):
            record(part, rounds[-1][1], rounds[-1][2])
        else:
            is_green = False
    return 0 if is_green else 1


def run_rounds(told):
    """Runs any tests beside busy processes: which of them depend on a quiet machine?"""
    all_failed, unfinished = collections.Counter(), 0
    for number in range(1, told.rounds + 1):
        failed, _, _ = round_of(f"round {number}", told.pytest, told, busy(told.busy))
        unfinished += failed is None
        all_failed.update(failed or [])
    print(f"{told.rounds} rounds, {unfinished} of them without an end, {sum(all_failed.values())} failures")
    for name, times in all_failed.most_common():
        print(f"  {times} times: {name}")
    return 1 if all_failed or unfinished else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    shown = verbs.add_parser("parts", help="print the parts that a change needs")
    shown.add_argument("--base", metavar="COMMIT", default=os.environ.get("BRAMBLE_TEST_BASE") or None)
    ran, again = verbs.add_parser("run", help="run parts and record them"), verbs.add_parser("rounds", help="run tests beside busy processes")
    for verb, count in ((ran, 1), (again, 10)):
        verb.add_argument("--rounds", type=int, default=count, metavar="N")
        verb.add_argument("--minutes", type=float, default=90, help="a round that takes longer has hung and is ended (default: %(default)s)")
        verb.add_argument("--keep", type=Path, default=ROOT / "target" / "soak-tests", metavar="DIR", help="where output is kept")
    ran.add_argument("parts", nargs="*", metavar="PART", help=f"default: all of {', '.join(SOURCES)}")
    again.add_argument("--busy", type=int, default=os.cpu_count(), metavar="N", help="busy processes (default: one for each core)")
    again.add_argument("pytest", nargs="*", default=["tests"], help="arguments of pytest, after `--`")
    told = parser.parse_args()
    if told.verb == "parts":
        print("\n".join(selected_parts(told.base)))
        return 0
    if unknown := sorted(set(getattr(told, "parts", [])) - set(SOURCES)):
        parser.error(f"there is no part {', '.join(unknown)}; the parts are {', '.join(SOURCES)}")
    return run_parts(told) if told.verb == "run" else run_rounds(told)


if __name__ == "__main__":
    sys.exit(main())
