"""The Python package has types that a checker accepts, and its stubs are those of the compiled module."""

import subprocess
import sys

from helpers import ROOT


def checked(folder, *words):
    done = subprocess.run([sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_source_passes_mypy():
    checked(ROOT / "python", "mypy", "bramble")


def test_the_stubs_are_those_of_the_compiled_module(tmp_path):
    checked(tmp_path, "mypy.stubtest", "--mypy-config-file", ROOT / "python" / "pyproject.toml", "bramble._bramble")
