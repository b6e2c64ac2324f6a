"""Writes docs/python-api.md from the docstrings of the package: `python dist/python_api.py` in an environment that has it.

With `--check` it writes nothing, and fails if the page is not what it would write. Whatever the page names has a docstring: a
public item without one is an error.
"""

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from pathlib import Path

import bramble
import bramble.engines

PAGE = Path(__file__).resolve().parent.parent / "docs" / "python-api.md"

HEAD = """# Python: every class and function

Made from the docstrings by `python dist/python_api.py`; `help(bramble.Cluster)` shows the same. [python.md](python.md) is the introduction.
Shapes are rows × columns, sizes are bytes, times seconds, speeds 10⁹ operations a second.
"""

PARTS = {
    "In this process": [bramble.matmul, bramble.solve, bramble.lu, bramble.LU],
    "Clusters": [bramble.Cluster, bramble.Node],
    "Placed matrices": [bramble.DistArray, bramble.Part, bramble.Shard, bramble.Replicate],
    "Reports and plans": [bramble.Report, bramble.Plan],
    "Clusters on engines that run already": [
        getattr(bramble.engines, name) for name in ("from_dask", "from_mpi", "from_slurm", "from_ray", "from_kubernetes", "manifests")
    ],
    "Exceptions": [kind for name, kind in vars(bramble).items() if isinstance(kind, type) and issubclass(kind, BaseException)],
}
SECTIONS = "Parameters", "Returns"


def page():
    """The whole page."""
    lines = [HEAD]
    for part, items in PARTS.items():
        lines.append(f"\n## {part}\n")
        for item in items:
            lines.extend(entry(item))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def entry(item):
    """A function, or a class with its members."""
    if not isinstance(item, type):
        name = f"bramble.engines.{item.__name__}" if "engines" in item.__module__ else f"bramble.{item.__name__}"
        return [f"### `{name}`\n", signature(item, item.__name__, "cls"), *text(item, name)]
    bases = ", ".join(base.__name__ for base in item.__bases__ if base not in (object, tuple, dict))
    lines = [f"### `bramble.{item.__name__}`\n"]
    if issubclass(item, BaseException):
        return [*lines, f"{bases}. " + "\n".join(text(item, item.__name__))]
    if dataclasses.is_dataclass(item) or item in (bramble.Cluster, bramble.LU):
        lines.append(signature(item, item.__name__))
    elif bases:
        lines.append(f"A `{bases}`.\n")
    lines += text(item, item.__name__)
    if hasattr(item, "_fields"):
        return lines + fields(item)
    for name, member in vars(item).items():
        if not name.startswith("_") and not dataclasses.is_dataclass(item) and not is_slot(member):
            lines += described(item, name, member)
    return lines


def is_slot(member):
    return inspect.ismemberdescriptor(member) or not (callable(member) or isinstance(member, (property, classmethod)))


def described(item, name, member):
    """A method or property, as part of its class."""
    if isinstance(member, property):
        kind = plain(inspect.signature(member.fget).return_annotation)
        return [f"#### `{item.__name__}.{name}`: `{kind}`\n", *text(member, f"{item.__name__}.{name}")]
    function = member.__func__ if isinstance(member, classmethod) else member
    return [f"#### `{item.__name__}.{name}`\n", signature(function, name), *text(function, f"{item.__name__}.{name}")]


def fields(item):
    """The fields of a named tuple, with the texts below them."""
    body = ast.parse(textwrap.dedent(inspect.getsource(item))).body[0].body
    lines = []
    for field, after in zip(body, [*body[1:], None]):
        if isinstance(field, ast.AnnAssign):
            if not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)):
                raise SystemExit(f"{item.__name__}.{field.target.id} has no text below it")
            lines.append(f"- `{field.target.id}`: `{ast.unparse(field.annotation)}`. {ticked(after.value.value)}")
    return [*lines, ""]


def signature(function, name, hidden="self"):
    """The parameters of a function, a line for each if they are many."""
    found = inspect.signature(function)
    words, star = [], False
    for parameter in found.parameters.values():
        if parameter.name in ("self", "cls", hidden):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            words.append("*")
            star = True
        word = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "") + parameter.name
        if parameter.annotation is not parameter.empty:
            word += f": {plain(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            word += f" = {parameter.default!r}".replace("slice(None, None, None)", "slice(None)")
        words.append(word)
    result = found.return_annotation
    arrow = "" if result in (found.empty, None, "None") else f" -> {plain(result)}"
    line = f"{name}({', '.join(words)}){arrow}"
    if len(line) > 110:
        line = f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){arrow}"
    return f"```python\n{line}\n```\n"


def plain(annotation):
    """An annotation without the names of modules."""
    shown = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:_array|_solve|np|os|_cluster|bramble\.\w+|numpy)\.", "", shown)


def text(item, name):
    """A docstring as Markdown."""
    found = item.__doc__
    if not found or (isinstance(item, type) and dataclasses.is_dataclass(item) and found.startswith(f"{item.__name__}(")):
        raise SystemExit(f"{name} has no docstring")
    lines = []
    for block in re.split(r"\n\n+(?!    )", inspect.cleandoc(found)):
        head = block.split("\n", 2)
        if head[0] in SECTIONS and len(head) == 3 and set(head[1]) == {"-"}:
            lines += [f"**{head[0]}**\n", *parameters(head[2]), ""]
        elif "::\n\n    " in block:
            words, code = block.split("::\n\n", 1)
            lines += [f"{ticked(words)}:\n", f"```python\n{textwrap.dedent(code)}\n```\n"]
        else:
            lines.append(ticked(block) + "\n")
    return lines


def parameters(block):
    """`name : type` and indented lines, as a list."""
    lines = []
    for line in block.split("\n"):
        if line.startswith(" "):
            lines[-1] += f" {ticked(line.strip())}"
        else:
            name, _, kind = line.partition(" : ")
            lines.append(f"- `{name}`" + (f" ({ticked(kind)}):" if kind else ":"))
    return lines


def ticked(words):
    return words.replace("``", "`")


def main():
    made = page()
    if "--check" in sys.argv[1:]:
        if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != made:
            raise SystemExit(f"{PAGE} is out of date: python dist/python_api.py writes it anew")
    else:
        PAGE.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
