"""Reports of calls: dictionaries with a text, and a page that needs no network."""

from __future__ import annotations

import html
import json
import os
from pathlib import Path
from typing import Any

_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#eeca3b", "#9d755d")


class Report(dict):
    """How a call went: the fields of docs/json.md, of a product below ``["product"]``."""

    @classmethod
    def of(cls, text: str) -> "Report":
        return cls(json.loads(text))

    @property
    def text(self) -> str:
        """The report as the command line prints it, or one line."""
        return self.get("text") or _line(self)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<bramble report: {_line(self)}>"

    def _repr_html_(self) -> str:
        return f"{picture(self)}<pre>{html.escape(self.text)}</pre>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the report as an HTML page; it refers to nothing outside of itself."""
        fields = html.escape(json.dumps({k: v for k, v in self.items() if k != "text"}, indent=2))
        page = (
            f"<!doctype html><meta charset='utf-8'><title>Bramble: {html.escape(self.get('kind', 'report'))}</title>"
            f"<body style='font-family: sans-serif; margin: 2em'>{self._repr_html_()}"
            f"<details><summary>All fields</summary><pre>{fields}</pre></details></body>\n"
        )
        to = Path(path)
        part = to.with_name(to.name + ".part")
        part.write_text(page, encoding="utf-8")
        part.replace(to)


def _line(report: dict[str, Any]) -> str:
    words = [f"{report.get('kind', 'call')}"]
    if product := report.get("product"):
        words.append(f"{product['m']}x{product['n']} {product['dtype']}, k = {product['k']}")
    if "rows" in report:
        words.append(f"{report['rows']}x{report['cols']} {report['dtype']}")
    words.append(f"in {report.get('seconds', 0.0):.3g} s")
    machines = [part["machine"] for part in report.get("parts", report.get("machines", []))]
    if machines:
        words.append(f"at {', '.join(dict.fromkeys(machines))}")
    if "bytes_sent" in report:
        words.append(f"{report['bytes_sent'] / 1e6:.3g} MB sent")
    if report.get("checked"):
        words.append("checked")
    return ", ".join(words)


def picture(report: dict[str, Any]) -> str:
    """Where the parts of a placed matrix lie, as an SVG."""
    parts = report.get("parts")
    if not parts or not report["rows"] or not report["cols"]:
        return ""
    rows, cols = report["rows"], report["cols"]
    scale = 160 / max(rows, cols)
    width, height = max(cols * scale, 24), max(rows * scale, 24)
    machines = list(dict.fromkeys(part["machine"] for part in parts))
    if report.get("axis") is None:
        shown = [(0.0, 0.0, width, height, 0)]
        legend = [(0, f"whole copy at {', '.join(machines)}")]
    else:
        shown = [
            (
                part["col"] / cols * width,
                part["row"] / rows * height,
                part["cols"] / cols * width,
                part["rows"] / rows * height,
                machines.index(part["machine"]),
            )
            for part in parts
        ]
        what = "rows" if report["axis"] == 0 else "cols"
        legend = [
            (i, f"{machine}: {sum(part[what] for part in parts if part['machine'] == machine)} {what}")
            for i, machine in enumerate(machines)
        ]
    boxes = "".join(
        f"<rect x='{x:.1f}' y='{y:.1f}' width='{w:.1f}' height='{h:.1f}' fill='{_COLOURS[at % 8]}' stroke='white'/>"
        for x, y, w, h, at in shown
    )
    lines = "".join(
        f"<text x='{width + 12:.0f}' y='{14 + 16 * line}' font-size='12' fill='{_COLOURS[at % 8]}'>{html.escape(text)}</text>"
        for line, (at, text) in enumerate(legend)
    )
    high = max(height, 16 * len(legend) + 8)
    return f"<svg width='{width + 320:.0f}' height='{high:.0f}' xmlns='http://www.w3.org/2000/svg'>{boxes}{lines}</svg>"
