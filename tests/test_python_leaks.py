"""The Python package over thousands of calls and clusters: memory, files, threads and processes stay as they are.

Method: a tenth of the turns warm up. Then twenty samples are taken, ten in each half of the turns: the anonymous resident memory of
this process, after the garbage collector and `malloc_trim`, and of each worker; their open files; their threads. The least memory of
the second half exceeds the least of the first by less than 400 kB: ten thousand calls may not keep a hundred bytes each, a thousand
clusters not a kilobyte. The least number of files and threads is the same in both halves. The C library has one arena: it does not
trim the others, and which of them a thread gets is a matter of chance.
"""

import os
import textwrap

import pytest
from test_python_faults import said

pytestmark = pytest.mark.soak("leaks")

TIMES = int(os.environ.get("BRAMBLE_LEAK_TIMES", "1"))
"""How many times the usual number of turns: for a long run by hand."""

HEAD = '''
import ctypes

trim = ctypes.CDLL(None).malloc_trim

def sample():
    """Kilobytes of each process, and the counts of what it has open."""
    gc.collect()
    trim(0)
    pids = [os.getpid(), *children()]
    kilobytes = [int(re.search(r"RssAnon:\\s+(\\d+)", open(f"/proc/{pid}/status").read())[1]) for pid in pids]
    return kilobytes, [(len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))) for pid in pids]

def stays_flat(turn, turns):
    turns *= int(os.environ["TIMES"])
    for number in range(turns // 10):
        turn(number)
    halves = [], []
    for at in range(20):
        for number in range(turns // 20):
            turn(number)
        halves[at // 10].append(sample())
    (kilobytes, counts), (kilobytes_after, counts_after) = ([least(kind) for kind in zip(*half)] for half in halves)
    assert counts_after == counts, halves
    assert all(after - before < 400 for before, after in zip(kilobytes, kilobytes_after, strict=True)), halves
    print("flat")

def least(samples):
    return [min(of) for of in zip(*samples, strict=True)]

a, b = small(16, 64), small(64, 64)
'''

def is_flat(text):
    """The program sees nothing grow."""
    env = {"MALLOC_ARENA_MAX": "1", "TIMES": str(TIMES)}
    assert said(HEAD + textwrap.dedent(text), env, deadline_s=240 * TIMES) == ["flat"]


REFUSED = """
for wrong in (lambda: a @ F, lambda: c.plan(W, W), lambda: c.put("none.npy"), lambda: c.put("random:30000x30000:f64:1"),
              lambda: c.topk(a, W, 65), lambda: c.matmul(a, W, keep=True, placement=Shard(0, (1, 1, 1)))):
    try:
        wrong()
    except (ValueError, OSError, OutOfClusterMemory):
        continue
    raise AssertionError("no error")
"""

CALLS = {
    "products with a placed matrix": ("a @ W", 10_000),
    "products of arrays": ("c.matmul(a, b)", 2000),
    "plans": ("c.plan(a, W), c.plan(a, b)", 1000),
    "matrices that are freed": ("c.put(b).free()", 1000),
    "matrices that are dropped": ("c.put(b, placements[turn % 4], copy=turn % 2 == 0)", 1000),
    "kept results": ("H = W.T @ W + W; H.numpy(); H.T.redistribute(placements[turn % 4])", 300),
    "reductions": ("W.sum(), W.max(), c.topk(a, W, 3), W.topk(2)", 400),
    "systems": ("c.solve(A, a[0]); c.last_report", 60),
    "threads": ("t = threading.Thread(target=lambda: a @ W); t.start(); t.join()", 400),
    "calls that fail": (REFUSED, 300),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_leave_nothing_behind(name):
    text, turns = CALLS[name]
    is_flat(f'''
        placements = Shard(0), Shard(1), Replicate(), None
        with Cluster(local=2, threads=1, kernel="simd", memory="128M") as c:
            W, F, A = c.put(b), c.put(b), c.put(np.eye(64) * 9 + b / 9)
            F.free()
            def one(turn):
{textwrap.indent(text, " " * 16)}
            stays_flat(one, {turns})
    ''')


def test_calls_in_this_process_leave_nothing_behind():
    is_flat('''
        import bramble
        def one(turn):
            bramble.matmul(a, b)
            if turn % 10 == 0:
                factors = bramble.lu(np.eye(64) * 90 + b)
                factors.solve(a[0]), factors.condition()
                try:
                    bramble.solve(np.zeros((64, 64)), a[0])
                except np.linalg.LinAlgError:
                    pass
        stays_flat(one, 10_000)
    ''')


CLUSTERS = {"threads": ("", 1000), "workers": ("local=1 + turn % 2, threads=1", 60)}


@pytest.mark.parametrize("kind", CLUSTERS)
def test_clusters_come_and_go_without_a_trace(kind):
    """Closed, dropped, or left to the garbage collector."""
    options, turns = CLUSTERS[kind]
    is_flat(f'''
        def one(turn):
            c = Cluster({options})
            W = c.put(b) if turn % 10 == 5 else b
            if turn % 5 == 0:
                assert (c.matmul(a, W) == a @ b).all()
            if turn % 3 == 0:
                c.close()
            elif turn % 3 == 1:
                c.itself = c
                del c, W
                gc.collect()
        stays_flat(one, {turns})
        assert children() == []
    ''')


def test_openings_that_fail_leave_nothing_behind():
    is_flat('''
        def one(turn):
            for options in ({"hosts": "127.0.0.1:1", "insecure": True}, {"local": 0}, {"hostfile": "none"}):
                try:
                    Cluster(**options)
                except (ValueError, BrambleError):
                    continue
                raise AssertionError("no error")
        stays_flat(one, 200)
    ''')


def test_forks_leave_nothing_behind():
    """Children that end with the parent's cluster open, in every way in which a process ends."""
    is_flat('''
        c = Cluster(local=2, threads=1)
        W = c.put(b)
        sys.stdout.flush()
        def one(turn):
            child = os.fork()
            if child == 0:
                try:
                    a @ W
                except ForkedProcess:
                    pass
                if turn % 3 == 1:
                    os._exit(0)
                if turn % 3 == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                sys.exit(0)
            assert os.waitpid(child, 0)[1] in (0, signal.SIGKILL) and (a @ W == a @ b).all()
        stays_flat(one, 100)
        assert len(children()) == 2
    ''')
