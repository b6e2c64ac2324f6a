"""The faults of a kernel that `multiply` detects: seeded cases with a BLAS library that spoils some elements, by class of fault
and by scaling of the operands, as tables for docs/verification.md."""

import argparse
import collections
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bramble", default=ROOT / "target" / "release" / "bramble", type=Path)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--effort", choices=["fast", "full"], action="append", help="(default: both)")
    parser.add_argument("--missed", action="store_true", help="print how to repeat each case that was missed")
    return parser.parse_args()


def outcome(shared_object, folder, job):
    """One case, in a folder of its own."""
    import faulty

    seed, effort = job
    with tempfile.TemporaryDirectory(dir=folder) as own:
        try:
            return faulty.run(faulty.case_of(seed), effort, own, shared_object)
        except AssertionError as error:
            return f"seed {seed}, {effort}: {error}"


def share(found, all_):
    return "–" if not all_ else f"{100 * found / all_:.2f} % of {all_}"


def table(head, outcomes, efforts, group):
    """The number detected among the faults that must be; a C kept as `partial` counts as not detected, and is named.
    The remaining faults change an element by less than 16 bounds, or with fast effort one that is 0 because all its terms are."""
    groups = collections.defaultdict(list)
    for one in outcomes:
        groups[group(one)].append(one)
    titles = [f"{effort}: {what}" for effort in efforts for what in ("found", "said to be partial", "others, found")]
    print(f"\n| {head} | {' | '.join(titles)} |\n|{'---|' * (1 + len(titles))}")
    for name, some in sorted(groups.items()):
        cells = []
        for effort in efforts:
            mine = [one for one in some if one.effort == effort]
            due = [one for one in mine if one.is_due]
            below = [one for one in mine if one.is_changed and not one.is_due]
            cells.append(share(sum(one.verdict == "found" for one in due), len(due)))
            cells.append(str(sum(one.verdict == "partial" for one in due)))
            cells.append(share(sum(one.verdict == "found" for one in below), len(below)))
        print(f"| {name} | {' | '.join(cells)} |")


def main():
    args = parse()
    os.environ["BRAMBLE"] = str(args.bramble)
    sys.path.insert(0, str(ROOT / "tests"))
    import faulty

    efforts = args.effort or ["fast", "full"]
    jobs = [(seed, effort) for seed in range(args.first, args.first + args.cases) for effort in efforts]
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(args.processes) as pool:
        work = partial(outcome, faulty.library(folder), folder)
        done = list(pool.map(work, jobs, chunksize=8))
    broken = [one for one in done if isinstance(one, str)]
    outcomes = [one for one in done if not isinstance(one, str)]
    table("fault", outcomes, efforts, lambda one: one.case.fault)
    table("elements", outcomes, efforts, lambda one: one.case.shape)
    table("scaling", outcomes, efforts, lambda one: one.case.scaling)
    table("type", outcomes, efforts, lambda one: one.case.dtype)
    table("all", outcomes, efforts, lambda one: "all")
    if args.missed:
        for one in outcomes:
            if one.is_missed:
                print(f"\nmissed ({one.verdict}): {one.repeat}")
    for text in broken:
        print(f"\nbroken: {text}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
