"""Open clusters to which tasks are given one by one, as lines of the batch language: by `bramble batch`, or by the Python package.

`opened` gives either, as `--from` says. Both answer a task with its report. `round_trip_s` in it are seconds from the line that is
written to the report that is read, or, with the Python package, from the call to its result in the caller's memory.
"""

import time

from common import Side
from open_cluster import Batch, held_by, tree_of

COMMAND_LINE = {"hosts": "workers", "trust_network": "i-trust-this-network"}
"""Options of the command that have another name than the same options of `bramble.Cluster`."""


def arguments(parser):
    """The option that `opened` reads."""
    parser.add_argument("--from", dest="source", choices=["batch", "python"], default="batch",
                        help="who gives the tasks: the command, with files, or the Python package, with arrays (batch)")


def opened(args, prefix=(), **options):
    """The open cluster. The options are those of `bramble.Cluster`."""
    if args.source == "python":
        return PythonSession(prefix, **options)
    words = []
    for name, value in options.items():
        words += [f"--{COMMAND_LINE.get(name, name)}", *([] if value is True else [value])]
    return Batch(args, *words, prefix=prefix)


class PythonSession:
    """As `Batch`, for a process in which the Python package carries out the tasks. Files that a task names as operands are loaded
    before, and results that a batch would write to files are arrays under their names. It begins with the interpreter running, and
    NumPy and the package imported."""

    def __init__(self, prefix=(), **options):
        self.side = Side("python_side.py", 1, prefix=prefix)
        self.side.ask(do="ready")
        self.began = time.perf_counter()
        self.side.ask(do="open", **options)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if not any(error):
            self.side.ask(do="close")
        self.side.__exit__(*error)

    def task(self, line):
        """Carries out a task; its report."""
        return self.side.ask(do="task", line=line)

    def held(self):
        """Resident bytes, threads and descriptors of the process and its workers, the process first."""
        return [held_by(pid) for pid in tree_of(self.side.process.pid)]
