"""Refused input: the exit code, one line that names the culprit and the next step, and no leftovers."""

import os
import re
import resource
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from helpers import BRAMBLE, Run, assert_nothing_written, assert_refused, bramble, matrix, save, workers
from lacking import skip
from test_files import save_safetensors
from test_unreachable import free_port

FAILED, USAGE, EITHER = 1, 2, (1, 2)


@pytest.fixture
def folder(tmp_path):
    """Operands, good and bad, and the current directory of the runs."""
    for name, (rows, cols, dtype) in {
        "a34.npy": (3, 4, "f64"), "b45.npy": (4, 5, "f64"),
    }.items():
        save(tmp_path, name, matrix(rows, cols, dtype))
    np.save(tmp_path / "number.npy", np.float64(4))
    np.save(tmp_path / "cube.npy", np.ones((2, 3, 4)))
    np.save(tmp_path / "complex.npy", np.ones((4, 5), np.complex128))
    np.save(tmp_path / "text.npy", np.full((4, 5), "word"))
    np.save(tmp_path / "objects.npy", np.array([[{}, {}], [{}, {}]]), allow_pickle=True)
    whole = (tmp_path / "b45.npy").read_bytes()
    (tmp_path / "short.npy").write_bytes(whole[:-8])
    (tmp_path / "headless.npy").write_bytes(whole[:20])
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "foreign.npy").write_bytes(b"PK\x03\x04 this is some other kind of file, long enough " * 4)
    (tmp_path / "huge.npy").write_bytes(whole.replace(b"(4, 5)", b"(9223372036854775807, 9)").ljust(256))
    (tmp_path / "negative.npy").write_bytes(whole.replace(b"(4, 5)", b"(-4, 5)"))
    (tmp_path / "matrix.txt").write_text("1 2 3\n4 5 6\n")
    (tmp_path / "bad.mtx").write_text("%%MatrixMarket matrix array real general\n2 2\n1\n2\nthree\n4\n")
    (tmp_path / "short.mtx").write_text("%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 5\n")
    (tmp_path / "outside.mtx").write_text("%%MatrixMarket matrix coordinate real general\n2 2 1\n3 1 5\n")
    save_safetensors(tmp_path / "model.safetensors", {"weight": ("F64", np.ones((4, 5))),
                                                      "flags": ("F8_E4M3", np.ones((4, 5), np.uint8))})
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes()[:60])
    save(tmp_path, "whole.npy", matrix(3, 3, "i64"))
    os.mkfifo(tmp_path / "pipe.npy")
    (tmp_path / "directory").mkdir()
    return tmp_path


@dataclass
class Case:
    """Arguments after `multiply`, the allowed exit codes, and the words that the message must contain."""

    name: str
    args: str
    codes: int | tuple
    culprits: list = field(default_factory=list)


CASES = [
    # Operands that do not fit each other.
    Case("shapes do not fit", "a34.npy a34.npy", EITHER, ["3 ?[x×] ?4", "transpose"]),
    Case("old C of another shape", "a34.npy b45.npy --beta 1 -o b45.npy", EITHER, ["b45.npy", "4 ?[x×] ?5"]),
    Case("beta without an old C", "a34.npy b45.npy --beta 1", EITHER, ["C.npy"]),
    # Damaged or mislabelled files.
    Case("missing file", "a34.npy nowhere.npy", FAILED, ["nowhere.npy"]),
    Case("a directory", "a34.npy directory", FAILED, ["directory"]),
    Case("cut .npy", "a34.npy short.npy", FAILED, ["short.npy"]),
    Case("cut header", "a34.npy headless.npy", FAILED, ["headless.npy"]),
    Case("no bytes", "a34.npy empty.npy", FAILED, ["empty.npy"]),
    Case("foreign file", "a34.npy foreign.npy", FAILED, ["foreign.npy"]),
    Case("unknown ending", "a34.npy matrix.txt", EITHER, ["matrix.txt", "npy"]),
    Case("object array", "objects.npy objects.npy", FAILED, ["objects.npy", "object"]),
    Case("no dimension", "a34.npy number.npy", FAILED, ["number.npy", "0-dimensional"]),
    Case("three dimensions", "a34.npy cube.npy", FAILED, ["cube.npy", "dimension"]),
    Case("complex numbers", "a34.npy complex.npy", FAILED, ["complex.npy"]),
    Case("text array", "a34.npy text.npy", FAILED, ["text.npy"]),
    Case("header of an absurd size", "a34.npy huge.npy", FAILED, ["huge.npy"]),
    Case("header of a negative size", "a34.npy negative.npy", FAILED, ["negative.npy"]),
    Case("missing tensor", "a34.npy model.safetensors:bias", FAILED, ["model.safetensors", "bias"]),
    Case("no tensor named", "a34.npy model.safetensors", EITHER, ["model.safetensors"]),
    Case("tensor of another type", "a34.npy model.safetensors:flags", FAILED, ["flags", "F8_E4M3"]),
    Case("cut safetensors", "a34.npy cut.safetensors:weight", FAILED, ["cut.safetensors"]),
    Case("bad number in .mtx", "bad.mtx bad.mtx", FAILED, ["bad.mtx", "5|three"]),
    Case("cut .mtx", "short.mtx short.mtx", FAILED, ["short.mtx"]),
    Case("index outside of .mtx", "outside.mtx outside.mtx", FAILED, ["outside.mtx"]),
    # Sizes beyond any machine.
    Case("absurd rows", "random:9223372036854775807x4:f64:1 random:4x4:f64:1", EITHER,
         ["9223372036854775807"]),
    Case("rows beyond 64 bits", "random:99999999999999999999x4:f64:1 identity:4:f64", EITHER,
         ["99999999999999999999"]),
    Case("absurd result", "random:4294967296x1:f64:1 random:1x4294967296:f64:1", EITHER, ["4294967296"]),
    Case("result larger than the disk", "random:4000000x1:f64:1 random:1x4000000:f64:1", FAILED, ["C.npy"]),
    # Generators.
    Case("random of words", "random:4xfour:f64:1 identity:4:f64", EITHER, ["random:4xfour"]),
    Case("random of half a shape", "random:4:f64:1 identity:4:f64", EITHER, ["random:4"]),
    Case("random of a bad dtype", "random:4x4:f16:1 identity:4:f64", EITHER, ["f16"]),
    Case("identity of nothing", "identity:x:f64 identity:4:f64", EITHER, ["identity:x"]),
    # Options.
    Case("no operand", "", USAGE),
    Case("one operand", "a34.npy", USAGE),
    Case("three operands", "a34.npy b45.npy b45.npy", USAGE, ["b45.npy"]),
    Case("unknown option", "a34.npy b45.npy --transpose-c", USAGE, ["--transpose-c"]),
    Case("no workers", "a34.npy b45.npy --local 0", USAGE, ["--local"]),
    Case("absurdly many workers", "a34.npy b45.npy --local 1000000", USAGE, ["--local"]),
    Case("workers both ways", "a34.npy b45.npy --local 1 -w 127.0.0.1:1", USAGE, ["--local"]),
    Case("bad dtype", "a34.npy b45.npy --dtype f16", USAGE, ["f16"]),
    Case("bad kernel", "a34.npy b45.npy --kernel fast", USAGE, ["fast", "simd"]),
    Case("bad strategy", "a34.npy b45.npy --strategy best", USAGE, ["best"]),
    Case("bad verification", "a34.npy b45.npy --verify maybe", USAGE, ["maybe", "full"]),
    Case("tile of nothing", "a34.npy b45.npy --tile 0", USAGE, ["--tile"]),
    Case("panel of nothing", "a34.npy b45.npy --panel 0", USAGE, ["--panel"]),
    Case("negative tile", "a34.npy b45.npy --tile=-4", USAGE, ["--tile"]),
    Case("huge tile", "a34.npy b45.npy --tile 1000000", USAGE, ["--tile"]),
    Case("no threads", "a34.npy b45.npy --threads 0", USAGE, ["--threads"]),
    Case("bad size", "a34.npy b45.npy --memory 12Q", USAGE, ["12Q"]),
    Case("bad number", "a34.npy b45.npy --alpha two", USAGE, ["two"]),
    Case("alpha that is no number", "a34.npy b45.npy --alpha nan", USAGE, ["--alpha"]),
    Case("alpha that i64 has and f64 has not", "whole.npy whole.npy --alpha 9007199254740993", USAGE, ["--alpha", "whole"]),
    Case("beta out of reach", "whole.npy whole.npy --beta=-9223372036854775808", USAGE, ["--beta", "nearer to 0"]),
    Case("a trace over an operand", "a34.npy b45.npy --trace b45.npy", USAGE, ["--trace b45.npy", "another name"]),
    Case("a trace over an operand by another name", "a34.npy b45.npy --trace directory/../a34.npy", USAGE, ["--trace"]),
    Case("a trace over a tensor's file", "a34.npy model.safetensors:weight --trace model.safetensors", USAGE, ["--trace"]),
    Case("a pipe as operand", "a34.npy pipe.npy", FAILED, ["pipe.npy", "regular file"]),
    Case("processes over threads", "a34.npy b45.npy --local 1 --link thread", USAGE, ["--link thread"]),
    Case("link that is not here", "a34.npy b45.npy --local 1 --link mpi", USAGE, ["mpi"]),
    Case("missing hostfile", "a34.npy b45.npy --hostfile nohosts", EITHER, ["nohosts"]),
    Case("address without a port number", "a34.npy b45.npy -w 127.0.0.1:port", USAGE, ["127.0.0.1:port"]),
    Case("far too little memory", "random:900x900:f64:1 random:900x900:f64:2 --local 1 --memory 64K", EITHER,
         ["memory"]),
    # Places that cannot be written.
    Case("no such directory", "a34.npy b45.npy -o nowhere/C.npy", FAILED, ["nowhere"]),
    Case("a file as directory", "a34.npy b45.npy -o a34.npy/C.npy", FAILED, ["a34.npy/C.npy"]),
    Case("a directory as file", "a34.npy b45.npy -o directory", FAILED, ["directory"]),
    Case("a file system without files", "a34.npy b45.npy -o /proc/C.npy", FAILED, ["/proc/C.npy"]),
    Case("the neighbours of rows", "a34.npy a34.npy --transpose-b --labels nolabels --nearest x", USAGE,
         ["bramble nearest"]),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_refused(folder, case):
    args = case.args.split()
    if args and "-o" not in args:
        args += ["-o", "C.npy"]
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    result = bramble("multiply", *args, cwd=folder, deadline_s=20)
    assert_refused(result, case.codes, case.culprits)
    assert_nothing_written(folder)
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("args", [[], ["multipl"], ["completions", "tcsh"], ["--colour"]], ids=str)
def test_bad_verbs(args):
    result = bramble(*args)
    assert result.code == 2, result
    if args:
        assert_refused(result, USAGE, [args[-1]])


@pytest.mark.parametrize("address, codes", [("0.0.0.0:7400", EITHER), ("[::]:7400", EITHER),
                                            ("nonsense", EITHER), ("127.0.0.1:99999", EITHER)])
def test_workers_that_do_not_listen(address, codes):
    result = bramble("worker", "--listen", address, deadline_s=10)
    assert_refused(result, codes, [address.replace("[", r"\[").replace("]", r"\]")])
    if address.endswith(":7400"):
        assert "loopback" in result.err or "key" in result.err, result


def test_workers_that_nobody_could_use_do_not_begin():
    assert_refused(bramble("worker", "--listen", "127.0.0.1:0", "--memory", "1M", deadline_s=10), USAGE, ["--memory", "more"])
    result = bramble("worker", "--listen", "0.0.0.0:0", "--insecure", deadline_s=10)
    assert result.code == USAGE and "--i-trust-this-network" in result.err.splitlines()[-1], result


@pytest.mark.parametrize("quiet", [[], ["-q"]], ids=["", "quiet"])
def test_a_worker_that_finds_no_primary_says_once_what_is_missing_and_waits(quiet):
    address = f"127.0.0.1:{free_port()}"
    run = Run("worker", "--join", address, *quiet)
    try:
        line = run.process.stderr.readline()
        for part in ("bramble: ", address, "begin the product there", "trying again"):
            assert part in line, line
        run.process.terminate()
        result = run.finish(20)
        assert result.code == 143 and result.err == "", result
    finally:
        run.end()


def test_a_worker_that_may_not_join_says_why_even_if_it_is_quiet():
    result = bramble("worker", "-q", "--join", "192.0.2.1:7401", deadline_s=20)
    assert_refused(result, FAILED, ["192.0.2.1:7401", "bramble key new"])
    assert_refused(bramble("worker", "--join", "pi1", deadline_s=10), USAGE, ["--join", "HOST:PORT"])


def test_who_is_not_there_could_not_be_connected_to():
    address = f"127.0.0.1:{free_port()}"
    result = bramble("multiply", "random:9x9", "random:9x9", "-w", address)
    assert_refused(result, 5, [address, "could not connect: Connection refused", f"--listen {address}"])
    assert "broke" not in result.err


NUMBERS = {
    "a count below nothing": ("--threads -1", ["--threads", "'-1'", r"1\.\.=1024"]),
    "a missing number": ("--alpha --json-not", ["--alpha", "a number is missing", "--json-not"]),
    "no number": ("--alpha 1e", ["--alpha", "'1e'", "use a number"]),
    "no finite number": ("--alpha -1e999", ["--alpha", "'-1e999'", "finite"]),
    "memory below nothing": ("--memory -1G", ["--memory", "'-1G'", "as in 512M"]),
    "no memory": ("--memory 0", ["--memory", "at least 1 byte"]),
    "memory for less than the program": ("--memory 0.5M", ["--memory 512K", "more than 32M"]),
    "a port alone": ("--await 1 --listen 7510", ["--listen", "127.0.0.1:7510", "0.0.0.0:7510"]),
    "no time": ("--await 1 --await-timeout 5d", ["--await-timeout", "as in 90s"]),
    "too long": ("--await 1 --await-timeout 25h", ["--await-timeout", "at most 24 h"]),
}


@pytest.mark.parametrize("options, said", NUMBERS.values(), ids=NUMBERS)
def test_numbers_that_are_none_are_refused_with_what_to_write(options, said):
    assert_refused(bramble("multiply", "random:9x9", "random:9x9", *options.split()), USAGE, said)


@pytest.mark.parametrize("text", ["random:10", "random:axb", "random:10x10:f99", "random:10x10:f64:-1", "random:",
                                  "random:1x2x3", "identity:x", "identity:3:f64:1"])
def test_descriptions_that_are_none_are_usage_errors_with_an_example(text):
    kind = text.partition(":")[0]
    assert_refused(bramble("multiply", text, "random:10x10"), USAGE, [text, f"write {kind}:"])
    assert_refused(bramble("plan", text, "random:10x10"), USAGE, [text, f"as in {kind}:"])


def test_workers_name_the_cores_that_there_are():
    last = len(os.sched_getaffinity(0)) - 1
    result = bramble("worker", "--listen", "127.0.0.1:0", "--pin-from", last + 1, deadline_s=10)
    assert_refused(result, USAGE, [f"--pin-from {last + 1}", f"0 to {last}", "--no-pin"])
    result = bramble("worker", "--listen", "7510", deadline_s=10)
    assert_refused(result, USAGE, ["--listen", "127.0.0.1:7510"])
    result = bramble("worker", "--listen", "127.0.0.1:0", "--memory", "1M", deadline_s=10)
    assert_refused(result, USAGE, ["more than 32M"])


@pytest.mark.parametrize("option", ["--hostfile", "--cluster"])
def test_a_device_without_an_end_is_no_list_of_machines(option):
    verb = ["plan", "--size", "9x9x9"]
    assert_refused(bramble(*verb, option, "/dev/zero", deadline_s=20), USAGE, [f"{option} /dev/zero", "bytes are not"])


@pytest.mark.parametrize("line, said", [
    ("a port=0", "port=0: must be a number from 1"), ("a slots=0", "slots=0: must be a number from 1"),
    ("a port=1 port=2", "port=2: is given twice"), ("a:1 port=2", "port=2 is another"), ("a:0", "0 is no port"),
])
def test_lines_of_hostfiles_that_say_two_things_or_nothing_are_refused(tmp_path, line, said):
    (tmp_path / "hosts").write_text(f"# mine\n{line}\n")
    assert_refused(bramble("nodes", "--hostfile", tmp_path / "hosts"), USAGE, ["hosts:2", said])


def test_the_least_credits_are_named_and_are_enough():
    product = ["multiply", "random:600x600", "random:600x600", "--local", 2]
    result = bramble(*product, "--credits", "64K")
    assert_refused(result, USAGE, ["--credits", "65536 are allowed", "leave it away"])
    assert "memory" not in result.err.lower()
    least = re.search(r"--credits (\d+K) or more", result.err)[1]
    assert bramble(*product, "--credits", least).code == 0


def test_what_might_be_read_before_is_what_may_be_read_after(tmp_path):
    a, c = save(tmp_path, "A.npy", matrix(9, 9, "f64")), tmp_path / "C.npy"
    for mode in (0o600, 0o664):
        c.touch()
        c.chmod(mode)
        assert bramble("multiply", a, a, "-o", c).code == 0
        assert stat.S_IMODE(c.stat().st_mode) == mode and np.load(c).shape == (9, 9)


def test_a_directory_that_may_not_be_written(folder):
    (folder / "directory").chmod(0o555)
    product = "multiply", "a34.npy", "b45.npy", "-o", "directory/C.npy"
    if os.geteuid() == 0:
        # Root may write anywhere, unless this capability was dropped.
        without = "setpriv", "--bounding-set", "-dac_override", BRAMBLE
        result = Run(*without[1:], *product, cwd=folder, binary=without[0]).finish()
    else:
        result = bramble(*product, cwd=folder)
    assert_refused(result, FAILED, ["directory/C.npy", "denied"])


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        skip("root", "only root can mount a small file system")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        skip("root", f"cannot mount a small file system: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("where", [[], ["--local", "2"]], ids=["in process", "local 2"])
def test_a_full_disk(small_disk, where):
    operands = "random:512x64:f64:1", "random:64x512:f64:2"
    result = bramble("multiply", *operands, "-o", small_disk / "C.npy", *where)
    assert_refused(result, FAILED, [str(Path(small_disk) / "C.npy"), "space|room"])
    assert_nothing_written(small_disk)


def test_a_worker_that_dials_a_worker_is_told_whom_it_waits_for():
    with workers(1) as (addresses, _):
        result = bramble("worker", "--join", addresses[0], deadline_s=30)
    assert result.code == FAILED and f"connected to {addresses[0]}; a primary (multiply --await N)" in result.err, result


@pytest.mark.parametrize("words", ["-o C.npy", "--trace t.json"])
def test_a_file_that_may_not_be_so_large_is_said_and_nothing_is_left(tmp_path, words):
    """`ulimit -f`: the system would end a process that writes on, without a word."""
    option, name = words.split()
    limited = subprocess.run(
        [BRAMBLE, "multiply", "random:300x300", "random:300x300", "-q", option, tmp_path / name],
        capture_output=True, text=True, timeout=60, cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024)),
    )
    assert limited.returncode == FAILED and name in limited.stderr and "File too large" in limited.stderr, limited
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("files", range(4, 16))
def test_few_open_files_are_an_error_and_no_panic(tmp_path, files):
    save(tmp_path, "A.npy", matrix(3, 3, "f64"))
    limited = subprocess.run(
        [BRAMBLE, "multiply", "A.npy", "A.npy", "-q"], capture_output=True, text=True, timeout=60, cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)),
    )
    assert limited.returncode in (0, FAILED) and "panicked" not in limited.stderr, limited
    assert limited.returncode == 0 or "Too many open files" in limited.stderr, limited


def test_no_thread_to_be_had_is_an_error_and_no_panic():
    """Root is not held to the limit, so another user is. The program is copied to where that user can run it."""
    if os.geteuid() != 0:
        skip("root", "only root can become another user")

    def become():
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)

    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        program = shutil.copy(BRAMBLE, Path(folder) / "bramble")
        limited = subprocess.run([program, "multiply", "random:30x30", "random:30x30", "-q"], cwd="/",
                                 capture_output=True, text=True, timeout=60, preexec_fn=become)
    assert limited.returncode == FAILED and "panicked" not in limited.stderr, limited
    assert "no thread can be started" in limited.stderr and "ulimit -u" in limited.stderr, limited
