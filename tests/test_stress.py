"""Memory under stress: no process exceeds the plan's figure, while the disk of C is slow, a worker
stands still in the middle, or results arrive faster than a starved primary handles them."""

import os
import shutil
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers import assert_gone, succeed, wait_for_work, workers
from lacking import skip
from test_loss import pids_of, running

MIB = 2**20
BESIDE = 64 * MIB
"""A process's memory besides matrices: its program, threads, buffers of links."""
SIMD = "--kernel", "simd"


def anonymous_bytes(pid):
    """The resident memory of a process that no file backs; 0 after its end."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


class Watch(threading.Thread):
    """Samples the memory of processes, and keeps the maximum."""

    def __init__(self, pids):
        super().__init__()
        self.peaks, self.over = dict.fromkeys(pids, 0), threading.Event()

    def run(self):
        while not self.over.wait(0.003):
            for pid in self.peaks:
                self.peaks[pid] = max(self.peaks[pid], anonymous_bytes(pid))


@contextmanager
def watched(run, runs):
    watch = Watch([run.process.pid, *pids_of(runs)])
    watch.start()
    try:
        yield watch
    finally:
        watch.over.set()
        watch.join()


def assert_as_planned(result, run, runs, watch, digest):
    """Primary and workers stay within their figures of the plan; C is right."""
    assert result.code == 0, result
    report = result.report
    assert report["digest"] == digest and not report["faults"]["lost"], result
    primary, worker = (report["predicted"][f"{who}_memory_bytes"] for who in ("primary", "worker"))
    over = {"primary": watch.peaks[run.process.pid] - primary}
    over |= {f"worker {pid}": watch.peaks[pid] - worker for pid in pids_of(runs)}
    assert max(over.values()) <= BESIDE, {who: f"{size / MIB:.0f} MiB more than planned" for who, size in over.items()}
    # A process that was never sampled would pass any limit.
    assert min(watch.peaks.values()) > MIB // 2, watch.peaks
    assert_gone(result.tag)
    return report


@contextmanager
def slices(process, on_s=0.02, off_s=0.08):
    """Lets the process run for only a fifth of the time."""
    over = threading.Event()

    def control():
        while not over.wait(on_s):
            process.send_signal(signal.SIGSTOP)
            over.wait(off_s)
            process.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=control)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_flood_of_results_at_a_primary_that_hardly_runs(tmp_path):
    """Each of many small tiles returns after each of many short steps."""
    product = ("random:3000x512:f32:1", "random:512x3000:f32:2", "-o", tmp_path / "C.npy", *SIMD, "--tile", "64", "--panel", "64",
               "--strategy", "naive")
    alone = succeed("multiply", *product, "--json").report["digest"]
    with workers(4, "--threads", "1") as (addresses, runs):
        with running(*product, "-w", ",".join(addresses)) as run, watched(run, runs) as watch:
            with slices(run.process):
                result = run.finish()
            report = assert_as_planned(result, run, runs, watch, alone)
    assert report["primary"]["bytes_received"] > 4 * (BESIDE + report["predicted"]["primary_memory_bytes"]), report


RARELY = pytest.mark.soak("stress")


@pytest.mark.parametrize("strategy", ["cuboid:1x1x3", pytest.param("naive", marks=RARELY), pytest.param("reuse", marks=RARELY)])
def test_a_worker_that_stands_still(tmp_path, strategy):
    """The other workers continue, and their partial sums wait for those of the stopped one."""
    product = "random:3000x3000:i64:1", "random:3000x3000:i64:2", "-o", tmp_path / "C.npy", *SIMD, "--strategy", strategy
    alone = succeed("multiply", *product, "--json").report["digest"]
    with workers(3, "--threads", "1") as (addresses, runs):
        with running(*product, "-w", ",".join(addresses)) as run, watched(run, runs) as watch:
            assert wait_for_work(pids_of(runs), run, 0.5)
            runs[1].process.send_signal(signal.SIGSTOP)
            # Shorter than the time after which a link counts as too slow.
            time.sleep(3)
            runs[1].process.send_signal(signal.SIGCONT)
            assert_as_planned(run.finish(), run, runs, watch, alone)


@pytest.fixture
def slow_disk(tmp_path):
    """A file system that takes 20 MB each second; written pages wait in memory until the system throttles the writer."""
    limit = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")
    tools = ["losetup", "mkfs.ext4", "mount", "umount"]
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    losetup, mkfs, mount, umount = (shutil.which(tool, path=path) for tool in tools)
    if os.geteuid() != 0 or not all([losetup, mkfs, mount, umount]):
        skip("slow-disk", "a slow disk needs root, losetup and mkfs.ext4")
    if not os.access(limit, os.W_OK):
        skip("slow-disk", "a slow disk needs control groups of block devices (blkio, version 1)")
    image, place = tmp_path / "disk.img", tmp_path / "disk"
    place.mkdir()
    with open(image, "wb") as file:
        file.truncate(400 * MIB)
    subprocess.run([mkfs, "-q", "-m", "0", image], check=True)
    made = subprocess.run([losetup, "-f", "--show", image], capture_output=True, text=True)
    if made.returncode:
        skip("slow-disk", f"no loop device: {made.stderr.strip()}")
    device = made.stdout.strip()
    number = Path("/sys/class/block", Path(device).name, "dev").read_text().strip()
    try:
        mounted = subprocess.run([mount, device, place], capture_output=True, text=True)
        if mounted.returncode:
            skip("slow-disk", f"cannot mount a slow disk: {mounted.stderr.strip()}")
        try:
            limit.write_text(f"{number} 20000000")
            yield place
        finally:
            limit.write_text(f"{number} 0")
            subprocess.run([umount, place], check=True)
    finally:
        subprocess.run([losetup, "-d", device], check=True)


@pytest.mark.parametrize("strategy", ["reuse", pytest.param("naive", marks=RARELY)])
def test_the_disk_of_c_is_slow(slow_disk, strategy):
    """160 MB of C, synced by the journal during the product and at its end."""
    product = "random:5000x1500:f64:1", "random:1500x4000:f64:2", "-o", slow_disk / "C.npy", *SIMD, "--strategy", strategy
    alone = succeed("multiply", *product[:2], *product[4:], "--json").report["digest"]
    with workers(2, "--threads", "1") as (addresses, runs):
        with running(*product, "-w", ",".join(addresses)) as run, watched(run, runs) as watch:
            assert_as_planned(run.finish(), run, runs, watch, alone)
    assert [path.name for path in slow_disk.glob("C.npy*")] == ["C.npy"]
