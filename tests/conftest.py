"""Stops early without a binary to test, names the tested binary, hides the user's own key, leaves out the tests of other tiers,
turns forbidden skips into failures, and takes SIGINT back where a shell without job control has switched it off."""

import os
import signal

import pytest

from helpers import BRAMBLE
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
    """The tests interrupt programs, which inherit whether SIGINT is ignored."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
