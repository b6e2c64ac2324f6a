"""`bramble bench accumulate`: every way to add to one block is measured, checked, and reported in every format."""

import json
import xml.etree.ElementTree as xml

import pytest
from helpers import bramble, succeed

CSV = {"way", "kernel", "dtype", "m", "k", "n", "jobs", "threads", "blocks", "rounds", "seconds", "seconds_min",
       "seconds_max", "job_seconds", "times_owner", "gflops", "adding", "waiting", "results", "difference_max", "outliers"}
WORDS = ["bench", "accumulate", "--size", "20,24x8x16", "--jobs", "3", "--threads", "1,2", "--dtype", "f32,i64",
         "--way", "mutex,atomic,atomic-each", "--rounds", "1"]


def test_every_way_is_told_in_every_form(tmp_path):
    printed = succeed(*WORDS, "--json", "--plot", tmp_path / "ways.svg").out
    machine, *lines = map(json.loads, printed.splitlines())
    assert machine["schema"] == "bramble.machine/1" and len(lines) == 4 * 2 * 2 * 2
    for line in lines:
        assert line.pop("schema") == "bramble.bench.accumulate/1"
        threads = line.pop("per_thread")
        assert set(line) == CSV and len(threads) == line["threads"]
        assert sum(thread["jobs"] for thread in threads) == pytest.approx(3 * line["blocks"] * line["rounds"])
        assert all(0 < thread["busy"] <= 1.001 for thread in threads if thread["jobs"])
        assert line["seconds_min"] <= line["seconds"] <= line["seconds_max"]
        assert 0 <= line["adding"] <= 1 and 0 <= line["waiting"] <= 1
        if line["way"] == "owner":
            assert line["times_owner"] == 1 and line["adding"] == 0
        if line["way"] == "owner" or line["dtype"] == "i64":
            assert line["results"] == 1 and line["difference_max"] == 0
        else:
            assert line["results"] >= 1 and line["difference_max"] < 1e-3
        assert line["waiting"] == 0 or line["way"] == "mutex"
    assert {line["way"] for line in lines} == {"owner", "mutex", "atomic", "atomic-each"}
    drawn = xml.parse(tmp_path / "ways.svg").getroot()
    assert len(drawn.findall(".//{*}polyline")) == 4 * 4 and len(drawn.findall(".//{*}circle")) == len(lines)
    file, page = tmp_path / "here.jsonl", tmp_path / "page.html"
    file.write_text(printed)
    succeed("bench", "report", file, "-o", page)
    assert "Adding to one block" in page.read_text() and page.read_text().count("<svg") == 4


def test_tables_and_csv_have_a_line_for_each():
    few = [word for at, word in enumerate(WORDS) if not {word, WORDS[at - 1]} & {"--size", "--threads", "--dtype"}]
    few += ["--size", "20", "--threads", "2", "--dtype", "f64"]
    head, *rows = succeed(*few, "--csv").out.splitlines()
    assert set(head.split(",")) == CSV and len(rows) == 4
    table = succeed(*few).out.splitlines()
    assert "of owner" in table[0] and "jobs by thread" in table[0] and len(table) == 1 + 4 + 3


def test_what_cannot_be_had_is_refused():
    cases = [(["--kernel", "strassen"], 2, "strassen"), (["--way", "spin"], 2, "atomic-each"), (["--jobs", "0"], 2, "--jobs"),
             (["--size", "131072"], 1, "MiB"), (["--kernel", "openblas", "--dtype", "i32"], 1, "i32")]
    for words, code, said in cases:
        refused = bramble("bench", "accumulate", *words)
        assert refused.code == code and said in refused.err and not refused.out, refused
