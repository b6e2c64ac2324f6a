"""The unit for a worker: the program's output, and systemd's rating of it."""

import re
import shutil
import subprocess

import pytest
from helpers import BRAMBLE, ROOT, succeed
from lacking import skip

UNIT = ROOT / "dist" / "bramble-worker.service"
EXPOSURE_MAX = 15
"""Exposure in tenths; it was 1.2 of 10 with systemd 252. The rest is needed by a worker, the network first of all."""


@pytest.fixture
def analyze():
    """Runs systemd-analyze, if the installed version can check files."""
    program = shutil.which("systemd-analyze")
    if not program:
        skip("systemd", "systemd-analyze is not installed")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    if int(re.match(r"systemd (\d+)", version)[1]) < 250:
        skip("systemd", f"systemd-analyze is too old: {version.splitlines()[0]}")
    return lambda *args: subprocess.run([program, *args], capture_output=True, text=True, timeout=60)


def test_the_program_prints_the_unit_that_lies_in_dist():
    result = succeed("worker", "--print-systemd")
    assert result.out == UNIT.read_text() and result.err == ""


def test_systemd_understands_every_line(tmp_path, analyze):
    text = UNIT.read_text()
    assert "ExecStart=/usr/local/bin/bramble worker " in text
    unit = tmp_path / UNIT.name
    unit.write_text(text.replace("/usr/local/bin/bramble worker ", f"{BRAMBLE.resolve()} worker "))
    result = analyze("verify", unit)
    assert result.returncode == 0 and UNIT.name not in result.stderr, result.stderr


def test_systemd_finds_the_service_hardened(analyze):
    result = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", "--no-pager", UNIT)
    assert result.returncode == 0, result.stdout.splitlines()[-1]
