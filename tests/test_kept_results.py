"""Results that stay at the workers, `H = x @ W`: against NumPy, their traffic, their bits, lost and wrong machines."""

import json
import time

import numpy as np
import pytest
from helpers import DTYPES, assert_product, assert_refused, bramble, matrix, save, succeed, wait_for_work, workers
from test_batch import Stream, batch_file, objects
from test_batch_placed import MACHINES, PLACEMENTS, TEAMS, overwrite_last
from wire_worker import WireWorker

M, K, N = 90, 700, 530
SLOW = "--strategy", "reuse", "--kernel", "reference"
"""A kernel that takes seconds for a product that others finish at once, on every machine."""


def operands(at, dtype):
    """x (M x K), W and U (K x N), V (N x 300), each with its file."""
    at.mkdir(exist_ok=True)
    shapes = {"x": (M, K), "W": (K, N), "U": (K, N), "V": (N, 300)}
    made = {name: matrix(*shape, dtype, seed) for seed, (name, shape) in enumerate(shapes.items(), 1)}
    return made, {name: save(at, f"{name}.npy", np.asfortranarray(made[name]) if name == "U" else made[name]) for name in made}


def close(got, want, size=None):
    """As near as float sums can be; integers are equal."""
    if got.dtype.kind == "i":
        np.testing.assert_array_equal(got, want)
    else:
        unit = np.finfo(got.dtype).eps
        np.testing.assert_allclose(got, want, rtol=0, atol=64 * unit * np.abs(want if size is None else size).max() * 8)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("team", TEAMS.values(), ids=TEAMS)
def test_chains_of_every_type(tmp_path, team, placement):
    other = {"shard=0": "shard=1", "shard=1": "replicate", "replicate": "shard=0", "": ""}[placement]
    lines, checks = [], []
    for dtype in DTYPES:
        at = tmp_path / dtype
        made, paths = operands(at, dtype)
        lines += [f"W = put {paths['W']} {placement}", f"U = put {paths['U']} {other}", f"V = put {paths['V']} {placement}",
                  f"H = {paths['x']} @ W", f"{at}/c.npy = H @ V", f"G = 3 * H @ V - 2 * {at}/c.npy", "S = W + 2 * U", "D = S - W",
                  "R = put D.T shard=1", "Q = R @ S", "H = -1 * H"]
        lines += [f"{name} -> {at}/{name}.npy" for name in "HGSDRQ"]
        lines += [f"free {name}" for name in "WUVHGSDRQ"]
        checks.append((at, made))
    kinds = [task["kind"] for task in objects(succeed("batch", batch_file(tmp_path, "\n".join(lines)), "--json", *team))]
    assert kinds[:14] == ["put"] * 3 + ["kept", "fetched"] + ["kept"] * 6 + ["fetched"] * 3, kinds
    for at, made in checks:
        x, w, u, v = (made[name] for name in "xWUV")
        h, g, s, d, r, q = (np.load(at / f"{name}.npy") for name in "HGSDRQ")
        assert_product(-h, x, w)
        assert_product(np.load(at / "c.npy"), -h, v)
        close(g, -h @ v, 5 * np.abs(h) @ np.abs(v))
        two = w.dtype.type(2)
        np.testing.assert_array_equal(s, w + two * u)
        np.testing.assert_array_equal(d, s - w)
        np.testing.assert_array_equal(r, d.T)
        assert_product(q, r, s)


def test_operands_pass_between_workers_and_the_primary_sends_next_to_nothing(tmp_path):
    size = 1024 * 1024 * 4
    lines = [f"W{at} = put random:1024x1024:f32:{at} shard={at % 2}" for at in range(4)]
    lines += ["P = W0 @ W2", "Q = W1 @ W3", "R = W0 @ W1", "S = P + Q", "T = put S shard=1"]
    with workers(4, "--threads", 1) as (addresses, _):
        made = objects(succeed("batch", batch_file(tmp_path, "\n".join(lines)), "--json", "-w", ",".join(addresses), *MACHINES))[4:]
        off = ["--relay", "off"]
        alone = objects(succeed("batch", batch_file(tmp_path, "\n".join(lines)), "--json", "-w", ",".join(addresses), *MACHINES, *off))[4:]
    for task in made:
        assert task["bytes_sent"] < 20_000 and task["checked"] is True and task["lines_recomputed"] == 0, task
    # Each machine needs what the other three have of one operand; a sum of different cuts moves three quarters of one matrix.
    assert [task["bytes_between"] for task in made] == [3 * size] * 3 + [size * 3 // 4, size * 3 // 4]
    assert [task["bytes_between"] for task in alone] == [0] * 5
    # Generated operands are described, not sent; sums go through the primary.
    assert [task["bytes_sent"] > size for task in alone] == [False] * 3 + [True] * 2, alone


def test_blocks_of_a_worker_that_no_other_can_reach_go_through_the_primary(tmp_path):
    """A worker that takes no links from others holds a third of both operands."""
    apart = WireWorker(hold=1 << 26)
    apart.start()
    w = save(tmp_path, "w0.npy", matrix(768, 1024, "f64", 1))
    lines = [f"W = put {w} shard=0 units=1:1:1", f"V = put {save(tmp_path, 'v.npy', matrix(1024, 900, 'f64', 2))} shard=0",
             "V = put V shard=0 units=1:1:2", "P = W @ V", f"P -> {tmp_path}/p.npy", f"W -> {tmp_path}/w.npy"]
    with workers(2, "--threads", 1) as (addresses, _):
        hosts = ",".join([*addresses, apart.address])
        tasks = objects(succeed("batch", batch_file(tmp_path, "\n".join(lines)), "--json", "-w", hosts, *MACHINES))
    apart.join(30)
    if apart.error:
        raise apart.error
    product = tasks[3]
    assert {part["machine"] for part in product["parts"]} == {*addresses, apart.address}
    # Each machine needs all of V, and reaches a part of it at most: the primary sends V from its file.
    assert product["bytes_between"] == 0 and product["bytes_sent"] > 2 * 1024 * 900 * 8 and product["checked"] is True, product
    assert_product(np.load(tmp_path / "p.npy"), np.load(tmp_path / "w.npy"), np.load(tmp_path / "v.npy"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_pass_between_workers_if_both_operands_are_cut_along_the_depth(tmp_path, dtype):
    x, y = matrix(5000, 300, dtype, 1), matrix(5000, 120, dtype, 2)
    paths = [save(tmp_path, "x.npy", x), save(tmp_path, "y.npy", y)]
    lines = [f"X = put {paths[0]} shard=0 units=1:2:1", f"Y = put {paths[1]} shard=0 units=1:2:1", "G = X.T @ Y", "K = X.T @ X",
             f"G -> {tmp_path}/g.npy", f"K -> {tmp_path}/k.npy", f"R = put {paths[0]} replicate", f"S = put {paths[1]} replicate",
             "G = R.T @ S", "K = R.T @ R", f"G -> {tmp_path}/g2.npy", f"K -> {tmp_path}/k2.npy"]
    with workers(3, "--threads", 1) as (addresses, _):
        tasks = objects(succeed("batch", batch_file(tmp_path, "\n".join(lines)), "--json", "-w", ",".join(addresses), *MACHINES))
    for made, width in zip(tasks[2:4], (120, 300), strict=True):
        # Over two hops, and at most once more to its machine; the first operand is seventeen times as large. Only orders are sent.
        size = 300 * width * x.dtype.itemsize
        assert 2 * size <= made["bytes_between"] <= 3 * size and made["bytes_sent"] < 100_000, made
        assert made["checked"] is True and made["lines_recomputed"] == 0, made
    close(np.load(tmp_path / "g.npy"), x.T @ y)
    close(np.load(tmp_path / "k.npy"), x.T @ x)
    # The bits are those of a sum at one machine.
    assert [tasks[at]["digest"] for at in (4, 5)] == [tasks[at]["digest"] for at in (10, 11)]


def test_a_chain_sends_its_first_operand_once(tmp_path):
    weights = [f"W{at} = put random:1024x1024:f32:{at} shard=1" for at in range(1, 5)]
    x = save(tmp_path, "x.npy", matrix(256, 1024, "f32", 9))
    chain = [f"H = {x} @ W1", *[f"H = H @ W{at}" for at in range(2, 5)], f"H -> {tmp_path}/h.npy"]
    with workers(3, "--threads", 1) as (addresses, _):
        tasks = objects(succeed("batch", batch_file(tmp_path, "\n".join(weights + chain)), "--json", "-w", ",".join(addresses), *MACHINES))
    first, *rest, _ = tasks[4:]
    # Spread over the three workers, which pass the parts on.
    assert 256 * 1024 * 4 <= first["bytes_sent"] < 256 * 1024 * 4 + 20_000
    for task in [{**first, "bytes_sent": 0}, *rest]:
        assert task["bytes_sent"] < 20_000 and task["bytes_between"] == 2 * 256 * 1024 * 4, task


def test_long_chains_are_checked_to_their_ends(tmp_path):
    """More arrays than a check follows back to their sources, and arrays that double their expression each time."""
    q, _ = np.linalg.qr(matrix(512, 512, "f64", 1))
    w, h, x = (save(tmp_path, f"{name}0.npy", given) for name, given in
               (("w", q), ("h", matrix(512, 512, "f64", 2)), ("x", matrix(512, 1, "f64", 3))))
    lines = [f"W = put {w} shard=1", f"H = {h} @ W", *["H = H @ W"] * 99, f"x = W @ {x}", *["x = W @ x"] * 99,
             "S = H + H", *["S = S + S"] * 39, "P = S.T @ H", *[f"{name} -> {tmp_path}/{name}.npy" for name in "HSPx"]]
    tasks = objects(succeed("batch", batch_file(tmp_path, "\n".join(lines)), "--json", "--local", "3"))
    kept = [task for task in tasks if task["kind"] == "kept"]
    assert len(kept) == 241 and all(task["checked"] for task in kept)
    power = np.linalg.matrix_power(q, 100)
    want = {"H": np.load(h) @ power, "x": power @ np.load(x)}
    want["S"] = want["H"] * 2.0 ** 40
    want["P"] = want["S"].T @ want["H"]
    for name, matrix_ in want.items():
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), matrix_, rtol=0, atol=1e-10 * np.abs(matrix_).max())


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_the_bits_depend_on_neither_layout_nor_machines(tmp_path, dtype):
    def digests(team, first, second):
        lines = [f"W = put random:1300x900:{dtype}:1 {first}", f"V = put random:900x1100:{dtype}:2 {second}", "P = W @ V",
                 f"P -> {tmp_path}/p.npy", f"H = random:64x1300:{dtype}:3 @ P", f"H -> {tmp_path}/h.npy"]
        tasks = objects(succeed("batch", batch_file(tmp_path, "\n".join(lines)), "--json", *team, *MACHINES))
        return [tasks[3]["digest"], tasks[5]["digest"]]

    want = digests(["--local", "1"], "replicate", "replicate")
    for team in (["--local", "2"], ["--local", "3", "--relay", "off"]):
        for first, second in [("shard=0", "shard=0"), ("shard=1", "shard=0"), ("shard=1", "shard=1"), ("shard=0", "shard=1")]:
            assert digests(team, first, second) == want, (team, first, second)


def test_reductions_and_products_of_kept_results(tmp_path):
    made, paths = operands(tmp_path / "f64", "f64")
    at = tmp_path
    lines = [f"W = put {paths['W']} shard=1", f"H = {paths['x']} @ W", f"{at}/s.npy = rowsum(H)", f"{at}/c.npy = colsum(H)",
             f"{at}/i.npy, {at}/v.npy = topk(2 * H @ {paths['V']}, 3)", f"{at}/y.npy = {paths['V']}.T @ H.T + 0.5 * {paths['V']}.T @ W.T"]
    result = bramble("batch", batch_file(tmp_path, "\n".join(lines)), "--local", "3")
    assert_refused(result, 2, ["line 6", "two products"])
    lines[-1] = f"{at}/y.npy = {paths['V']}.T @ H.T"
    tasks = objects(succeed("batch", batch_file(tmp_path, "\n".join(lines)), "--json", "--local", "3"))
    h = made["x"] @ made["W"]
    close(np.load(at / "s.npy"), h.sum(1, keepdims=True))
    close(np.load(at / "c.npy"), h.sum(0, keepdims=True))
    c = 2 * h @ made["V"]
    order = np.argsort(-c, axis=1)[:, :3]
    np.testing.assert_array_equal(np.load(at / "i.npy"), order)
    close(np.load(at / "v.npy"), np.take_along_axis(c, order, 1))
    assert tasks[4]["checked"] is True
    close(np.load(at / "y.npy"), made["V"].T @ h.T)


def test_parts_of_a_lost_worker_are_made_again(tmp_path):
    made, paths = operands(tmp_path / "f32", "f32")
    with workers(3, "--threads", 1) as (addresses, runs), Stream("-w", ",".join(addresses), *MACHINES) as stream:
        stream.task(f"W = put {paths['W']} shard=1")
        stream.task(f"V = put {paths['V']} shard=0")
        stream.task(f"H = {paths['x']} @ W")
        kept = stream.task("G = 2 * H @ V")
        assert kept["kind"] == "kept" and len(kept["parts"]) > 1
        digests = [stream.task(f"{name} -> {tmp_path}/{name}.npy")["digest"] for name in "HG"]
        for lost in (1, 0):
            runs[lost].process.kill()
            runs[lost].process.wait()
            assert [stream.task(f"{name} -> {tmp_path}/{name}.npy")["digest"] for name in "GH"] == digests[::-1]
        assert_product(np.load(tmp_path / "H.npy"), made["x"], made["W"])
        code, err = stream.finish()
        assert code == 3 and addresses[1] in err and "placed on other machines" in err, err


def test_parts_of_two_lost_workers_are_made_again_at_once(tmp_path):
    """Several missing parts, whose operands pass between the two workers that are left."""
    with workers(4, "--threads", 1) as (addresses, runs), Stream("-w", ",".join(addresses), *MACHINES) as stream:
        for line in ("W = put random:1024x1024:f64:1 shard=0 units=1:1:1:1", "V = put random:1024x1024:f64:2 shard=0 units=1:1:1:1", "P = W @ V"):
            assert len(stream.task(line)["parts"]) == 4
        digest = stream.task(f"P -> {tmp_path}/p.npy")["digest"]
        for lost in (0, 2):
            runs[lost].process.kill()
            runs[lost].process.wait()
        assert stream.task(f"P -> {tmp_path}/p.npy")["digest"] == digest
        kept = stream.task("Q = P @ V")
        assert {part["machine"] for part in kept["parts"]} == {addresses[1], addresses[3]} and kept["lost"] == [], kept
        assert stream.finish()[0] == 3


@pytest.mark.parametrize("lost", [0, 2])
def test_a_worker_that_dies_while_an_array_is_made(tmp_path, lost):
    with workers(3, "--threads", 1, "--kernel", "reference") as (addresses, runs), Stream("-w", ",".join(addresses), *SLOW) as stream:
        stream.task("W = put random:1200x1200:f64:1 shard=0")
        stream.task("V = put random:1200x900:f64:2 shard=0")
        stream.process.stdin.write("P = W @ V\n")
        stream.process.stdin.flush()
        assert wait_for_work([runs[lost].process.pid], stream, 0.3), "it has ended"
        runs[lost].process.kill()
        kept = json.loads(stream.process.stdout.readline())
        assert kept["kind"] == "kept" and kept["checked"] is True, kept
        assert {part["machine"] for part in kept["parts"]} == {address for address in addresses if address != addresses[lost]}
        digest = stream.task(f"{tmp_path}/p.npy = random:1x1200:f64:3 @ P")["digest"]
        stream.task("Q = put random:1200x900:f64:2 replicate")
        stream.task("P = W @ Q")
        assert stream.task(f"{tmp_path}/p.npy = random:1x1200:f64:3 @ P")["digest"] == digest
        assert stream.finish()[0] == 3


def test_a_part_that_cannot_be_made_again_is_named(tmp_path):
    with workers(2, "--threads", 1) as (addresses, runs), Stream("-w", ",".join(addresses), *MACHINES, "--keep-going") as stream:
        stream.task("W = put random:600x600:f64:1 shard=1 units=1:1")
        for line in ("H = random:600x600:f64:2 @ W", "G = H @ H", "free H"):
            stream.task(line)
        runs[1].process.kill()
        runs[1].process.wait()
        message = stream.task(f"G -> {tmp_path}/g.npy")["error"]["message"]
        assert "a part of G is lost" in message and "H, from which it was made, was freed" in message, message
        assert not (tmp_path / "g.npy").exists()
        assert stream.finish()[0] == 1


def test_a_part_is_not_made_again_from_a_file_that_has_changed(tmp_path):
    """Without a check, which would find it, too. Tasks that do not need the result go on."""
    x = save(tmp_path, "x.npy", matrix(40, 600, "f64", 2))
    with workers(2, "--threads", 1) as (addresses, runs), \
            Stream("-w", ",".join(addresses), *MACHINES, "--keep-going", "--verify", "off") as stream:
        stream.task("W = put random:600x600:f64:1 shard=1 units=1:1")
        stream.task(f"H = {x} @ W")
        whole = stream.task(f"{tmp_path}/p.npy = random:3x600:f64:3 @ W")["digest"]
        overwrite_last(x)
        runs[1].process.kill()
        runs[1].process.wait()
        message = stream.task(f"H -> {tmp_path}/h.npy")["error"]["message"]
        assert "a part of H is lost" in message and f"{x}, from which it was made, was changed" in message, message
        assert not (tmp_path / "h.npy").exists()
        assert stream.task(f"{tmp_path}/p.npy = random:3x600:f64:3 @ W")["digest"] == whole
        for line in (f"G = {x} @ W", f"I, T = topk({x} @ W, 3)"):
            assert "error" not in stream.task(line)
        assert stream.finish()[0] == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_worker_written_from_the_page_makes_parts(tmp_path, dtype):
    made, paths = operands(tmp_path, dtype)
    lines = [f"W = put {paths['W']} shard=0", f"U = put {paths['U']} shard=1", f"H = {paths['x']} @ W", "S = 2 * W - U", "T = -1 * S",
             f"P = H @ U.T + 3 * {paths['x']}", f"H -> {tmp_path}/h.npy", f"S -> {tmp_path}/s.npy", f"P -> {tmp_path}/p.npy", "free T"]
    worker = WireWorker(hold=1 << 26)
    worker.start()
    result = bramble("batch", batch_file(tmp_path, "\n".join(lines)), "-w", worker.address, *MACHINES)
    worker.join(30)
    if worker.error:
        raise worker.error
    assert result.code == 0 and worker.made == 4, result
    h = np.load(tmp_path / "h.npy")
    assert_product(h, made["x"], made["W"])
    close(np.load(tmp_path / "p.npy"), h @ made["U"].T + made["x"].dtype.type(3) * made["x"], np.abs(h) @ np.abs(made["U"].T))
    close(np.load(tmp_path / "s.npy"), made["W"].dtype.type(2) * made["W"] - made["U"])


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32"])
@pytest.mark.parametrize("line", ["H = x.npy @ W", "H = W + W", "H = 2 * W", "H = put W shard=0 units=1:1"])
def test_a_worker_that_makes_a_wrong_element_is_named(tmp_path, dtype, line):
    def spoil(part):
        part[3, 7] += 50

    save(tmp_path, "x.npy", matrix(40, 600, dtype, 1))
    w = save(tmp_path, "w.npy", matrix(600, 600, dtype, 2))
    wrong = WireWorker(hold=1 << 26, spoil_made=spoil)
    wrong.start()
    with workers(1, "--threads", 1) as (good, _):
        text = f"W = put {w} shard=1 units=1:1\n{line}\n".replace("x.npy", str(tmp_path / "x.npy"))
        result = bramble("batch", batch_file(tmp_path, text), "--json", "-w", ",".join([wrong.address, *good]), *MACHINES)
    wrong.join(30)
    if wrong.error:
        raise wrong.error
    assert result.code == 4 and "line 2" in result.err and "H is wrong at" in result.err and "nothing was kept" in result.err, result
    if dtype != "i32":
        assert "row 3, column 7" in result.err and f"{wrong.address} has computed wrongly" in result.err, result


def test_elements_that_change_at_a_worker_are_noticed(tmp_path):
    """A bit that flips after the part was made and checked: its array does not come home."""
    w = save(tmp_path, "w.npy", matrix(600, 600, "f64", 2))
    worker = WireWorker(hold=1 << 26, flips_made=True)
    worker.start()
    text = f"W = put {w}\nH = {w} @ W\nH -> {tmp_path}/h.npy\n"
    result = bramble("batch", batch_file(tmp_path, text), "-w", worker.address, *MACHINES)
    worker.join(30)
    if worker.error:
        raise worker.error
    assert result.code == 4 and "line 3" in result.err and worker.address in result.err and "has changed" in result.err, result
    assert not list(tmp_path.glob("h.npy*"))


@pytest.mark.parametrize("line, code, culprits", [
    ("H = random:9x300:f64:1 @ W", 1, ["9x300", "500x400"]),
    ("H = W + random:500x300:f64:1", 1, ["500x300", "both need the same shape"]),
    ("H = random:9x9:f64:1 @ I", 1, ["placed as i32", "--dtype f64"]),
    ("H = random:60000x500:f64:1 @ V", 1, ["MiB", "--memory"]),
    ("H = 0.5 * I", 2, ["0.5", "i32"]),
    ("H = W @ W.T\nfree W\nG = H @ W", 2, ["W: no earlier line"]),
])
def test_what_cannot_be_made_is_refused_with_a_reason(tmp_path, line, code, culprits):
    puts = "W = put random:500x400:f64:1\nV = put random:500x60000:f64:1\nI = put random:9x9:i32:1\n"
    with workers(2, "--threads", 1, "--memory", "600MB") as (addresses, _):
        result = bramble("batch", batch_file(tmp_path, puts + line + "\n"), "-q", "-w", ",".join(addresses), *MACHINES)
    assert_refused(result, code, [f"line {4 + line.count(chr(10))}", *culprits], begun=True)
