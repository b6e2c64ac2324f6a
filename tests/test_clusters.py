"""The same product on this machine's cores, on workers that Bramble starts, and on workers started by
hand: always the same bits."""

import os
import signal
import socket

import blake3
import numpy as np
import pytest
from helpers import Run, assert_product, assert_refused, bramble, matrix, multiply, save, succeed, workers
from test_unreachable import free_port

OPERANDS = {
    "f32": ("random:700x900:f32:1", "random:900x500:f32:2"),
    "f64": ("random:700x900:f64:1", "random:900x500:f64:2"),
    "i32": ("random:700x900:i32:1", "random:900x500:i32:2"),
    "i64": ("random:700x900:i64:1", "random:900x500:i64:2"),
}

TOGETHER = "--strategy", "reuse"
"""Uses the workers even where this machine alone would be faster, and neither Strassen's method nor a cut of k among machines, which
give other bits: on a busy machine `auto` may choose either."""


def digest_and_bytes(folder, name, *args):
    result = succeed("multiply", *args, "-o", folder / name, "--json")
    return result.report["digest"], (folder / name).read_bytes()


@pytest.mark.parametrize("dtype", OPERANDS)
def test_same_bits_whoever_computes(tmp_path, dtype):
    operands = *OPERANDS[dtype], *TOGETHER
    want = digest_and_bytes(tmp_path, "alone.npy", *operands)
    ways = {"again": [], "threads": ["--threads", "1"], "thread link": ["--link", "thread"]}
    ways |= {f"local {n}": ["--local", str(n)] for n in (1, 2, 3)}
    ways["tcp"] = ["--local", "2", "--link", "tcp"]
    with workers(2, "--threads", "1") as (addresses, _):
        ways["by hand"] = ["-w", ",".join(addresses)]
        for way, options in ways.items():
            got = digest_and_bytes(tmp_path, "C.npy", *operands, *options)
            assert got == want, f"other bits: {way}"


def test_workers_of_unequal_size_give_the_same_bits(tmp_path):
    operands = OPERANDS["f64"]
    want = digest_and_bytes(tmp_path, "alone.npy", *operands, *TOGETHER)
    with workers(1, "--threads", "1", "--memory", "64M") as (small, _):
        with workers(1, "--threads", "2") as (large, _):
            got = digest_and_bytes(tmp_path, "C.npy", *operands, "-w", f"{small[0]},{large[0]}", *TOGETHER)
    assert got == want


@pytest.mark.parametrize("order", ["C", "F"])
def test_files_and_their_layout_do_not_change_the_bits(tmp_path, order):
    a, b = matrix(300, 600, "f64", 1), matrix(600, 310, "f64", 2)
    want = multiply(tmp_path, a, b, *TOGETHER)
    stored = [np.asarray(x, order=order) for x in (a, b)]
    np.testing.assert_array_equal(multiply(tmp_path, *stored, "--local", "2", *TOGETHER), want)


def test_the_digest_is_blake3_of_the_elements(tmp_path):
    digest, _ = digest_and_bytes(tmp_path, "C.npy", *OPERANDS["f32"])
    assert digest.removeprefix("blake3:") == blake3.blake3(np.load(tmp_path / "C.npy").tobytes()).hexdigest()


@pytest.mark.parametrize("dtype", OPERANDS)
def test_random_matrices(tmp_path, dtype):
    def generated(name, seed, shape="300x200"):
        text = f"random:{shape}:{dtype}:{seed}"
        columns = shape.split("x")[1]
        succeed("multiply", text, f"identity:{columns}:{dtype}", "-o", tmp_path / name)
        return np.load(tmp_path / name)

    one = generated("one.npy", 7)
    np.testing.assert_array_equal(one, generated("same.npy", 7))
    other = generated("other.npy", 8)
    assert (one != other).mean() > 0.5
    assert np.unique(one).size > 10 and np.isfinite(one).all()
    # Any part can be made without the rest, so the product of generated matrices is that of their files.
    a, b = generated("A.npy", 3, "90x130"), generated("B.npy", 4, "130x70")
    operands = f"random:90x130:{dtype}:3", f"random:130x70:{dtype}:4"
    succeed("multiply", *operands, "-o", tmp_path / "C.npy", "--local", 2, *TOGETHER)
    assert_product(np.load(tmp_path / "C.npy"), a, b)
    succeed("multiply", tmp_path / "A.npy", tmp_path / "B.npy", "-o", tmp_path / "D.npy", *TOGETHER)
    np.testing.assert_array_equal(np.load(tmp_path / "C.npy"), np.load(tmp_path / "D.npy"))


@pytest.mark.parametrize("where", [[], ["--local", "2"]], ids=["in process", "local 2"])
@pytest.mark.parametrize("dtype", OPERANDS)
def test_identity(tmp_path, dtype, where):
    a = matrix(280, 140, dtype, 5)
    path = save(tmp_path, "A.npy", a)
    # Strassen's method, which the plan may choose, rounds its sums of blocks.
    succeed("multiply", path, f"identity:140:{dtype}", "-o", tmp_path / "right.npy", "--elementwise", *where)
    succeed("multiply", f"identity:280:{dtype}", path, "-o", tmp_path / "left.npy", "--elementwise", *where)
    np.testing.assert_array_equal(np.load(tmp_path / "right.npy"), a)
    np.testing.assert_array_equal(np.load(tmp_path / "left.npy"), a)


def test_a_hostfile_names_ports_as_a_list_does_and_may_begin_with_a_byte_order_mark(tmp_path):
    with workers(2, "--threads", "1") as (addresses, _):
        ports = ",".join(address.rpartition(":")[2] for address in addresses)
        (tmp_path / "hosts").write_bytes(b"\xef\xbb\xbf" + f"127.0.0.1:[{ports}] slots=1\n".encode())
        nodes = succeed("nodes", "--hostfile", tmp_path / "hosts", "--json").report["nodes"]
        assert sorted(node["name"] for node in nodes[1:]) == sorted(addresses)
        (tmp_path / "hosts").write_text(f"{addresses[0]}\n{addresses[1]} # the other\n")
        assert len(succeed("nodes", "--hostfile", tmp_path / "hosts", "--json").report["nodes"]) == 3


def test_a_worker_that_is_named_twice_is_refused_by_whatever_names(tmp_path):
    with workers(1, "--threads", "1") as (addresses, _):
        port = addresses[0].rpartition(":")[2]
        twice = bramble("nodes", "-w", f"{addresses[0]},{addresses[0]}")
        assert_refused(twice, 2, [f"--workers {addresses[0]}", "named twice"])
        other = bramble("multiply", "random:90x90", "random:90x90", "-w", f"{addresses[0]},127.1:{port}")
        assert_refused(other, 2, [f"127.1:{port}", "the same worker", addresses[0], "name it once"])


def test_addresses_of_ipv6_are_shown_in_brackets():
    result = bramble("nodes", "-w", "::1,[::1]:7999")
    assert "worker [::1]:7400: " in result.err and "worker [::1]:7999: " in result.err, result


def test_a_worker_that_joins_before_its_primary_is_there_is_taken(tmp_path):
    port = free_port()
    worker = Run("worker", "--join", f"127.0.0.1:{port}", "--threads", 1)
    try:
        assert "trying again" in worker.process.stderr.readline()
        result = succeed("multiply", "random:300x200", "random:200x100", "--await", 1, "--listen", f"127.0.0.1:{port}",
                         "--await-timeout", "1m", *TOGETHER, "--json")
        assert len(result.report["workers"]) == 1 and result.report["turned_away"] == {"count": 0, "last": None}
        assert worker.finish().code == 0
    finally:
        worker.end()


def test_a_primary_waits_as_long_as_it_is_told():
    result = bramble("multiply", "random:9x9", "random:9x9", "--await", 1, "--listen", "127.0.0.1:0", "--await-timeout", "0.3s",
                     deadline_s=30)
    assert_refused(result, 5, ["--await 1: 0 workers", "300.0 ms", "--await-timeout"], begun=True)


def test_a_hostfile(tmp_path):
    a, b = matrix(300, 200, "f64", 6), matrix(200, 400, "f64", 7)
    with workers(2, "--threads", "1") as (addresses, _):
        ports = [address.rpartition(":")[2] for address in addresses]
        lines = ["# two machines\n", "\n", *(f"127.0.0.1 port={port}  # a worker\n" for port in ports)]
        (tmp_path / "hosts").write_text("".join(lines))
        left, right = save(tmp_path, "A.npy", a), save(tmp_path, "B.npy", b)
        result = succeed("multiply", left, right, "-o", tmp_path / "C.npy", "--json",
                         "--hostfile", tmp_path / "hosts", *TOGETHER)
    assert_product(np.load(tmp_path / "C.npy"), a, b)
    report = result.report
    seen = {machine["name"] for machine in [*report["workers"], *report["faults"]["excluded"]]}
    assert seen == set(addresses)


def test_a_worker_serves_one_product_after_another(tmp_path):
    with workers(1) as (addresses, runs):
        for seed in range(4):
            a, b = matrix(100, 80, "i64", seed), matrix(80, 120, "i64", seed)
            assert_product(multiply(tmp_path, a, b, "-w", addresses[0], *TOGETHER), a, b)
            assert runs[0].process.poll() is None


def test_a_worker_serves_two_products_at_the_same_time(tmp_path):
    operands = {n: (f"random:{n}x900:f64:{n}", f"random:900x700:f64:{n + 1}") for n in (1100, 1200)}
    want = {n: digest_and_bytes(tmp_path, f"{n}-alone.npy", *ab, *TOGETHER) for n, ab in operands.items()}
    with workers(1, "--threads", "1", "--memory", "256M") as (addresses, _):
        for _round in range(3):
            runs = {n: Run("multiply", *ab, "-o", tmp_path / f"{n}.npy", "-w", addresses[0], *TOGETHER, "--json")
                    for n, ab in operands.items()}
            for n, run in runs.items():
                result = run.finish()
                assert result.code == 0, result
                assert result.report["workers"][0]["jobs"] > 0, result
                assert (result.report["digest"], (tmp_path / f"{n}.npy").read_bytes()) == want[n], n


def test_who_finds_no_memory_at_a_worker_is_told_who_has_it(tmp_path):
    small = ["multiply", "random:300x300:f64:1", "random:300x300:f64:2", "-o", tmp_path / "C.npy", *TOGETHER]
    # The product could use 13 GB, so it takes all available memory; the test kills it early.
    long = ["random:2000x200000:f64:1", "random:200000x2000:f64:2", "-o", tmp_path / "long.npy",
            "--kernel", "simd", *TOGETHER]
    with workers(1, "--threads", "1", "--memory", "128M") as (addresses, _):
        holder = Run("multiply", *long, "-w", addresses[0])
        try:
            # Printed when the sessions are open.
            assert "with 1 worker" in (line := holder.process.stderr.readline()), line
            result = bramble(*small, "-w", addresses[0])
            assert_refused(result, 5, [f"{addresses[0]}: its 128 MiB are in use by {socket.gethostname()} "])
        finally:
            holder.end()
        # The worker's memory is free again.
        assert bramble(*small, "-w", addresses[0]).code == 0


def test_a_worker_outlives_strangers(tmp_path):
    with workers(1) as (addresses, runs):
        host, port = addresses[0].split(":")
        for noise in (b"", b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n", os.urandom(4096), b"\xff" * 64):
            with socket.create_connection((host, int(port)), timeout=10) as stranger:
                try:
                    stranger.sendall(noise)
                except OSError:
                    pass  # The worker closed the connection, as it should.
        a, b = matrix(50, 60, "f32", 8), matrix(60, 70, "f32", 9)
        assert_product(multiply(tmp_path, a, b, "-w", addresses[0], *TOGETHER), a, b)
        assert runs[0].process.poll() is None


def test_a_worker_outlives_its_primary(tmp_path):
    with workers(1) as (addresses, runs):
        run = Run("multiply", "random:6000x6000:f64:1", "random:6000x6000:f64:2", "-w", addresses[0],
                  *TOGETHER)
        with pytest.raises(AssertionError, match="no end"):
            run.finish(deadline_s=1)  # Kills the primary.
        a, b = matrix(50, 60, "f32", 8), matrix(60, 70, "f32", 9)
        assert_product(multiply(tmp_path, a, b, "-w", addresses[0], *TOGETHER), a, b)
        assert runs[0].process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_ends_when_asked(number):
    with workers(1) as (_, runs):
        runs[0].process.send_signal(number)
        assert runs[0].finish(deadline_s=5).code in (0, 128 + number)


def test_a_port_in_use_is_named():
    with workers(1) as (addresses, _):
        result = bramble("worker", "--listen", addresses[0], deadline_s=10)
        assert result.code == 1, result
        assert result.err.startswith("bramble: ") and addresses[0] in result.err, result
