"""The effect of each option of `bramble multiply`, and the other verbs."""

import ctypes.util
import os
import re
import shutil
import subprocess

import numpy as np
import pytest
from helpers import BRAMBLE, DTYPES, assert_product, bramble, matrix, multiply, save, succeed
from lacking import skip

WHERE = {"in process": [], "local 2": ["--local", "2"]}


@pytest.fixture(params=WHERE.values(), ids=WHERE)
def where(request):
    return request.param


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alpha, beta", [(2, 0), (-1, 1), (3, -2), (0, 1), (0, 0)])
def test_alpha_and_beta(tmp_path, where, dtype, alpha, beta):
    a, b, old = matrix(90, 280, dtype, 1), matrix(280, 75, dtype, 2), matrix(90, 75, dtype, 3)
    save(tmp_path, "C.npy", old)
    c = multiply(tmp_path, a, b, f"--alpha={alpha}", f"--beta={beta}", *where)
    assert_product(c, a, b, alpha, beta, old)


def test_fractional_alpha_and_beta(tmp_path, where):
    a, b, old = matrix(90, 80, "f64", 1), matrix(80, 75, "f64", 2), matrix(90, 75, "f64", 3)
    save(tmp_path, "C.npy", np.asfortranarray(old))
    c = multiply(tmp_path, a, b, "--alpha", "0.25", "--beta", "1e-3", *where)
    assert_product(c, a, b, 0.25, 1e-3, old)


@pytest.mark.parametrize("factor", ["-1e-3", "-.5", "-1e+3", "-2"])
def test_factors_with_signs_need_no_equals_sign(tmp_path, factor):
    a, b, old = matrix(20, 30, "f64", 1), matrix(30, 25, "f64", 2), matrix(20, 25, "f64", 3)
    save(tmp_path, "C.npy", old)
    c = multiply(tmp_path, a, b, "--alpha", factor, "--beta", factor)
    assert_product(c, a, b, float(factor), float(factor), old)


def test_memory_may_have_a_point():
    succeed("multiply", "random:60x60", "random:60x60", "--memory", "1.5G", "-q")


def test_a_short_run_names_starting_as_its_limit_and_no_bound():
    product = "multiply", "random:64x64", "random:64x64"
    # On a busy machine a run now and then takes longer than its start.
    texts = [succeed(*product).out for _ in range(5)]
    assert any("limited by start-up" in text for text in texts) and not any("bound  " in text for text in texts)
    report = succeed(*product, "--json").report
    starting = report["first_job_seconds"] > report["seconds"]
    assert report["limited_by"] == ("start-up" if starting else report["predicted"]["by"])
    assert "bound  " not in succeed("plan", *product[1:]).out


def test_the_bar_begins_empty_grows_and_has_no_columns_of_links_that_there_are_not():
    pty = pytest.importorskip("pty")
    here, there = pty.openpty()
    command = [BRAMBLE, "multiply", "random:1500x1500", "random:1500x1500", "--kernel", "reference", "--tile", "256"]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, stderr=there,
                           env={**os.environ, "TERM": "xterm"})
    os.close(there)
    shown = b""
    while True:
        try:
            some = os.read(here, 65536)
        except OSError:
            break
        if not some:
            break
        shown += some
    os.close(here)
    assert run.wait(60) == 0
    text = shown.decode(errors="replace")
    percents = [int(percent) for percent in re.findall(r"(\d+) %  ", text)]
    assert percents and percents == sorted(percents), text
    assert percents[0] < 100 and "B/s" not in text and " 0 s left" not in text and "0s left" not in text, text


def test_beta_zero_does_not_read_the_old_result(tmp_path, where):
    a, b = matrix(30, 40, "f64", 4), matrix(40, 50, "f64", 5)
    save(tmp_path, "C.npy", np.full((30, 50), np.nan))
    assert_product(multiply(tmp_path, a, b, "--alpha", "1", *where), a, b)


def test_one_file_is_operand_old_result_and_result(tmp_path, where):
    a = matrix(260, 260, "f64", 6)
    path = save(tmp_path, "C.npy", a)
    succeed("multiply", path, path, "--beta", 1, "-o", path, *where)
    assert_product(np.load(path), a, a, 1, 1, a)


CONVERSIONS = [("f32", "f64", "f64"), ("f64", "f64", "f32"), ("i32", "i64", "i64"), ("i32", "f64", "f64"),
               ("i32", "i32", "i64"), ("i32", "i32", "f64"), ("f32", "f32", "f64")]


@pytest.mark.parametrize("left, right, wanted", CONVERSIONS, ids=lambda name: name)
def test_dtype_converts(tmp_path, where, left, right, wanted):
    a, b = matrix(60, 70, left, 7), matrix(70, 80, right, 8)
    c = multiply(tmp_path, a, b, "--dtype", wanted, *where)
    kind = DTYPES[wanted]
    assert c.dtype == kind
    assert_product(c, a.astype(kind), b.astype(kind))


LIBRARIES = {"auto": None, "reference": None, "simd": None, "openblas": "openblas", "blis": "blis"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", LIBRARIES)
def test_every_kernel(tmp_path, where, kernel, dtype):
    library = LIBRARIES[kernel]
    a, b = matrix(270, 300, dtype, 9), matrix(300, 290, dtype, 10)
    left, right = save(tmp_path, "A.npy", a), save(tmp_path, "B.npy", b)
    args = ["multiply", left, right, "-o", tmp_path / "C.npy", "--kernel", kernel, "--json", *where]
    if library and not ctypes.util.find_library(library):
        result = bramble(*args)
        assert result.code == 1 and library in result.err.lower(), result
        skip("blas", f"lib{library} is not installed; refused politely: {result.err.strip()}")
    result = bramble(*args)
    if library and dtype.startswith("i") and result.code != 0:
        assert result.code in (1, 2) and kernel in result.err and dtype in result.err, result
        return
    assert result.code == 0, result
    if kernel != "auto" and not (library and dtype.startswith("i")):
        assert result.report["kernel"].startswith(kernel)
    assert_product(np.load(tmp_path / "C.npy"), a, b)


@pytest.mark.parametrize("method", ["off", "fast", "full"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_verify(tmp_path, where, method, dtype):
    a, b = matrix(130, 200, dtype, 11), matrix(200, 120, dtype, 12)
    left, right = save(tmp_path, "A.npy", a), save(tmp_path, "B.npy", b)
    result = succeed("multiply", left, right, "-o", tmp_path / "C.npy", "--verify", method, "--json", *where)
    verify = result.report["verify"]
    if method == "off":
        assert not verify or not verify["passed"]
    else:
        assert verify["passed"] is True
        assert verify["seconds"] >= 0
        assert 0 <= verify["worst_ratio"] < 1
        assert dtype.startswith("f") or verify["worst_ratio"] == 0
    assert_product(np.load(tmp_path / "C.npy"), a, b)


@pytest.mark.parametrize("tile, panel", [(1, 1), (7, 3), (33, 1000), (64, 17), (1000, 5), (65536, 65536)])
@pytest.mark.parametrize("dtype", ["f64", "i32"])
def test_odd_tiles_and_panels(tmp_path, where, tile, panel, dtype):
    m, k, n = (9, 11, 8) if tile == 1 else (101, 67, 89)
    a, b = matrix(m, k, dtype, 13), matrix(k, n, dtype, 14)
    c = multiply(tmp_path, a, b, "--tile", tile, "--panel", panel, *where)
    assert_product(c, a, b)


@pytest.mark.parametrize("credits", ["1M", "4M", "64M"])
def test_credits(tmp_path, credits):
    a, b = matrix(400, 500, "f64", 15), matrix(500, 450, "f64", 16)
    c = multiply(tmp_path, a, b, "--local", 2, "--credits", credits, "--tile", 128, "--panel", 128)
    assert_product(c, a, b)


@pytest.mark.parametrize("strategy", ["auto", "naive", "row:2", "square:2", "reuse", "cuboid", "cuboid:1x2x2", "summa:2x1",
                                      "strassen:1", "strassen:2+square:2"])
def test_strategies(tmp_path, where, strategy):
    a, b = matrix(300, 310, "f32", 17), matrix(310, 320, "f32", 18)
    assert_product(multiply(tmp_path, a, b, "--strategy", strategy, *where), a, b)


def test_a_worker_with_little_memory_gets_small_blocks(tmp_path):
    a, b = matrix(2500, 300, "f64", 19), matrix(300, 2600, "f64", 20)
    assert_product(multiply(tmp_path, a, b, "--local", 2, "--memory", "48M"), a, b)


def test_quiet_says_nothing_but_results(tmp_path, where):
    a = save(tmp_path, "A.npy", matrix(50, 50, "f64"))
    result = succeed("multiply", a, a, "-q", "-o", tmp_path / "C.npy", *where)
    assert result.err == "", result


def test_nothing_is_coloured_off_a_terminal(tmp_path, where):
    a = save(tmp_path, "A.npy", matrix(50, 50, "f64"))
    result = succeed("multiply", a, a, "-v", "-o", tmp_path / "C.npy", *where)
    assert "\x1b" not in result.out + result.err, result
    assert "\r" not in result.out + result.err, result


def test_help_and_version():
    assert "multiply" in succeed("--help").out
    assert "--transpose-b" in succeed("multiply", "--help").out
    assert "--listen" in succeed("worker", "--help").out
    assert "--cluster" in succeed("plan", "--help").out and "--cluster" not in succeed("multiply", "--help").out
    assert "--dtype" in succeed("nodes", "--help").out
    assert succeed("--version").out.startswith("bramble ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions(tmp_path, shell):
    script = succeed("completions", shell).out
    assert "multiply" in script and "transpose-b" in script and "nodes" in script and "cluster" in script
    if not shutil.which(shell):
        skip("shell", f"{shell} is not installed: its script was written but not parsed")
    (tmp_path / "script").write_text(script)
    subprocess.run([shell, "-n", tmp_path / "script"], check=True)


def test_man_page(tmp_path):
    page = succeed("man").out
    assert ".TH" in page
    if not shutil.which("man"):
        skip("man", "man is not installed: only the page's head was looked at")
    (tmp_path / "bramble.1").write_text(page)
    shown = subprocess.run(["man", "-l", tmp_path / "bramble.1"], capture_output=True, text=True, check=True,
                           env={"MANWIDTH": "100", "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"})
    assert "--transpose-b" in shown.stdout and "--listen" in shown.stdout, shown
    assert shown.stderr == ""


def test_the_variable_names_workers_unless_a_flag_does(tmp_path):
    a = save(tmp_path, "A.npy", matrix(20, 20, "f8", 1))
    env = {"BRAMBLE_HOSTS": "127.0.0.1:1"}
    result = bramble("multiply", a, a, env=env)
    assert result.code == 5 and "127.0.0.1:1" in result.err, result
    assert bramble("multiply", a, a, "--local", "1", env=env).code == 0


@pytest.mark.parametrize("variable, value", [("BRAMBLE_THREADS", "many"), ("BRAMBLE_KERNEL", "magic")])
def test_what_is_wrong_in_a_variable_is_said_of_the_variable(tmp_path, variable, value):
    a = save(tmp_path, "A.npy", matrix(20, 20, "f8", 1))
    wrong = bramble("multiply", a, a, env={variable: value})
    assert wrong.code == 2 and f"{variable} in the environment" in wrong.err and value in wrong.err, wrong
    option = "--" + variable.removeprefix("BRAMBLE_").lower()
    for words in ((option, value), (f"{option}={value}",)):
        wrong = bramble("multiply", a, a, *words, env={variable: value})
        assert wrong.code == 2 and variable not in wrong.err and value in wrong.err, wrong


@pytest.mark.parametrize("verb", ["kernel", "threads", "product", "accumulate", "tree", "link"])
def test_a_drawing_that_cannot_be_written_is_said_before_anything_is_measured(tmp_path, verb):
    (tmp_path / "folder.svg").mkdir()
    for name, code, why in (("rates.png", 2, ".svg"), ("none/rates.svg", 1, "there is no folder"), ("folder.svg", 1, "is a folder")):
        refused = bramble("bench", verb, "--plot", tmp_path / name)
        assert refused.code == code and why in refused.err and name in refused.err and not refused.out, refused


def test_a_number_behind_a_kernel_over_another_is_over_simd(tmp_path):
    """As the help says of a kernel without BASE."""
    for kernel in ["blocked:16", "strassen:16"]:
        a, b = save(tmp_path, "A.npy", matrix(40, 40, "i64", 1)), save(tmp_path, "B.npy", matrix(40, 40, "i64", 2))
        report = succeed("multiply", a, b, "-o", tmp_path / "C.npy", "--kernel", kernel, "--json").report
        assert report["kernel"] == kernel.replace(":", ":simd:"), report
        np.testing.assert_array_equal(np.load(tmp_path / "C.npy"), np.load(a) @ np.load(b))


def test_a_kernel_that_has_not_the_type_is_a_mistake_of_the_command_line():
    refused = bramble("multiply", "random:3x3:i32", "random:3x3:i32", "--kernel", "blis")
    assert refused.code == 2 and "does not multiply i32" in refused.err, refused


def test_sizes_in_messages_stand_in_the_order_of_the_option_size():
    refused = bramble("plan", "--size", "7x3x9", "--strategy", "strassen:2")
    assert refused.code == 2 and "7 x 3 x 9 cannot be halved" in refused.err, refused


def test_the_limit_of_a_factor_is_that_of_its_type():
    refused = bramble("multiply", "random:3x3:i32", "random:3x3:i32", "--alpha", "2147483648")
    assert refused.code == 2 and "whole number of that type; or use" in refused.err, refused


def test_little_memory_is_said_in_small_units():
    assert "at most 1.66 kB of matrices" in succeed("multiply", "random:6x6", "random:6x6", "-v").err
