"""Reports and plans of calls: dictionaries with a text, and a page that needs no network."""

from __future__ import annotations

import html
import json
import os
from pathlib import Path
from typing import Any, Self

_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#eeca3b", "#9d755d")


class Report(dict):
    """How a call went: a dictionary with the fields of docs/json.md, those of a product below ``["product"]``.

    Seconds, bytes and Gflop/s are numbers. In a notebook it shows itself with a picture of the parts.
    """

    @classmethod
    def _of(cls, text: str) -> Self:
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
        """Writes the report as an HTML page, which refers to nothing outside of itself. Raises ``OSError`` as ``open``."""
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


class Plan(Report):
    """How a product would be computed: the fields of ``bramble.plan/1`` (docs/json.md).

    ``["workers"]`` says which machine would compute what (``shares``: boxes of rows, columns and k), and with how many bytes;
    ``["predicted"]`` has seconds, bytes and memory, ``["bound"]`` the seconds that no plan on these machines beats, ``["decision"]``
    the reason, ``["left_out"]`` machines without a share, ``["considered"]`` the other plans. ``str(plan)`` is what the command
    ``bramble plan`` prints.
    """

    @property
    def seconds(self) -> float:
        """Predicted seconds, from the first byte sent to the last part of the result received."""
        return self["predicted"]["seconds"]

    @property
    def bound_seconds(self) -> float:
        """Seconds that no plan on these machines beats."""
        return self["bound"]["seconds"]

    @property
    def machines(self) -> list[str]:
        """Names of the machines that would compute."""
        return [worker["name"] for worker in self["workers"]]

    def __repr__(self) -> str:
        size = f"{self['m']}x{self['n']} {self['dtype']}, k = {self['k']}"
        return f"<bramble plan: {size}, {self.seconds:.3g} s predicted, at {', '.join(self.machines)}>"

    def _repr_html_(self) -> str:
        return f"{_owners(self)}<pre>{html.escape(self.text)}</pre>"


def _owners(plan: Plan) -> str:
    """Which machine would compute which part of C, as an SVG; nothing if machines share elements, or the parts are too many."""
    boxes = []
    for at, worker in enumerate(plan["workers"]):
        if worker["shares_total"] > len(worker["shares"]):
            return ""
        for share in worker["shares"]:
            (row, bottom), (col, right) = share["rows"], share["cols"]
            if share["k"] != [0, plan["k"]]:
                return ""
            boxes.append((row, col, bottom - row, right - col, at))
    legend = [f"{worker['name']}: {100 * worker['part']:.1f} % of the work" for worker in plan["workers"]]
    return _drawn((plan["m"], plan["n"]), boxes, legend)


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
    shape = report["rows"], report["cols"]
    machines = list(dict.fromkeys(part["machine"] for part in parts))
    if report.get("axis") is None:
        return _drawn(shape, [(0, 0, *shape, 0)], [f"whole copy at {', '.join(machines)}"])
    boxes = [
        (part["row"], part["col"], part["rows"], part["cols"], machines.index(part["machine"])) for part in parts
    ]
    what = "rows" if report["axis"] == 0 else "cols"
    sums = [sum(part[what] for part in parts if part["machine"] == machine) for machine in machines]
    return _drawn(shape, boxes, [f"{machine}: {lines} {what}" for machine, lines in zip(machines, sums, strict=True)])


def _drawn(shape: tuple[int, int], boxes: list[tuple[int, int, int, int, int]], legend: list[str]) -> str:
    """Boxes (row, column, rows, columns, number of the machine) of a matrix, and a line of text for each machine."""
    rows, cols = shape
    scale = 160 / max(rows, cols)
    width, height = max(cols * scale, 24), max(rows * scale, 24)
    across, down = width / cols, height / rows
    shown = "".join(
        f"<rect x='{col * across:.1f}' y='{row * down:.1f}' width='{wide * across:.1f}' height='{high * down:.1f}' "
        f"fill='{_COLOURS[at % 8]}' stroke='white'/>"
        for row, col, high, wide, at in boxes
    )
    lines = "".join(
        f"<text x='{width + 12:.0f}' y='{14 + 16 * at}' font-size='12' fill='{_COLOURS[at % 8]}'>{html.escape(text)}</text>"
        for at, text in enumerate(legend)
    )
    high = max(height, 16 * len(legend) + 8)
    return f"<svg width='{width + 320:.0f}' height='{high:.0f}' xmlns='http://www.w3.org/2000/svg'>{shown}{lines}</svg>"
