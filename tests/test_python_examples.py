"""The example programs of examples/python/: each runs to its end, and its check against a known library holds."""

import re
import sys
from pathlib import Path

import nbformat
from helpers import ROOT, Run, assert_gone, workers
from nbclient import NotebookClient

FOLDER = ROOT / "examples" / "python"
NUMBER = r"([-+\d.e]+)"
DEADLINE_S = 120
"""The first run of `words.py` fetches 84 MB."""

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""Other tests run beside these, and threads of OpenBLAS that wait for a processor wait hundreds of milliseconds at a time."""


def example(name, *options):
    """What a program prints on two local workers."""
    return printed(name, "--local", 2, *options)


def printed(name, *options):
    result = ended(name, *options)
    assert result.code == 0, result
    assert_gone(result.tag)
    return result.out


def ended(name, *options):
    return Run(FOLDER / name, *options, env=ONE_THREAD, binary=Path(sys.executable)).finish(DEADLINE_S)


def numbers(pattern, text):
    """The numbers at the `#` of a pattern of words, in the only place of the text that has them."""
    [found] = re.findall(re.escape(pattern).replace(r"\#", NUMBER), text)
    return [float(number) for number in ([found] if isinstance(found, str) else found)]


def test_the_nearest_words_are_those_of_numpy():
    out = example("words.py")
    assert "\nking: kings 0.690, queen 0.627, monarch 0.494" in out and "\nblue: red 0.533" in out
    same_percent, difference = numbers("check: #% of the neighbours are NumPy's, cosines differ by at most #\n", out)
    # Two cosines that are equal but for rounding may change places.
    assert same_percent > 99 and difference < 1e-5
    sent_mb, product_mb = numbers("512 words at once: # MB sent; the product of # MB never travels", out)
    assert sent_mb < 2 < 60 < product_mb


def test_words_that_the_model_lacks_are_named():
    result = ended("words.py", "--words", "king,brambling")
    assert result.code == 2 and "not among the 30522 words: brambling" in result.err


def test_principal_components_are_those_of_scikit_learn():
    out = example("pca.py")
    values, cosine, _ = numbers("check: singular values differ from scikit-learn's by at most #, relatively; "
                                "cosine between components at least #; coordinates differ by at most #\n", out)
    assert values < 1e-4 and cosine > 0.9999
    assert "10 components of 64 explain 73.8% of the variance" in out


def test_k_means_ends_with_the_inertia_of_scikit_learn():
    out = example("kmeans.py")
    ours, theirs, difference, labels_percent = numbers(
        "check: inertia #, scikit-learn's #, relative difference #; #% of the labels are equal", out)
    assert abs(ours / theirs - 1) < 1e-6 and difference < 1e-6 and labels_percent > 99.9


def test_a_compressed_photograph_is_as_good_as_by_numpy(tmp_path):
    out = example("image.py", "--rank", 20, "--output", tmp_path / "china.png")
    ours, best, difference = numbers(
        "check: PSNR # dB, with NumPy's SVD # dB; singular values differ by at most #, relatively", out)
    assert abs(ours - best) < 0.001 and difference < 1e-9
    assert (tmp_path / "china.png").read_bytes().startswith(b"\x89PNG")


def test_page_ranks_are_those_of_networkx():
    out = example("pagerank.py", "--nodes", 1500)
    checks = re.findall(f"check: ranks differ from NetworkX's by at most {NUMBER}; the five highest are the same\n", out)
    assert len(checks) == 2 and max(map(float, checks)) < 1e-10
    # The two leaders of the club, after whom it split.
    assert re.search(r"highest ranks after \d+ rounds: 33 \(0\.0970\), 0 \(0\.0885\)", out)


def test_ridge_regression_has_the_coefficients_of_scikit_learn():
    out = example("ridge.py")
    [difference] = numbers("check: coefficients differ from scikit-learn's by #, relatively", out)
    assert difference < 1e-6
    ours, theirs = numbers("R² on 111 other patients: #, with scikit-learn #\n", out)
    assert abs(ours - theirs) < 1e-4 and ours > 0.25


def test_a_network_learns_as_well_as_with_numpy():
    out = example("network.py", "--rounds", 40)
    ours, count, rounds, theirs = numbers(
        "check: #% of # other digits are right after # rounds; trained with NumPy alone, #%\n", out)
    assert (count, rounds) == (360, 40)
    # Rounding differs, so a few pictures may.
    assert ours > 90 and abs(ours - theirs) < 1.5


def test_programs_use_the_hosts_that_are_named():
    with workers(2, "--threads", 1) as (addresses, _):
        out = printed("pca.py", "--hosts", ",".join(addresses))
    # This machine holds a copy, too.
    assert re.search(f"a copy at each of [^,]+, {', '.join(addresses)}>", out)


def test_the_notebook_runs_and_shows_parts_and_reports():
    notebook = nbformat.read(FOLDER / "tour.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "the notebook is kept without results"
    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(FOLDER)}}).execute()
    shown = {cell.source: cell.outputs[0] for cell in notebook.cells if cell.get("outputs")}

    def result(end):
        [output] = [output for source, output in shown.items() if source.endswith(end)]
        return output.get("text") or output.data.get("text/html") or output.data["text/plain"]

    # The shares follow the measured speeds of the workers.
    rows = re.findall(r"local (\d): (\d+) rows", result("\nD"))
    assert "<svg" in result("\nD") and {worker for worker, _ in rows} == {"1", "2"}
    assert sum(int(count) for _, count in rows) == 1797
    assert "local 1: 1536 cols" in result("uneven.T")
    assert result("pictures[0] @ pictures.T)") == result("pictures.T @ pictures)") == "True"
    assert result("print(error)").startswith("numpy.exp is not supported for placed matrices")
    assert result("same digit\")") == "98.9% of the nearest neighbours show the same digit\n"
    assert "reduction, in" in result("c.last_report") and "1797x1797 f32" in result("c.last_report.text)")
