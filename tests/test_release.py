"""The program as users build it: the README's first command, and products and systems by what it made. The other tests run a program
with assertions (`make build-for-tests`), which the compiler makes in another way."""

import re
import subprocess

import numpy as np
import pytest
from helpers import ROOT, Run, assert_product, matrix, save

pytestmark = pytest.mark.soak("release")

RELEASE = ROOT / "target" / "release" / "bramble"
SIZE_MAX = 30_000_000
"""Bytes of the program that users copy to a Pi."""


@pytest.fixture(scope="module")
def similarity(tmp_path_factory):
    """What the README's first command writes."""
    command = re.search(r"^cargo run --release .*$", (ROOT / "README.md").read_text(), re.MULTILINE)[0].split()
    path = tmp_path_factory.mktemp("release") / command[-1]
    done = subprocess.run([*command[:-1], path], cwd=ROOT, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr
    return path


def test_the_first_command_of_the_readme(similarity):
    digits = np.load(ROOT / "examples" / "digits.npy")
    assert_product(np.load(similarity), digits, digits.T)
    assert RELEASE.stat().st_size <= SIZE_MAX


@pytest.mark.parametrize("where", [[], ["--local", "2"]], ids=["in process", "local 2"])
@pytest.mark.parametrize("kernel", ["simd", "reference"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64"])
@pytest.mark.usefixtures("similarity")
def test_products(tmp_path, dtype, kernel, where):
    a, b = matrix(301, 203, dtype, 1), matrix(203, 157, dtype, 2)
    run = Run("multiply", save(tmp_path, "A.npy", a), save(tmp_path, "B.npy", b), "-o", tmp_path / "C.npy", "--kernel", kernel, *where,
              binary=RELEASE)
    result = run.finish()
    assert result.code == 0, result
    assert_product(np.load(tmp_path / "C.npy"), a, b)


@pytest.mark.parametrize("where", [[], ["--local", "2"]], ids=["in process", "local 2"])
@pytest.mark.usefixtures("similarity")
def test_a_system(tmp_path, where):
    a, b = matrix(301, 301, "f64", 3), matrix(301, 2, "f64", 4)
    result = Run("solve", save(tmp_path, "A.npy", a), save(tmp_path, "b.npy", b), "-o", tmp_path / "x.npy", *where, binary=RELEASE).finish()
    assert result.code == 0, result
    np.testing.assert_allclose(a @ np.load(tmp_path / "x.npy"), b, atol=1e-9)
