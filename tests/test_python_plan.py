"""`Cluster.plan`: what a product would do is what it then does, and nothing is computed, placed or lost by asking."""

import json
import re

import numpy as np
import pytest
from bramble import BrambleError, Cluster, Plan, Replicate, Shard
from helpers import DTYPES, assert_product, save, succeed, workers
from test_python_cluster import c, placed, same, small  # noqa: F401 (c and placed are fixtures)

M, K, N = 300, 900, 1300
DECIDED = "m", "n", "k", "dtype", "strategy", "alone", "grid", "sums"
"""What does not depend on speeds that are measured anew for each product."""


def agrees(plan, report):
    """The product was computed by the plan."""
    product = report["product"]
    assert {name: plan[name] for name in DECIDED} == {name: product[name] for name in DECIDED}
    assert [part["name"] for part in plan["workers"]] == [machine["name"] for machine in product["workers"]]
    for name in ("bytes_sent", "bytes_received", "worker_memory_bytes"):
        assert plan["predicted"][name] == product["predicted"][name]
    # The work of each machine, in jobs; none is stolen from equal machines that hold their operand.
    assert sum(part["jobs"] for part in plan["workers"]) == sum(machine["jobs"] for machine in product["workers"])


def covers(plan):
    """Each element of C has its k multiplications in one share exactly."""
    counts = np.zeros((plan["m"], plan["n"]), int)
    for worker in plan["workers"]:
        assert worker["shares_total"] == len(worker["shares"])
        for share in worker["shares"]:
            (top, bottom), (left, right), (first, last) = share["rows"], share["cols"], share["k"]
            counts[top:bottom, left:right] += last - first
    assert (counts == plan["k"]).all()


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Shard(1, (2, 1)), Replicate()], ids=str)
def test_a_product_with_a_placed_matrix_is_computed_as_planned(c, placement):
    x, w = small(M, K), small(K, N)
    W = c.put(w, placement)
    for a, b, want in ((x, W, x @ w), (W.T, x.T, w.T @ x.T), (x[0], W, x[0] @ w)):
        plan = c.plan(a, b)
        covers(plan)
        same(c.matmul(a, b), want)
        agrees(plan, c.last_report)
    plan = c.plan(W.T, W, keep=False)
    covers(plan)
    same(c.matmul(W.T, W, keep=False), w.T @ w)
    agrees(plan, c.last_report)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_of_arrays_files_and_generators_is_computed_as_planned(c, tmp_path, dtype):
    a, b = small(M, K, dtype), small(K, N, dtype, 1)
    path, made = save(tmp_path, "b.npy", b), f"random:{M}x{K}:{dtype}:1"
    for left, right, want in ((a, b, a @ b), (np.asfortranarray(a), path, a @ b), (made, str(path), None)):
        plan = c.plan(left, right)
        covers(plan)
        product = c.matmul(left, right)
        # Speeds of machines that compute alike differ a little from one measurement to the next, and strategies with them.
        assert {plan[name] for name in ("m", "n", "k", "dtype")} == {M, N, K, dtype}
        assert plan["alone"] is c.last_report["product"]["alone"] is False
        if want is not None:
            same(product, want)
        else:
            assert_product(product, c.put(made).numpy(), b)


def test_the_plan_is_the_commands(tmp_path):
    """The same fields and the same text, of the same machines; alone, since one machine's thread has one way to compute. With few rows,
    Strassen's method takes three times as long as the others: no measurement of speeds chooses it."""
    a, b = small(64, K), small(K, N)
    paths = [save(tmp_path, f"{name}.npy", array) for name, array in (("a", a), ("b", b))]
    with Cluster(threads=1, kernel="simd") as one:
        plan = one.plan(a, b)
    shown = json.loads(succeed("plan", *paths, "--threads", 1, "--kernel", "simd", "--json").out)
    assert set(plan) - {"kind", "text"} == set(shown) and plan["schema"] == shown["schema"] == "bramble.plan/1"
    assert {name: plan[name] for name in DECIDED} == {name: shown[name] for name in DECIDED}
    text = succeed("plan", *paths, "--threads", 1, "--kernel", "simd").out
    unlike = re.compile(r"[\d.]+ (?:Gflop|[nµm]?s\b)|[\d.]+ times|limited by.*|\(\w+\)| +")
    assert unlike.sub(" ", plan.text) == unlike.sub(" ", text)


def test_a_plan_shows_itself(c, placed, tmp_path):
    W = placed[1]
    plan = c.plan(small(M, W.shape[0]), W)
    assert type(plan) is Plan and plan.seconds == plan["predicted"]["seconds"] > plan.bound_seconds > 0
    assert plan.machines == ["local 1", "local 2"]
    assert str(plan) == plan.text and "predicted" in str(plan).splitlines()[0] and "local 2" in str(plan)
    assert repr(plan).startswith("<bramble plan: 300x280 f64, k = 300, ") and "local 1, local 2" in repr(plan)
    page = plan._repr_html_()
    assert page.count("<svg") == 1 and page.count("<rect") == sum(part["shares_total"] for part in plan["workers"])
    assert "of the work" in page and "compared" in page
    plan.save(tmp_path / "plan.html")
    assert page in (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert json.loads(json.dumps(plan)) == plan


def test_a_plan_whose_machines_share_elements_has_no_picture(c):
    plan = c.plan(small(256, 20000), c.put("random:20000x200:f64:1", Shard(0)))
    assert len({tuple(share["k"]) for worker in plan["workers"] for share in worker["shares"]}) == 2
    assert "<svg" not in plan._repr_html_() and "<pre>" in plan._repr_html_()


def test_asking_changes_nothing(c, placed):
    w, W = placed
    x = small(M, len(w))
    x @ W
    report = c.last_report
    held = [node.held_bytes for node in c.nodes]
    for _ in range(50):
        c.plan(x, W)
    assert c.last_report is report and [node.held_bytes for node in c.nodes] == held
    same(x @ W, x @ w)


def test_what_has_no_plan_says_why(c, placed):
    w, W = placed
    x, H = small(M, len(w)), W.T @ W
    for call, kind, culprit in (
        (lambda: c.plan(W.T, W), ValueError, "follows from where the operands lie; keep=False"),
        (lambda: c.plan(x, W, keep=True), ValueError, "keep=False"),
        (lambda: c.plan(x @ w, H), ValueError, "made at the workers"),
        (lambda: c.plan(H, H, keep=False), ValueError, "made at the workers"),
        (lambda: c.plan(x[:0], W), ValueError, "0x280, k = 300: there is nothing to multiply"),
        (lambda: c.plan(x, W.T), ValueError, "mismatch in its core dimension"),
        (lambda: c.plan(x.astype("f4"), W), TypeError, r"float32 and float64"),
        (lambda: c.plan(x.astype("c16"), W), TypeError, r"complex128 are not supported"),
        (lambda: c.plan("none.npy", W), FileNotFoundError, "none.npy"),
        (lambda: c.plan("random:3x", W), ValueError, "random:3x"),
        (lambda: c.plan(np.zeros((2, 2, 2)), W), ValueError, "1 or 2 dimensions"),
    ):
        with pytest.raises(kind, match=culprit):
            call()
    W.T.numpy()
    V = c.put(w)
    V.free()
    with pytest.raises(ValueError, match="was freed"):
        c.plan(x, V)
    same(x @ W, x @ w)


def test_without_workers_this_machine_is_the_plan():
    with Cluster(threads=1) as one:
        plan = one.plan(small(M, K), small(K, N))
        assert plan["alone"] and len(plan.machines) == 1 and plan["workers"][0]["part"] == 1


def test_a_lost_part_is_placed_anew_before_the_plan():
    """As for a product: the plan is that of the machines that are left."""
    w, x = small(K, N), small(M, K)
    with workers(2, "--threads", 1) as (addresses, runs), Cluster(addresses, kernel="simd") as c:
        W = c.put(w, Shard(1, (0, 1, 1)))
        assert c.plan(x, W).machines == addresses
        runs[0].process.kill()
        runs[0].process.wait()
        plan = c.plan(x, W)
        assert addresses[0] not in plan.machines and addresses[1] in plan.machines
        covers(plan)
        same(x @ W, x @ w)
        agrees(plan, c.last_report)
    with pytest.raises(BrambleError, match="closed"):
        c.plan(x, w)
