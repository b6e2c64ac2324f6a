"""Every option that writes: an existing file keeps its mode and owner, links are followed, and only regular files are replaced."""

import json
import os
import stat
import subprocess

import numpy as np
import pytest
from helpers import BRAMBLE, assert_product, bramble, matrix, save, succeed

SMALL = ("random:30x20", "random:20x10")
BENCH = ("bench", "kernel", "--size", "16", "--kernel", "reference", "--rounds", "1")


def report_input(folder):
    """Measurements that a report can be made of."""
    path = folder / "kernel.jsonl"
    path.write_text(succeed(*BENCH, "--json").out)
    return path


def writers(folder):
    """option -> (arguments before the name, name of the file)."""
    return {
        "-o": (["multiply", *SMALL, "-o"], "C.npy"),
        "--trace": (["multiply", *SMALL, "--trace"], "trace.json"),
        "--plot": ([*BENCH, "--plot"], "plot.svg"),
        "report": (["bench", "report", report_input(folder), "-o"], "page.html"),
    }


OPTIONS = ["-o", "--trace", "--plot", "report"]


@pytest.mark.parametrize("option", OPTIONS)
def test_links_are_followed_and_mode_and_owner_are_kept(tmp_path, option):
    arguments, name = writers(tmp_path)[option]
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real" / name, tmp_path / name
    real.write_text("old")
    real.chmod(0o640)
    owner = (12345, 23456) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    os.chown(real, *owner)
    link.symlink_to(real)
    succeed(*arguments, link)
    assert link.is_symlink() and os.readlink(link) == str(real)
    after = real.stat()
    assert stat.S_IMODE(after.st_mode) == 0o640 and (after.st_uid, after.st_gid) == owner
    assert real.read_bytes() != b"old"
    assert [path.name for path in real.parent.iterdir()] == [name]


@pytest.mark.parametrize("option", OPTIONS)
def test_a_protected_file_is_refused(tmp_path, option):
    arguments, name = writers(tmp_path)[option]
    path = tmp_path / name
    path.write_text("old")
    path.chmod(0o444)
    result = bramble(*arguments, path)
    assert result.code == 1 and "chmod u+w" in result.err and name in result.err, result
    assert path.read_text() == "old" and not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("option", OPTIONS)
def test_a_device_is_never_replaced(tmp_path, option):
    if os.geteuid() != 0:
        pytest.skip("devices are made by root")
    arguments, name = writers(tmp_path)[option]
    for minor, ends_well in ((3, True), (7, False)):  # null, full
        device = tmp_path / f"device{minor}"
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
        try:
            with open(device, "wb"):
                pass
        except OSError as error:
            pytest.skip(f"devices do not work here: {error}")
        before = device.stat()
        result = bramble(*arguments, device)
        after = device.lstat()
        assert stat.S_ISCHR(after.st_mode) and (before.st_ino, before.st_rdev) == (after.st_ino, after.st_rdev)
        if option == "-o":
            assert result.code == 1 and "-o -" in result.err, result
        else:
            assert result.code == (0 if ends_well else 1), result
            assert ends_well or device.name in result.err, result
        assert not list(tmp_path.glob("device*.part"))


@pytest.mark.parametrize("option", OPTIONS)
def test_a_pipe_is_written_to_and_stays(tmp_path, option):
    arguments, name = writers(tmp_path)[option]
    fifo = tmp_path / ("fifo" + os.path.splitext(name)[1])
    os.mkfifo(fifo)
    result = bramble(*arguments, fifo)
    assert result.code == 1 and fifo.name in result.err, result
    if option != "-o":
        assert "no process reads" in result.err, result
        with subprocess.Popen(["cat", fifo], stdout=subprocess.PIPE) as reader:
            # The program does not wait for a reader of the FIFO.
            while bramble(*arguments, fifo).code != 0:
                assert reader.poll() is None
            text = reader.stdout.read().decode()
        if option == "--trace":
            assert json.loads(text)["traceEvents"]
        else:
            assert "</svg>" in text
    assert stat.S_ISFIFO(fifo.lstat().st_mode)


def test_what_standard_output_goes_to_is_not_replaced(tmp_path):
    with open(tmp_path / "C.npy", "wb") as out:
        run = subprocess.run([BRAMBLE, "multiply", *SMALL, "-o", tmp_path / "C.npy"], stdout=out, stderr=subprocess.PIPE)
    assert run.returncode == 1 and b"standard output" in run.stderr, run
    assert (tmp_path / "C.npy").read_bytes() == b""


def test_a_new_key_takes_the_place_of_the_old_one_behind_a_link(tmp_path):
    key, link = tmp_path / "key", tmp_path / "link"
    environment = {"BRAMBLE_KEY_FILE": str(link)}
    succeed("key", "new", env={"BRAMBLE_KEY_FILE": str(key)})
    old = key.read_text()
    link.symlink_to(key)
    if os.geteuid() == 0:
        os.chown(key, 12345, 23456)
    before = key.stat()
    succeed("key", "new", "--force", env=environment)
    after = key.stat()
    assert link.is_symlink() and key.read_text() != old
    assert (after.st_uid, after.st_gid, stat.S_IMODE(after.st_mode)) == (before.st_uid, before.st_gid, 0o600)
    key.chmod(0o400)
    result = bramble("key", "new", "--force", env=environment)
    assert result.code == 1 and "chmod u+w" in result.err, result


def test_names_of_other_formats_are_refused(tmp_path):
    for name in ("C.csv", "C.txt", "C.NPZ", "C.mtx", "C.npy.gz"):
        result = bramble("multiply", *SMALL, "-o", tmp_path / name)
        assert result.code == 1 and "written as .npy" in result.err, result
        assert not list(tmp_path.iterdir())


def run(*arguments, stdin=None, **options):
    return subprocess.run([BRAMBLE, *map(str, arguments)], input=stdin, capture_output=True, timeout=60, **options)


@pytest.mark.parametrize("where", [[], ["--local", "2"]], ids=["in process", "local 2"])
def test_c_streams_to_standard_output_and_an_operand_from_standard_input(tmp_path, where):
    a, b = matrix(70, 130, "f64", 1), matrix(130, 40, "f64", 2)
    left, right = save(tmp_path, "A.npy", a), save(tmp_path, "B.npy", b)
    # The cut of a product, and so its last bits, may depend on the measured speeds of the machine.
    streamed = run("multiply", left, right, "-o", "-", "--reproducible", *where, cwd=tmp_path)
    assert streamed.returncode == 0 and b"verified  yes" in streamed.stderr, streamed
    (tmp_path / "C.npy").write_bytes(streamed.stdout)
    assert_product(np.load(tmp_path / "C.npy"), a, b)
    assert not (tmp_path / "-").exists()
    read = run("multiply", "-", right, "-o", tmp_path / "D.npy", *where, stdin=left.read_bytes())
    assert read.returncode == 0, read
    assert_product(np.load(tmp_path / "D.npy"), a, b)
    with open(right, "rb") as file:
        both = subprocess.run([BRAMBLE, "multiply", left, "-", "-o", "-", "-q", "--reproducible"], stdin=file,
                              capture_output=True)
    assert (both.returncode, both.stdout, both.stderr) == (0, streamed.stdout, b"")


def test_what_standard_streams_cannot_be_is_refused(tmp_path):
    for words in (["--json"], ["--beta", "1"], ["--resume"], ["--restart"]):
        result = run("multiply", *SMALL, "-o", "-", *words, cwd=tmp_path)
        assert result.returncode == 2 and result.stderr.count(b"\n") == 1, result
        assert result.stdout == b"" or "--json" in words and b"bramble.error/1" in result.stdout, result
    both = run("multiply", "-", "-", stdin=b"")
    assert both.returncode == 2 and b"one matrix" in both.stderr, both
    empty = run("multiply", "-", SMALL[1], stdin=b"")
    assert empty.returncode == 1 and b"is empty" in empty.stderr, empty
    a = save(tmp_path, "A.npy", matrix(2300, 2300, "f64", 1))
    large = run("multiply", "-", "random:2300x2", "--memory", "33M", stdin=a.read_bytes())
    assert large.returncode == 1 and b"save it as a file" in large.stderr, large
    assert not (tmp_path / "-").exists()


def test_a_reader_that_ends_early_is_named():
    with subprocess.Popen([BRAMBLE, "multiply", "random:600x10", "random:10x600", "-o", "-"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        error = process.stderr.read().decode()
    assert process.returncode == 1 and "before all of C was written" in error, error
    assert "panicked" not in error


@pytest.mark.parametrize("words", [["--help"], ["multiply", "--help"], ["--version"], ["man"],
                                   ["completions", "bash"], ["matrix", "random:2x2", "--json"],
                                   ["multiply", *SMALL, "--json"], ["multiply", *SMALL, "-o", "-"]], ids=" ".join)
def test_a_full_device_is_an_error(words):
    with open("/dev/full", "wb") as full:
        result = subprocess.run([BRAMBLE, *words], stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert result.returncode == 1, result
    last = result.stderr.splitlines()[-1]
    assert last.startswith(b"bramble: standard output: ") and b"panicked" not in result.stderr, result
