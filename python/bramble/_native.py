"""Loads the compiled module, and tells it how to start processes of this program."""

import sys
from pathlib import Path

from bramble import _bramble as module

__all__ = ["module", "words"]

# A worker process needs the compiled module alone: without the site's packages it starts in a few milliseconds.
_BEGIN = f"import sys; sys.path[:0] = [{str(Path(module.__file__).parent)!r}]; import _bramble"
_RUN = f"{_BEGIN}; _bramble.run_as([{sys.executable!r}, '-I', '-S', '-c', sys.argv[1], sys.argv[1]])"
_RUN = f"{_RUN}; _bramble.main(['bramble', *sys.argv[2:]])"


def words() -> list[str]:
    """The words that run the command ``bramble`` in a process of its own."""
    return [sys.executable, "-I", "-S", "-c", _RUN, _RUN]


module.run_as(words())
