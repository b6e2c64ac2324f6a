"""The formats that Bramble reads and writes: .npy in all its forms, safetensors, Matrix Market, labels."""

import gzip
import json
import os
import resource
import struct
import subprocess
import warnings

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from helpers import BRAMBLE, ROOT, assert_product, bramble, matrix, multiply, save, succeed
from numpy.lib import format as npy


def save_version(path, array, version):
    with open(path, "wb") as file:
        npy.write_array(file, array, version=version)
    return path


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_versions(tmp_path, version):
    a, b = matrix(30, 20, "f64", 1), matrix(20, 10, "f64", 2)
    left = save_version(tmp_path / "A.npy", a, version)
    succeed("multiply", left, save(tmp_path, "B.npy", b), "-o", tmp_path / "C.npy")
    assert_product(np.load(tmp_path / "C.npy"), a, b)


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64"])
def test_big_endian(tmp_path, dtype):
    a, b = matrix(70, 300, dtype, 3), matrix(300, 50, dtype, 4)
    c = multiply(tmp_path, a.astype(a.dtype.newbyteorder(">")), b)
    assert_product(c, a, b)


def test_half_precision_npy_is_widened(tmp_path):
    a, b = matrix(40, 30, np.float16, 5), matrix(30, 20, "f32", 6)
    c = multiply(tmp_path, a, b)
    assert c.dtype == np.float32
    assert_product(c, a, b)


WIDENED = {"i1": "i4", "u1": "i4", "i2": "i4", "u2": "i4", "u4": "i8", "?": "i4", ">i2": "i4", ">f2": "f4"}


@pytest.mark.parametrize("stored, wanted", WIDENED.items())
def test_smaller_types_are_widened(tmp_path, stored, wanted):
    rng = np.random.default_rng(5)
    a, b = (rng.integers(0, 120, shape).astype(stored) for shape in ((40, 30), (30, 20)))
    c = multiply(tmp_path, a, b)
    assert c.dtype == wanted
    assert_product(c, a.astype(wanted), b.astype(wanted))


def test_the_result_is_plain_npy(tmp_path):
    multiply(tmp_path, matrix(9, 8, "f32"), matrix(8, 7, "f32"))
    with open(tmp_path / "C.npy", "rb") as file:
        assert npy.read_magic(file) == (1, 0)
        shape, fortran, dtype = npy.read_array_header_1_0(file)
        assert (shape, fortran, dtype.str) == ((9, 7), False, "<f4")
        assert file.tell() % 64 == 0


def test_a_result_replaces_an_older_file_whole(tmp_path):
    (tmp_path / "C.npy").write_bytes(b"x" * 100_000)
    a, b = matrix(12, 13, "f64", 7), matrix(13, 14, "f64", 8)
    assert_product(multiply(tmp_path, a, b), a, b)


def bfloat16(array):
    """The upper halves of f32 elements."""
    return (array.astype("<f4").view("<u4") >> 16).astype("<u2")


def widened(halves):
    return (halves.astype("<u4") << 16).view("<f4")


def save_safetensors(path, tensors):
    """`tensors`: name -> (dtype name, array of the stored bytes)."""
    header, at = {"__metadata__": {"made": "by a test"}}, 0
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            file.write(array.tobytes())


@pytest.mark.parametrize("where", [[], ["--local", "2"]], ids=["in process", "local 2"])
@pytest.mark.parametrize("stored", ["F32", "F16", "BF16", "F64", "I32", "I64"])
def test_safetensors(tmp_path, stored, where):
    kind = {"F64": np.float64, "I32": np.int32, "I64": np.int64}.get(stored, np.float32)
    a, b = matrix(60, 290, kind, 9), matrix(290, 45, kind, 10)
    if stored == "F16":
        a, b = a.astype(np.float16), b.astype(np.float16)
        tensors = {"left": a, "layer.1.right": b}
    elif stored == "BF16":
        tensors = {"left": bfloat16(a), "layer.1.right": bfloat16(b)}
        a, b = (widened(t) for t in tensors.values())
    else:
        tensors = {"left": a, "layer.1.right": b}
    path = tmp_path / "model.safetensors"
    save_safetensors(path, {name: (stored, array) for name, array in tensors.items()})
    succeed("multiply", f"{path}:left", f"{path}:layer.1.right", "-o", tmp_path / "C.npy", *where)
    c = np.load(tmp_path / "C.npy")
    assert c.dtype == kind
    assert_product(c, a, b)


MARKET = {
    "dense real": (matrix(11, 13, "f64", 11), {}),
    "dense integer": (matrix(11, 13, "i32", 12).astype(np.int64), {}),
    "sparse real": (scipy.sparse.random(11, 13, 0.3, rng=1, dtype=np.float64), {}),
    "sparse integer": (scipy.sparse.coo_matrix(np.arange(143).reshape(11, 13) % 3), {}),
}


@pytest.mark.parametrize("given", MARKET.values(), ids=MARKET)
def test_matrix_market(tmp_path, given):
    a, options = given
    scipy.io.mmwrite(tmp_path / "A.mtx", a, precision=17, **options)
    dense = a.toarray() if scipy.sparse.issparse(a) else a
    b = matrix(13, 9, dense.dtype, 13)
    succeed("multiply", tmp_path / "A.mtx", save(tmp_path, "B.npy", b), "-o", tmp_path / "C.npy")
    c = np.load(tmp_path / "C.npy")
    assert c.dtype == dense.dtype
    assert_product(c, dense, b)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("symmetry", ["symmetric", "skew-symmetric"])
def test_symmetric_matrix_market(tmp_path, symmetry, sparse):
    half = matrix(12, 12, "f64", 14)
    a = half + half.T if symmetry == "symmetric" else half - half.T
    stored = scipy.sparse.coo_matrix(a) if sparse else a
    scipy.io.mmwrite(tmp_path / "A.mtx", stored, precision=17, symmetry=symmetry)
    assert symmetry in (tmp_path / "A.mtx").read_text().splitlines()[0]
    succeed("multiply", tmp_path / "A.mtx", "identity:12:f64", "-o", tmp_path / "C.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "C.npy"), a)


def nearest(array, row, count=5):
    """The rows with the largest cosine to one row, except the row itself."""
    unit = array / np.linalg.norm(array, axis=1, keepdims=True)
    cosines = unit @ unit[row]
    return [index for index in np.argsort(-cosines, kind="stable") if index != row][:count]


def test_nearest_rows_by_label(tmp_path):
    words = [f"word{index:02}" for index in range(40)]
    a = matrix(40, 16, "f32", 15)
    (tmp_path / "words.txt").write_text("".join(f"{word}\n" for word in words))
    path = save(tmp_path, "A.npy", a)
    c = tmp_path / "C.npy"
    succeed("multiply", path, path, "--transpose-b", "-o", c)
    result = succeed("nearest", c, "--labels", tmp_path / "words.txt", "--rows", "word07,word31")
    for word, row in {"word07": 7, "word31": 31}.items():
        wanted = [words[index] for index in nearest(a.astype(float), row)]
        assert word in result.out
        places = [result.out.find(name, result.out.find(word)) for name in wanted]
        assert -1 not in places, f"{word}: expected {wanted} in\n{result.out}"
    assert succeed("nearest", c).out.startswith("alike")
    refused = bramble("nearest", c, "--rows", "40")
    assert refused.code == 2 and "--rows 40" in refused.err
    assert bramble("nearest", path).code == 1
    former = bramble("multiply", path, path, "--transpose-b", "--nearest", "7")
    assert former.code == 2 and "bramble nearest" in former.err


def test_the_digits_of_the_examples(tmp_path):
    digits = np.load(ROOT / "examples" / "digits.npy")
    labels = (ROOT / "examples" / "digits.labels").read_text().split()
    assert digits.dtype == np.float32 and digits.shape == (1797, 64) and len(labels) == 1797
    path = ROOT / "examples" / "digits.npy"
    succeed("multiply", path, path, "--transpose-b", "-o", tmp_path / "C.npy", "--local", 2)
    c = np.load(tmp_path / "C.npy")
    # Pixels are small whole numbers, so every element is exact.
    np.testing.assert_array_equal(c, digits @ digits.T)
    norms = np.sqrt(np.diag(c))
    cosines = c / norms[:, None] / norms[None, :]
    np.fill_diagonal(cosines, -1)
    right = sum(labels[row] == labels[best] for row, best in enumerate(cosines.argmax(axis=1)))
    assert right > 0.98 * 1797


def npy_bytes(header, version=(1, 0), data=b"", length=None):
    """A file with any header, which is text in the format's own encoding or bytes."""
    text = header if isinstance(header, bytes) else header.encode("utf-8" if version[0] == 3 else "latin1")
    count = len(text) if length is None else length
    size = struct.pack("<H" if version[0] == 1 else "<I", count)
    return b"\x93NUMPY" + bytes(version) + size + text + data


PLAIN = "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }"

HEADERS = [
    PLAIN,
    PLAIN + "\n",
    " \t" + PLAIN + "  \n\n",
    "\n" + PLAIN,
    "\n " + PLAIN,
    "# first\n" + PLAIN + " # last",
    PLAIN + "\n# \u00e9\n",
    PLAIN + "\n x",
    PLAIN + ";",
    PLAIN + ",",
    f"({PLAIN})",
    f"[{PLAIN}]",
    PLAIN.replace("(2, 3)", "(0x2, 0x3)"),
    PLAIN.replace("(2, 3)", "(0b10, 0o3)"),
    PLAIN.replace("(2, 3)", "(2, 0_3)"),
    PLAIN.replace("(2, 3)", "(2, 03)"),
    PLAIN.replace("(2, 3)", "(2, 1_1)"),
    PLAIN.replace("(2, 3)", "(2L, 3L)"),
    PLAIN.replace("(2, 3)", "(0x2L, 3 L)"),
    PLAIN.replace("(2, 3)", "(2, 3LL)"),
    PLAIN.replace("(2, 3)", "(+2, 3)"),
    PLAIN.replace("(2, 3)", "(2, --3)"),
    PLAIN.replace("(2, 3)", "(2, 3.0)"),
    PLAIN.replace("(2, 3)", "(2, 1+2)"),
    PLAIN.replace("(2, 3)", "(2, (3))"),
    PLAIN.replace("(2, 3)", "(2,\n3, # columns\n)"),
    PLAIN.replace("(2, 3)", "(2,, 3)"),
    PLAIN.replace("(2, 3)", "[2, 3]"),
    PLAIN.replace("(2, 3)", "(6,)"),
    PLAIN.replace("(2, 3)", "(6)"),
    PLAIN.replace("(2, 3)", "'23'"),
    PLAIN.replace("(2, 3)", "(2, 3), 'shape': (3, 2)"),
    PLAIN.replace("(2, 3)", "(2, 3), 'more': 0"),
    PLAIN.replace("(2, 3)", "(2, 4)"),
    PLAIN.replace("(2, 3)", "(0, 7)"),
    PLAIN.replace("(2, 3)", "(2, True)"),
    PLAIN.replace("(2, 3)", "(2, None)"),
    PLAIN.replace("False", "True"),
    PLAIN.replace("False", "0"),
    PLAIN.replace("False", "false"),
    PLAIN.replace("False", "not True"),
    PLAIN.replace("'descr'", '"descr"'),
    PLAIN.replace("'descr'", "'de' 'scr'"),
    PLAIN.replace("'descr'", r"'\x64escr'"),
    PLAIN.replace("'descr'", "u'descr'"),
    PLAIN.replace("'descr'", "b'descr'"),
    PLAIN.replace("'descr'", "f'descr'"),
    PLAIN.replace("'descr'", "descr"),
    PLAIN.replace("'descr'", "'descr\n'"),
    PLAIN.replace("'<f8'", "'''<f8'''"),
    PLAIN.replace("'<f8'", "r'<f8'"),
    PLAIN.replace("'<f8'", "'<f8 '"),
    PLAIN.replace("'<f8'", "('<f8')"),
    PLAIN.replace("'<f8'", "8"),
    PLAIN.replace("'descr': '<f8', ", ""),
    PLAIN.replace(":", " : ").replace(",", " ,"),
    PLAIN.replace(", }", "}"),
    PLAIN.replace(", }", ",, }"),
    PLAIN.replace("}", ""),
    PLAIN.replace("{", "{**{}, "),
    PLAIN.replace(" ", "\\\n"),
    PLAIN.replace(" ", "\x0c"),
    PLAIN.replace(" ", "\x0b"),
    PLAIN.replace(" ", "\u00a0"),
    PLAIN + "\0",
    PLAIN + " " * (10_000 - len(PLAIN)),
    PLAIN + " " * (10_001 - len(PLAIN)),
    "",
    "{}",
    "set()",
    "{1, 2}",
    "None",
    "(" * 50 + PLAIN + ")" * 50,
]

DESCRIPTIONS = [
    "f8", "=f8", "|f8", "d", "<d", ">d", "float", "float64", "double", ">float64", "f4", "f", "single", "float32", "e", "half",
    "f2", "i4", "i", "intc", "int", "int_", "l", "q", "p", "n", "long", "longlong", "intp", "int64", ">l", ">int", "i1", "b",
    "byte", "int8", "h", "short", "<i2", "u1", "B", "ubyte", "H", "ushort", ">u2", "I", "uintc", ">u4", "uint32", "?", "b1",
    "bool", "bool_", ">b1", "<?", ">bool", "Float64", "F8", "f1", "f3", "i3", "", "<", ">|i4", " <f8", "i4\\n", "float_",
    "np.float64", "u", "<u", "Int32",
]


def numpy_reads(path):
    """The array, or None where numpy.load refuses the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return np.load(path)
        except Exception:
            return None


def test_headers_are_read_where_numpy_reads_them(tmp_path):
    data = np.arange(6.0).tobytes()
    cases = [(header, version) for header in HEADERS for version in ((1, 0), (2, 0), (3, 0))]
    cases += [(PLAIN, version) for version in ((1, 1), (2, 1), (0, 1), (3, 1), (4, 0), (255, 0))]
    cases += [(PLAIN.replace("<f8", descr), (1, 0)) for descr in DESCRIPTIONS]
    cases += [(PLAIN.encode() + b" # \xff", version) for version in ((1, 0), (3, 0))]
    different = []
    for at, (header, version) in enumerate(cases):
        path = tmp_path / f"{at}.npy"
        path.write_bytes(npy_bytes(header, version, data))
        want, shown = numpy_reads(path), bramble("matrix", path, "--json")
        if want is None:
            # Only a multiplication needs to know whether a name is a type's.
            is_refused = shown.code == 1 or shown.report["matrices"][0]["why_not"]
            if not is_refused and version != (4, 0):
                is_refused = bramble("multiply", path, f"random:{shown.report['matrices'][0]['shape'][-1]}x1").code == 1
            if not is_refused:
                different.append((header, version, "refused by NumPy"))
        elif shown.code != 0 or tuple(shown.report["matrices"][0]["shape"]) != want.shape:
            different.append((header, version, shown))
        elif shown.report["matrices"][0]["why_not"]:
            different.append((header, version, shown.report))
    assert not different, different


def test_a_header_in_any_order_and_base_is_multiplied(tmp_path):
    a, b = matrix(2, 3, "f64", 1), matrix(3, 4, "f64", 2)
    header = "# by hand\n{'shape': (0x2, 3,), 'fortran_order': True, 'descr': 'd'} # \u00e9\n"
    (tmp_path / "A.npy").write_bytes(npy_bytes(header, data=a.tobytes("F")))
    succeed("multiply", tmp_path / "A.npy", save(tmp_path, "B.npy", b), "-o", tmp_path / "C.npy")
    assert_product(np.load(tmp_path / "C.npy"), a, b)


def test_one_dimension_is_a_row_on_the_left_and_a_column_on_the_right(tmp_path):
    v, w, x = (matrix(1, n, "f64", n)[0] for n in (30, 20, 30))
    a = matrix(30, 20, "f64", 3)
    paths = {name: save(tmp_path, f"{name}.npy", array) for name, array in zip("vwxa", (v, w, x, a))}
    out = tmp_path / "C.npy"

    def product(*words):
        succeed("multiply", *words, "-o", out)
        return np.load(out)

    np.testing.assert_allclose(product(paths["v"], paths["a"]), (v @ a)[None, :])
    np.testing.assert_allclose(product(paths["a"], paths["w"]), (a @ w)[:, None])
    np.testing.assert_allclose(product(paths["v"], paths["x"]), [[v @ x]])
    np.testing.assert_allclose(product(paths["v"], paths["w"], "--transpose-a", "--transpose-b"), np.outer(v, w))
    refused = bramble("multiply", paths["v"], paths["w"])
    assert refused.code == 1 and "1x30" in refused.err and "20x1" in refused.err, refused
    scalar = bramble("multiply", save(tmp_path, "s.npy", np.float64(3)), paths["a"])
    assert scalar.code == 1 and "0-dimensional" in scalar.err and "--alpha" in scalar.err, scalar
    np.save(out, w)
    old = bramble("multiply", paths["v"], paths["a"], "-o", out, "--beta", 1)
    assert old.code == 1 and "a.reshape(1, 20)" in old.err, old


def test_tensors_of_one_dimension_and_of_files_with_other_endings(tmp_path):
    a, v = matrix(30, 20, "f32", 1), matrix(1, 20, "f32", 2)[0]
    save_safetensors(tmp_path / "M:1.bin", {"layers.0:weight": ("F32", a), "layers.0:bias": ("F32", v)})
    succeed("multiply", f"{tmp_path}/M:1.bin:layers.0:weight", f"{tmp_path}/M:1.bin:layers.0:bias", "-o", tmp_path / "C.npy")
    np.testing.assert_allclose(np.load(tmp_path / "C.npy"), (a @ v)[:, None], rtol=1e-4)
    wrong = bramble("multiply", f"{tmp_path}/M:1.bin:layer.0:weight", "random:20x2:f32")
    assert wrong.code == 1 and "did you mean 'layers.0:weight'" in wrong.err and "bramble matrix" in wrong.err, wrong
    npy = save(tmp_path, "A.npy", a)
    assert "one matrix without a name" in bramble("multiply", f"{npy}:x", npy).err


@pytest.mark.parametrize("name", [b"A\xff.npy", b"\xe9\x80.mtx", b"M\xfe.safetensors"])
def test_names_that_are_not_utf8(tmp_path, name):
    a = matrix(9, 8, "f64", 1)
    path = os.path.join(os.fsencode(tmp_path), name)
    if name.endswith(b".npy"):
        with open(path, "wb") as file:
            np.save(file, a)
    elif name.endswith(b".mtx"):
        with open(path, "wb") as file:
            scipy.io.mmwrite(file, a, precision=17)
    else:
        save_safetensors(path, {"t": ("F64", a)})
        path += b":t"
    out = os.path.join(os.fsencode(tmp_path), b"C\xff.npy")
    succeed("multiply", os.fsdecode(path), "identity:8", "-o", os.fsdecode(out))
    np.testing.assert_array_equal(np.load(out), a)
    assert bramble("plan", os.fsdecode(path), "identity:8").code == 0


def test_packed_files_and_types_that_are_not_multiplied_name_the_way_out(tmp_path):
    market = "%%MatrixMarket matrix {}\n1 1{}\n"
    (tmp_path / "A.mtx.gz").write_bytes(gzip.compress(market.format("array real general", "\n1").encode()))
    np.savez(tmp_path / "A.npz", a=np.ones((2, 2)))
    save_safetensors(tmp_path / "u.safetensors", {"t": ("U64", np.ones((1, 1), "u8")), "c": ("C64", np.ones((1, 1), "c8"))})
    save(tmp_path, "c.npy", np.ones((1, 1), "c16"))
    save(tmp_path, "u.npy", np.ones((1, 1), "u8"))
    save(tmp_path, "s.npy", np.zeros((1, 1), [("x", "f8")]))
    (tmp_path / "skew.mtx").write_text(market.format("coordinate pattern skew-symmetric", " 0"))
    for name, words in {
        "A.mtx.gz": ["gunzip"],
        "A.npz": ["np.load"],
        "u.safetensors:t": ["U64", "torch.int64"],
        "u.safetensors:c": ["C64", "complex", "real"],
        "c.npy": ["<c16", "complex", "a.real"],
        "u.npy": ["uint64", "int64"],
        "s.npy": ["structures", "a['field']"],
        "skew.mtx": ["a pattern has no signs", "symmetric or general"],
    }.items():
        result = bramble("multiply", tmp_path / name, "random:1x1")
        assert result.code == 1 and all(word in result.err for word in words), result


def test_numbers_of_fortran_and_unsigned_integers(tmp_path):
    (tmp_path / "A.mtx").write_text("%%MatrixMarket matrix array real general\n1 2\n5.0D+00\n-1.5d-1\n")
    (tmp_path / "U.mtx").write_text("%%MatrixMarket matrix coordinate unsigned-integer general\n1 2 1\n1 2 7\n")
    succeed("multiply", tmp_path / "A.mtx", "identity:2", "-o", tmp_path / "C.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "C.npy"), [[5.0, -0.15]])
    succeed("multiply", tmp_path / "U.mtx", "identity:2:i64", "-o", tmp_path / "C.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "C.npy"), [[0, 7]])


def test_the_verb_matrix_lists_what_is_in_a_file(tmp_path):
    a = matrix(30, 20, "f32", 1)
    tensors = {"z": ("F32", a), "b": ("F32", a[0]), "a": ("U64", np.ones((2, 2, 2), "u8"))}
    save_safetensors(tmp_path / "M.safetensors", tensors)
    listed = succeed("matrix", tmp_path / "M.safetensors", "--json").report
    assert listed["schema"] == "bramble.matrix/1"
    assert [one["tensor"] for one in listed["matrices"]] == ["a", "b", "z"]
    assert [one["shape"] for one in listed["matrices"]] == [[2, 2, 2], [20], [30, 20]]
    assert [one["bytes"] for one in listed["matrices"]] == [64, 80, 2400]
    assert listed["matrices"][0]["why_not"] and listed["matrices"][2]["multiplied_in"] == "f32"
    shown = succeed("matrix", f"{tmp_path}/M.safetensors:z").out
    assert "30x20" in shown and "F32" in shown and "2.40 kB" in shown
    fortran = save(tmp_path, "F.npy", np.asfortranarray(a))
    assert succeed("matrix", fortran, "--json").report["matrices"][0]["order"] == "columns"
    (tmp_path / "S.mtx").write_text("%%MatrixMarket matrix coordinate real symmetric\n5 5 0\n")
    assert "coordinate real symmetric" in succeed("matrix", tmp_path / "S.mtx").out
    assert succeed("matrix", "random:7x9:i32", "--json").report["matrices"][0]["shape"] == [7, 9]
    complex_ = save(tmp_path, "c.npy", np.ones((2, 3, 4), "c8"))
    assert "complex" in succeed("matrix", complex_).out
    mistyped = bramble("matrix", f"{tmp_path}/M.safetensors:Z1")
    assert mistyped.code == 1 and "did you mean 'z'" in mistyped.err, mistyped
    assert bramble("matrix", tmp_path / "no.npy").code == 1


def limited(*arguments):
    """A run that may not take more than 4 GB of addresses."""
    limit = 4 << 30
    return subprocess.run([BRAMBLE, *map(str, arguments)], capture_output=True, text=True, timeout=60,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))


@pytest.mark.parametrize("where", [[], ["--local", "2"]], ids=["in process", "local 2"])
def test_a_product_without_elements_takes_nothing_in_the_length_of_its_sides(tmp_path, where):
    longest = 1 << 32
    wide, tall, none = (tmp_path / name for name in ("wide.npy", "tall.npy", "none.npy"))
    for path, shape in ((wide, (0, longest)), (tall, (longest, 0)), (none, (0, 0))):
        path.write_bytes(npy_bytes(f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}"))
    market = tmp_path / "wide.mtx"
    market.write_text(f"%%MatrixMarket matrix coordinate real general\n0 {longest} 0\n")
    for words, shape in [
        (["random:0x100000000", "random:100000000x0"], (0, 0)),
        ([wide, tall], (0, 0)),
        ([market, tall], (0, 0)),
        ([tall, none], (longest, 0)),
        ([none, wide], (0, longest)),
        ([wide, wide, "--transpose-b", "--verify", "full"], (0, 0)),
    ]:
        result = limited("multiply", *words, "-o", tmp_path / "C.npy", *where)
        assert result.returncode == 0, (words, result)
        assert np.load(tmp_path / "C.npy").shape == shape


def test_sides_of_files_are_bounded(tmp_path):
    for shape in ((0, 10**12), (10**12, 0), (0,) * 2 + (3,)):
        path = tmp_path / "A.npy"
        path.write_bytes(npy_bytes(f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}"))
        result = limited("multiply", path, "random:1x0")
        assert result.returncode == 1, result
        assert len(shape) == 3 or "a side is 4294967296 at most" in result.stderr, result
    (tmp_path / "A.mtx").write_text("%%MatrixMarket matrix array real general\n0 1000000000000\n")
    assert "a side is 4294967296 at most" in limited("multiply", tmp_path / "A.mtx", "random:1x0").stderr
    assert "a side is 4294967296 at most" in limited("multiply", "random:0x1000000000000", "random:1x0").stderr


def test_no_depth_gives_zeros_or_the_old_c_scaled(tmp_path):
    out = tmp_path / "C.npy"
    succeed("multiply", "random:3x0", "random:0x4", "-o", out)
    np.testing.assert_array_equal(np.load(out), np.zeros((3, 4)))
    old = matrix(3, 4, "f64", 5)
    np.save(out, old)
    succeed("multiply", "random:3x0", "random:0x4", "-o", out, "--beta", 2)
    np.testing.assert_array_equal(np.load(out), 2 * old)


def test_the_verb_matrix_says_why_a_file_cannot_be_multiplied(tmp_path):
    """What multiply refuses for its size or its end is listed with the reason, and with the bytes that its elements take."""
    whole = save(tmp_path, "A.npy", matrix(4, 5, "f64")).read_bytes()
    (tmp_path / "short.npy").write_bytes(whole[:-1])
    for name, shape in [("huge", "(4294967296, 4294967)"), ("long", "(4294967297, 0)")]:
        header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}"
        (tmp_path / f"{name}.npy").write_bytes(npy_bytes(header))
    (tmp_path / "more.npy").write_bytes(whole + b"more")
    save_safetensors(tmp_path / "M.safetensors", {"w": ("F64", np.ones((4, 5)))})
    model = tmp_path / "M.safetensors"
    model.write_bytes(model.read_bytes()[:-1])
    for name, reason, size in [
        ("short.npy", "holds 159 data bytes", 160), ("huge.npy", "data bytes", 4294967296 * 4294967 * 8),
        ("long.npy", "a side is 4294967296 at most", 0), ("M.safetensors", "cut short", 160),
    ]:
        one, = succeed("matrix", tmp_path / name, "--json").report["matrices"]
        assert one["multiplied_in"] is None and reason in one["why_not"] and one["bytes"] == size, one
        operand = f"{model}:w" if name == "M.safetensors" else tmp_path / name
        refused = bramble("multiply", operand, tmp_path / "A.npy")
        assert refused.code == 1 and reason in refused.err, refused
    one, = succeed("matrix", tmp_path / "more.npy", "--json").report["matrices"]
    assert one["multiplied_in"] == "f64" and one["bytes"] == 160


def test_standard_input_is_described_too_and_tensors_need_a_file(tmp_path):
    save_safetensors(tmp_path / "M.safetensors", {"w": ("F64", np.ones((4, 5)))})
    save(tmp_path, "A.npy", matrix(4, 5, "f32"))

    def piped(name, *words):
        given = (tmp_path / name).read_bytes()
        return subprocess.run([BRAMBLE, *words], input=given, capture_output=True, timeout=60)

    one, = json.loads(piped("A.npy", "matrix", "-", "--json").stdout)["matrices"]
    assert one["shape"] == [4, 5] and one["multiplied_in"] == "f32"
    refused = piped("M.safetensors", "multiply", "-", tmp_path / "A.npy")
    assert refused.returncode == 1 and b"save it as a file" in refused.stderr, refused
    assert b"standard input:TENSOR" not in refused.stderr


def test_the_line_about_two_types_has_those_of_the_files(tmp_path):
    small, float_ = save(tmp_path, "A.npy", np.ones((3, 3), "i1")), save(tmp_path, "B.npy", matrix(3, 3, "f32"))
    said = succeed("multiply", small, float_).err
    assert f"{small} is i8 and {float_} is f32: multiplied as f32" in said, said


def test_a_damaged_header_is_shown_without_the_blanks_that_fill_it(tmp_path):
    whole = save(tmp_path, "A.npy", matrix(4, 5, "f64")).read_bytes()
    (tmp_path / "A.npy").write_bytes(whole.replace(b"(4, 5)", b"[4, 5]"))
    refused = bramble("multiply", tmp_path / "A.npy", tmp_path / "A.npy")
    assert refused.code == 1 and "'shape': [4, 5], }'; save" in refused.err, refused
