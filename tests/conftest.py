"""Stops early where there is no binary to test, and says which one is tested."""

import pytest

from helpers import BRAMBLE


def pytest_report_header():
    return f"binary: {BRAMBLE}"


def pytest_sessionstart(session):
    if not BRAMBLE.is_file():
        pytest.exit(f"there is no {BRAMBLE}: run `make build`, or name a binary in BRAMBLE", returncode=2)
