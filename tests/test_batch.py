"""`bramble batch`: tasks over one open cluster, against NumPy; its errors, its JSON lines, and machines that are lost between tasks."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import (BRAMBLE, DTYPES, TAG, Run, assert_gone, assert_product, assert_refused, bramble, matrix, processes_of,
                     save, succeed, workers)
from test_journal import some_tiles

TEAMS = {"in process": [], "local 2": ["--local", "2"], "shm": ["--local", "2", "--link", "shm"],
         "pipe": ["--local", "2", "--link", "pipe"]}


def batch_file(folder, text):
    path = folder / "tasks.txt"
    path.write_text(text)
    return path


def objects(result):
    """The JSON objects of a batch, one a line."""
    return [json.loads(line) for line in result.out.splitlines()]


class Stream:
    """A batch whose lines come one by one through standard input."""

    def __init__(self, *args):
        self.tag = os.urandom(16).hex()
        clean = {key: value for key, value in os.environ.items() if not key.startswith("BRAMBLE")}
        self.process = subprocess.Popen([BRAMBLE, "batch", "-", "--json", *map(str, args)], env={**clean, TAG: self.tag},
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in processes_of(self.tag):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()

    def task(self, line):
        """Sends a task, and returns its object."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def finish(self):
        self.process.stdin.close()
        code = self.process.wait(timeout=60)
        assert_gone(self.tag)
        return code, self.process.stderr.read()


@pytest.mark.parametrize("team", TEAMS.values(), ids=TEAMS)
def test_tasks_of_every_kind_and_type(tmp_path, team):
    lines, checks = [], []
    for dtype in DTYPES:
        a, b, c = matrix(170, 90, dtype, 1), matrix(90, 130, dtype, 2), matrix(170, 130, dtype, 3)
        at = tmp_path / dtype
        at.mkdir()
        paths = [save(at, name, of) for name, of in (("a.npy", a), ("b.npy", b), ("c.npy", c))]
        lines += [f"H = 3 * {paths[0]} @ {paths[1]} - 2 * {paths[2]}", f"H -> {at}/h.npy", f"{at}/g.npy = H.T @ {paths[2]}",
                  f"{at}/s.npy = 2 * H + {paths[2]}", "free H"]
        checks.append((at, dtype, a, b, c))
    result = succeed("batch", batch_file(tmp_path, "\n".join(lines)), *team)
    assert "total" in result.out.splitlines()[-1], result
    for at, dtype, a, b, c in checks:
        h, g, s = (np.load(at / f"{name}.npy") for name in "hgs")
        assert h.dtype == g.dtype == s.dtype == DTYPES[dtype]
        assert_product(h, a, b, alpha=3, beta=-2, old=c)
        assert_product(g, np.ascontiguousarray(h.T), c)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(s, h.dtype.type(2) * h + c)
    assert not list(tmp_path.rglob("*.part"))


def test_bits_are_those_of_single_products(tmp_path):
    """A product of a batch has the bits that `multiply` gives it, whatever came before."""
    a, b = save(tmp_path, "a.npy", matrix(600, 500, "f64", 1)), save(tmp_path, "b.npy", matrix(500, 700, "f64", 2))
    options = "--local", "2", "--strategy", "square:2", "--kernel", "simd"
    single = succeed("multiply", a, b, "-o", tmp_path / "c.npy", "--json", *options).report["digest"]
    text = f"X = random:300x300:f32:1 @ random:300x300:f32:2\nC = {a} @ {b}\nD = {a} @ {b}\n"
    reports = objects(succeed("batch", batch_file(tmp_path, text), "--json", *options))
    assert [report["line"] for report in reports] == [1, 2, 3]
    assert [report["digest"] for report in reports[1:]] == [single, single]
    for report in reports:
        assert report["schema"] == "bramble.batch/1" and report["kind"] == "product", report
        assert report["product"]["schema"] == "bramble.multiply/1" and report["product"]["verify"]["passed"] is True
        assert report["task"] == text.splitlines()[report["line"] - 1]


def test_an_operand_as_text(tmp_path):
    (tmp_path / "a.mtx").write_text("%%MatrixMarket matrix array real general\n2 2\n1\n2\n3\n4\n")
    succeed("batch", batch_file(tmp_path, f"{tmp_path}/c.npy = {tmp_path}/a.mtx @ {tmp_path}/a.mtx.T\n"))
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), [[10, 14], [14, 20]])


def test_an_operand_that_an_earlier_line_wrote(tmp_path):
    a = matrix(64, 64, "f64", 1)
    path = save(tmp_path, "a.npy", a)
    text = f"{path} = {path} @ {path}\n{path} = {path} @ {path}\n"
    succeed("batch", batch_file(tmp_path, text))
    assert_product(np.load(path), a @ a, a @ a)


@pytest.mark.parametrize("line, culprits", [
    ("C = A.npy B.npy", ["line 2", "B.npy", "no place"]),
    ("C = ghost @ B.npy", ["line 2", "ghost", "./ghost"]),
    ("C = A.npy @ B.npy @ D.npy", ["line 2", "one product a line"]),
    ("free nothing", ["line 2", "nothing"]),
    ("C = sort(A.npy)", ["line 2", "sort"]),
])
def test_mistakes_of_a_file_cost_no_work(tmp_path, line, culprits):
    first = f"{tmp_path}/C.npy = random:9:f64:1 @ random:9:f64:2\n"
    result = bramble("batch", batch_file(tmp_path, first + line + "\n"), "--local", "2")
    assert_refused(result, 2, ["tasks.txt", *culprits])
    assert not (tmp_path / "C.npy").exists()


@pytest.mark.parametrize("line, code, culprits", [
    ("C = {a} @ {a}", 1, [r"2x3", r"did you mean \S*a\.npy\.T"]),
    ("C = {a} @ {b} + {a}", 1, ["same shape"]),
    ("C = 0.5 * {i} @ {i}", 2, ["whole number"]),
    ("C = {dir}/none.npy @ {b}", 1, ["none.npy"]),
    ("C = - @ {b}", 2, ["-", "missing before it"]),
    ("{dir}/none/C.npy = {a} @ {b}", 1, ["none"]),
])
def test_a_task_that_fails_names_its_line_and_ends_the_batch(tmp_path, line, code, culprits):
    names = {"a": save(tmp_path, "a.npy", matrix(2, 3, "f64")), "b": save(tmp_path, "b.npy", matrix(3, 2, "f64")),
             "i": save(tmp_path, "i.npy", matrix(3, 3, "i32")), "dir": tmp_path}
    text = f"{tmp_path}/before.npy = {names['a']} @ {names['b']}\n" + line.format(**names) + f"\n{tmp_path}/after.npy = 2 * {names['a']}\n"
    result = bramble("batch", batch_file(tmp_path, text), "-q")
    assert_refused(result, code, ["line 2", *culprits])
    # A mistake in the form is found before the first task runs.
    assert (tmp_path / "before.npy").exists() == (code != 2 or "0.5" in line) and not (tmp_path / "after.npy").exists(), result
    assert not list(tmp_path.rglob("*.part"))


def test_keep_going_runs_the_other_tasks_and_keeps_the_first_exit_code(tmp_path):
    a = save(tmp_path, "a.npy", matrix(20, 30, "f64"))
    text = f"A = {a} @ {a}\n{tmp_path}/after.npy = {a}.T @ {a}\nB = {tmp_path}/none.npy @ {a}\nfree A\n"
    result = bramble("batch", batch_file(tmp_path, text), "--keep-going", "--json", "--local", "2")
    assert result.code == 1, result
    kinds = [(report["line"], report["kind"]) for report in objects(result)]
    assert kinds == [(1, "error"), (2, "product"), (3, "error"), (4, "error")], result
    first = objects(result)[0]["error"]
    assert first["exit_code"] == 1 and "line 1" in first["message"], first
    assert_product(np.load(tmp_path / "after.npy"), np.load(a).T, np.load(a))
    assert_gone(result.tag)


def test_a_pipe_runs_each_task_when_it_arrives(tmp_path):
    with Stream("--local", "2", "--strategy", "naive", "--tile", "64") as stream:
        first = stream.task("H = random:200x200:f64:1 @ random:200x200:f64:2")
        pids = {pid for pid in processes_of(stream.tag) if pid != stream.process.pid}
        assert len(pids) == 2 and first["kind"] == "product"
        for seed in range(20):
            report = stream.task(f"H = random:200x200:f32:{seed} @ random:200x{100 + seed}:f32:2")
            assert report["product"]["n"] == 100 + seed and report["product"]["verify"]["passed"] is True
            assert sum(worker["share"] for worker in report["product"]["workers"]) == pytest.approx(1)
            assert len(report["product"]["workers"]) >= 2, report
        assert {pid for pid in processes_of(stream.tag) if pid != stream.process.pid} == pids
        assert stream.finish() == (0, "")


def held(pid):
    """Threads and descriptors of a process."""
    status = (Path("/proc") / str(pid) / "status").read_text()
    return int(re.search(r"Threads:\s+(\d+)", status)[1]), len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.parametrize("link", ["tcp", "shm"])
def test_many_products_take_no_more_threads_and_descriptors(link):
    with Stream("--local", "2", "--link", link, "--strategy", "naive", "--tile", "32") as stream:
        tasks = [f"H = random:64x{k}:{dtype}:1 @ random:{k}x64:{dtype}:2" for k in (32, 64) for dtype in DTYPES]
        for task in tasks * 3:
            stream.task(task)
        before = {pid: held(pid) for pid in processes_of(stream.tag)}
        for task in tasks * 20:
            stream.task(task)
        after = {pid: held(pid) for pid in processes_of(stream.tag)}
        # Threads that wait for the next product, or write a result, come and go; a leak would be one for each of 160 products.
        assert after.keys() == before.keys()
        for pid, now in after.items():
            assert all(count < earlier + 8 for count, earlier in zip(now, before[pid])), (before, after)
        assert stream.finish() == (0, "")


def test_a_worker_that_dies_between_tasks_is_named_and_the_rest_goes_on():
    options = "--strategy", "naive", "--kernel", "simd"
    with workers(3, "--threads", 1) as (addresses, runs), Stream("-w", ",".join(addresses), *options) as stream:
        task = "H = random:400x400:f64:1 @ random:400x400:f64:2"
        digest = stream.task(task)["digest"]
        runs[1].process.kill()
        runs[1].process.wait()
        time.sleep(0.2)
        after = [stream.task(task) for _ in range(3)]
        assert {report["digest"] for report in after} == {digest}
        code, err = stream.finish()
        assert addresses[1] in err and "was lost" in err, err
        assert code == 3
        used = {worker["name"] for worker in after[-1]["product"]["workers"]}
        assert addresses[1] not in used and len(used) >= 2, used


def test_a_worker_that_dies_in_a_task_leaves_the_rest_of_the_batch_to_the_others():
    options = "--strategy", "naive", "--kernel", "simd"
    with workers(2, "--threads", 1) as (addresses, runs), Stream("-w", ",".join(addresses), *options) as stream:
        stream.process.stdin.write("H = random:3000x3000:f64:1 @ random:3000x3000:f64:2\n")
        stream.process.stdin.flush()
        time.sleep(0.5)
        runs[0].process.kill()
        first = json.loads(stream.process.stdout.readline())
        assert first["product"]["verify"]["passed"] is True
        second = stream.task("G = random:300x300:f64:1 @ random:300x300:f64:2")
        assert second["product"]["faults"]["lost"] == [] and second["product"]["verify"]["passed"] is True
        assert stream.finish()[0] == 3


def test_a_signal_ends_a_batch_and_leaves_nothing(tmp_path):
    text = f"{tmp_path}/C.npy = random:9000x9000:f64:1 @ random:9000x9000:f64:2\n"
    run = Run("batch", batch_file(tmp_path, text), "--local", "2")
    try:
        end = time.monotonic() + 30
        while not (tmp_path / "C.npy.part").exists():
            assert time.monotonic() < end, "the product does not begin"
            time.sleep(0.02)
        run.process.send_signal(signal.SIGINT)
        result = run.finish()
    finally:
        if run.process.poll() is None:
            run.end()
    assert result.code == 130, result
    assert [path.name for path in tmp_path.iterdir()] == ["tasks.txt"]
    assert_gone(result.tag)


def test_the_tiles_of_an_interrupted_run_are_not_overwritten(tmp_path):
    operands = "random:3000x3000:f64:1", "random:3000x3000:f64:2"
    some_tiles(tmp_path, *operands, "-o", tmp_path / "C.npy", "--strategy", "row:1", "--tile", 200, "--panel", 300)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    tasks = batch_file(tmp_path, f"{tmp_path}/C.npy = {operands[0]} @ {operands[1]}\n")
    assert_refused(bramble("batch", tasks), 2, ["line 1", "interrupted run", "--resume", "--restart"])
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_a_file_without_tiles_that_a_killed_batch_left_is_replaced(tmp_path):
    (tmp_path / "C.npy.part").write_bytes(b"left by a batch")
    succeed("batch", batch_file(tmp_path, f"{tmp_path}/C.npy = random:9x9:f64:1 @ random:9x9:f64:2\n"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["C.npy", "tasks.txt"]


def test_an_empty_batch_and_one_that_is_no_text(tmp_path):
    assert "nothing to do" in succeed("batch", batch_file(tmp_path, "# nothing\n\n")).out
    path = tmp_path / "noise"
    path.write_bytes(bytes(range(128, 256)))
    assert_refused(bramble("batch", path), 1, ["noise", "not text"])
    assert_refused(bramble("batch", tmp_path / "none.txt"), 1, ["none.txt"])
    assert_refused(bramble("batch", tmp_path), {1, 2}, [tmp_path.name])
