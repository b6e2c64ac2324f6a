"""`bramble bench product`: every way of multiplying is measured by verified products of files, and leaves no files."""

import json
import xml.etree.ElementTree as xml

import pytest
from helpers import bramble, succeed

FIELDS = {"schema", "link", "workers", "threads", "dtype", "m", "k", "n", "rounds", "seconds", "seconds_min", "seconds_max",
          "total_seconds", "gflops", "bytes_sent", "bytes_received", "outliers"}


@pytest.fixture
def folder(tmp_path):
    """The folder for temporary folders; it must be empty afterwards."""
    path = tmp_path / "temporary"
    path.mkdir()
    yield {"TMPDIR": str(path)}
    assert list(path.iterdir()) == []


def test_every_way_with_one_thread_and_with_several(tmp_path, folder):
    words = ["bench", "product", "--size", "64,300", "--local", "2", "--threads", "3", "--rounds", "1"]
    printed = succeed(*words, "--json", "--plot", tmp_path / "product.svg", env=folder).out
    machine, *lines = map(json.loads, printed.splitlines())
    assert machine["schema"] == "bramble.machine/1"
    ways = [("thread", 0), ("tcp", 2), ("pipe", 2), ("shm", 2)]
    want = {(n, link, workers, threads) for n in (64, 300) for link, workers in ways for threads in (1, 3)}
    assert {(line["n"], line["link"], line["workers"], line["threads"]) for line in lines} == want
    for line in lines:
        assert set(line) == FIELDS and line["schema"] == "bramble.bench.product/1"
        assert 0 < line["seconds_min"] <= line["seconds"] <= line["seconds_max"] < line["total_seconds"]
        assert line["gflops"] == pytest.approx(2 * line["n"] ** 3 / line["seconds"] / 1e9)
        # A machine alone moves matrices by reference.
        assert line["bytes_received"] >= 8 * line["n"] ** 2 or line["link"] == "thread"
    assert len(xml.parse(tmp_path / "product.svg").getroot().findall(".//{*}polyline")) == 8
    file, page = tmp_path / "here.jsonl", tmp_path / "page.html"
    file.write_text(printed)
    succeed("bench", "report", file, "-o", page)
    assert "Products from files to a file" in page.read_text()


def test_a_table_and_values(folder):
    words = ["bench", "product", "--size", "50", "--link", "thread,pipe", "--threads", "2", "--rounds", "1"]
    head, alone, pipe = succeed(*words, env=folder).out.splitlines()
    assert head.split()[:2] == ["size", "by"] and "2 threads, s" in head
    assert alone.split()[:3] == ["50", "this", "process"] and pipe.split()[:4] == ["50", "2", "workers,", "pipe"]
    head, *lines = succeed(*words, "--csv", env=folder).out.splitlines()
    assert set(head.split(",")) == FIELDS - {"schema"} and len(lines) == 4


def test_what_cannot_be_measured_is_refused(folder):
    for words, culprit in [(["--link", "mail"], "mail"), (["--size", "0"], "size"), (["--local", "0"], "local")]:
        result = bramble("bench", "product", *words, env=folder)
        assert result.code == 2 and culprit in result.err, result
