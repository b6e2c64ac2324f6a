#!/usr/bin/env python3
"""Mutation test of the simulator: breaks a pure crate in one way at a time, and requires a violation.

Each entry of mutants.json (name, file, old, new) is applied to a copy of the tree, which is built; one of 5,000 trials, or that
of the entry's own seed, must end with a violation (docs/simulator.md): of products, of operations on placed matrices, or of LU, as the file says. A trial that
does not end within its time counts as noticed, and is reported.

    sim/mutants.py [--only WORD] [--seeds 5000]
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD_S, RUN_S = 900, 900
PLACED_SEEDS = 1 << 40


def program_of(file: str) -> str:
    """The example of the simulator whose trials run the code of a file."""
    if file.startswith(("crates/arrays/", "crates/plan/src/making")):
        return "arrays"
    return "lu_trials" if file.startswith("crates/schedule/src/lu/") else "swarm"


def copy_to(tree: pathlib.Path) -> None:
    """Copies all files that git tracks or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)


def outcome(tree: pathlib.Path, seeds: int, program: str, rare: int | None = None) -> str:
    """Runs trials of a tree, and one more with the seed `rare`: the first violation, or an empty string."""
    environment = dict(os.environ, CARGO_TARGET_DIR=str(tree / "target"))
    build = ["cargo", "build", "--quiet", "--package", "bramble-sim", "--example", program]
    built = subprocess.run(build, cwd=tree, env=environment, capture_output=True, text=True, timeout=BUILD_S)
    if built.returncode != 0:
        raise RuntimeError(f"the tree does not build: {built.stderr}")
    path = tree / "target/debug/examples" / program
    ranges = [(0, seeds), *([(PLACED_SEEDS, seeds // 5)] if program == "swarm" else []), *([(rare, 1)] if rare is not None else [])]
    for first, count in ranges:
        try:
            tried = subprocess.run([path, "--from", str(first), "--seeds", str(count), "--most", "1"],
                                   capture_output=True, text=True, timeout=RUN_S)
        except subprocess.TimeoutExpired:
            return f"a trial did not end within {RUN_S} s"
        if tried.returncode not in (0, 1):
            raise RuntimeError(f"the trials could not be run: {tried.stderr}")
        lines = [line for line in tried.stdout.splitlines() if line.startswith("seed ")]
        if tried.returncode == 1 and lines:
            return lines[0]
    return ""


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", default="", help="mutants whose name has this word")
    arguments.add_argument("--seeds", type=int, default=5000)
    told = arguments.parse_args()
    mutants = json.loads((ROOT / "sim/mutants.json").read_text())
    unnoticed = []
    with tempfile.TemporaryDirectory() as place:
        tree = pathlib.Path(place)
        copy_to(tree)
        chosen = [m for m in mutants if told.only in m["name"]]
        programs = sorted({program_of(m["file"]) for m in chosen})
        sound = "".join(outcome(tree, min(told.seeds, 500), program) for program in programs)
        if sound:
            print(f"the tree itself has a violation: {sound}")
            return 2
        for mutant in chosen:
            file = tree / mutant["file"]
            text = file.read_text()
            if text.count(mutant["old"]) != 1:
                print(f"{mutant['name']}: its text does not occur exactly once in {mutant['file']}")
                return 2
            file.write_text(text.replace(mutant["old"], mutant["new"]))
            found = outcome(tree, told.seeds, program_of(mutant["file"]), mutant.get("seed"))
            file.write_text(text)
            print(f"{'noticed' if found else 'NOT NOTICED'}: {mutant['name']}\n    {found[:200]}", flush=True)
            if not found:
                unnoticed.append(mutant["name"])
    print(f"{len(unnoticed)} not noticed" if unnoticed else "all noticed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
