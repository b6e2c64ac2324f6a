"""`bramble bench report`: pages of real measurements, two machines beside each other, and files that are broken or hostile."""

import json
import re
import xml.etree.ElementTree as xml
from html.parser import HTMLParser

import pytest
from helpers import bramble, succeed

EVIL = "<script>alert('1')</script>&\""


class Page(HTMLParser):
    """A page's text and tables; refuses tags that are not closed in their order."""

    VOID = {"meta"}

    def __init__(self, path):
        super().__init__()
        self.open, self.tags, self.texts, self.rows = [], [], [], []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert not self.open, self.open
        self.text = " ".join("".join(self.texts).split())
        self.drawings = [xml.fromstring(svg) for svg in re.findall(r"<svg .*?</svg>", self.source, re.DOTALL)]
        assert len(self.drawings) == self.tags.count("svg")

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.texts.append(data)
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data

    def count(self, what):
        return sum(len(drawing.findall(f".//{{*}}{what}")) for drawing in self.drawings)

    def row(self, *first):
        """The row that begins with these cells."""
        found = [row for row in self.rows if tuple(row[:len(first)]) == first]
        assert found, (first, self.rows)
        return found[0]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Lines of this machine: kernels, a product, its nodes."""
    file = tmp_path_factory.mktemp("measured") / "here.jsonl"
    runs = [
        ["bench", "kernel", "--size", "48,64", "--kernel", "simd,reference", "--dtype", "f32,i32", "--rounds", "2"],
        ["multiply", "random:64x64:f32:1", "random:64x64:f32:2", "-o", file.parent / "C.npy"],
        ["nodes"],
    ]
    file.write_text("".join(succeed(*words, "--json").out for words in runs))
    return file


def slower(file, name, by):
    """The same machine with all kernel speeds divided."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        if line["schema"] == "bramble.bench.kernel/1":
            line["gflops"] /= by
    other = file.parent / name
    other.write_text("\n".join(map(json.dumps, lines)))
    return other


def test_a_page_has_all_that_was_measured(measured, tmp_path):
    out = tmp_path / "page.html"
    ended = succeed("bench", "report", measured, "-o", out)
    assert not ended.out and not ended.err and not out.with_name("page.html.part").exists()
    page = Page(out)
    machine, *lines = [json.loads(line) for line in measured.read_text().splitlines()]
    assert page.row("host")[1] == machine["host"] and page.row("bramble")[1] == machine["bramble"]
    kernels = [line for line in lines if line["schema"] == "bramble.bench.kernel/1"]
    assert len(kernels) == 8
    for line in kernels:
        row = page.row(line["kernel"], line["dtype"], str(line["m"]), "1")
        said = row[4].split()[0]
        decimals = len(said.partition(".")[2])
        assert abs(float(said) - line["gflops"]) <= 0.5001 * 10**-decimals, (row, line)
        assert row[6].split("!")[0].strip() == f"{line['outliers']} of {line['rounds']}"
    # Two kernels of two types at two sizes, and the product.
    assert page.count("polyline") == 5 and page.count("circle") == 9
    assert "Whole products" in page.text and "Machines of the cluster" in page.text
    assert "script" not in page.tags and "http://" not in page.source.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page.source and "default-src 'none'" in page.source


def test_two_machines_stand_beside_each_other(measured, tmp_path):
    out, pi = tmp_path / "two.html", slower(measured, "pi.jsonl", 4)
    with measured.open() as lines:
        extra = next(line for line in lines if '"simd"' in line)
    pi.write_text(pi.read_text() + "\n" + json.dumps({**json.loads(extra), "kernel": "blis", "gflops": 1e-3}))
    succeed("bench", "report", "--compare", pi, measured, "-o", out)
    page = Page(out)
    assert "Kernels: here is 4.00 times as fast as pi (4.00 to 4.00 times, 8 measurements)" in page.text
    # kind, both, mean, least, greatest, on the first only, on the second only
    assert page.row("Kernels") == ["Kernels", "8", "4.00", "4.00", "4.00", "1", "0"]
    assert page.row("Best of all kernels")[1:5] == ["4", "4.00", "4.00", "4.00"]
    assert page.row("Whole products")[1:3] == ["1", "1.00"]
    assert "Measured on pi only" in page.text and "blis" in page.text
    succeed("bench", "report", "--compare", measured, pi, "-o", out, "--label", "dev", "--label", EVIL)
    page = Page(out)
    assert "Kernels: dev is 4.00 times as fast as " + EVIL in page.text
    assert page.row("Kernels")[2] == "0.25" and "script" not in page.tags


def test_what_cannot_be_read_is_named(measured, tmp_path):
    broken, out = tmp_path / "broken.jsonl", tmp_path / "page.html"
    lines = measured.read_text().splitlines()
    kernel = json.loads(lines[1])
    more = ["{", json.dumps({"schema": f"{EVIL}/1"}), json.dumps({**kernel, "schema": "bramble.bench.kernel/2"}),
            json.dumps({**kernel, "gflops": "fast"}), json.dumps({**kernel, "kernel": EVIL, "dtype": EVIL})]
    broken.write_bytes("\n".join(lines + more).encode() + b"\n\xff\xfe\x00\n")
    ended = succeed("bench", "report", broken, "-o", out)
    page, at = Page(out), len(lines)
    for line, said in [(1, "no JSON"), (2, "not known"), (3, "version '2'"), (4, "'gflops'"), (6, "UTF-8")]:
        note = next(text for text in ended.err.splitlines() if f"broken.jsonl, line {at + line}:" in text)
        assert said in note and note.removeprefix("bramble: ") in page.text
    assert "versions 1 and 2 of bramble.bench.kernel are mixed" in page.text
    assert EVIL in page.text and "script" not in page.tags
    assert any(EVIL in "".join(drawing.itertext()) for drawing in page.drawings)


def test_what_cannot_be_had_leaves_what_was_there(measured, tmp_path):
    out, none = tmp_path / "page.html", tmp_path / "none.jsonl"
    out.write_text("old")
    none.write_text('{"schema": "bramble.plan/1"}\n')
    cases = [
        ([none], 1, "bramble.plan/1 is no measurement"),
        ([measured, none], 1, "none.jsonl"),
        ([tmp_path / "missing.jsonl"], 1, "missing.jsonl"),
        (["--compare", measured], 2, "--compare"),
        ([measured, "--compare", measured, measured], 2, "--compare"),
        (["--compare", measured, measured, "--label", "x"], 2, "twice"),
        ([measured, "--label", "x", "--label", "y"], 2, "once"),
        ([], 2, "FILE"),
    ]
    for words, code, said in cases:
        refused = bramble("bench", "report", *words, "-o", out)
        assert refused.code == code and said in refused.err and not refused.out, refused
    assert bramble("bench", "report", measured, "-o", measured).code == 2
    assert out.read_text() == "old" and len(list(tmp_path.iterdir())) == 2
