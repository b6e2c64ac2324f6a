"""What the example programs share: their options, the cluster that these name, and a clock."""

import argparse
import time

import bramble


def options(description):
    """A parser with the options that say which cluster to use. `description` is the program's docstring."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--local", type=int, default=2, metavar="N", help="use N worker processes of this machine (default: 2)")
    where.add_argument("--hosts", metavar="HOSTS", help="use the workers at these addresses, such as pi[1-4]")
    return parser


def cluster(args):
    """The open cluster; use it in a `with` statement."""
    return bramble.Cluster(args.hosts) if args.hosts else bramble.Cluster(local=args.local)


def fastest(run, times=3):
    """What `run()` returns, and the seconds of its fastest call. The first call also opens connections and loads libraries."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - start)
    return result, min(seconds)


def print_times(cluster_s, here_s, library):
    """Both times, and which of the two is shorter."""
    ratio = cluster_s / here_s
    verdict = f"the cluster takes {ratio:.1f} times as long" if ratio > 1 else f"the cluster is {1 / ratio:.1f} times as fast"
    print(f"time, the fastest of 3: {1e3 * cluster_s:.2f} ms on the cluster, {1e3 * here_s:.2f} ms with {library} in this "
          f"process; {verdict}")
