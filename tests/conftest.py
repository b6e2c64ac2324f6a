"""Stops early where there is no binary to test, says which one is tested, and hides the user's own key."""

import os

import pytest

from helpers import BRAMBLE


def pytest_report_header():
    return f"binary: {BRAMBLE}"


def pytest_sessionstart(session):
    if not BRAMBLE.is_file():
        pytest.exit(f"there is no {BRAMBLE}: run `make build`, or name a binary in BRAMBLE", returncode=2)


@pytest.fixture(scope="session", autouse=True)
def no_key_but_the_tests_own(tmp_path_factory):
    """Whoever runs the tests may have a cluster key: no test reads it, and none replaces it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("BRAMBLE_KEY")]:
            patch.delenv(name)
        patch.delenv("CREDENTIALS_DIRECTORY", raising=False)
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield
