"""Stops early without a binary to test, names the tested binary, hides the user's own key, leaves out the tests of other tiers,
turns forbidden skips into failures, and takes back the signals that `nohup` or a shell without job control has switched off."""

import os
import signal

# NumPy's own threads would wait busily beside the programs that are tested. These do not inherit the variable.
threads_before = os.environ.get("OPENBLAS_NUM_THREADS")
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy  # noqa: E402, F401
import scipy.linalg  # noqa: E402, F401  (it has a BLAS of its own)

del os.environ["OPENBLAS_NUM_THREADS"]
if threads_before is not None:
    os.environ["OPENBLAS_NUM_THREADS"] = threads_before

import pytest  # noqa: E402

from helpers import BRAMBLE  # noqa: E402
from lacking import checked


def pytest_addoption(parser):
    parser.addoption("--tier", action="append", metavar="NAME",
                     help="`test` (tests without the mark `soak`), a part of the soak tier (tests/soak.py), or `all` (default)")


def pytest_collection_modifyitems(config, items):
    """Keeps the tests of the tiers that are asked for."""
    tiers = config.getoption("--tier") or ["all"]
    if "all" in tiers:
        return
    kept, left = [], []
    for item in items:
        parts = {part for mark in item.iter_markers("soak") for part in mark.args} or {"test"}
        (kept if parts & set(tiers) else left).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)


def pytest_configure():
    """The tests send signals to programs, which inherit whether these are ignored."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, usual)


def pytest_report_header():
    return f"binary: {BRAMBLE}"


def pytest_sessionstart(session):
    if not BRAMBLE.is_file():
        pytest.exit(f"there is no {BRAMBLE}: run `make build-for-tests`, or name a binary in BRAMBLE", returncode=2)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return checked((yield))


@pytest.fixture(scope="session", autouse=True)
def no_key_but_the_tests_own(tmp_path_factory):
    """The user may have a cluster key: no test reads it, and none replaces it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("BRAMBLE_KEY")]:
            patch.delenv(name)
        patch.delenv("CREDENTIALS_DIRECTORY", raising=False)
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield
