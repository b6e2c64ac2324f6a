"""A cluster on one machine: a network namespace for the primary and one for each worker, joined by a bridge; the rate
of each worker's link and of the primary's held by `tc tbf`, a worker's share of a processor by a cgroup quota.

Needs root, iproute2, and version 1 of the cpu cgroup.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup/cpu")
TRUST = ["--insecure", "--i-trust-this-network"]
PERIOD_US = 10_000
"""Of quotas: short, so that a product sees the mean and not the turns."""
QUOTA_MIN_US = 1000
"""What the kernel takes at least."""


def missing():
    """Why this machine cannot have such a cluster; empty where it can."""
    if os.geteuid() != 0:
        return "it needs root"
    if subprocess.run(["ip", "netns", "list"], capture_output=True).returncode != 0:
        return "it needs network namespaces (ip netns)"
    if not (CGROUP / "cpu.cfs_quota_us").exists() and not (CGROUP / "cgroup.procs").exists():
        return "it needs the cpu cgroup, version 1"
    return ""


def run(*words):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))}: {done.stderr.strip()}")


def remove(group, deadline_s=2):
    """A group can go only once its last process is gone."""
    end = time.monotonic() + deadline_s
    while (group / "cgroup.procs").read_text() and time.monotonic() < end:
        time.sleep(0.02)
    group.rmdir()


class Lab:
    """The cluster. `workers`: for each a link rate in Mbit/s (0 is no limit) and its part of one processor."""

    def __init__(self, bramble, workers, primary_mbit=0):
        self.bramble, self.workers, self.primary_mbit = bramble, workers, primary_mbit
        self.name = f"bl{os.getpid()}"
        self.spaces = [f"{self.name}-{number}" for number in range(len(workers) + 1)]
        self.started, self.groups = [], []

    def __enter__(self):
        try:
            self.connect()
            for number, worker in enumerate(self.workers, 1):
                self.start(number, *worker)
        except BaseException:
            self.__exit__()
            raise
        return self

    def connect(self):
        hub = f"{self.name}-hub"
        run("ip", "netns", "add", hub)
        run("ip", "-n", hub, "link", "add", "hub", "type", "bridge")
        run("ip", "-n", hub, "link", "set", "hub", "up")
        rates = [self.primary_mbit, *(mbit for mbit, _ in self.workers)]
        for number, (space, mbit) in enumerate(zip(self.spaces, rates, strict=True)):
            run("ip", "netns", "add", space)
            run("ip", "link", "add", "eth", "netns", space, "type", "veth", "peer", "name", f"port{number}", "netns", hub)
            run("ip", "-n", hub, "link", "set", f"port{number}", "master", "hub", "up")
            run("ip", "-n", space, "address", "add", f"10.77.0.{number + 1}/24", "dev", "eth")
            run("ip", "-n", space, "link", "set", "lo", "up")
            run("ip", "-n", space, "link", "set", "eth", "up")
            for where, device in ((space, "eth"), (hub, f"port{number}")):
                if mbit:
                    run("tc", "-n", where, "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{mbit}mbit",
                        "burst", "128kb", "latency", "20ms")

    def start(self, number, _mbit, part):
        group = CGROUP / f"{self.name}-{number}"
        group.mkdir()
        self.groups.append(group)
        period_us = max(PERIOD_US, round(QUOTA_MIN_US / part))
        (group / "cpu.cfs_period_us").write_text(str(period_us))
        (group / "cpu.cfs_quota_us").write_text(str(max(QUOTA_MIN_US, int(period_us * part))))
        command = [*self.inside(number), self.bramble, "worker", "--listen",
                   f"{self.address(number)}:7400", "--threads", "1", "--no-pin", *TRUST]
        started = subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            start_new_session=True, env=self.environment(),
            preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())))
        self.started.append(started)
        line = started.stdout.readline()
        if not line.startswith("listening on"):
            raise SystemExit(f"worker {number} did not start: {line!r}")

    @staticmethod
    def environment():
        return {**{k: v for k, v in os.environ.items() if not k.startswith("BRAMBLE")}, "BRAMBLE_KEY_FILE": "/nowhere/key"}

    def address(self, number):
        return f"10.77.0.{number + 1}"

    def hosts(self):
        return ",".join(f"{self.address(n)}:7400" for n in range(1, len(self.workers) + 1))

    def inside(self, number):
        """What goes before a command of a machine. `ip netns exec` would hide the cgroups, and with them the quota."""
        return ["nsenter", f"--net=/var/run/netns/{self.spaces[number]}"]

    def at(self, number):
        """What goes before a command that shall have no more of the processors than the machine's worker."""
        if number == 0:
            return self.inside(0)
        join = f'echo $$ > {CGROUP / f"{self.name}-{number}"}/cgroup.procs && exec "$@"'
        return ["sh", "-c", join, "sh", *self.inside(number)]

    def prefix(self):
        """What goes before a command of the primary."""
        return self.inside(0)

    def __exit__(self, *_):
        # A second Ctrl-C must not leave anything behind.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        for process in self.started:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        # What was run at a machine by `at` and is still there.
        for space in self.spaces:
            for pid in subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True).stdout.split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        for group in self.groups:
            try:
                remove(group)
            except OSError as e:
                print(f"{group}: {e}", file=sys.stderr)
        for space in [*self.spaces, f"{self.name}-hub"]:
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)
        signal.signal(signal.SIGINT, before)


@contextmanager
def nothing():
    """No cluster: this machine alone, or processes of it."""
    yield None
