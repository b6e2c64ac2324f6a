"""The slow-down of a product while strangers attack the worker's port: a flood of connections, half-finished
handshakes, and proofs of a wrong key.

Rounds in pairs: the same attacker, at the lowest priority, attacks the product's worker, and then an idle
worker, so that its own use of the processor is in both. The time of the whole process includes the wait at the
worker's door: connections are accepted at a bounded rate, the primary's among them.
"""

import os
import subprocess
import time
from contextlib import contextmanager

from common import ROOT, arguments, bramble, in_turns, parse, ratio, record, scratch, spread, table

SECONDS_MAX = 120
CONNECTIONS_MAX = 10_000_000


@contextmanager
def worker(args, env):
    """A worker on a free port of this machine; returns its address."""
    command = [args.bramble, "worker", "--listen", "127.0.0.1:0", "--threads", str(args.threads), "--quiet"]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait()


@contextmanager
def attack(args, address, same):
    command = [args.attacker, address, CONNECTIONS_MAX, SECONDS_MAX, *(["same"] if same else [])]
    process = subprocess.Popen(["nice", "-n", "19", *map(str, command)], stdout=subprocess.DEVNULL)
    try:
        time.sleep(0.3)
        yield
    finally:
        process.terminate()
        process.wait()


def product(args, address, env):
    """Seconds of the whole process, and of the product in it, from the first job to the last tile."""
    words = ["multiply", f"random:{args.n}x{args.n}:f64:1", f"random:{args.n}x{args.n}:f64:2", "-w", address,
             "--strategy", "reuse", "--threads", 1]
    report = bramble(args, *words, env=env)
    return {"whole process": report["wall_s"], "product": report["seconds"]}


def main():
    parser = arguments(__doc__.splitlines()[0], rounds=9)
    parser.add_argument("--attacker", default=ROOT / "target" / "release" / "examples" / "attacker",
                        help="built with: cargo build --release -p bramble-link --example attacker")
    parser.add_argument("-n", type=int, help="rows and columns (3500)")
    args = parse(parser)
    args.n = args.n or (400 if args.quick else 3500)
    if not args.bramble:
        raise SystemExit("build it first: make build")
    rows = []
    with scratch(args) as folder:
        env = {**os.environ, "BRAMBLE_KEY_FILE": str(folder / "key")}
        subprocess.run([args.bramble, "key", "new"], env=env, check=True, capture_output=True)
        with worker(args, env) as busy, worker(args, env) as idle:
            for same in (False, True):
                def beside(target, same=same):
                    with attack(args, target, same):
                        return product(args, busy, env)

                where = "strangers of this machine" if same else "of four other addresses"
                taken = in_turns({"attacked": lambda: beside(busy), "another is": lambda: beside(idle)}, args.rounds)
                for what in ("product", "whole process"):
                    figures = {name: [figure[what] for figure in rounds] for name, rounds in taken.items()}
                    slower = 1 / ratio(figures["attacked"], figures["another is"])
                    case = f"{what}, f64 n={args.n}, {where}"
                    rows.append([case, *map(spread, figures.values()), f"{slower:.3f}"])
                    record(args, "under_attack", case, figures, times_as_long=slower)
    table("One worker, TLS on loopback", ["case", "seconds, attacked", "seconds, another worker is", "times as long"],
          rows)


if __name__ == "__main__":
    main()
