"""`W = put …` in a batch: placed matrices against NumPy, their memory, lost machines, and a worker written from docs/wire-format.md."""

import json
import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import DTYPES, assert_product, assert_refused, bramble, matrix, processes_of, save, succeed, workers
from test_batch import Stream, batch_file, objects
from wire_worker import WireWorker

TEAMS = {"in process": [], "local 3": ["--local", "3"], "shm": ["--local", "2", "--link", "shm"],
         "pipe": ["--local", "2", "--link", "pipe"]}
PLACEMENTS = ["shard=0", "shard=1", "replicate", ""]
MACHINES = "--strategy", "reuse", "--kernel", "simd"
"""The workers alone compute, and hold the parts."""


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("team", TEAMS.values(), ids=TEAMS)
def test_products_with_placed_matrices_of_every_type(tmp_path, team, placement):
    lines, checks = [], []
    for dtype in DTYPES:
        w, x, y = matrix(700, 530, dtype, 1), matrix(90, 700, dtype, 2), matrix(530, 40, dtype, 3)
        at = tmp_path / dtype
        at.mkdir()
        # By columns, and read through the transpose: parts lie by rows all the same.
        paths = {"w": save(at, "w.npy", np.asfortranarray(w)), "x": save(at, "x.npy", x), "y": save(at, "y.npy", y)}
        lines += [f"W = put {paths['w']} {placement}", f"{at}/p.npy = {paths['x']} @ W", f"{at}/q.npy = 2 * W @ {paths['y']}",
                  f"{at}/r.npy = {paths['y']}.T @ W.T", f"{at}/s.npy = W + {paths['w']}", f"V = put W.T {placement}",
                  f"{at}/t.npy = V @ W", "W -> " + str(at / "back.npy"), "free W", "free V"]
        checks.append((at, w, x, y))
    succeed("batch", batch_file(tmp_path, "\n".join(lines)), *team)
    for at, w, x, y in checks:
        p, q, r, s, t, back = (np.load(at / f"{name}.npy") for name in ("p", "q", "r", "s", "t", "back"))
        assert_product(p, x, w)
        assert_product(q, w, y, alpha=2)
        assert_product(r, y.T, w.T)
        assert_product(t, w.T, w)
        np.testing.assert_array_equal(s, w + w)
        np.testing.assert_array_equal(back, w)


@pytest.mark.parametrize("team", TEAMS.values(), ids=TEAMS)
def test_a_rectangle_of_a_kept_matrix_is_written(tmp_path, team):
    """Across the borders of parts, in one part, and of a matrix of this machine."""
    w, v = matrix(900, 530, "f64", 1), matrix(530, 700, "f64", 2)
    at = save(tmp_path, "w.npy", w), save(tmp_path, "v.npy", v)
    lines = [f"W = put {at[0]} shard=0", f"H = W @ {at[1]}", f"L = {at[0]} @ {at[1]}"]
    lines += [f"{name}{rect} -> {tmp_path}/{name}{number}.npy" for name in "WHL"
              for number, rect in enumerate(["[200:800, 3:]", "[0:1,0:1]", "[:, 699:700]" if name != "W" else "[:, 529:]"])]
    succeed("batch", batch_file(tmp_path, "\n".join(lines + [f"H -> {tmp_path}/H.npy"])), *team)
    whole = {"W": w, "H": np.load(tmp_path / "H.npy"), "L": None}
    assert_product(whole["H"], w, v)
    for name in "WH":
        for number, part in enumerate([np.s_[200:800, 3:], np.s_[0:1, 0:1], np.s_[:, -1:]]):
            np.testing.assert_array_equal(np.load(tmp_path / f"{name}{number}.npy"), whole[name][part], strict=True)
    assert_product(np.load(tmp_path / "L0.npy"), w[200:800], v[:, 3:])


def test_a_rectangle_that_is_none_is_refused(tmp_path):
    w = save(tmp_path, "w.npy", matrix(20, 30, "f64", 1))
    for line, why in [("W[0:21, :] -> r.npy", "not all in W, which is 20x30"), ("W[3:3, :] -> r.npy", "has no elements"),
                      ("W[3, :] -> r.npy", "is no rectangle"), ("W[::2, :] -> r.npy", "is no rectangle")]:
        path = line.replace("r.npy", str(tmp_path / "r.npy"))
        refused = bramble("batch", batch_file(tmp_path, f"W = put {w}\n{path}"), "--local", "2")
        assert refused.code != 0 and "line 2" in refused.err and why in refused.err, refused
    assert not (tmp_path / "r.npy").exists()


def test_a_placed_matrix_travels_once(tmp_path):
    x, w = save(tmp_path, "x.npy", matrix(64, 2000, "f32", 1)), save(tmp_path, "w.npy", matrix(2000, 3000, "f32", 2))
    text = f"W = put {w} shard=1 units=1:1:1\n" + f"{tmp_path}/h.npy = {x} @ W\n" * 3 + f"H = {x} @ {w}\n"
    with workers(3, "--threads", 1) as (addresses, _):
        put, *products, sent = objects(succeed("batch", batch_file(tmp_path, text), "--json", "-w", ",".join(addresses), *MACHINES))
    size = 2000 * 3000 * 4
    assert size < put["bytes_sent"] < 1.01 * size and put["axis"] == 1, put
    assert sum(part["bytes"] for part in put["parts"]) == size
    assert [part["cols"] for part in put["parts"]] == [1024, 1024, 952], put
    assert {part["machine"] for part in put["parts"]} == set(addresses)
    travelled = [product["product"]["primary"]["bytes_sent"] for product in products]
    assert all(bytes < 3 * 64 * 2000 * 4 + 100_000 for bytes in travelled), travelled
    assert sent["product"]["primary"]["bytes_sent"] > size
    assert len({product["digest"] for product in products}) == 1


def test_units_state_the_sizes_of_the_parts(tmp_path):
    text = "W = put random:300x4096:f64:1 shard=1 units=4:0:1\n"
    put, = objects(succeed("batch", batch_file(tmp_path, text), "--json", "--local", "3"))
    assert [(part["machine"], part["col"], part["cols"]) for part in put["parts"]] == [
        ("local 1", 0, 3328), ("local 3", 3328, 768)]
    assert put["bytes_sent"] < 10_000, "a generated matrix is described, not sent"


@pytest.mark.parametrize("line, code, culprits", [
    ("W = put random:90000x90000:f64:1", 1, ["61875 MiB", "local 1", "local 2", "--memory"]),
    ("W = put random:600x600:f64:1 shard=1 units=1:2:3", 2, ["3 units for 2 machines"]),
    ("W = put random:600x600:f64:1 shard=2", 2, ["shard=2", "shard=1"]),
    ("W = put none.npy", 1, ["none.npy"]),
    ("w.npy = put random:9x9:f64:1", 2, ["w.npy", "name"]),
    ("W = put random:9x9:f32:1\nH = random:9x9:f64:1 @ W", 1, ["placed as f32", "--dtype f64"]),
    ("W = put random:9x0:f32:1", 1, ["9x0"]),
])
def test_what_cannot_be_placed_is_refused_with_a_reason(tmp_path, line, code, culprits):
    result = bramble("batch", batch_file(tmp_path, line + "\n"), "-q", "--local", "2")
    assert_refused(result, code, [f"line {1 + line.count(chr(10))}", *culprits], begun=True)


def test_a_worker_that_dies_between_tasks_has_its_part_put_again(tmp_path):
    x, w = matrix(50, 900, "f64", 1), matrix(900, 1300, "f64", 2)
    paths = save(tmp_path, "x.npy", x), save(tmp_path, "w.npy", w)
    with workers(3, "--threads", 1) as (addresses, runs), Stream("-w", ",".join(addresses), *MACHINES) as stream:
        stream.task(f"W = put {paths[1]} shard=1")
        digest = stream.task(f"{tmp_path}/h.npy = {paths[0]} @ W")["digest"]
        for lost in (1, 0):
            runs[lost].process.kill()
            runs[lost].process.wait()
            after = stream.task(f"{tmp_path}/h.npy = {paths[0]} @ W")
            assert after["digest"] == digest
            assert_product(np.load(tmp_path / "h.npy"), x, w)
        assert {worker["name"] for worker in after["product"]["workers"]} == {addresses[2]}
        code, err = stream.finish()
        assert code == 3 and addresses[1] in err and "placed on other machines" in err, err


def test_a_worker_that_dies_in_a_product_or_while_a_matrix_is_placed(tmp_path):
    with workers(3, "--threads", 1) as (addresses, runs), Stream("-w", ",".join(addresses), *MACHINES) as stream:
        stream.process.stdin.write("W = put random:9000x9000:f64:1 shard=1\n")
        stream.process.stdin.flush()
        time.sleep(0.3)
        runs[0].process.kill()
        put = json.loads(stream.process.stdout.readline())
        assert put["kind"] == "put" and put["lost"] in ([addresses[0]], []), put
        want = stream.task(f"{tmp_path}/h.npy = random:2x9000:f64:2 @ W")["digest"]
        stream.process.stdin.write(f"{tmp_path}/g.npy = random:3000x9000:f64:3 @ W\n")
        stream.process.stdin.flush()
        time.sleep(0.5)
        runs[1].process.kill()
        product = json.loads(stream.process.stdout.readline())
        assert product["product"]["verify"]["passed"] is True, product
        jobs = {worker["name"]: worker["jobs"] for worker in product["product"]["workers"]}
        assert jobs.keys() == set(addresses[1:]) and jobs[addresses[2]] > jobs[addresses[1]], jobs
        assert stream.task(f"{tmp_path}/h.npy = random:2x9000:f64:2 @ W")["digest"] == want
        assert stream.finish()[0] == 3


def test_a_source_that_was_changed_is_not_put_again(tmp_path):
    w = save(tmp_path, "w.npy", matrix(900, 60, "f64", 2))
    with workers(2, "--threads", 1) as (addresses, runs), Stream("-w", ",".join(addresses), *MACHINES, "--keep-going") as stream:
        parts = {part["machine"]: part for part in stream.task(f"W = put {w} shard=0")["parts"]}
        lost = parts[addresses[1]]
        overwrite_last(w)
        runs[1].process.kill()
        runs[1].process.wait()
        failed = stream.task("H = random:5x900:f64:1 @ W")
        message = failed["error"]["message"]
        rows = f"rows {lost['row']} to {lost['row'] + lost['rows'] - 1}"
        assert rows in message and "was changed since it was placed" in message and str(w) in message, failed
        assert stream.finish()[0] == 1


def appended(path):
    with open(path, "ab") as file:
        file.write(b"more")


CHANGES = {
    "saved again": lambda path: np.save(path, matrix(900, 60, "f64", 7)),
    "one element": lambda path: overwrite_last(path),
    "smaller": lambda path: os.truncate(path, 1000),
    "empty": lambda path: os.truncate(path, 0),
    "larger": appended,
    "replaced": lambda path: os.replace(save(path.parent, "other.npy", matrix(900, 60, "f64", 7)), path),
    "removed": lambda path: path.unlink(),
}


@pytest.mark.parametrize("how", CHANGES)
def test_who_reads_a_source_reads_it_as_it_was_placed_or_says_that_it_changed(tmp_path, how):
    a = matrix(900, 60, "f64", 2)
    w = save(tmp_path, "w.npy", a)
    os.utime(w, (1e9, 1e9))
    x = save(tmp_path, "x.npy", matrix(5, 900, "f64", 1))
    with workers(2, "--threads", 1) as (addresses, _), Stream("-w", ",".join(addresses), *MACHINES, "--keep-going") as stream:
        stream.task(f"W = put {w} shard=0")
        stream.task(f"K = {x} @ W")
        CHANGES[how](w)
        # A file that was replaced or removed is still open as it was.
        is_kept = how in ("replaced", "removed")
        for number, (line, want) in enumerate({
            "W": a, "2 * W": 2 * a, "W.T": a.T, "W[7:300, 2:50]": a[7:300, 2:50], f"{x} @ W": np.load(x) @ a,
        }.items()):
            out = tmp_path / f"{number}.npy"
            done = stream.task(f"{line} -> {out}" if "[" in line or line == "W" else f"{out} = {line}")
            if is_kept:
                np.testing.assert_allclose(np.load(out), want, rtol=1e-12, atol=1e-12)
            else:
                message = done["error"]["message"]
                assert str(w) in message and "changed" in message and "check the memory" not in message, done
                assert not list(tmp_path.glob(f"{out.name}*")), done
        # The machines reduce the elements that they hold.
        stream.task(f"{tmp_path}/r.npy = rowsum(W)")
        np.testing.assert_allclose(np.load(tmp_path / "r.npy").ravel(), a.sum(1), atol=1e-10)
        stream.task(f"K -> {tmp_path}/k.npy")
        np.testing.assert_allclose(np.load(tmp_path / "k.npy"), np.load(x) @ a, rtol=1e-12, atol=1e-12)
        assert stream.finish()[0] == (0 if is_kept else 1)


def test_a_file_that_is_written_while_it_is_put_is_not_placed(tmp_path):
    w = save(tmp_path, "w.npy", matrix(900, 60, "f64", 2))
    with workers(2, "--threads", 1) as (addresses, runs), Stream("-w", ",".join(addresses), *MACHINES, "--keep-going") as stream:
        stream.task("V = put random:600x60:f64:2 shard=0")
        runs[1].process.send_signal(signal.SIGSTOP)
        stream.process.stdin.write(f"W = put {w} shard=0\n")
        stream.process.stdin.flush()
        while str(w) not in Path(f"/proc/{stream.process.pid}/maps").read_text():
            time.sleep(0.01)
        overwrite_last(w)
        runs[1].process.send_signal(signal.SIGCONT)
        message = json.loads(stream.process.stdout.readline())["error"]["message"]
        assert str(w) in message and "changed meanwhile" in message, message
        assert len(stream.task(f"W = put {w} shard=0")["parts"]) == 2
        assert stream.finish()[0] == 1


def overwrite_last(path):
    """Changes the last element of a file."""
    with open(path, "r+b") as file:
        file.seek(-8, 2)
        file.write(b"\1" * 8)


def resident(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) * 1024


def test_memory_of_freed_matrices_goes_back(tmp_path):
    """Sixty matrices of 16 MB, freed by `free` or by another one under their name, leave less than two of them."""
    w = save(tmp_path, "w.npy", matrix(1000, 2000, "f64", 2))
    with Stream("--local", "2", "--kernel", "simd") as stream:
        def cycle(count):
            for turn in range(count):
                stream.task(f"W = put {w} {PLACEMENTS[turn % 3]}")
                stream.task("H = random:3x1000:f64:1 @ W")
                if turn % 2:
                    stream.task("free W")
        cycle(10)
        before = {pid: resident(pid) for pid in processes_of(stream.tag)}
        cycle(60)
        after = {pid: resident(pid) for pid in processes_of(stream.tag)}
        assert after.keys() == before.keys() and len(after) == 3
        for pid, now in after.items():
            assert now < before[pid] + 32_000_000, (before, after)
        assert stream.finish() == (0, "")


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_worker_written_from_the_page_holds_parts(tmp_path, dtype):
    x, w = matrix(40, 600, dtype, 1), matrix(600, 300, dtype, 2)
    paths = save(tmp_path, "x.npy", x), save(tmp_path, "w.npy", w)
    text = f"W = put {paths[1]} shard=0\n{tmp_path}/p.npy = {paths[0]} @ W\n{tmp_path}/q.npy = W.T @ {paths[0]}.T\nfree W\n"
    worker = WireWorker(hold=1 << 24)
    worker.start()
    result = bramble("batch", batch_file(tmp_path, text), "-w", worker.address, *MACHINES)
    worker.join(30)
    if worker.error:
        raise worker.error
    assert result.code == 0 and worker.views > 0 and not worker.arrays, result
    assert_product(np.load(tmp_path / "p.npy"), x, w)
    assert_product(np.load(tmp_path / "q.npy"), w.T, x.T)


def test_a_worker_that_holds_other_elements_is_named(tmp_path):
    w = save(tmp_path, "w.npy", matrix(600, 300, "f32", 2))
    worker = WireWorker(hold=1 << 24, flips=True)
    worker.start()
    result = bramble("batch", batch_file(tmp_path, f"W = put {w}\n"), "-w", worker.address, *MACHINES)
    worker.join(30)
    if worker.error:
        raise worker.error
    assert_refused(result, 1, ["line 1", worker.address, "other elements than were sent"], begun=True)
    assert not worker.arrays


def test_machines_that_are_done_wait_for_the_last_part(tmp_path):
    """A put that takes longer than 22 s, after which a worker gives up a silent primary."""
    w = matrix(600, 700, "f64", 2)
    path = save(tmp_path, "w.npy", w)
    late = WireWorker(hold=1 << 24, late_s=25)
    late.start()
    with workers(2, "--threads", 1) as (addresses, _):
        hosts = ",".join([*addresses, late.address])
        text = f"W = put {path} shard=1 units=1:0:1\n{tmp_path}/p.npy = {path}.T @ W\n"
        result = bramble("batch", batch_file(tmp_path, text), "--json", "-w", hosts, *MACHINES)
        put, product = objects(result)
    late.join(30)
    if late.error:
        raise late.error
    assert result.code == 0 and "lost" not in result.err, result
    assert put["lost"] == [] and put["seconds"] > 22
    assert product["product"]["verify"]["passed"] is True
    assert_product(np.load(tmp_path / "p.npy"), w.T, w)
