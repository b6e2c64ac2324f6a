"""The processor time of paced copies: copies of 1 MiB back to back, and at the pace of a link.

A thread that feeds a link sleeps until there is room for the next body: 8 ms of each 8.4 at 1 Gbit/s. Meanwhile other
processes (or virtual machines) fill the caches, so the next copy finds neither its source nor its target in them.
So copies back to back do not predict the cost of moving a GB at a rate. "in the cache": the same 1 MiB again and again;
"out of memory": through 256 MiB, each once a round, as operands are read. CPU seconds of this thread per GB; pauses alone,
without a copy, as a yardstick.
"""

import time

import numpy as np
from common import arguments, in_turns, parse, record, spread, table

BODY = 1 << 20
LINK_BYTES_PER_S = 125e6
PAUSE_S = 0.95 * BODY / LINK_BYTES_PER_S


def cpu_s_per_gb(bodies, to, pause_s):
    """CPU seconds of this thread for each GB of `bodies`, each copied to `to` after a pause; where `to` is None, of the pauses."""
    before = time.thread_time()
    for body in bodies:
        if pause_s:
            time.sleep(pause_s)
        if to is not None:
            to[:] = body
    return (time.thread_time() - before) / (len(bodies) * BODY / 1e9)


def main():
    args = parse(arguments(__doc__.splitlines()[0], rounds=3))
    count = 16 if args.quick else 256
    cold = np.random.default_rng(1).integers(0, 256, (count, BODY), np.uint8)
    hot = np.broadcast_to(cold[0], cold.shape)
    to = np.ones(BODY, np.uint8)
    taken = in_turns({
        "in the cache": lambda: cpu_s_per_gb(hot, to, 0),
        "out of memory": lambda: cpu_s_per_gb(cold, to, 0),
        "in the cache, paced": lambda: cpu_s_per_gb(hot, to, PAUSE_S),
        "out of memory, paced": lambda: cpu_s_per_gb(cold, to, PAUSE_S),
        "pauses alone": lambda: cpu_s_per_gb(cold, None, PAUSE_S),
    }, args.rounds)
    case = "copies of 1 MiB by one thread"
    table(case, ["", "CPU s per GB: median (range)"], [[name, spread(values)] for name, values in taken.items()])
    record(args, "paced_copies", case, taken)


if __name__ == "__main__":
    main()
