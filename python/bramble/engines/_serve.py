"""The program of a worker process: ``python -I -S _serve.py OPTIONS``, with the cluster key as the first line of stdin.

The process ends with its session, or with its stdin, whatever comes first. So it never outlives the process that started it, even
one that was killed. It imports the compiled module alone, and starts in a few milliseconds.
"""

import os
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import _bramble

sys.path.pop(0)
# The parent waits for this line, and counts those of tasks on other hosts.
print("bramble: ready", file=sys.stderr, flush=True)
key = sys.stdin.readline().strip()
if not key:
    os._exit(0)
os.environ["BRAMBLE_KEY"] = key


def end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(0)


threading.Thread(target=end_with_stdin, daemon=True).start()
# The primary begins to listen when it has sent the key. A worker that dials too early tries again only a second later.
time.sleep(0.1)
_bramble.main(["bramble", "worker", *sys.argv[1:]])
