"""A test is skipped for a missing component only where that is allowed, and any other skip is a failure."""

import os
import re
import subprocess
import sys

import pytest
from helpers import ROOT
from lacking import NAMES, lacks, may_be_skipped

SKIPPING = """
import pytest
from lacking import skip, unless

def test_by_name():
    skip("clock", "no clock here")

@unless("no shell here", "shell")
def test_by_mark():
    pass

@pytest.fixture
def part():
    skip("man", "no man here")

def test_by_fixture(part):
    pass

def test_without_a_name():
    pytest.skip("because")

def test_that_runs():
    pass
"""


def outcome(folder, listed):
    """Pytest's results of the tests above, when the variable has this value. A skip before a test has begun is an error then."""
    (folder / "test_skipping.py").write_text(SKIPPING)
    (folder / "conftest.py").write_text("from conftest_of_all import pytest_runtest_makereport  # noqa: F401\n")
    # The hook of all tests, under a name that is unused here.
    (folder / "conftest_of_all.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    env = {key: value for key, value in os.environ.items() if not key.startswith(("BRAMBLE_TEST_", "PYTEST_"))}
    env["PYTHONPATH"] = f"{folder}{os.pathsep}{ROOT / 'tests'}"
    if listed is not None:
        env["BRAMBLE_TEST_MAY_LACK"] = listed
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-q", "--rootdir", folder, folder]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    counts = {kind: int(count) for count, kind in re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout)}
    return counts, done


@pytest.mark.parametrize("listed, counts", [
    (None, {"passed": 1, "skipped": 4}),
    ("", {"passed": 1, "failed": 2, "error": 2}),
    ("clock,man", {"passed": 1, "skipped": 2, "failed": 1, "error": 1}),
    (" ".join(NAMES), {"passed": 1, "skipped": 3, "failed": 1}),
])
def test_only_what_is_listed_may_be_skipped(tmp_path, listed, counts):
    got, done = outcome(tmp_path, listed)
    assert got == counts, done.stdout
    assert (done.returncode == 0) == (set(counts) <= {"passed", "skipped"}), done.stdout
    if listed == "":
        assert "lacks clock: no clock here" in done.stdout and "because" in done.stdout, done.stdout


def test_a_name_has_to_be_known():
    with pytest.raises(AssertionError, match="nobody"):
        lacks("nobody", "why")
    assert may_be_skipped(lacks("mpi", "why"), "mpi") and not may_be_skipped(lacks("mpi", "why"), "lab")


@pytest.mark.parametrize("listed, code", [(None, 0), ("", 1), ("macos", 1), ("macos deny", 0), ("deny,macos", 0)])
def test_targets_of_the_makefile_keep_the_same_rule(listed, code):
    env = {key: value for key, value in os.environ.items() if key != "BRAMBLE_TEST_MAY_LACK"}
    if listed is not None:
        env["BRAMBLE_TEST_MAY_LACK"] = listed
    done = subprocess.run([ROOT / "tests" / "needs", "lacks", "deny", "no cargo-deny"], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, "lacks deny: no cargo-deny\n")
