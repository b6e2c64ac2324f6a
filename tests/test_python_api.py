"""The page docs/python-api.md is what the docstrings say, and leaves nothing out."""

import importlib.util
import inspect

import bramble
import pytest
from helpers import ROOT

spec = importlib.util.spec_from_file_location("python_api", ROOT / "dist" / "python_api.py")
python_api = importlib.util.module_from_spec(spec)
spec.loader.exec_module(python_api)


def run(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["python_api.py", *words])
    python_api.main()


def test_the_page_is_up_to_date(monkeypatch):
    run(monkeypatch, "--check")


def test_a_page_that_is_not_is_found(monkeypatch, tmp_path):
    page = tmp_path / "page.md"
    monkeypatch.setattr(python_api, "PAGE", page)
    with pytest.raises(SystemExit, match="out of date"):
        run(monkeypatch, "--check")
    run(monkeypatch)
    run(monkeypatch, "--check")
    monkeypatch.setattr(bramble.Cluster.put, "__doc__", "Places a matrix.")
    with pytest.raises(SystemExit, match="out of date"):
        run(monkeypatch, "--check")
    monkeypatch.setattr(bramble.Cluster.put, "__doc__", None)
    with pytest.raises(SystemExit, match="Cluster.put has no docstring"):
        run(monkeypatch)


def test_every_public_name_is_there():
    page = python_api.page()
    for name in bramble.__all__:
        item = getattr(bramble, name)
        assert f"### `bramble.{name}`\n" in page
        if not inspect.isclass(item) or issubclass(item, BaseException):
            continue
        for member in vars(item):
            own = not member.startswith("_") and (member not in getattr(item, "__slots__", ()))
            if own and not hasattr(item, "__dataclass_fields__") and not hasattr(item, "_fields"):
                assert f"#### `{name}.{member}`" in page, member
    for name in bramble.engines.__all__:
        assert f"### `bramble.engines.{name}`\n" in page
