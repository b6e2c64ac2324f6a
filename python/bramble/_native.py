"""Loads the compiled module, and tells it how to start processes of this program."""

import sys
from pathlib import Path

from bramble import _bramble as module

__all__ = ["module", "program", "words"]


def program() -> str | None:
    """The interpreter that a process of this program starts with; ``None`` where there is none.

    A frozen application (PyInstaller and the like) names itself there, and would start itself for ever. A program in which Python
    is embedded may name nothing.
    """
    return None if getattr(sys, "frozen", False) else sys.executable or None


def words() -> list[str]:
    """The words that run the command ``bramble`` in a process of its own; none where there is no interpreter."""
    if (python := program()) is None:
        return []
    # A worker process needs the compiled module alone: without the site's packages it starts in a few milliseconds.
    begin = f"import sys; sys.path[:0] = [{str(Path(module.__file__).parent)!r}]; import _bramble"
    run = f"{begin}; _bramble.run_as([{python!r}, '-I', '-S', '-c', sys.argv[1], sys.argv[1]])"
    run = f"{run}; _bramble.main(['bramble', *sys.argv[2:]])"
    return [python, "-I", "-S", "-c", run, run]


module.run_as(words())
