"""A line that shows how far a long call is, on a terminal or in a notebook."""

from __future__ import annotations

import html
import shutil
import sys
import threading
from typing import Any

_WIDTH = 24
"""Characters of the bar, as of the command."""


class ProgressLine:
    """Shows calls of the main thread, one after another; the compiled module calls it while such a call takes long."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._is_off = False

    def __call__(self, seconds: float | None = None, done: float | None = None, text: str | None = None) -> None:
        """The call has taken so long, and has that part done; without arguments it is over."""
        if self._is_off or threading.current_thread() is not threading.main_thread():
            return
        try:
            if _notebook():
                self._in_notebook(seconds, done, text)
            elif sys.stderr is not None and sys.stderr.isatty():
                line = "" if seconds is None else _line(seconds, done, text)[: shutil.get_terminal_size().columns - 1]
                sys.stderr.write(f"\r{line}\x1b[K")
                sys.stderr.flush()
        except Exception:
            # A call does not fail because it cannot be shown.
            self._is_off = True

    def _in_notebook(self, seconds: float | None, done: float | None, text: str | None) -> None:
        from IPython.display import HTML, display

        page = "" if seconds is None else _html(seconds, done, text)
        if self._handle is None:
            self._handle = display(HTML(page), display_id=True)
        else:
            self._handle.update(HTML(page))
        if seconds is None:
            self._handle = None


def _notebook() -> bool:
    """Whether IPython runs in a kernel of Jupyter. It is not imported for that."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and hasattr(shell, "kernel")


def _words(seconds: float, text: str | None) -> str:
    return text or f"{seconds:.0f} s"


def _line(seconds: float, done: float | None, text: str | None) -> str:
    if done is None:
        return f"bramble: {_words(seconds, text)}"
    full = int(done * _WIDTH)
    return f"{'█' * full}{'░' * (_WIDTH - full)} {int(done * 100):>3} %  {_words(seconds, text)}"


def _html(seconds: float, done: float | None, text: str | None) -> str:
    bar = "" if done is None else f"<progress value='{done:.3f}' max='1'></progress> {int(done * 100)} % &nbsp;"
    return f"<div>{bar}{html.escape(_words(seconds, text))}</div>"
