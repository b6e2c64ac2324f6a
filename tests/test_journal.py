"""A primary that dies: complete tiles are on the disk, and a resumed run computes the very same C."""

import contextlib
import functools
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import (
    BRAMBLE,
    Run,
    assert_gone,
    assert_no_result,
    assert_nothing_written,
    assert_refused,
    bramble,
    cpu_seconds,
    matrix,
    save,
    succeed,
)
from test_errors import small_disk  # noqa: F401 (a fixture)

USAGE, FAILED = 2, 1
OFTEN = {"BRAMBLE_JOURNAL_MS": "50"}
"""Intervals so short that even short products have several."""
SLOWLY = "--kernel", "reference", "--threads", "1", "--tile", "40", "--panel", "100"
"""A kernel that takes a second for a product that other kernels finish at once."""
SLOW = *SLOWLY, "--strategy", "row:1"
"""The same, with tiles that complete one after the other."""
KILLED = 137


@pytest.fixture
def tmp_path(tmp_path):
    """A folder in memory where there is one: intervals grow with the disk's sync time."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def operands(tmp_path):
    """Two matrices whose product takes the kernel SLOW a second."""
    return save(tmp_path, "A.npy", matrix(420, 1800, "f64", 1)), save(tmp_path, "B.npy", matrix(1800, 440, "f64", 2))


@pytest.fixture
def start():
    """Starts runs, and kills them when the test ends in any way."""
    runs = []

    def begin(*args, env=None):
        runs.append(Run(*args, env=env))
        return runs[-1]

    yield begin
    for run in runs:
        run.end()


def digest(*args, **options):
    """The digest of an undisturbed product."""
    return succeed("multiply", *args, "--json", **options).report["digest"]


@functools.cache
def digest_of_smaller():
    return digest(*SMALLER)


def digest_of(path):
    """The digest of a file, as that of C times one, which rounds nothing."""
    c = np.load(path)
    return digest(path, f"identity:{c.shape[1]}:{c.dtype.name.replace('float', 'f')}", "--kernel", "reference", "--elementwise")


def journal(folder):
    return folder / "C.npy.journal"


def assert_finished(folder, run, expected):
    """C exists, with no other file beside it."""
    assert run.code == 0, run
    assert run.report["digest"] == expected
    assert sorted(p.name for p in folder.glob("C.npy*")) == ["C.npy"]
    (folder / "C.npy").unlink()


def assert_finished_or_complete(folder, run, expected):
    """The same, or the run before was killed when C had its name already, and this one says so."""
    if run.out != "":
        assert_finished(folder, run, expected)
        return
    assert run.code == 0 and "complete already" in run.err, run
    assert digest_of(folder / "C.npy") == expected


def die_at(step, *args, interval_ms=50):
    env = {"BRAMBLE_JOURNAL_MS": str(interval_ms), "BRAMBLE_DIE_AT": str(step)}
    return bramble("multiply", *args, "--json", env=env)


def some_tiles(folder, *args):
    """A run that dies with some tiles in its journal, but not all."""
    for step in (16, 14, 12, 10, 9, 9, 9):
        if die_at(step, *args, interval_ms=10).code == KILLED and not (folder / "C.npy").exists():
            return
        assert_gone_files(folder)
    pytest.fail("the product ended before its journal had anything in it")


def tiles_recorded(folder):
    """The numbers of the tiles in the journal, in their order (docs/journal.md)."""
    data = journal(folder).read_bytes()
    first = 14 + int.from_bytes(data[10:14], "little") + 16
    records = [data[at : at + 32] for at in range(first, len(data) - 31, 32)]
    return [int.from_bytes(record[8:16], "little") for record in records if record[0] == 1]


def assert_gone_files(folder):
    for path in folder.glob("C.npy*"):
        path.unlink()


WAYS = {
    "in process": ("--strategy", "row:1"),
    "two workers": ("--strategy", "square:1", "--local", "2"),
    "from the old C": ("--strategy", "reuse", "--credits", "250K", "--local", "2", "--beta", "-0.5"),
}


@pytest.mark.parametrize("way", ["two workers", *(pytest.param(way, marks=pytest.mark.soak("losses")) for way in WAYS if way != "two workers")])
def test_killed_at_every_step(tmp_path, operands, way):
    product = *operands, "-o", tmp_path / "C.npy", *SLOWLY, *WAYS[way]
    old = matrix(420, 440, "f64", 3)
    save(tmp_path, "C.npy", old)
    expected = digest(*product)
    # Intervals grow with the sync time, which differs from machine to machine. The first that has steps enough is taken:
    # each step costs two runs.
    for interval_ms in (800, 400, 200, 100, 50, 25, 10):
        steps, kept = killed_at_every_step(tmp_path, product, expected, interval_ms, old)
        if steps > 12 and kept > 5:
            return
    pytest.fail("the journal has hardly been written")


def killed_at_every_step(tmp_path, product, expected, interval_ms, old):
    """The number of steps until the product ends by itself, and the number after which a run could be resumed."""
    kept = 0
    for step in range(1, 200):
        save(tmp_path, "C.npy", old)
        died = die_at(step, *product, interval_ms=interval_ms)
        if died.code == 0:
            assert_finished(tmp_path, died, expected)
            return step, kept
        assert died.code == KILLED, died
        resumed = bramble("multiply", *product, "--resume", "--json", env=OFTEN)
        if resumed.out == "":
            # C had its name already; at most the journal was left to remove.
            assert "complete already" in resumed.err, resumed
            assert digest_of(tmp_path / "C.npy") == expected
            continue
        kept += resumed.report["decision"].startswith("resumes")
        assert_finished(tmp_path, resumed, expected)
    pytest.fail("no end of steps")


def test_killed_again_and_again(tmp_path, operands):
    product = *operands, "-o", tmp_path / "C.npy", *SLOW
    expected = digest(*operands, *SLOW)
    lives = 0
    # On a slow machine no tile may be complete within an interval: longer intervals leave more to every life.
    while (run := die_at(9, *product, *(["--resume"] if lives else []), interval_ms=30 * (1 + lives // 10))).code == KILLED:
        lives += 1
        assert lives < 100, "no life gets any further"
    assert lives > 1
    assert_finished_or_complete(tmp_path, run, expected)


def test_killed_several_times_in_a_row_with_the_old_c(tmp_path, operands):
    old = matrix(420, 440, "f64", 3)
    product = *operands, "-o", tmp_path / "C.npy", *SLOWLY, *WAYS["from the old C"]
    save(tmp_path, "C.npy", old)
    expected = digest(*product)
    save(tmp_path, "C.npy", old)
    lives = 0
    for step in (9, 1, 2, 8):
        run = die_at(step, *product, *(["--resume"] if lives else []), interval_ms=20)
        if run.code != KILLED:
            break
        lives += 1
    assert lives >= 3, run
    if run.code == KILLED:
        run = bramble("multiply", *product, "--resume", "--json")
    assert_finished_or_complete(tmp_path, run, expected)


def test_an_old_c_is_scaled_once_wherever_a_short_product_is_killed(tmp_path):
    product = "random:60x50:f64:1", "random:50x70:f64:2", "-o", tmp_path / "C.npy", "--beta", "2", "--kernel", "reference"
    old = matrix(60, 70, "f64", 3)
    save(tmp_path, "C.npy", old)
    expected = digest(*product)
    complete = 0
    for step in range(1, 30):
        save(tmp_path, "C.npy", old)
        died = bramble("multiply", *product, "--json", env={"BRAMBLE_DIE_AT": str(step)})
        if died.code == 0:
            assert complete == 2, "it dies after C has its name, and after that was told"
            return
        assert died.code == KILLED, died
        has_name = not (tmp_path / "C.npy.part").exists()
        if has_name:
            # A repeated command without --resume is refused, and C is not scaled twice.
            assert_refused(bramble("multiply", *product), USAGE, ["complete already", "--beta 2", "--resume", "--restart"])
            # A C that is neither the old nor the new one is refused.
            new = (tmp_path / "C.npy").read_bytes()
            save(tmp_path, "C.npy", old + 1)
            refused = bramble("multiply", *product, "--resume")
            assert_refused(refused, USAGE, ["neither the old C that the interrupted run read", "--restart"])
            (tmp_path / "C.npy").write_bytes(new)
        resumed = bramble("multiply", *product, "--resume", "--json")
        assert resumed.code == 0, resumed
        assert ("complete already" in resumed.err) == has_name, resumed
        assert digest_of(tmp_path / "C.npy") == expected, step
        assert sorted(p.name for p in tmp_path.glob("C.npy*")) == ["C.npy"]
        complete += has_name
    pytest.fail("no end of steps")


@pytest.mark.parametrize(
    "how",
    ["cuboid:3x1x1+small", "naive", "strassen:1+row:1", "row:2+reproducible"],
)
def test_other_machines_go_on_with_the_same_plan(tmp_path, operands, how):
    strategy, _, more = how.partition("+small") if "small" in how else how.partition("+reproducible")
    more = ["--credits", "250K"] if "small" in how else ["--reproducible"] if "reproducible" in how else []
    slow = *SLOWLY, "--strategy", strategy, *more
    product = *operands, "-o", tmp_path / "C.npy", *slow
    expected = digest(*operands, *slow, "--local", "3")
    some_tiles(tmp_path, *product, "--local", "3")
    assert_finished(tmp_path, bramble("multiply", *product, "--resume", "--json", "--local", "2"), expected)
    some_tiles(tmp_path, *product, "--local", "3")
    assert_finished(tmp_path, bramble("multiply", *product, "--resume", "--json"), expected)


def test_the_old_c_is_read_once(tmp_path, operands):
    old = matrix(420, 440, "f64", 3)
    save(tmp_path, "C.npy", old)
    product = *operands, "-o", tmp_path / "C.npy", *SLOW, "--beta", "0.5", "--alpha", "-2"
    expected = digest(*product)
    save(tmp_path, "C.npy", old)
    died = die_at(14, *product)
    assert died.code == KILLED
    assert_finished(tmp_path, bramble("multiply", *product, "--resume", "--json"), expected)


def test_what_is_there_is_not_thrown_away_by_accident(tmp_path, operands):
    product = *operands, "-o", tmp_path / "C.npy", *SLOW
    expected = digest(*operands, *SLOW)
    some_tiles(tmp_path, *product)
    before = journal(tmp_path).read_bytes()
    refused = bramble("multiply", *product)
    assert_refused(refused, USAGE, ["--resume", "--restart", r"C\.npy\.journal", r"\d+ of 121 tiles"])
    assert journal(tmp_path).read_bytes() == before
    both = bramble("multiply", *product, "--resume", "--restart")
    assert both.code == USAGE, both
    assert_finished(tmp_path, bramble("multiply", *product, "--restart", "--json"), expected)


def test_nothing_to_go_on_with_is_a_beginning(tmp_path, operands):
    product = *operands, "-o", tmp_path / "C.npy", *SLOW
    expected = digest(*operands, *SLOW)
    run = bramble("multiply", *product, "--resume", "--json")
    assert "starting over" in run.err
    assert_finished(tmp_path, run, expected)
    # A journal whose head is torn: nothing had been kept.
    some_tiles(tmp_path, *product)
    journal(tmp_path).write_bytes(journal(tmp_path).read_bytes()[:100])
    run = bramble("multiply", *product, "--resume", "--json")
    assert "cut short" in run.err
    assert_finished(tmp_path, run, expected)


def test_another_product_is_refused_with_what_differs(tmp_path, operands):
    product = *operands, "-o", tmp_path / "C.npy", *SLOW
    expected = digest(*operands, *SLOW)
    some_tiles(tmp_path, *product)
    before = journal(tmp_path).read_bytes()
    a, b = operands
    other = np.load(b)
    other[17, 3] += 1
    other = save(tmp_path, "other.npy", other)
    for changed, names in [
        ((a, other, *product[2:]), [r"B is not the same", r"other\.npy"]),
        ((*product, "--alpha", "2"), [r"--alpha was 1, and is 2 now"]),
        ((*product[:-1], "row:3"), [r"--strategy was row:1, and is row:3 now"]),
        ((*product[:4], *SLOW[:4], "--tile", "41"), [r"--tile was 40"]),
        ((*product, "--dtype", "f32"), ["f32"]),
        ((*product[:4], "--kernel", "simd", *SLOW[2:]), [r"--kernel was reference, and is simd now"]),
    ]:
        refused = bramble("multiply", *changed, "--resume")
        assert_refused(refused, FAILED, [*names, "--restart"], begun=True)
        assert journal(tmp_path).read_bytes() == before
    assert_finished(tmp_path, bramble("multiply", *product, "--resume", "--json"), expected)


def test_damaged_tiles_are_made_again(tmp_path, operands):
    product = *operands, "-o", tmp_path / "C.npy", *SLOW
    expected = digest(*operands, *SLOW)
    some_tiles(tmp_path, *product)
    part = tmp_path / "C.npy.part"
    data = bytearray(part.read_bytes())
    header = len(data) - 420 * 440 * 8
    number = tiles_recorded(tmp_path)[-1]
    row, col = number // 11 * 40, number % 11 * 40
    data[header + (row * 440 + col) * 8] ^= 1
    part.write_bytes(data)
    run = bramble("multiply", *product, "--resume", "--json")
    assert re.search(r"1 of \d+ tiles (of the interrupted run are damaged|had not reached the disk)", run.err), run
    assert_finished(tmp_path, run, expected)


def test_a_run_that_ended_after_c_had_its_name(tmp_path):
    # Long enough for an interval to end within it, and so short that a step can be looked for.
    operands = save(tmp_path, "A.npy", matrix(200, 1000, "f64", 1)), save(tmp_path, "B.npy", matrix(1000, 200, "f64", 2))
    product = *operands, "-o", tmp_path / "C.npy", *SLOW
    expected = digest(*operands, *SLOW)
    # The last step is between the two; the number of steps before it varies a little.
    step = 6
    for _ in range(80):
        died = die_at(step, *product, interval_ms=30)
        if died.code == KILLED and (tmp_path / "C.npy").exists() and journal(tmp_path).stat().st_size > 0:
            break
        step += 1 if died.code == KILLED else -1
        assert_gone_files(tmp_path)
    else:
        pytest.fail("no run ended between the name and the end of the journal")
    other = "multiply", operands[0], *product[1:], "--alpha", "2", "--resume"
    assert_refused(bramble(*other), USAGE, ["other operands or factors", "--restart"])
    save(tmp_path, "other.npy", np.load(operands[1]) + 1)
    other = "multiply", operands[0], tmp_path / "other.npy", *product[2:], "--resume"
    assert_refused(bramble(*other), USAGE, ["other operands or factors", "--restart"])
    again = bramble("multiply", *product, "--resume")
    assert again.code == 0 and "complete already" in again.err, again
    assert sorted(p.name for p in tmp_path.glob("C.npy*")) == ["C.npy"]
    assert digest_of(tmp_path / "C.npy") == expected


def wait_for_tiles(run, folder, deadline_s=60):
    """Whether the journal has tiles; if not, the run has ended by itself with all tiles complete."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        ended = run.process.poll() is not None
        with contextlib.suppress(FileNotFoundError):
            if journal(folder).stat().st_size >= 2000:
                return True
        if ended:
            return False
        time.sleep(0.02)
    pytest.fail("nothing comes into the journal")


SMALLER = "random:1400x1400:f64:1", "random:1400x1400:f64:2", *SLOW
"""A few seconds of work: when the first tiles are in the journal, more remains than can land in the second after a signal."""


def signalled(start, folder, *args, numbers):
    """A run that got signals when some tiles were in its journal. A test that is not scheduled for seconds may be too
    late: the product has ended by itself, and is started again."""
    for _ in range(5):
        run = start(*args, env=OFTEN)
        if wait_for_tiles(run, folder):
            for number in numbers:
                run.process.send_signal(number)
                time.sleep(0.05)
            if run.process.wait(20) != 0:
                return run
        result = run.finish(deadline_s=20)
        assert result.code == 0, result
        assert_gone_files(folder)
    pytest.fail("every run ended by itself before it was told to")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=["Ctrl-C", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("where", [[], ["--local", "2"]], ids=["in process", "local 2"])
def test_a_signal_keeps_what_is_complete_and_says_how_to_go_on(tmp_path, start, where, number):
    product = *SMALLER, "-o", tmp_path / "C.npy", "--json"
    expected = digest_of_smaller()
    run = signalled(start, tmp_path, "multiply", *product, *where, numbers=[number])
    result = run.finish(deadline_s=20)
    assert result.code == 128 + number, result
    assert_no_result(result)
    assert_gone(run.tag)
    said = re.search(r"bramble: stopped by a signal: (\d+) of \d+ tiles \(\d+ %\) are kept; resume with: (.*)\n", result.err)
    assert said and int(said[1]) > 0, result
    command = shlex.split(said[2])
    assert command[0] == str(BRAMBLE)
    clean = {key: value for key, value in os.environ.items() if not key.startswith("BRAMBLE")}
    again = subprocess.run(said[2], shell=True, capture_output=True, text=True, env=clean, timeout=60)
    assert again.returncode == 0, again
    assert expected in again.stdout
    assert sorted(p.name for p in tmp_path.glob("C.npy*")) == ["C.npy"]


def test_a_second_signal_ends_at_once_and_what_is_kept_stays_valid(tmp_path, start):
    product = *SMALLER, "-o", tmp_path / "C.npy", "--json"
    expected = digest_of_smaller()
    run = signalled(start, tmp_path, "multiply", *product, numbers=[signal.SIGINT] * 2)
    result = run.finish(deadline_s=20)
    assert result.code == 130, result
    assert_gone(run.tag)
    assert_finished(tmp_path, bramble("multiply", *product, "--resume"), expected)


def test_no_space_for_the_journal_is_named_before_anything_is_computed(small_disk):  # noqa: F811
    # 128 x 1000 doubles are 1,024,000 bytes: with 6 pages left there is no room for 8,000 records.
    product = "random:128x8:f64:1", "random:8x1000:f64:2", "--tile", "4"
    result = bramble("multiply", *product, "-o", small_disk / "C.npy")
    assert_refused(result, FAILED, [r"C\.npy\.journal", "space|room"], begun=True)
    assert_nothing_written(small_disk)


def test_a_disk_that_fills_meanwhile_harms_nothing_that_was_begun(small_disk, start):  # noqa: F811
    product = "random:300x2000:f64:1", "random:2000x300:f64:2", *SLOW
    expected = digest(*product)
    run = start("multiply", *product, "-o", small_disk / "C.npy", "--json", env=OFTEN)
    end = time.monotonic() + 20
    while not journal(small_disk).exists():
        assert run.process.poll() is None and time.monotonic() < end
        time.sleep(0.005)
    with open(small_disk / "filler", "wb", buffering=0) as filler, pytest.raises(OSError):
        while True:
            filler.write(bytes(4096))
    result = run.finish()
    assert result.code == 0, result
    assert result.report["digest"] == expected


DEFAULT = "--kernel", "reference", "--threads", "1", "--elementwise"
"""The default plan with a kernel that takes seconds, without Strassen's method, which completes tiles later, in whole
cells."""


def test_a_default_run_that_is_killed_keeps_nearly_all_that_it_has_done(tmp_path, start):
    a, b = save(tmp_path, "A.npy", matrix(1536, 1536, "f64", 1)), save(tmp_path, "B.npy", matrix(1536, 1536, "f64", 2))
    product = a, b, "-o", tmp_path / "C.npy", *DEFAULT
    undisturbed = start("multiply", *product, "--json")
    # In processor time, since the machine may be busy: one thread's time measures the work done.
    whole = cpu_of(undisturbed)
    expected = undisturbed.finish().report["digest"]
    (tmp_path / "C.npy").unlink()
    for percent in (30, 60):
        run = start("multiply", *product, "-q")
        while cpu_seconds(run.process.pid) < whole * percent / 100:
            assert run.process.poll() is None
            time.sleep(0.01)
        done = cpu_seconds(run.process.pid) / whole
        run.process.kill()
        run.process.wait()
        kept = len(set(tiles_recorded(tmp_path))) / 36
        assert kept >= 0.8 * (done - 0.05), f"{kept:.0%} kept of {done:.0%}"
        resumed = bramble("multiply", *product, "--resume", "--json")
        assert resumed.report["decision"].startswith("resumes")
        assert_finished(tmp_path, resumed, expected)


def cpu_of(run):
    """Processor seconds of a run until it ends, nearly."""
    seconds = 0
    while run.process.poll() is None:
        with contextlib.suppress(OSError, ValueError, IndexError):
            seconds = max(seconds, cpu_seconds(run.process.pid))
        time.sleep(0.01)
    assert run.process.returncode == 0
    return seconds


def test_what_was_found_and_what_happens_now_is_said(tmp_path, operands):
    product = *operands, "-o", tmp_path / "C.npy", *SLOW
    part = tmp_path / "C.npy.part"

    def said(*patterns):
        run = bramble("multiply", *product, "--resume", "--json")
        assert run.code == 0, run
        line = next(line for line in run.err.splitlines() if "--resume" in line)
        assert all(re.search(pattern, line) for pattern in [*patterns, "starting over"]), line
        assert_gone_files(tmp_path)

    said("there is nothing to resume", r"C\.npy\.part", r"C\.npy\.journal")
    part.write_bytes(bytes(1000))
    said(r"C\.npy\.part exists", r"journal .* is missing")
    part.write_bytes(bytes(1000))
    journal(tmp_path).touch()
    said(r"C\.npy\.journal is empty", "ended before it wrote its journal")
    some_tiles(tmp_path, *product)
    part.unlink()
    said(r"lists \d+ of 121 tiles \(\d+ %\)", r"C\.npy\.part, is missing")
    some_tiles(tmp_path, *product)
    data = journal(tmp_path).read_bytes()
    journal(tmp_path).write_bytes(data[: 14 + int.from_bytes(data[10:14], "little") + 16])
    said(r"C\.npy\.journal has no tile", "the interrupted run completed none")


def test_under_nohup_a_closed_terminal_ends_nothing(tmp_path, start):
    product = "multiply", *SMALLER, "-o", tmp_path / "C.npy", "--json"
    ignoring = ["sh", "-c", 'trap "" HUP; exec "$0" "$@"', BRAMBLE, *map(str, product)]
    environment = {**os.environ, **OFTEN}
    with subprocess.Popen(ignoring, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as run:
        end = time.monotonic() + 60
        while not (journal(tmp_path).exists() and journal(tmp_path).stat().st_size >= 2000) and run.poll() is None:
            assert time.monotonic() < end
            time.sleep(0.02)
        run.send_signal(signal.SIGHUP)
        out, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    assert digest_of_smaller() in out


def test_smaller_tiles_are_gone_on_with(tmp_path):
    small = "random:1200x1200:f64:1", "random:1200x1200:f64:2", "--memory", "62M", "--kernel", "reference", "--threads", "1"
    product = *small, "-o", tmp_path / "C.npy"
    expected = digest(*small)
    some_tiles(tmp_path, *product)
    run = bramble("multiply", *product, "--resume", "--json")
    assert run.report["decision"].startswith("resumes"), run
    assert_finished(tmp_path, run, expected)
