"""The simulator with more seeds than its unit tests take: products, sequences of operations on placed matrices, and LU."""

import os
import re
import subprocess

import pytest
from helpers import ROOT

pytestmark = pytest.mark.soak("simulator")

SEEDS = 10_000
"""For each. The unit tests take 1,500 to 5,000."""


@pytest.mark.parametrize("module", ["swarm", "arrays", "lu"])
def test_many_seeds(module):
    command = ["cargo", "test", "--workspace", "--locked", "--test", "suite", f"{module}::with"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "BRAMBLE_SIM_SEEDS": str(SEEDS)}, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert re.search(rf"test {module}::with\w+ \.\.\. ok", done.stdout), done.stdout[-4000:]
