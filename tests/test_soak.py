"""The soak tier: every marked test belongs to a part, a change selects the parts of its paths, and no part is left behind for long."""

import json
import re
import subprocess
import warnings

import pytest
import soak
from helpers import ROOT

COMMITS_MAX, COMMITS_WARN = 300, 200
"""Commits since a part last passed, if its sources have changed since."""


def test_every_part_has_tests_and_every_mark_a_part():
    marks = set()
    for path in (ROOT / "tests").glob("test_*.py"):
        marks |= set(re.findall(r"""(?:mark\.|\b)soak\(["']([a-z-]+)["']\)""", path.read_text()))
    assert marks == set(soak.SOURCES)


def test_every_pattern_matches_a_file():
    files = soak.git("ls-files", "--cached", "--others", "--exclude-standard")
    if files is None:
        pytest.skip("lacks git: there is no history")
    for part, patterns in soak.SOURCES.items():
        for pattern in (*soak.BUILD, *patterns):
            assert any(soak.fnmatch.fnmatchcase(file, pattern) for file in files.splitlines()), (part, pattern)


@pytest.mark.parametrize("paths, parts", [
    (["docs/solve.md", "crates/solve/README.md"], ["bench-scripts"]),
    (["docs/solve.md"], []),
    (["crates/kernel/src/simd/float.rs"], ["arm", "leaks", "release", "verification"]),
    (["crates/link/src/tcp/mod.rs"], ["arm", "leaks", "losses", "stress"]),
    (["bench/soak.py"], ["bench-scripts", "losses"]),
    (["Cargo.lock"], list(soak.SOURCES)),
])
def test_a_change_selects_the_parts_of_its_paths(paths, parts):
    assert soak.parts_of(paths) == parts


def test_without_history_every_part_is_selected(monkeypatch):
    monkeypatch.setattr(soak, "git", lambda *words: None)
    assert soak.selected_parts() == list(soak.SOURCES)


@pytest.mark.parametrize("since, has_changes, needed", [
    ("", False, False),
    ("docs/solve.md", False, False),
    ("crates/kernel/src/simd/float.rs", False, True),
    ("", True, True),
    (None, False, True),
])
def test_a_part_that_has_passed_with_these_sources_is_not_needed(monkeypatch, tmp_path, since, has_changes, needed):
    """`since`: the path that differs from the commit at which it has passed; `None`: that commit is not known."""
    def git(*words):
        return {"ls-files": "", "diff": since if words[-1] == "passed" else "crates/kernel/src/lib.rs"}[words[0]]
    monkeypatch.setattr(soak, "git", git)
    monkeypatch.setattr(soak, "RESULTS", tmp_path)
    (tmp_path / "release.json").write_text(json.dumps({"commit": "passed", "has_changes": has_changes}))
    selected = soak.selected_parts("base")
    assert ("release" in selected) == needed and {"arm", "leaks", "verification"} <= set(selected)


def behind(part, latest):
    """Commits since a part last passed, 0 if its sources are the same; `None` where it is not known."""
    changed = soak.git("diff", "--name-only", latest, "HEAD")
    if changed is None:
        return None
    return int(soak.git("rev-list", "--count", f"{latest}..HEAD")) if part in soak.parts_of(changed.splitlines()) else 0


@pytest.mark.parametrize("part", soak.SOURCES)
def test_a_part_has_passed_within_the_last_commits(part):
    path = soak.RESULTS / f"{part}.json"
    if not path.exists():
        warnings.warn(f"the soak part {part!r} has no result yet: make soak PARTS={part!r}", stacklevel=1)
        return
    count = behind(part, json.loads(path.read_text())["commit"])
    if count is None:
        warnings.warn("there is no history: how old the results of the soak tier are is not known", stacklevel=1)
        return
    told = f"{part!r} passed {count} commits ago and its sources have changed: make soak PARTS={part!r}"
    assert count <= COMMITS_MAX, told
    if count > COMMITS_WARN:
        warnings.warn(told, stacklevel=1)


def test_the_tiers_divide_the_tests():
    """A marked test is in its part and not in `make test`."""
    def listed(tier):
        command = [soak.sys.executable, "-m", "pytest", "--collect-only", "-q", "--tier", tier, "tests/test_stress.py"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        return {line for line in done.stdout.splitlines() if "::" in line}
    test, stress, everything = listed("test"), listed("stress"), listed("all")
    assert test and stress and not test & stress and test | stress == everything
    assert listed("arm") == set()
