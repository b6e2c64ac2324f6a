"""A long call of the Python package shows one line on a terminal and in a notebook, and nothing elsewhere."""

import io
import os
import pty
import re
import signal
import subprocess
import sys
import types

import pytest
from bramble._progress import ProgressLine
from helpers import TAG
from test_python_faults import HEAD, said

LONG = 'c.matmul("random:1500x1500:f64:1", "random:1500x1500:f64:2")'
"""Some seconds with the reference kernel."""


def on_a_terminal(text, interrupt_at=None, **options):
    """What the terminal gets from a program whose stderr it is, and what the program prints. The program is interrupted when its
    terminal has got `interrupt_at`."""
    ours, theirs = pty.openpty()
    options = {"local": 2, "threads": 1, "kernel": "reference"} | options
    program = subprocess.Popen(
        [sys.executable, "-c", f"{HEAD}\nc = Cluster(**{options})\n{text}"],
        stdout=subprocess.PIPE, stderr=theirs, text=True, env={**os.environ, TAG: "progress", "COLUMNS": "120"})
    os.close(theirs)
    written = b""
    while True:
        try:
            chunk = os.read(ours, 4096)
        except OSError:
            break
        if not chunk:
            break
        written += chunk
        if interrupt_at and interrupt_at in written:
            program.send_signal(signal.SIGINT)
            interrupt_at = None
    os.close(ours)
    out, _ = program.communicate(timeout=60)
    assert program.returncode == 0, written.decode()
    return written.decode(), out


def test_a_long_product_shows_how_far_it_is_and_then_nothing_more():
    written, _ = on_a_terminal(LONG)
    lines = written.split("\r")
    assert lines[0] == "" and lines[-1] == "\x1b[K" and "\n" not in written
    assert all(line.endswith("\x1b[K") for line in lines[1:])
    shown = [line for line in lines if re.search(r"^[█░]{24} +\d+ %  \d+/\d+ tiles  [\d.]+ Gflop/s", line)]
    assert shown and any(line.endswith(" left\x1b[K") for line in shown), lines
    percents = [int(re.search(r"(\d+) %", line)[1]) for line in shown]
    assert percents == sorted(percents)


def test_arrays_that_are_made_show_their_steps():
    made = 'W = c.put("random:1500x1500:f64:1", Shard(0))\nP = W @ W\nprint(P.shape)'
    written, out = on_a_terminal(made)
    assert out == "(1500, 1500)\n"
    assert re.search(r"\r[█░]{24} +\d+ %  \d+/\d+ steps", written), written


def test_short_calls_show_nothing():
    """On a machine that stands still for a second meanwhile, a call is not short."""
    written, out = on_a_terminal("""
calls = []
for call in [lambda: c.put(w)] + [lambda: x @ W] * 50:
    begun = time.monotonic()
    W = call() if not calls else (call(), W)[1]
    calls.append(time.monotonic() - begun)
print(max(calls) < 0.9)
""", kernel="simd")
    assert out == "False\n" or written == ""


def test_nothing_is_shown_that_the_user_does_not_want():
    assert on_a_terminal(LONG, progress=False) == ("", "")


def test_nothing_is_shown_where_there_is_no_terminal():
    """`said` would have the line in its standard output or error."""
    assert said(f"""
        with Cluster(local=2, threads=1, kernel="reference") as c:
            {LONG}
        sys.stderr.flush()
        sys.stderr = None
        with Cluster(local=2, threads=1, kernel="reference") as c:
            {LONG}
    """) == []


def test_ctrl_c_removes_the_line():
    written, out = on_a_terminal("""
try:
    c.matmul("random:9000x9000:f64:1", "random:9000x9000:f64:2")
except KeyboardInterrupt:
    print("interrupted")
""", interrupt_at=b"tiles")
    assert out == "interrupted\n" and written.endswith("\r\x1b[K")


class Display:
    """IPython in a kernel of Jupyter, as far as the line knows it."""

    def __init__(self, monkeypatch):
        self.pages = []
        module, shown = types.ModuleType("IPython"), types.ModuleType("IPython.display")
        module.get_ipython = lambda: types.SimpleNamespace(kernel=True)
        shown.HTML, shown.display = str, self.display
        monkeypatch.setitem(sys.modules, "IPython", module)
        monkeypatch.setitem(sys.modules, "IPython.display", shown)

    def display(self, page, display_id):
        assert display_id
        self.pages.append([page])
        return types.SimpleNamespace(update=self.pages[-1].append)


def test_a_notebook_shows_it_in_one_place_for_each_call(monkeypatch):
    notebook, line = Display(monkeypatch), ProgressLine()
    for _ in range(2):
        line(1.0, None, None)
        line(1.25, 0.5, "7/14 tiles  2 < 3 s left")
        line()
    bar = "<div><progress value='0.500' max='1'></progress> 50 % &nbsp;7/14 tiles  2 &lt; 3 s left</div>"
    assert notebook.pages == [["<div>1 s</div>", bar, ""]] * 2


def test_a_line_that_cannot_be_shown_is_left_away(monkeypatch):
    class Closed(io.StringIO):
        def isatty(self):
            return True

        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    line = ProgressLine()
    line(1.0, 0.1, "1/10 tiles")
    line()


@pytest.mark.parametrize("columns", [20, 40, 200])
def test_a_line_fits_the_terminal(monkeypatch, columns):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", str(columns))
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    ProgressLine()(3.0, 0.25, "123/400 tiles  100.0 Gflop/s  90 s left")
    shown = terminal.getvalue().removeprefix("\r").removesuffix("\x1b[K")
    assert len(shown) < columns and "██████░░░░░░░░░░░░░░░░░░  25 %  123/400 tiles  100.0 Gflop/s  90 s left".startswith(shown)
