"""`bramble.Cluster` and `DistArray`: what they cannot do they refuse, with NumPy's text where NumPy has one."""

import os
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from bramble import BrambleError, Cluster, ClusterClosed, DistArray, OutOfClusterMemory, Replicate, Shard, Unreachable
from bramble.engines._opening import new_key
from helpers import workers
from test_python_cluster import K, M, N, c, placed, same, small, stays  # noqa: F401 (c and placed are fixtures)
from test_unreachable import free_port

LACKING = {
    "numpy.mean": np.mean,
    "numpy.sqrt": np.sqrt,
    "numpy.exp": np.exp,
    "numpy.einsum": lambda W: np.einsum("ij,kj", W, W),
    "numpy.concatenate": lambda W: np.concatenate([W, W]),
    "numpy.copy": np.copy,
    "numpy.linalg.svd": np.linalg.svd,
    "numpy.linalg.norm": lambda W: np.linalg.norm(W, 2),
    "numpy.sum": lambda W: np.sum(W, axis=0, keepdims=True),
    "numpy.max": lambda W: np.max(W, axis=0),
    "numpy.transpose": lambda W: np.transpose(W, (0, 1)),
    "numpy.add.reduce": np.add.reduce,
    "numpy.add with out=": lambda W: np.add(W, W, out=np.zeros(W.shape)),
    "numpy.equal": lambda W: np.zeros(W.shape) == W,
    "multiplying": lambda W: W * W,
    "multiplying by": lambda W: np.zeros(W.shape) * W,
    "multiplying by anything": lambda W: W * True,
    "multiplying by anything but a real number": lambda W: 1j * W,
    "adding a number": lambda W: W + 1,
    "adding a number to each": lambda W: 1 - W,
    "dividing": lambda W: W / 2,
    "power": lambda W: W**2,
    "comparing": lambda W: W == W.T,
    "comparing with": lambda W: W != 0,
    "indexing": lambda W: W[0],
    "iterating": list,
    "truth value": bool,
    "axis=(0, 1)": lambda W: W.sum((0, 1)),
}


@pytest.mark.parametrize("name", LACKING)
def test_functions_that_are_not_there_name_themselves_and_the_way_out(c, placed, name):
    with pytest.raises(TypeError, match=re.escape(name) + r".*\.numpy\(\)"):
        LACKING[name](placed[1])


@pytest.mark.parametrize("convert", [np.asarray, np.array, np.asfortranarray, lambda W: np.asarray([W, W]), float, int, complex])
def test_nothing_is_downloaded_without_being_asked(placed, convert):
    with pytest.raises(TypeError, match=r"\.numpy\(\)|must be a|not 'DistArray'"):
        convert(placed[1])


def test_results_do_not_replace_an_array_in_place(placed):
    w, W = placed
    x, v = small(M, K), w.copy()
    before = x.copy()
    with pytest.raises(TypeError, match="write x = x @ W"):
        x @= W
    with pytest.raises(TypeError, match="out="):
        v += W
    same(x, before)
    same(v, w)


def error(call, *operands):
    with pytest.raises((ValueError, TypeError)) as caught:
        call(*operands)
    return str(caught.value)


def test_shapes_that_do_not_fit_have_numpys_text(c, placed):
    w, W = placed
    for left, right in ((small(M, 7), w), (small(1, 7)[0], w), (w, small(7, M)), (w, small(1, 7)[0]), (w, w)):
        with_placed = [W if operand is w else operand for operand in (left, right)]
        assert error(np.matmul, *with_placed) == error(np.matmul, left, right)
    for value in (np.zeros((2, 2, 2)), 3, np.array(3)):
        assert "1 or 2 dimensions" in error(lambda: W @ value)
    assert "(300, 280) (40, 280)" in error(lambda: W + small(M, N))
    assert "(300, 280) (280, 300)" in error(lambda: W - W.T)


def test_types_that_do_not_fit(c, placed):
    w, W = placed
    other = c.put(w.astype("f4"))
    for call in (lambda: w.astype("f4").T @ W, lambda: W @ other.T, lambda: W + other, lambda: w.astype(int) - W):
        with pytest.raises(TypeError, match=r"float64.*astype|astype.*float64"):
            call()
    for dtype in ("f2", "c16", "u4", "i2", "?", "O"):
        for call in (c.put, lambda array: W @ array.T):
            with pytest.raises(TypeError, match=rf"{np.dtype(dtype)} are not supported.*\.astype"):
                call(w.astype(dtype))


@pytest.mark.parametrize("dtype, factor, kind", [
    ("i32", 0.5, TypeError), ("i32", 2.0, TypeError), ("i32", 2**31, OverflowError), ("i64", 2**53 + 1, OverflowError),
    ("f32", 1e39, ValueError), ("f64", float("nan"), ValueError), ("f64", float("inf"), ValueError),
    ("f64", 10**400, OverflowError)])
def test_factors_that_a_matrix_cannot_have(c, dtype, factor, kind):
    w = small(30, 20, dtype)
    W = c.put(w)
    for call in (lambda: factor * W, lambda: np.multiply(W, factor)):
        with pytest.raises(kind, match="factor|too large"):
            call()
    stays(W * 2, 2 * w)


@pytest.mark.parametrize("source, kind, culprit", [
    (np.zeros(3), ValueError, "2 dimensions, and this array has 1"),
    (np.zeros((2, 2, 2)), ValueError, "2 dimensions, and this array has 3"),
    (np.zeros((0, 3)), ValueError, "0x3"),
    (7, ValueError, "has 0"),
    ("none.npy", FileNotFoundError, "none.npy"),
    ("random:3x", ValueError, "random:3x"),
])
def test_what_cannot_be_placed(c, source, kind, culprit):
    with pytest.raises(kind, match=culprit):
        c.put(source)


def test_placements_that_do_not_exist(c, placed):
    for wrong in ("rows", 0, Shard, (0, None)):
        with pytest.raises(TypeError, match="bramble.Shard"):
            c.put(np.eye(3), wrong)
    for call in (lambda: Shard(2), lambda: Shard("0"), lambda: Shard(0, (1, -1))):
        with pytest.raises(ValueError, match="Shard"):
            call()
    for units in ((1, 2, 3), (0, 0), ()):
        for call in (lambda: c.put(np.eye(3), Shard(0, units)), lambda: placed[1].redistribute(Shard(1, units))):
            with pytest.raises(ValueError, match="for 2 machines"):
                call()
    with pytest.raises(TypeError, match="Cluster.put"):
        DistArray()


@pytest.mark.parametrize("state", ["sys.frozen = True", "sys.executable = None", "sys.executable = ''"])
def test_a_program_that_names_no_interpreter_starts_no_worker(state):
    """A frozen application would start itself, which opens the cluster again, for ever."""
    text = f"""
        import sys
        {state}
        import bramble
        import numpy as np
        assert (bramble.matmul(np.eye(3), np.eye(3)) == np.eye(3)).all()
        with bramble.Cluster(threads=1) as c:
            assert (np.eye(3) @ c.put(np.eye(3)) == np.eye(3)).all()
        try:
            bramble.Cluster(local=2)
        except bramble.BrambleError as e:
            assert "bramble worker" in str(e) and "hosts=" in str(e), e
            print("refused")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "refused\n" and done.returncode == 0, done


def test_a_freed_matrix_is_gone_and_so_is_its_transpose(c):
    w = small(K, N)
    W = c.put(w)
    H, T = W.T @ W, W.T
    for A in (W, H):
        A.free()
        A.free()
    x = small(M, K)
    for call in (lambda: x @ W, T.numpy, W.numpy, H.numpy, lambda: T @ x.T, lambda: W + w, W.sum, lambda: -W, W.redistribute,
                 lambda: H.topk(1), lambda: c.topk(x, W, 1), lambda: c.matmul(x, W, keep=True)):
        with pytest.raises(ValueError, match="was freed"):
            call()
    assert W.shape == w.shape and repr(W) == "<bramble.DistArray 300x280 float64, freed>"
    assert repr(T) == "<bramble.DistArray 280x300 float64, freed>" and T._repr_html_() == "<div>280 × 300 float64, freed</div>"


def test_a_closed_cluster_says_so(c, placed):
    w = small(K, N)
    with Cluster(threads=1) as one:
        assert repr(one) == "<bramble.Cluster>" and not one.closed
        W = one.put(w)
        H = W.T @ W
        with pytest.raises(ValueError, match="placed on another cluster"):
            placed[1] + W
        with pytest.raises(ValueError, match="placed on another cluster"):
            W.T @ c.put(w)
    assert one.closed and repr(one) == "<bramble.Cluster (closed)>"
    for call in (lambda: w.T @ W, W.numpy, W.T.numpy, H.numpy, lambda: one.put(w), W.sum, lambda: W + w,
                 lambda: one.matmul(w.T, w)):
        with pytest.raises(ClusterClosed, match="closed; open another one"):
            call()
    assert repr(W) == "<bramble.DistArray 300x280 float64, its cluster is closed>" and "closed" in W._repr_html_()
    W.free()
    one.close()


def test_advice_names_what_python_has(c):
    """No option of the command, and which array is meant."""
    x, w = np.ones((3, 2000)), np.ones((2000, 600))
    assert "the 2000x600 array is cut along the depth" in (text := error(c.topk, x, c.put(w, Shard(0)), 2))
    assert "place it with bramble.Shard(1) (its transpose with bramble.Shard(0))" in text and "shard=" not in text
    assert "the 3x2000 array @ the 2000x600 array" in error(c.topk, x, c.put(w, Shard(1)), 601)
    with Cluster(local=2, kernel="simd", reproducible=True) as one:
        V = one.put(w, Shard(0, (1, 1)))
        for call in (lambda: x @ V, lambda: one.plan(x, V)):
            with pytest.raises(BrambleError, match=r"^reproducible: .*with other units.*without reproducible=True") as caught:
                call()
            assert "--" not in str(caught.value)


@pytest.mark.parametrize("options, culprits", [
    ({"local": 0}, ["--local", "1..=256"]),
    ({"local": -1}, ["--local"]),
    ({"hosts": "pi1", "local": 2}, ["--workers", "--local"]),
    ({"hosts": "pi1", "hostfile": "hosts"}, ["--workers", "--hostfile"]),
    ({"hosts": []}, ["--workers"]),
    ({"hostfile": "none"}, ["--hostfile none"]),
    ({"listen": "127.0.0.1:0"}, ["--await"]),
    ({"trust_network": True}, ["--insecure"]),
    ({"memory": "much"}, ["--memory", "512M"]),
    ({"memory": "1M", "local": 1}, ["--memory"]),
    ({"threads": 0}, ["--threads"]),
    ({"kernel": "fast"}, ["--kernel", "simd"]),
    ({"verify": "never"}, ["--verify", "full"]),
    ({"hosts": "pi[1-"}, ["--workers", "bracket"]),
])
def test_options_that_are_wrong(options, culprits):
    with pytest.raises(ValueError) as caught:
        Cluster(**options)
    text = str(caught.value)
    assert "\n" not in text and all(culprit in text for culprit in culprits), text


def test_a_worker_that_does_not_answer_is_named():
    address = f"127.0.0.1:{free_port()}"
    for hosts in (address, [address]):
        with pytest.raises(Unreachable, match=f"{address}.*bramble worker --listen") as caught:
            Cluster(hosts)
        assert isinstance(caught.value, BrambleError) and isinstance(caught.value, ConnectionError)
    with pytest.raises(Unreachable, match="0 workers"):
        Cluster(wait_for=1, listen="127.0.0.1:0", timeout="1s", insecure=True)


def test_a_matrix_that_does_not_fit_is_refused_and_the_cluster_goes_on():
    w, x = small(K, N), small(M, K)
    with Cluster(local=2, threads=1, memory="128M") as c:
        W = c.put(w)
        for call in (lambda: c.put("random:6000x6000:f64:1"), lambda: c.put("random:4000x4000:f64:1", Replicate()),
                     lambda: c.matmul(np.ones((20000, 1)), np.ones((1, 20000)), keep=True)):
            with pytest.raises(OutOfClusterMemory, match="local 1.*local 2.*--memory") as caught:
                call()
            assert isinstance(caught.value, MemoryError) and isinstance(caught.value, BrambleError)
            same(x @ W, x @ w)


def test_the_key_may_be_passed_in():
    """Neither the environment nor a file has it, and no message repeats it."""
    key, other = new_key(), new_key()
    with workers(2, "--threads", 1, env={"BRAMBLE_KEY": key}) as (addresses, _):
        with Cluster(addresses, key=key, kernel="simd") as c:
            same_product(c)
            assert all(node.encryption for node in c.nodes[1:])
        with pytest.raises(Unreachable) as refused:
            Cluster(addresses, key=other)
        with pytest.raises(BrambleError, match="^key: no cluster key") as wrong:
            Cluster(addresses, key=key[:-1])
        assert key[:-1] not in str(refused.value) + str(wrong.value) and other not in str(refused.value)
    assert "BRAMBLE_KEY" not in os.environ


def same_product(c):
    x, w = np.ones((3, 300)), np.ones((300, 5))
    np.testing.assert_array_equal(x @ c.put(w, Replicate()), x @ w)
