"""`bramble bench tree`: every level over every link is measured by verified products, and leaves no files."""

import json
import os
import signal
import tempfile
import time
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest
from helpers import Run, assert_gone, assert_refused, bramble, succeed

FIELDS = {"schema", "link", "levels", "workers", "dtype", "m", "k", "n", "rounds", "seconds", "seconds_min", "seconds_max",
          "gflops", "bytes_sent", "bytes_received", "outliers"}


@pytest.fixture
def folder(tmp_path):
    """The folder for temporary folders; it must be empty afterwards."""
    path = tmp_path / "temporary"
    path.mkdir()
    yield {"TMPDIR": str(path)}
    assert list(path.iterdir()) == []


def test_every_level_over_every_link(tmp_path, folder):
    words = ["bench", "tree", "--size", "96", "--levels", "0,1,3", "--link", "pipe,shm,tcp", "--local", "2,3", "--rounds", "1"]
    printed = succeed(*words, "--json", "--plot", tmp_path / "tree.svg", env=folder).out
    machine, *lines = map(json.loads, printed.splitlines())
    assert machine["schema"] == "bramble.machine/1"
    want = {(workers, levels, link) for workers in (2, 3) for levels in (0, 1, 3) for link in ("pipe", "shm", "tcp")}
    assert {(line["workers"], line["levels"], line["link"]) for line in lines} == want and len(lines) == len(want)
    for line in lines:
        assert set(line) == FIELDS and line["schema"] == "bramble.bench.tree/1"
        assert 0 < line["seconds_min"] <= line["seconds"] <= line["seconds_max"]
        assert line["gflops"] == pytest.approx(2 * 96**3 / line["seconds"] / 1e9)
        # The operands are in files: the primary sends all of them, and C returns.
        assert line["bytes_sent"] > 2 * 8 * 96 * 96 and line["bytes_received"] > 8 * 96 * 96
    assert len(xml.parse(tmp_path / "tree.svg").getroot().findall(".//{*}polyline")) == 2 * 9
    file, page = tmp_path / "here.jsonl", tmp_path / "page.html"
    file.write_text(printed)
    succeed("bench", "report", file, "-o", page)
    assert "Strassen by processes" in page.read_text()


def test_a_table_and_values(folder):
    words = ["bench", "tree", "--size", "64", "--levels", "0,2", "--local", "2", "--rounds", "1"]
    head, first, second = succeed(*words, env=folder).out.splitlines()
    assert head.split()[:4] == ["size", "workers", "levels", "products"] and "shm, s" in head
    assert first.split()[:4] == ["64", "2", "0", "1"] and second.split()[:4] == ["64", "2", "2", "49"]
    head, *lines = succeed(*words, "--csv", env=folder).out.splitlines()
    assert set(head.split(",")) == FIELDS - {"schema"} and len(lines) == 4


def test_nothing_is_left_after_a_signal(folder):
    run = Run("bench", "tree", "--size", "3000", "--kernel", "reference", "--levels", "0", "--link", "shm", env=folder)
    deadline = time.monotonic() + 20
    while not run.workers() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(run.process.pid, signal.SIGTERM)
    assert run.finish().code == 143
    assert_gone(run.tag)


def test_what_cannot_be_measured_is_refused(folder):
    for words, culprits in [
        (["--link", "thread"], ["link", "thread"]),
        (["--levels", "4"], ["levels"]),
        (["--size", "0"], ["size"]),
    ]:
        result = bramble("bench", "tree", *words, env=folder)
        assert result.code == 2 and all(culprit in result.err for culprit in culprits), result
    missing = {"TMPDIR": str(Path(tempfile.gettempdir()) / "no" / "such" / "folder")}
    assert_refused(bramble("bench", "tree", "--size", "8", env=missing), 1, ["bench tree", "folder"])
