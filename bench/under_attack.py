"""How much slower a product is while strangers are at the worker's port: a flood of connections, ones that hold half a
handshake, and proofs of another key.

Rounds in pairs: the same attacker, at the lowest priority, is aimed at the worker of the product, and at another
worker that does nothing, so that its own use of the processor is in both.
"""

import os
import subprocess
import time
from contextlib import contextmanager

from common import ROOT, arguments, in_turns, parse, ratio, record, scratch, spread, table

SECONDS_MAX = 120
CONNECTIONS_MAX = 10_000_000


@contextmanager
def worker(args, env):
    """A worker on a free port of this machine; gives its address."""
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
    """Seconds of the whole process."""
    words = ["multiply", f"random:{args.n}x{args.n}:f64:1", f"random:{args.n}x{args.n}:f64:2", "-w", address,
             "--strategy", "reuse", "--threads", 1, "--quiet"]
    begun = time.perf_counter()
    done = subprocess.run([args.bramble, *map(str, words)], env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"bramble ended with {done.returncode}: {done.stderr.strip()}")
    return time.perf_counter() - begun


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

                case = f"f64 n={args.n}, " + ("strangers of this machine" if same else "of four other addresses")
                taken = in_turns({"attacked": lambda: beside(busy), "another is": lambda: beside(idle)}, args.rounds)
                slower = 1 / ratio(taken["attacked"], taken["another is"])
                rows.append([case, *map(spread, taken.values()), f"{slower:.3f}"])
                record(args, "under_attack", case, taken, times_as_long=slower)
    table("One worker, TLS on loopback", ["case", "seconds, attacked", "seconds, another worker is", "times as long"],
          rows)


if __name__ == "__main__":
    main()
