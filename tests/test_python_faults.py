"""`bramble.Cluster` in programs that drop it, fork, are interrupted or end, and on machines that die. Most tests are programs of
their own, so that one that hangs is ended."""

import os
import signal
import sys
import textwrap
import time

import numpy as np
import pytest
from bramble import BrambleError, Cluster, OutOfClusterMemory, PartLost, Shard, Unreachable
from helpers import Run, assert_gone, cpu_seconds, workers
from test_key import ZERO
from test_python_cluster import same, small, stays
from test_unreachable import free_port

HEAD = '''
import gc, os, re, signal, sys, threading, time
import numpy as np
from bramble import *

def small(rows, cols, seed=0):
    return np.random.default_rng([seed, rows, cols]).integers(-9, 9, (rows, cols)).astype("f8")

def children():
    """Process ids of the workers, in the order of their start."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, parent = open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if parent == str(os.getpid()) and state != "Z":
            found.append(int(name))
    return sorted(found)

def kill(pid):
    os.kill(pid, signal.SIGKILL)

def interrupted(call):
    """Ctrl-C while the workers stand still, so that the call cannot end before."""
    pids = children()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        call()
    except KeyboardInterrupt:
        return pids
    raise AssertionError("not interrupted")

def go_on(pids):
    for pid in pids:
        os.kill(pid, signal.SIGCONT)

w, x = small(900, 1300), small(50, 900)
'''


def start(text, env=None):
    """Starts a program that uses the package."""
    return Run("-c", HEAD + textwrap.dedent(text), env=env, binary=sys.executable)


def said(text, env=None, deadline_s=60):
    """What a program prints that has to succeed, and to leave no process behind."""
    result = start(text, env).finish(deadline_s)
    assert result.code == 0, result.err
    assert_gone(result.tag)
    return result.out.split()


# Memory, processes, threads and files.


def test_the_last_reference_gives_the_memory_back():
    """The workers have room for one of these matrices, not for two."""
    with Cluster(local=2, threads=1, memory="128M", kernel="simd") as c:
        def put(seed):
            return c.put(f"random:4000x4000:f64:{seed}", Shard(1))

        first = put(1)
        turned, operator = first.T, first.as_linear_operator()
        for keeper in ("first", "turned", "operator"):
            with pytest.raises(OutOfClusterMemory):
                put(2)
            if keeper == "first":
                del first
            elif keeper == "turned":
                del turned
            else:
                del operator
        for seed in range(3, 6):
            again = put(seed)
            del again
        again = put(6)
        again.free()
        assert put(7).shape == (4000, 4000)


ENDS = {
    "falls off the end": ("", 0),
    "closes in the middle": ("c.close(); assert children() == []", 0),
    "raises": ("raise SystemExit(7)", 7),
    "goes at once": ("os._exit(5)", 5),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", 128 + 9),
    "leaves a thread in a call": ("threading.Thread(target=lambda: W.T @ W, daemon=True).start(); time.sleep(0.2)", 0),
    "leaves rubbish": ("c.itself = c; del c, W", 0),
    "had a matrix in a global of another module": ("sys.W = W; del c, W", 0),
}


@pytest.mark.parametrize("name", ENDS)
def test_no_worker_outlives_its_program(name):
    text, code = ENDS[name]
    begin = "c = Cluster(local=2); W = c.put('random:2000x3000:f64:1'); print(len(children()), flush=True)"
    result = start(f"{begin}; {text}").finish()
    assert (result.code, result.out, result.err) == (code, "2\n", ""), result
    assert_gone(result.tag)


def test_a_fork_is_refused_and_harms_nobody():
    assert said('''
        c = Cluster(local=2)
        W, F = c.put(w), c.put("random:900x30:f64:1")
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            calls = [lambda: x @ W, W.numpy, F.numpy, lambda: c.put(w), W.sum, lambda: W + w, W.redistribute, lambda: W.topk(1)]
            for call in calls:
                try:
                    call()
                except ForkedProcess as error:
                    assert "open a cluster after the fork" in str(error)
                else:
                    raise AssertionError("not refused")
            assert c.closed and "closed" in repr(c) and "1300x900" in repr(W.T)
            F.free()
            c.close()
            with Cluster(local=1) as own:
                assert (x @ own.put(w) == x @ w).all()
            del W, F, c
            gc.collect()
            print("child")
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert (x @ W == x @ w).all() and F.numpy().shape == (900, 30) and len(children()) == 2
        print("parent")
    ''') == ["child", "parent"]


def test_threads_share_a_cluster():
    assert said('''
        c, wrong = Cluster(local=2), []
        W = c.put(w, Shard(1))

        def work(seed):
            try:
                for turn in range(8):
                    a = small(20, 900, seed * 100 + turn)
                    A = c.put(a)
                    assert (a @ W == a @ w).all() and ((A @ W).numpy() == a @ w).all() and A.sum() == a.sum()
                    A.free()
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert not wrong, wrong
        print("right")
    ''') == ["right"]


# Ctrl-C.


@pytest.mark.parametrize("call, after", [
    ("c.matmul(A, A, keep=False)", "assert (x @ W == x @ w).all() and len(children()) == 2"),
    ("A @ A", "c.close(); assert children() == []"),
], ids=["the next product is right", "the cluster closes at once"])
def test_ctrl_c_ends_a_long_call(call, after):
    """As a terminal sends it: to all processes of the group."""
    run = start(f'''
        c = Cluster(local=2, kernel="simd")
        W, A = c.put(w), c.put("random:9000x9000:f64:1")     # More than ten seconds of work.
        print("begins", flush=True)
        try:
            {call}
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            {after}
            print("goes on", flush=True)
    ''')
    try:
        assert run.process.stdout.readline() == "begins\n", run.finish()
        before = {pid: cpu_seconds(pid) for pid in run.workers()}
        end = time.monotonic() + 30
        while min(cpu_seconds(pid) - used for pid, used in before.items()) < 0.5:
            assert time.monotonic() < end, "the product does not begin"
            time.sleep(0.02)
        os.killpg(run.process.pid, signal.SIGINT)
        begun = time.monotonic()
        assert run.process.stdout.readline() == "interrupted\n", run.finish()
        assert time.monotonic() - begun < 5
        result = run.finish(deadline_s=8)
        assert (result.code, result.out) == (0, "goes on\n"), result
        assert_gone(run.tag)
    finally:
        run.end()


CALLS = {
    "put": 'c.put("random:4000x4000:f64:2", Shard(1))',
    "put of an array": "c.put(np.ones((4000, 4000)), Shard(1))",
    "product": "x @ W",
    "kept product": "c.matmul(np.ones((4000, 1)), np.ones((1, 4000)), keep=True)",
    "sum": "W + W",
    "reduction": "W.sum()",
    "fetch": "F.numpy()",
    "free": "W.T.free()",
}


@pytest.mark.parametrize("name", CALLS)
def test_every_call_can_be_interrupted_and_leaves_nothing_behind(name):
    """There is room for one of the larger matrices only."""
    assert said(f'''
        c = Cluster(local=2, threads=1, memory="128M", kernel="simd")
        F = c.put("random:900x30:f64:1")
        for turn in range(2):
            W = c.put(w)
            go_on(interrupted(lambda: {CALLS[name]}))
        large = c.put("random:4000x4000:f64:1", Shard(1))
        del large
        W = c.put(w)
        assert (x @ W == x @ w).all() and F.numpy().shape == (900, 30) and len(children()) == 2
        print("right")
    ''') == ["right"]


def test_an_interrupted_opening_lets_its_port_go():
    port = free_port()
    assert said(f'''
        options = dict(wait_for=1, listen="127.0.0.1:{port}", insecure=True)
        interrupted(lambda: Cluster(**options, timeout="1h"))
        try:
            Cluster(**options, timeout="1s")
        except Unreachable as error:
            assert "0 workers" in str(error), error
            print("unreachable")
    ''', deadline_s=20) == ["unreachable"]


# Machines that die.


def test_local_workers_that_die_between_calls_are_replaced():
    """Also the last one: then the program itself computes."""
    assert said('''
        c = Cluster(local=3, kernel="simd")
        W = c.put(w, Shard(1, (1, 1, 1)))
        H, T, F = W.T @ W, 3 * W, c.put("random:900x1300:f64:1", Shard(0))
        S = W - T
        f, x_f = F.numpy(), x @ F
        for left in (2, 1, 0):
            kill(children()[0])
            assert (x @ W == x @ w).all()
            assert (H.numpy() == w.T @ w).all() and (S.numpy() == -2 * w).all()
            assert (F.numpy() == f).all() and np.allclose(x @ F, x_f)
            assert W.sum() == w.sum() and (W.T @ S).shape == (1300, 1300)
            values = c.topk(x, W, 2)[1]
            assert (values == -np.sort(-(x @ w))[:, :2]).all()
            assert len(children()) == left
            print(left)
        c.close()
    ''') == ["2", "1", "0"]


def test_a_local_worker_that_dies_in_a_call_is_replaced():
    """It stands still before, so that the call cannot end without it."""
    assert said('''
        c = Cluster(local=3, kernel="simd")
        W = c.put(w, Shard(1, (1, 1, 1)))
        for call, want in ((lambda: x @ W, x @ w), (lambda: (W + W).numpy(), w + w)):
            victim = children()[-1]
            os.kill(victim, signal.SIGSTOP)
            threading.Timer(0.3, kill, (victim,)).start()
            assert (call() == want).all() and victim not in children()
            print("right")
    ''') == ["right", "right"]


def test_workers_that_die_are_replaced_by_others():
    w, x = small(900, 1300), small(50, 900)
    with workers(3, "--threads", 1) as (addresses, runs), Cluster(addresses, kernel="simd") as c:
        # The units of this process come first.
        W = c.put(w, Shard(1, (0, 1, 1, 1)))
        H = W.T @ W
        assert {part.worker for part in W.parts()} == set(addresses) == {part.worker for part in H.parts()}
        for run in runs:
            run.process.kill()
            run.process.wait()
            same(x @ W, x @ w)
            stays(H, w.T @ w)
            assert W.max() == w.max()
        c.close()
        with pytest.raises(Unreachable, match=addresses[0]):
            Cluster(addresses)


def test_a_result_that_cannot_be_made_again_is_lost_and_nothing_else():
    w = small(900, 1300)
    with workers(2, "--threads", 1) as (addresses, runs), Cluster(",".join(addresses), kernel="simd") as c:
        W = c.put(w, Shard(1, (0, 1, 1)))
        H = W.T @ W
        S = H + H
        H.free()
        stays(S, 2 * (w.T @ w))
        runs[0].process.kill()
        runs[0].process.wait()
        for call in (S.numpy, lambda: S @ w.T, S.sum):
            with pytest.raises(PartLost, match="make both again") as caught:
                call()
            assert isinstance(caught.value, BrambleError)
        same(w.T[:9] @ W, w.T[:9] @ w)


def test_an_array_that_changed_is_not_put_again():
    w = small(900, 1300)
    with workers(1, "--threads", 1) as (addresses, runs), Cluster(addresses, kernel="simd") as c:
        W = c.put(w, Shard(0, (0, 1)), copy=False)
        w[0, 0] += 1
        runs[0].process.kill()
        runs[0].process.wait()
        with pytest.raises(PartLost, match="changed since it was placed"):
            np.ones((2, 900)) @ W


# Workers on other machines.


def test_workers_serve_the_next_cluster(tmp_path):
    """Also after one whose call was interrupted."""
    hosts = tmp_path / "hosts"
    with workers(2, "--threads", 1) as (addresses, runs):
        hosts.write_text("\n".join(addresses))
        pids = [run.process.pid for run in runs]
        assert said(f'''
            children = lambda: {pids}
            for turn in range(3):
                c = Cluster({addresses}, kernel="simd")
                W = c.put(w, Shard(1, (0, 1, 1)))
                assert (x @ W == x @ w).all()
                pids = interrupted(lambda: W + W)
                c.close()
                go_on(pids)
            with Cluster(hostfile={str(hosts)!r}, kernel="simd") as c:
                W = c.put(w, Shard(1, (0, 1, 1)))
                assert (x @ W == x @ w).all()
                print(len(W.parts()))
        ''') == ["2"]


def test_workers_dial_in():
    address = f"127.0.0.1:{free_port()}"
    program = start(f'''
        with Cluster(wait_for=2, listen="{address}", timeout="30s", insecure=True) as c:
            W = c.put(w, Shard(1, (0, 1, 1)))
            assert (x @ W == x @ w).all()
            print(len(W.parts()))
    ''')
    joined = [Run("worker", "--join", address, "--insecure", "--threads", 1) for _ in range(2)]
    try:
        result = program.finish()
        assert (result.code, result.out) == (0, "2\n"), result
    finally:
        for run in joined:
            run.end()


def test_the_key_is_the_commands():
    program = '''
        try:
            with Cluster("{hosts}") as c:
                W = c.put(w, Shard(1, (0, 1)))
                assert (x @ W == x @ w).all()
                print("right")
        except BrambleError as error:
            print(type(error).__name__, "{hosts}" in str(error), "key" in str(error))
    '''
    with workers(1, "--threads", 1, env={"BRAMBLE_KEY": ZERO}) as ([address], _):
        text = program.format(hosts=address)
        assert said(text, {"BRAMBLE_KEY": ZERO}) == ["right"]
        assert said(text) == ["Unreachable", "True", "True"]


def test_a_matrix_that_cannot_be_restored_keeps_no_other_from_it():
    """An operand of S was freed before a worker died."""
    assert said('''
        units = (1, 1, 1)
        with Cluster(local=3) as c:
            R = c.put(w, Shard(1, units))
            T = 2 * R
            S = T + R
            T.free()
            W = c.put(w, Shard(1, units))
            kill(children()[-1])
            assert (x @ W == x @ w).all()
            try:
                x @ S
            except PartLost:
                print("lost")
            assert (x @ W == x @ w).all()
            print("right")
    ''') == ["lost", "right"]
