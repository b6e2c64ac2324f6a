"""What Bramble reads and writes: .npy in all its forms, safetensors, Matrix Market, labels."""

import json
import struct

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from helpers import ROOT, assert_product, matrix, multiply, save, succeed
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
    """The rows with the largest cosine to one row, the row itself left out."""
    unit = array / np.linalg.norm(array, axis=1, keepdims=True)
    cosines = unit @ unit[row]
    return [index for index in np.argsort(-cosines, kind="stable") if index != row][:count]


def test_nearest_rows_by_label(tmp_path):
    words = [f"word{index:02}" for index in range(40)]
    a = matrix(40, 16, "f32", 15)
    (tmp_path / "words.txt").write_text("".join(f"{word}\n" for word in words))
    path = save(tmp_path, "A.npy", a)
    result = succeed("multiply", path, path, "--transpose-b", "-o", tmp_path / "C.npy",
                     "--labels", tmp_path / "words.txt", "--nearest", "word07,word31")
    for word, row in {"word07": 7, "word31": 31}.items():
        wanted = [words[index] for index in nearest(a.astype(float), row)]
        assert word in result.out
        places = [result.out.find(name, result.out.find(word)) for name in wanted]
        assert -1 not in places, f"{word}: expected {wanted} in\n{result.out}"


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
