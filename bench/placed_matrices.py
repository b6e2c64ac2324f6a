"""Products with a matrix that stays at the workers, on a cluster in one machine (docs/resident.md).

  products  x @ W many times, W placed once: against the same workers with W sent each time, and against Dask with W persisted
            (as a dask array, and by hand with futures). The primary does not compute. From the line of the batch that is written,
            or Dask's call, to the result in the primary's memory; verified, where it is Bramble
  steps     W @ (W @ (… x)), a vector that stays at the workers, or comes home each time: against NumPy on one machine with as much
            processor time as the workers together, and against W sent each time
  circulate P = W @ V, both placed and cut between rows, P stays: V goes round from worker to worker. Against the same steps with V
            replicated, so that nothing travels, and against the time that the links need
  chain     ten products H = H @ W, W placed and cut between columns, H stays: against H brought home and sent again each time
  gram      G = X.T @ Y and X.T @ X, both placed and cut between rows, G stays: sums pass from worker to worker. Against the same
            with Y fetched and sent, as for an operand that is an array, and against NumPy on one of the machines
  speeds    workers of 4 : 2 : 2 : 1: columns by speed against equal columns; x sent and y fetched, and, with x replicated and y
            kept, without anything that travels
  first     the first product of a process: connections, links and workers' speeds are measured before its first job
  owner     one of the machines killed while W is put, at half time of a product, of P = W @ V as above, and before a product
  top       the ten largest elements of each row of V @ V.T, V as large as the word vectors of a small language model, placed:
            reduced at the workers, against the product brought home and reduced there; the same neighbours
  small     x (64 x 256) @ W (256 x 256) over four local workers, W placed and sent; and resident memory, threads and descriptors
            while a matrix of 4 MB is placed and freed 1,000 times

With `--from python` the Python package carries out the tasks, with arrays for files (sessions.py).

Each machine is a network namespace; `tc tbf` limits its link, a cgroup its fraction of a processor. Needs Linux, root, iproute2.
"""

import importlib.util
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import lab
import numpy as np
import sessions
from common import Side, arguments, parse, ratio, record, scratch, spread, table, with_threads
from lab import Cluster, Machine
from lab_peers import Started
from open_cluster import percentile
from sessions import opened

OPEN = {"insecure": True, "trust_network": True, "strategy": "reuse"}
"""The labs have no key, since no rival encrypts; and the workers alone compute."""


def session(args, cluster, **options):
    """An open cluster of all workers of a lab."""
    return opened(args, cluster.at(0), hosts=workers_of(cluster), **OPEN, **options)


def workers_of(cluster):
    return ",".join(f"{address}:7400" for address in cluster.addresses[1:])


def files(args, folder, shapes):
    """Matrices of these shapes; their paths. Rows of W have length 1, about, so that powers neither vanish nor overflow."""
    rng, paths = np.random.default_rng(1), []
    for name, shape in shapes.items():
        path = folder / f"{name}.npy"
        scale = (3 / shape[1]) ** 0.5
        np.save(path, (rng.random(shape, dtype=lab.KINDS[args.dtype]) * 2 - 1) * lab.KINDS[args.dtype](scale))
        paths.append(path)
    return paths


def dask_figures(args, folder, cluster, path_w, paths_x, counts):
    """Seconds of each product by Dask: way -> rows of x -> list."""
    taken = {"array": {}, "futures": {}}
    with ExitStack() as stack:
        side = stack.enter_context(Side("dask_side.py", 1, "--listen", cluster.addresses[0], prefix=cluster.at(0)))
        address = side.ask(do="address")
        for number in range(1, cluster.workers + 1):
            command = [*cluster.at(number), sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1",
                       "--no-nanny", "--no-dashboard", "--memory-limit", "0", "--local-directory", folder / f"dask{number}",
                       "--host", cluster.addresses[number]]
            stack.enter_context(Started(command, with_threads(1)))
        side.ask(do="enough", workers=cluster.workers)
        side.ask(do="persist", path=path_w, parts=cluster.workers)
        for way, figures in taken.items():
            for rows, path in paths_x.items():
                answers = [side.ask(do="times_placed", way=way, path=path) for _ in range(counts + 1)]
                figures[rows] = [answer["seconds"] for answer in answers[1:]]
        side.ask(do="close")
    return taken


def wire(report):
    """Bytes that left and reached the primary."""
    primary = report["product"]["primary"]
    return primary["bytes_sent"] + primary["bytes_received"]


def products(args, folder):
    n, count, rows = args.n or (1024 if args.quick else 8192), 3 if args.quick else args.count, (64, 512)
    path_w, *paths = files(args, folder, {"W": (n, n), **{f"x{m}": (m, n) for m in rows}})
    paths_x = dict(zip(rows, paths, strict=True))
    size = np.dtype(lab.KINDS[args.dtype]).itemsize
    with Cluster(args, [Machine(part, args.mbit) for part in args.cores], args.mbit) as cluster:
        placed, sent, put = {}, {}, None
        with session(args, cluster) as batch:
            put = batch.task(f"W = put {path_w} shard=1")
            for m in rows:
                batch.task(f"{args.home}/y.npy = {paths_x[m]} @ W")
                placed[m] = [batch.task(f"{args.home}/y.npy = {paths_x[m]} @ W") for _ in range(count)]
            for m in rows:
                batch.task(f"{args.home}/y.npy = {paths_x[m]} @ {path_w}")
                sent[m] = [batch.task(f"{args.home}/y.npy = {paths_x[m]} @ {path_w}") for _ in range(count)]
                digests = {report["digest"] for report in placed[m] + sent[m]}
                if len(digests) != 1:
                    raise SystemExit(f"m = {m}: {len(digests)} different results")
        dask = dask_figures(args, folder, cluster, path_w, paths_x, count)
    lines = []
    for m in rows:
        seconds = {"placed": [one["round_trip_s"] for one in placed[m]], "sent": [one["round_trip_s"] for one in sent[m]],
                   **{f"dask, {way}": figures[m] for way, figures in dask.items()}}
        least = 2 * m * n * size
        extra = statistics.median(wire(one) for one in placed[m]) / least - 1
        for who, taken in seconds.items():
            lines.append([m, who, spread([1e3 * one for one in taken]), f"{1e3 * percentile(taken, 0.99):.4g}",
                          f"{ratio(seconds['placed'], taken):.2f}", f"{extra:+.1%}" if who == "placed" else ""])
        record(args, "placed_matrices", f"x ({m} rows) @ W", seconds, n=n, dtype=args.dtype, cores=args.cores, mbit=args.mbit,
               bytes=[wire(one) for one in placed[m]], put_s=put["seconds"])
    table(f"{count} products x @ W, W {n} x {n} {args.dtype}, workers of {'/'.join(f'{c:g}' for c in args.cores)} processors, "
          f"{args.mbit:g} Mbit/s; placing W took {put['seconds']:.2f} s",
          ["rows of x", "who", "ms: median (range)", "p99", "times as long as placed", "bytes beyond x and the result"], lines)


NUMPY = """
import sys, time
import numpy as np
w, x = np.load(sys.argv[1]), np.load(sys.argv[2])
w @ x
began = time.perf_counter()
for _ in range(int(sys.argv[3])):
    x = w @ x
print(time.perf_counter() - began)
"""


def steps(args, folder):
    n, count = args.n or (1024 if args.quick else 8192), 5 if args.quick else 2 * args.count
    path_w, path_x = files(args, folder, {"W": (n, n), "x": (n, 1)})
    # All workers on one processor, and NumPy on the same: processors that read memory at once share its bandwidth, so four
    # quarters of a processor that run side by side are less than one whole.
    *others, last = sorted(os.sched_getaffinity(0))
    machines = [*[Machine(part, args.mbit) for part in args.cores], Machine(sum(args.cores), args.mbit)]
    with ExitStack() as stack:
        with lab.processors({last}):
            cluster = stack.enter_context(Cluster(args, machines, args.mbit))
        stack.enter_context(lab.processors(others or {last}))
        alone = [*cluster.at(cluster.workers), sys.executable, "-c", NUMPY, path_w, path_x, count]
        cluster.workers -= 1
        cluster.addresses.pop()

        def chain(batch, names):
            names = [str(path_x), *[names[step % 2] for step in range(count)]]
            matrix = "W"
            return [batch.task(f"{names[step + 1]} = {matrix} @ {names[step]}")["round_trip_s"] for step in range(count)]

        taken = {"kept": [], "home": [], "sent": [], "numpy": []}
        with session(args, cluster) as batch:
            batch.task(f"W = put {path_w} shard=0")
            chain(batch, "ab")  # untimed: what the first steps prepare
            homes = [f"{args.home}/{name}.npy" for name in "ab"]
            for _ in range(args.rounds):
                taken["kept"].append(sum(chain(batch, "ab")))
                taken["home"].append(sum(chain(batch, homes)))
                with lab.processors({last}):
                    done = subprocess.run(list(map(str, alone)), stdout=subprocess.PIPE, text=True, check=True, env=with_threads(1))
                taken["numpy"].append(float(done.stdout))
            taken["sent"] = [count * batch.task(f"{args.home}/y.npy = {path_w} @ {path_x}")["round_trip_s"] for _ in range(args.rounds)]
    record(args, "placed_matrices", f"{count} steps", taken, n=n, dtype=args.dtype, cores=args.cores, mbit=args.mbit)
    table(f"{count} steps x = W @ x, W {n} x {n} {args.dtype}, {args.mbit:g} Mbit/s, workers and NumPy on one "
          f"processor; sent: one product times {count}",
          ["who", "seconds: median (range)", "times as long as kept"],
          [[who, spread(figures), f"{ratio(taken['kept'], figures):.2f}"] for who, figures in taken.items()])


def circulate(args, folder):
    n = args.n or (1024 if args.quick else 8192)
    paths = files(args, folder, {"W": (n, n), "V": (n, n)})
    size = n * n * np.dtype(lab.KINDS[args.dtype]).itemsize
    taken, tasks = {"V goes round": [], "V replicated": []}, {}
    with Cluster(args, [Machine(part, args.mbit) for part in args.cores], args.mbit) as cluster, session(args, cluster) as batch:
        for name, path, words in (("W", paths[0], "shard=0"), ("V", paths[1], "shard=0"), ("R", paths[1], "replicate")):
            batch.task(f"{name} = put {path} {words}")
        for _ in range(args.rounds):
            for who, name in (("V goes round", "V"), ("V replicated", "R")):
                tasks[who] = batch.task(f"P = W @ {name}")
                taken[who].append(tasks[who]["round_trip_s"])
    links = (len(args.cores) - 1) / len(args.cores) * size / (args.mbit * 1e6 / 8)
    record(args, "placed_matrices", "circulate", taken, n=n, dtype=args.dtype, cores=args.cores, mbit=args.mbit, links_s=links,
           bytes_sent=tasks["V goes round"]["bytes_sent"], bytes_between=tasks["V goes round"]["bytes_between"])
    table(f"P = W @ V, both {n} x {n} {args.dtype}, {args.mbit:g} Mbit/s, workers of {'/'.join(f'{c:g}' for c in args.cores)} "
          f"processors; the links need {links:.2f} s",
          ["who", "seconds: median (range)", "primary's bytes, of W", "bytes between, of V", "times as long as V replicated"],
          [[who, spread(figures), f"{tasks[who]['bytes_sent'] / size:.4%}", f"{tasks[who]['bytes_between'] / size:.2f}",
            f"{ratio(taken['V replicated'], figures):.2f}"] for who, figures in taken.items()])


def chain(args, folder):
    n, m, count = args.n or (1024 if args.quick else 4096), 256, 10
    *paths, path_x = files(args, folder, {**{f"W{at}": (n, n) for at in range(count)}, "x": (m, n)})
    least = 2 * m * n * np.dtype(lab.KINDS[args.dtype]).itemsize
    taken, moved = {"kept": [], "brought home": []}, {}
    with Cluster(args, [Machine(part, args.mbit) for part in args.cores], args.mbit) as cluster, session(args, cluster) as batch:
        for at, path in enumerate(paths):
            batch.task(f"W{at} = put {path} shard=1")

        def run(name, last):
            tasks = [batch.task(f"{name(at + 1)} = {name(at) if at else path_x} @ W{at}") for at in range(count)]
            return [*tasks, *([batch.task(last)] if last else [])]

        for _ in range(args.rounds):
            for who, name, last in (("kept", lambda at: "HG"[at % 2], f"{'HG'[count % 2]} -> {args.home}/h.npy"),
                                    ("brought home", lambda at: f"{args.home}/{at % 2}.npy", "")):
                tasks = run(name, last)
                taken[who].append(sum(task["round_trip_s"] for task in tasks))
                moved[who] = sum(wire(task) if "product" in task else task.get("bytes_sent", 0) for task in tasks)
                moved[who] += 0 if who != "kept" else least // 2
                between = sum(task.get("bytes_between", 0) for task in tasks)
                moved[f"{who} between"] = between
    record(args, "placed_matrices", "chain", taken, n=n, m=m, dtype=args.dtype, cores=args.cores, mbit=args.mbit, moved=moved)
    table(f"{count} products H = H @ W, H {m} x {n}, W {n} x {n} {args.dtype}, {args.mbit:g} Mbit/s, workers of "
          f"{'/'.join(f'{c:g}' for c in args.cores)} processors, and the result in a file",
          ["H", "seconds: median (range)", "primary's bytes, of x and the result", "MB between workers", "times as long as kept"],
          [[who, spread(figures), f"{moved[who] / least:.3f}", f"{moved[f'{who} between'] / 1e6:.1f}",
            f"{ratio(taken['kept'], figures):.2f}"] for who, figures in taken.items()])


GRAM = """
import sys, time, numpy as np
x, y = np.load(sys.argv[1]), np.load(sys.argv[2])
begun = time.perf_counter()
np.matmul(x.T, y)
print(time.perf_counter() - begun)
"""


def gram(args, folder):
    rows, cols, few = (5000, 300, 30) if args.quick else (100_000, 1000, 32)
    path_x, path_y = files(args, folder, {"X": (rows, cols), "Y": (rows, few)})
    with Cluster(args, [Machine(part, args.mbit) for part in args.cores], args.mbit) as cluster, session(args, cluster) as batch:
        for name, path in (("X", path_x), ("Y", path_y)):
            batch.task(f"{name} = put {path} shard=0")
        table_rows, figures = [], {}
        for other, path in (("Y", path_y), ("X", path_x)):
            taken, moved = {"sums pass": [], "sent": [], "NumPy on one": []}, 0
            there = [*cluster.at(1), sys.executable, "-c", GRAM, path_x, path]
            for _ in range(args.rounds):
                done = batch.task(f"G = X.T @ {other}")
                taken["sums pass"].append(done["round_trip_s"])
                moved = done["bytes_between"]
                sent = [f"{args.home}/y.npy = {other}", f"{args.home}/g.npy = X.T @ {args.home}/y.npy"]
                taken["sent"].append(sum(batch.task(task)["round_trip_s"] for task in sent))
                alone = subprocess.run(list(map(str, there)), stdout=subprocess.PIPE, text=True, check=True, env=with_threads(1))
                taken["NumPy on one"].append(float(alone.stdout))
            figures[other] = taken
            table_rows += [[f"X.T @ {other}", who, spread(each), f"{ratio(taken['sums pass'], each):.2f}",
                            f"{moved / 1e6:.1f}" if who == "sums pass" else ""] for who, each in taken.items()]
    record(args, "placed_matrices", "gram", figures, rows=rows, cols=cols, few=few, dtype=args.dtype, cores=args.cores, mbit=args.mbit)
    table(f"X {rows} x {cols}, Y {rows} x {few} {args.dtype}, {args.mbit:g} Mbit/s, workers of "
          f"{'/'.join(f'{c:g}' for c in args.cores)} processors",
          ["product", "how", "seconds: median (range)", "times as long as sums that pass", "MB between workers"], table_rows)


def speeds(args, folder):
    n, m, count = args.n or (2048 if args.quick else 8192), 1024, 3 if args.quick else 10
    path_w, path_x = files(args, folder, {"W": (n, n), "x": (m, n)})
    cores, taken, shares, own = [0.44, 0.22, 0.22, 0.11], {}, {}, 0
    with Cluster(args, [Machine(part, args.mbit) for part in cores], args.mbit) as cluster, \
            session(args, cluster, verify="off") as batch:
        batch.task(f"X = put {path_x} replicate")
        for columns, words in (("by speed", "shard=1"), ("equal", "shard=1 units=1:1:1:1")):
            put = batch.task(f"W = put {path_w} {words}")
            for moves, task in (("x sent, y fetched", f"{args.home}/y.npy = {path_x} @ W"), ("nothing", "P = X @ W")):
                who = columns, moves
                shares[who] = [part["cols"] for part in put["parts"]]
                reports = [batch.task(task) for _ in range(count + 1)][1:]
                taken[who] = [report["round_trip_s"] for report in reports]
                own = sum(worker["gflops"] for worker in reports[-1].get("product", {}).get("workers", [])) or own
            batch.task("free W")
    record(args, "placed_matrices", "speeds 4 : 2 : 2 : 1", {", ".join(who): each for who, each in taken.items()}, n=n, m=m,
           dtype=args.dtype, cores=cores, mbit=args.mbit, own_gflops=own, shares=list(shares.values()))
    rate = {who: 2e-9 * m * n * n / statistics.median(figures) for who, figures in taken.items()}
    fastest = taken["by speed", "x sent, y fetched"]
    table(f"x ({m} rows) @ W, W {n} x {n} {args.dtype}, workers of {'/'.join(map(str, cores))} processors, which measured "
          f"{own:.1f} Gflop/s together",
          ["columns", "each", "what travels", "seconds: median (range)", "Gflop/s", "of the sum", "times as long as the first"],
          [[who[0], "/".join(map(str, shares[who])), who[1], spread(figures), f"{rate[who]:.1f}", f"{rate[who] / own:.2f}",
            f"{ratio(fastest, figures):.2f}"] for who, figures in taken.items()])


def first(args, folder):
    n, m = args.n or 2048, 64
    path_w, path_x = files(args, folder, {"W": (n, n), "x": (m, n)})
    with Cluster(args, [Machine(part, args.mbit) for part in args.cores], args.mbit) as cluster:
        runs = [cluster.multiply(path_x, path_w, "--strategy", "reuse") for _ in range(args.rounds + 1)]
    taken = {who: [run["first_job_seconds"] for run in part] for who, part in (("workers new", runs[:1]), ("later", runs[1:]))}
    record(args, "placed_matrices", "first product", taken, n=n, m=m, dtype=args.dtype, cores=args.cores, mbit=args.mbit)
    table(f"x ({m} rows) @ W, W {n} x {n} {args.dtype}, sent to {len(args.cores)} workers, each time by a new process",
          ["run", "ms from the start of the process to the first job: median (range)"],
          [[who, spread([1e3 * one for one in figures])] for who, figures in taken.items()])


def process_in(cluster, number):
    """The worker's process in a machine of the lab."""
    ask = [*cluster.at(number), "readlink", "/proc/self/ns/net"]
    space = subprocess.run(ask, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.readlink(path / "ns/net") == space and (path / "comm").read_text().strip() == "bramble":
                return int(path.name)
    raise SystemExit(f"no worker runs in machine {number}")


def owner(args, folder):
    n, m = args.n or (1024 if args.quick else 8192), 2048
    path_w, path_v, path_x, path_part = files(args, folder, {"W": (n, n), "V": (n, n), "x": (m, n), "part": (n, n // len(args.cores))})
    work = {"put": f"W = put {path_w} shard=1", "product": f"{args.home}/y.npy = {path_x} @ W", "idle": f"{args.home}/y.npy = {path_x} @ W",
            "circulating": "P = Z @ V"}
    before = {"put": [], "product": ["put"], "idle": ["put"], "circulating": [f"Z = put {path_w} shard=0", f"V = put {path_v} shard=0"]}
    taken, digests = {who: {"undisturbed": [], "killed": [], "lost part put": []} for who in work}, {who: set() for who in work}
    for who, line in work.items():
        for _ in range(args.rounds):
            for killed in (False, True):
                with Cluster(args, [Machine(part, args.mbit) for part in args.cores], args.mbit) as cluster, \
                        session(args, cluster, kernel="simd") as batch:
                    for task in before[who]:
                        batch.task(work.get(task, task))
                    victim = process_in(cluster, cluster.workers)
                    timer = threading.Timer(0 if who == "idle" else statistics.median(taken[who]["undisturbed"]) / 2 if killed else 0,
                                            os.kill, (victim, signal.SIGKILL))
                    if killed:
                        batch.codes.add(3)  # a machine was lost, and the results are right
                        timer.start()
                    if killed and who == "idle":
                        timer.join()
                        time.sleep(1)
                    done = batch.task(line)
                    taken[who]["killed" if killed else "undisturbed"].append(done["round_trip_s"])
                    if who == "put":
                        done = batch.task(f"{args.home}/y.npy = {path_x} @ W")
                    if who == "circulating":
                        done = batch.task(f"P -> {args.home}/p.npy")
                    digests[who].add(done["digest"])
                    if killed:
                        # It had parts of as many matrices as were put before.
                        puts = [batch.task(f"Q{at} = put {path_part} shard=1") for at in range(len(before[who]) or 1)]
                        taken[who]["lost part put"].append(sum(put["round_trip_s"] for put in puts))
    rows = []
    for who, figures in taken.items():
        whole, put = (statistics.median(figures[name]) for name in ("undisturbed", "lost part put"))
        beyond = [f"{(one - whole - put) / whole:+.0%}" for one in figures["killed"]]
        rows.append([who, spread(figures["undisturbed"]), spread(figures["lost part put"]), spread(figures["killed"]), " ".join(beyond),
                     "the same" if len(digests[who]) == 1 else "OTHER"])
    record(args, "placed_matrices", "owner killed", taken, n=n, m=m, dtype=args.dtype, cores=args.cores, mbit=args.mbit)
    table(f"one of {len(args.cores)} machines killed at half time (idle: before the product); {n} x {n} {args.dtype}, x of {m} rows",
          ["during", "undisturbed, s", "its parts put on the others, s", "killed, s", "beyond both, of the undisturbed", "bits"], rows)


def top(args, folder):
    n, k = args.n or (3000 if args.quick else 30522), 384
    path, = files(args, folder, {"V": (n, k)})
    taken, digests, sent, back, checked = {"at the workers": [], "brought home": []}, set(), 0, 0, 0
    with Cluster(args, [Machine(part, args.mbit) for part in args.cores], args.mbit) as cluster, session(args, cluster) as batch:
        batch.task(f"W = put {path} shard=0")
        batch.task(f"I, T = topk({path} @ W.T, 10)")
        for _ in range(args.rounds):
            one = batch.task(f"I, T = topk({path} @ W.T, 10)")
            taken["at the workers"].append(one["round_trip_s"])
            sent, back, checked = one["bytes_sent"], sum(worker["bytes"] for worker in one["machines"]), one["rows_recomputed"]
            product = batch.task(f"{args.home}/c.npy = {path} @ W.T")
            other = batch.task(f"J, U = topk({args.home}/c.npy, 10)")
            taken["brought home"].append(product["round_trip_s"] + other["round_trip_s"])
            digests |= {(one["results"][0]["digest"], "at"), (other["results"][0]["digest"], "home")}
    same = len({digest for digest, _ in digests}) == 1
    record(args, "placed_matrices", "top 10", taken, n=n, k=k, dtype=args.dtype, cores=args.cores, mbit=args.mbit, sent=sent,
           back=back, same=same)
    table(f"top 10 of each row of V @ V.T, V {n} x {k} {args.dtype}, workers of {'/'.join(f'{c:g}' for c in args.cores)} processors, "
          f"{args.mbit:g} Mbit/s; {sent / 1e6:.1f} MB sent, {back / 1e6:.1f} MB back, checked, {checked} rows computed again; "
          f"{'the same' if same else 'OTHER'} columns",
          ["who", "seconds: median (range)", "times as long as at the workers"],
          [[who, spread(figures), f"{ratio(taken['at the workers'], figures):.2f}"] for who, figures in taken.items()])


def small(args, folder):
    path_w, path_x, path_v = files(args, folder, {"W": (256, 256), "x": (64, 256), "V": (1000, 1000)})
    count, cycles = 20 if args.quick else 500, 50 if args.quick else 1000
    with opened(args, local=4) as batch:
        batch.task(f"W = put {path_w}")
        batch.task(f"{args.home}/y.npy = {path_x} @ W")
        first_s = time.perf_counter() - batch.began
        taken = {"placed": "W", "sent": path_w}
        for who, matrix in taken.items():
            batch.task(f"{args.home}/y.npy = {path_x} @ {matrix}")
            taken[who] = [batch.task(f"{args.home}/y.npy = {path_x} @ {matrix}") for _ in range(count)]
        held = []
        for cycle in range(cycles + 1):
            batch.task(f"V = put {path_v} shard={cycle % 2}")
            batch.task("free V")
            if cycle in (cycles // 10, cycles):
                held.append(batch.held())
    of = {"to the first job": lambda one: one["product"]["first_job_seconds"], "to the last tile": lambda one: (
        one["product"]["first_job_seconds"] + one["product"]["seconds"]), "task to report": lambda one: one["round_trip_s"]}
    rows = [[who, what, *(f"{1e3 * percentile([get(one) for one in reports], part):.2f}" for part in (0.5, 0.99))]
            for who, reports in taken.items() for what, get in of.items()]
    table(f"{count} products x (64 x 256) @ W (256 x 256), {args.dtype}, four local workers, ms; the first, {1e3 * first_s:.0f} ms after the "
          f"cluster began to open, and W was put before it", ["W", "from the task", "p50", "p99"], rows)
    rows = [[("primary", *(f"worker {at}" for at in range(1, 5)))[at], f"{one['rss'] / 2**20:.1f}", f"{other['rss'] / 2**20:.1f}",
             f"{other['rss'] / one['rss'] - 1:+.1%}", f"{one['threads']} and {other['threads']}",
             f"{one['descriptors']} and {other['descriptors']}"] for at, (one, other) in enumerate(zip(*held, strict=True))]
    table(f"placed and freed {cycles} times, after a tenth of them and after all",
          ["process", "MiB before", "MiB after", "more", "threads", "descriptors"], rows)
    record(args, "placed_matrices", "small", {who: [[get(one) for get in of.values()] for one in reports] for who, reports in
                                              taken.items()}, held=held, first_s=first_s)


WITHOUT_ARRAYS = "circulate", "speeds", "first", "owner"
"""Cases in which no array could be in the place of a file, or which begin and end the process: only batches measure them."""
CASES = {"products": products, "steps": steps, "circulate": circulate, "chain": chain, "gram": gram,
         "speeds": speeds, "first": first, "owner": owner, "top": top, "small": small}


def main():
    parser = arguments(__doc__, rounds=3)
    lab.arguments(parser)
    sessions.arguments(parser)
    parser.add_argument("--case", choices=CASES, action="append", help="one of them, or several (all)")
    parser.add_argument("--count", type=int, default=50, help="products of each kind (50)")
    args = parse(parser)
    if not args.bramble:
        raise SystemExit("without Bramble there is no cluster")
    if args.source == "python" and (unknown := set(args.case or []) & set(WITHOUT_ARRAYS)):
        raise SystemExit(f"--from python measures no {' '.join(sorted(unknown))}: leave out --from")
    if args.source == "python" and not importlib.util.find_spec("bramble"):
        raise SystemExit("the package is not installed here: pip install ./python")
    if why := Cluster.missing():
        raise SystemExit(f"no lab: {why}")
    args.cores, args.mbit, args.dtype = args.cores or [0.25] * 4, args.mbit or 1000, args.dtype or "f32"
    # Files of results are in memory, not on a disk.
    shared = Path("/dev/shm")
    with scratch(args) as folder, TemporaryDirectory(dir=shared if shared.is_dir() else folder) as args.home:
        for case in args.case or [case for case in CASES if args.source == "batch" or case not in WITHOUT_ARRAYS]:
            CASES[case](args, folder)


if __name__ == "__main__":
    main()
