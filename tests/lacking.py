"""The components that a machine may lack, and whether a test may be skipped for each.

A test that cannot run here is skipped with `lacks(NAME)` in its reason. Where the variable BRAMBLE_TEST_MAY_LACK is set, it
lists the names for which skips are allowed, and any other skip, with or without a name, is a failure: `.ci/run` sets it.
"""

import os

import pytest

NAMES = {
    "aarch64": "a worker for 64-bit ARM and its emulator",
    "armv7": "a worker for 32-bit ARM and its emulator",
    "attacker": "the example program that attacks a worker",
    "blas": "the library of a kernel",
    "capture": "tshark, and the right to capture packets",
    "clock": "faketime",
    "dask": "Dask and mpi4py",
    "deny": "cargo-deny",
    "free-threaded": "a free-threaded Python interpreter",
    "glibc": "the C library whose memory use is known",
    "hpcc": "the official Linpack benchmark",
    "kubernetes": "the published schemas of Kubernetes",
    "lab": "root, and a kernel with network namespaces and control groups",
    "macos": "Rust's standard library for macOS",
    "man": "man",
    "mpi": "an MPI library and its launcher",
    "ray": "Ray",
    "root": "root",
    "shell": "a shell whose completions are checked",
    "slurm": "the daemons and commands of Slurm",
    "slow-disk": "a kernel with loop devices and limits of block devices",
    "systemd": "systemd-analyze",
}
VARIABLE = "BRAMBLE_TEST_MAY_LACK"


def lacks(name, why):
    """The reason text of a skip."""
    assert name in NAMES, f"{name} is not among the names in {__file__}"
    return f"lacks {name}: {why}"


def skip(name, why):
    """Skips the running test."""
    pytest.skip(lacks(name, why))


def unless(why, name):
    """A mark that skips tests where there is a reason."""
    return pytest.mark.skipif(bool(why), reason=lacks(name, why))


def may_be_skipped(reason, listed):
    """Whether a test may be skipped for this reason when the variable has this value (None: unset)."""
    if listed is None:
        return True
    return any(reason.startswith(f"lacks {name}: ") for name in listed.replace(",", " ").split())


def checked(report):
    """A test's report, with a forbidden skip turned into a failure."""
    if report.skipped and not hasattr(report, "wasxfail"):
        # Pytest describes a skip by file, line, reason.
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not may_be_skipped(reason, os.environ.get(VARIABLE)):
            report.outcome = "failed"
            report.longrepr = f"skipped, which {VARIABLE}={os.environ[VARIABLE]!r} does not allow: {reason}"
    return report
