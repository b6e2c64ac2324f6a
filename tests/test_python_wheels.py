"""The wheels in clean environments, with the oldest and the newest NumPy that they support: for this machine, and for 64-bit ARM
under QEMU as the processor of a Raspberry Pi, also as the primary of a worker for this machine.

`make python` and `make arm-workers` build them.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT, workers
from lacking import skip

LIBRARIES = "/usr/aarch64-linux-gnu"
OLDEST = re.search(r'"numpy>=(.*)"', (ROOT / "python/pyproject.toml").read_text())[1]

HEAD = """
import sys
import numpy as np
import bramble
rng = np.random.default_rng(0)
a, b = (rng.integers(-9, 9, shape).astype(dtype) for shape, dtype in (((70, 300), sys.argv[1]), ((300, 50), sys.argv[1])))
"""
IN_PROCESS = HEAD + """
assert (bramble.matmul(a, b) == a @ b).all() and (bramble.matmul(a[::2, ::3], b[::3]) == a[::2, ::3] @ b[::3]).all()
if a.dtype.kind == "f":
    m = rng.standard_normal((60, 60)).astype(a.dtype)
    assert np.allclose(bramble.solve(m, m @ np.ones(60, a.dtype)), 1, atol=1e-2)
with bramble.Cluster(threads=1) as c:
    W = c.put(b)
    assert (a @ W == a @ b).all() and (W.T @ W).numpy().shape == (50, 50)
print(np.__version__)
"""
WITH_WORKER = HEAD + """
with bramble.Cluster(sys.argv[2], insecure=True, strategy="reuse") as c:
    W = c.put(b, bramble.Shard(0))
    assert [part.worker for part in W.parts()] == [sys.argv[2]]
    assert (a @ W == a @ b).all() and (W.numpy(slice(3, 9)) == b[3:9]).all() and (W @ a[:50]).shape == (300, 300)
    columns, values = c.topk(a, c.put(b, bramble.Shard(1)), 3)
    assert (np.take_along_axis(a @ b, columns, 1) == values).all()
print(np.__version__)
"""

pytestmark = pytest.mark.soak("arm")


def newest_wheel(processor):
    wheels = sorted((ROOT / "target/wheels").glob(f"bramble-*_{processor}.whl"), key=lambda path: path.stat().st_mtime)
    return wheels[-1] if wheels else None


@pytest.mark.parametrize("numpy", ["oldest", "newest"])
def test_a_clean_environment_of_this_machine(tmp_path, numpy):
    wheel = newest_wheel(platform.machine())
    assert wheel, "there is no wheel: make python"
    oldest = OLDEST
    # Wheels of the oldest NumPy are for the oldest versions of Python.
    if numpy == "oldest" and sys.version_info[:2] > (3, 11):
        oldest = "2.1"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=120)
    python = tmp_path / "venv/bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel,
                    f"numpy=={oldest}.0" if numpy == "oldest" else "numpy"], check=True, timeout=300)
    program = tmp_path / "program.py"
    program.write_text(IN_PROCESS.replace("Cluster(threads=1)", "Cluster(local=2)"))
    for dtype in ("f4", "f8", "i4", "i8"):
        done = subprocess.run([python, program, dtype], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (numpy == "oldest") == done.stdout.startswith(f"{oldest}."), done.stdout
    said = subprocess.run([tmp_path / "venv/bin/bramble", "--version"], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0 and said.stdout.startswith("bramble "), said


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """Runs a program with the oldest or the newest NumPy; returns what it printed."""
    wheel = newest_wheel("aarch64")
    emulator = shutil.which("qemu-aarch64-static")
    if platform.machine() != "x86_64" or not wheel or not emulator or not shutil.which("apt-get") or not Path(LIBRARIES).is_dir():
        skip("aarch64", "make arm-workers has built no wheel, qemu-user-static is not installed, or this is not Debian")
    folder = ROOT / "target/arm-python"
    subprocess.run([ROOT / "tests/arm-python", folder, wheel], check=True, timeout=600)
    system = folder / "system"
    libraries = ":".join(str(system / place / "aarch64-linux-gnu") for place in ("lib", "usr/lib"))

    def run(text, numpy, *arguments):
        program = tmp_path_factory.mktemp("board") / "program.py"
        program.write_text(text)
        env = dict(os.environ, QEMU_LD_PREFIX=LIBRARIES, QEMU_CPU="cortex-a72", QEMU_SET_ENV=f"LD_LIBRARY_PATH={libraries}",
                   PYTHONHOME=str(system / "usr"), PYTHONPATH=str(folder / numpy))
        command = [emulator, system / "usr/bin/python3.11", program, *arguments]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("numpy,dtype", [("oldest", "f4"), ("oldest", "i8"), ("newest", "f8"), ("newest", "i4")])
def test_a_board_computes_what_numpy_computes(board, numpy, dtype):
    text = "import platform; assert platform.machine() == 'aarch64'" + IN_PROCESS
    assert (numpy == "oldest") == board(text, numpy, dtype).startswith(f"{OLDEST}.")


@pytest.mark.parametrize("numpy", ["oldest", "newest"])
def test_a_board_is_the_primary_of_a_worker_of_another_kind(board, numpy):
    with workers(1, "--threads", 1, "--insecure") as (addresses, _):
        board(WITH_WORKER, numpy, "f4", addresses[0])
