"""Products one after the other on workers that are killed and stopped, by primaries that are killed: bench/soak.py, two minutes of it."""

import subprocess
import sys
import time

import pytest
from helpers import BRAMBLE, ROOT

pytestmark = pytest.mark.soak("losses")


def test_products_and_losses_for_two_minutes(tmp_path):
    # Another sequence each day. Its script prints each case, and a failure with its command.
    seed = int(time.time() // 86400)
    command = [sys.executable, ROOT / "bench" / "soak.py", "--minutes", "2", "--seed", str(seed), "--no-record", "--bramble", BRAMBLE,
               "--dir", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, (seed, done.stdout[-4000:], done.stderr[-4000:])
    assert f"A soak, seed {seed}" in done.stdout, done.stdout
    assert list(tmp_path.iterdir()) == []
