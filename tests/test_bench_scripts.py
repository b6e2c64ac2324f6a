"""The measuring scripts still run: each once, on tiny inputs, recording nothing."""

import subprocess
import sys

import pytest
from helpers import BRAMBLE, ROOT


@pytest.mark.parametrize("script, heads", [
    ("numpy_product", ["Product, operands in memory", "Files to file", "bramble, not verified"]),
    ("integers", ["i32", "i64"]),
    ("kernels", ["auto", "simd"]),
    ("startup", ["start to first job"]),
    ("memory", ["largest worker"]),
    ("encrypted_link", ["encrypted"]),
    ("local_workers", ["dask futures"]),
    ("under_attack", ["four other addresses", "strangers of this machine"]),
])
def test_a_quick_look(tmp_path, script, heads):
    if script == "local_workers":
        pytest.importorskip("distributed", reason="Dask is not installed: see bench/requirements.txt")
        pytest.importorskip("mpi4py", reason="mpi4py is not installed: see bench/requirements.txt")
    attacker = BRAMBLE.parent / "examples" / "attacker"
    if script == "under_attack" and not attacker.is_file():
        pytest.skip("the attacker is not built: cargo build --release -p bramble-link --example attacker")
    command = [sys.executable, ROOT / "bench" / f"{script}.py", "--quick", "--no-record",
               "--bramble", BRAMBLE, "--dir", tmp_path]
    if script == "startup":
        command += ["--workers", "2"]
    if script == "under_attack":
        command += ["--attacker", attacker]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for head in heads:
        assert head in done.stdout, done.stdout
    assert list(tmp_path.iterdir()) == []
