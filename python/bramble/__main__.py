"""The command ``bramble``, as ``python -m bramble`` runs it, too."""

import sys

from bramble import _native


def main() -> None:
    """Runs the command line of this process; does not return."""
    _native.module.main(["bramble", *sys.argv[1:]])


if __name__ == "__main__":
    main()
