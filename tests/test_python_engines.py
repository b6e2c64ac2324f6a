"""Clusters whose workers Dask, MPI, Slurm, Ray or Kubernetes start: products are right, keys stay off command lines, and no
worker outlives its cluster, its primary or its engine."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT, Run, assert_gone, processes_of
from helpers import bramble as run_bramble
from lacking import skip
from test_mpi import LAUNCHERS, finish, launcher_failed

import bramble
from bramble import engines as _engines
from bramble.engines import _opening, _worker

PRIMARY = '''
import json, os, signal, subprocess, sys, time
from pathlib import Path

import numpy as np

import bramble
from bramble import engines as _engines
from bramble.engines import _opening

made, opened = [], _opening.Opening.open


def noted(opening, *rest):
    made.append(opening)
    return opened(opening, *rest)


_opening.Opening.open = noted


def command_lines():
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes()
        except OSError:
            pass  # It has ended.


def serves(path):
    """Whether this is the command line of one of the workers."""
    try:
        words = path.read_bytes().split(b"\\0")
    except OSError:
        return False
    return made[-1].join.encode() in words and b"srun" not in words


def use(cluster):
    """Multiplies, prints the facts, and ends as the first argument says."""
    a = np.arange(64 * 300).reshape(64, 300)
    b = np.arange(300 * 200).reshape(300, 200)
    placed = cluster.put(b, bramble.Replicate())
    here = os.uname().nodename
    print(json.dumps({
        "right": bool(np.array_equal(a @ placed, a @ b)),
        "workers": sum(part.worker != here for part in placed.parts()),
        "shown": any(made[-1].key.encode() in line for line in command_lines()),
        "left": os.environ.get("BRAMBLE_KEY"),
    }), flush=True)
    match sys.argv[1]:
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "lost":
            found = (path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if serves(path))
            os.kill(int(next(found).name), signal.SIGKILL)
            assert np.array_equal(a @ placed, a @ b)
        case "cancelled":
            subprocess.run(["scancel", os.environ["SLURM_JOB_ID"]])
            join, end = made[-1].join.encode(), time.monotonic() + 20
            while any(join in line for line in command_lines()):
                assert time.monotonic() < end
                time.sleep(0.05)
            # This process has all it needs.
            assert np.array_equal(a @ placed, a @ b)
        case "closed":
            cluster.close()
        case "forgotten":
            pass
'''
"""What each primary begins with. Its next words are the test's."""


def primary(folder, body, *words, launcher=(), env=None):
    """Starts a primary, perhaps by a launcher."""
    script = folder / "primary.py"
    script.write_text(PRIMARY + body)
    command = [*launcher, sys.executable, script, *words]
    return Run(*command[1:], binary=shutil.which(command[0]), env=env)


def assert_used(result, how, workers):
    """The primary has multiplied on so many workers, has kept its secret, and has ended in this way."""
    if how != "killed":
        assert result.code == 0, result
    # mpirun mixes the ranks' lines.
    found = re.search(r"\{.*?\}", result.out)
    assert found, result
    facts = json.loads(found[0])
    assert facts == {"right": True, "workers": workers, "shown": False, "left": None}, result


def serving(tag):
    """Worker processes of a run."""
    found = []
    for pid in processes_of(tag):
        try:
            if b"_serve.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            pass  # It has ended.
    return found


def until(fact, deadline_s=10):
    """Waits until the fact is true; returns it."""
    end = time.monotonic() + deadline_s
    while not (value := fact()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return value


# What all engines share.


def test_a_new_key_is_one_that_the_program_reads_and_no_other():
    keys = {_opening.new_key() for _ in range(20)}
    assert len(keys) == 20
    for key in list(keys)[:2]:
        assert re.fullmatch(r"[0-9a-f]{4}-[0-9a-f]{4}\n", run_bramble("key", "show", "--id", env={"BRAMBLE_KEY": key}).out)


def test_addresses_and_times():
    opening = _opening.Opening("from_test", 1, "1.5m")
    assert opening.seconds == 90
    for address, join, listen in [
        ("10.0.0.5:7401", "10.0.0.5:7401", "0.0.0.0:7401"),
        ("127.0.0.1:7401", "127.0.0.1:7401", "127.0.0.1:7401"),
        ("localhost:7", "localhost:7", "127.0.0.1:7"),
        ("head:7401", "head:7401", "0.0.0.0:7401"),
        ("[fd00::5]:7401", "[fd00::5]:7401", "[::]:7401"),
    ]:
        opening.dial(address, None)
        assert (opening.join, opening._listen) == (join, listen)
    opening.dial(None, "fd00::5")
    assert re.fullmatch(r"\[fd00::5\]:\d+", opening.join) and opening._listen.startswith("[::]:")
    assert _opening.towards(["127.0.0.1", "no-such-host.invalid"]) == "127.0.0.1"
    assert _opening.towards(["no-such-host.invalid"]) is None
    with pytest.raises(bramble.BrambleError, match="from_test: .*say address="):
        opening.dial(None, None)
    with pytest.raises(ValueError, match="address='a b'"):
        opening.dial("a b", None)
    with pytest.raises(ValueError, match="timeout='soon'"):
        _opening.Opening("from_test", 1, "soon")


def test_a_worker_that_reaches_no_primary_is_ended():
    join = f"127.0.0.1:{_opening._free_port()}"
    process = _worker.WorkerProcess(_worker.command(["--join", join]))
    process.wait_until_ready(10)
    process.go(_opening.new_key(), 0.5)
    assert process.wait() == 0 and f"--join {join}: no primary listens" in process.last_line()
    process.stop()


# Dask.

ENGINE = """
import signal
from distributed import LocalCluster

if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        signal.pause()
"""
WITH_DASK = """
from distributed import Client

if __name__ == "__main__":
    client = Client(sys.argv[2])
    use(_engines.from_dask(bramble.Cluster, client, timeout="20s"))
"""


@contextmanager
def engine(folder, text, env=None):
    """A program that runs an engine and says its address; all of its processes end."""
    script = folder / "engine.py"
    script.write_text(text)
    run = Run(script, binary=sys.executable, env=env)
    try:
        run.address = run.process.stdout.readline().strip()
        assert run.address, run.finish()
        yield run
    finally:
        run.end()


@pytest.fixture(scope="module")
def dask(tmp_path_factory):
    if not importlib.util.find_spec("distributed"):
        skip("dask", "distributed is not installed: see bench/requirements.txt")
    with engine(tmp_path_factory.mktemp("dask"), ENGINE) as run:
        yield run


@pytest.fixture
def client(dask):
    from distributed import Client

    with Client(dask.address) as client:
        client.wait_for_workers(2, timeout=20)
        yield client


@pytest.mark.parametrize("how", ["closed", "forgotten", "killed"])
def test_two_dask_workers_of_one_host_start_one_worker_which_ends_with_its_primary(dask, client, tmp_path, how):
    result = primary(tmp_path, WITH_DASK, how, dask.address).finish()
    assert_used(result, how, 1)
    assert_gone(result.tag)
    # Dask itself lives.
    until(lambda: not serving(dask.tag), 3)
    assert dask.process.poll() is None
    if how == "killed":
        # Dask workers that come later find no plugin.
        client.restart(timeout=20)
        assert not serving(dask.tag)


def test_a_dask_worker_takes_its_worker_along_and_one_that_comes_later_brings_another(dask, client):
    b = np.arange(300 * 200).reshape(300, 200)
    with _engines.from_dask(bramble.Cluster, client, timeout="20s", worker_threads=1, worker_memory="1G") as cluster:
        placed = cluster.put(b)
        (first,) = serving(dask.tag)
        words = Path(f"/proc/{first}/cmdline").read_bytes().split(b"\0")
        assert [words[words.index(name) + 1] for name in (b"--threads", b"--memory")] == [b"1", b"1G"]
        parent = int(Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(parent, signal.SIGKILL)
        until(lambda: first not in processes_of(dask.tag), 3)
        # Dask starts the lost process again.
        until(lambda: serving(dask.tag), 20)
        assert np.array_equal(b.T @ placed, b.T @ b)

        def has_joined():
            again = cluster.put(b, bramble.Replicate())
            return any(part.worker != os.uname().nodename for part in again.parts())

        until(has_joined)
    until(lambda: not serving(dask.tag), 3)


def test_what_dask_cannot_do_is_said(dask, client, monkeypatch):
    with pytest.raises(bramble.Unreachable) as caught:
        _engines.from_dask(bramble.Cluster, client, address="no-such-host.invalid:7", timeout="1s")
    assert re.match(r"from_dask: 0 of 1 workers connected to no-such-host.invalid:7 within 1s; a worker said: .*resolved.*; "
                    r"open port 7 ", str(caught.value))
    until(lambda: not serving(dask.tag), 3)
    with pytest.raises(bramble.BrambleError, match="from_dask: .*not asynchronous"):
        _engines.from_dask(bramble.Cluster, object())
    for change, undo, said in [
        ("import bramble; bramble.__version__ = '0.0.1'", f"bramble.__version__ = {bramble.__version__!r}",
         f"has Bramble 0.0.1, and this process {bramble.__version__}; install"),
        ("import sys; sys.modules['bramble.engines._worker'] = None", "import sys; del sys.modules['bramble.engines._worker']",
         "from_dask: the Dask workers cannot run Bramble: .*; install the package bramble"),
    ]:
        client.run(exec, change)
        try:
            with pytest.raises(bramble.BrambleError, match=said):
                _engines.from_dask(bramble.Cluster, client)
        finally:
            client.run(exec, f"import bramble; {undo}")
    monkeypatch.setattr(client, "run", lambda *_: {})
    with pytest.raises(bramble.BrambleError, match="has no workers; start some"):
        _engines.from_dask(bramble.Cluster, client)
    monkeypatch.setitem(sys.modules, "bramble.engines._dask_plugin", None)
    with pytest.raises(bramble.BrambleError, match="from_dask: Dask is not installed here .*pip install"):
        _engines.from_dask(bramble.Cluster, client)


# MPI.

WITH_MPI = """
cluster = _engines.from_mpi(bramble.Cluster, timeout="20s")
if cluster is None:
    print("served", flush=True)
else:
    use(cluster)
"""


def mpi_environment(library, folder):
    """The variables by which mpi4py finds this library."""
    if library == "openmpi":
        return {"MPI4PY_MPIABI": "openmpi"}
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    # mpi4py looks for the name that MPICH itself gives it; Debian has another.
    (folder / "libmpi.so.12").symlink_to(re.search(r"libmpich\.so\.12 .*=> (\S+)", listed)[1])
    return {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(folder)}


@pytest.fixture(params=LAUNCHERS)
def mpirun(request):
    if not shutil.which(LAUNCHERS[request.param][0]):
        skip("mpi", f"{LAUNCHERS[request.param][0]} is not installed")
    if not importlib.util.find_spec("mpi4py"):
        skip("dask", "mpi4py is not installed: see bench/requirements.txt")
    return request.param


@pytest.mark.parametrize("how", ["closed", "forgotten", "killed", "lost"])
def test_the_ranks_of_an_mpirun_serve_the_first_and_end_with_it(mpirun, tmp_path, how):
    launcher = [*LAUNCHERS[mpirun], "-n", "3"]
    run = primary(tmp_path, WITH_MPI, how, launcher=launcher, env=mpi_environment(mpirun, tmp_path))
    result, was_ended = finish(run)
    assert_used(result, how, 2)
    if how == "killed":
        assert result.code != 0 or launcher_failed(result, was_ended), result
    else:
        assert result.out.count("served") == 2, result
        assert ("the worker of an MPI rank ended with exit code -9" in result.err) == (how == "lost"), result
    assert_gone(result.tag, deadline_s=5)


def test_a_process_that_is_alone_is_told_why(mpirun, tmp_path):
    cases = [(mpirun, "1", "from_mpi: this is the only process of its mpirun; start several with mpirun -n N")]
    if all(shutil.which(launcher) for launcher, *_ in LAUNCHERS.values()):
        (other,) = set(LAUNCHERS) - {mpirun}
        cases.append((other, "2", "from_mpi: mpirun has started 2 processes, but mpi4py uses another MPI library"))
    for launcher, ranks, said in cases:
        folder = tmp_path / launcher
        folder.mkdir()
        env = mpi_environment(mpirun, folder)
        result, _ = finish(primary(folder, WITH_MPI, "closed", launcher=[*LAUNCHERS[launcher], "-n", ranks], env=env))
        assert result.code != 0 and said in result.err, result


# Slurm.

SLURM = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
MailProg=/bin/true
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory=1000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES
"""
WITH_SLURM = 'use(_engines.from_slurm(bramble.Cluster, timeout="20s"))'


@pytest.fixture(scope="module")
def slurm():
    """A Slurm of two nodes, both on this machine; its environment."""
    if missing := [name for name in ("munged", "slurmctld", "slurmd", "salloc") if not shutil.which(name, path=SBIN)]:
        skip("slurm", f"{', '.join(missing)}: not installed")
    if os.getuid() != 0:
        skip("root", "the daemons of Slurm start as root")
    # Names of sockets are short.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    (folder / "state").mkdir()
    key, conf = folder / "munge.key", folder / "slurm.conf"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    ports = [_opening._free_port() for _ in range(3)]
    conf.write_text(SLURM.format(host=os.uname().nodename.split(".")[0], folder=folder, ports=ports))
    files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    daemons = []
    try:
        for name, *words in [
            ("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files),
            ("slurmctld", "-D", "-f", conf),
            *(("slurmd", "-D", "-N", node, "-f", conf) for node in ("n1", "n2")),
        ]:
            if daemons:
                until((folder / "munge.socket").exists)
            daemons.append(Run(*words, binary=shutil.which(name, path=SBIN), env={"SLURM_CONF": str(conf)}))
        env = {"SLURM_CONF": str(conf)}
        told = ["sinfo", "--noheader", "--format=%t %D"]
        until(lambda: subprocess.run(told, env={**os.environ, **env}, capture_output=True, text=True).stdout == "idle 2\n", 20)
        yield env
    finally:
        for daemon in reversed(daemons):
            daemon.end()
        shutil.rmtree(folder)


SBIN = f"{os.environ['PATH']}:/usr/sbin:/sbin"


@pytest.mark.parametrize("how", ["closed", "forgotten", "killed", "cancelled"])
def test_each_node_of_an_allocation_serves_and_nothing_outlives_the_primary_or_the_job(slurm, tmp_path, how):
    result = primary(tmp_path, WITH_SLURM, how, launcher=["salloc", "--quiet", "--nodes=2"], env=slurm).finish()
    assert_used(result, how, 2)
    assert_gone(result.tag, deadline_s=10)


def test_what_slurm_cannot_do_is_said(slurm, tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(bramble.BrambleError, match="from_slurm: .*no Slurm allocation; start it by sbatch"):
        _engines.from_slurm(bramble.Cluster)
    body = '_engines.from_slurm(bramble.Cluster, python="/no/such/python")'
    result = primary(tmp_path, body, launcher=["salloc", "--quiet", "--nodes=2"], env=slurm).finish()
    assert result.code == 1, result
    assert re.search(r"BrambleError: from_slurm: srun: 0 of 2 tasks started: .*; see srun_options=", result.err), result
    assert_gone(result.tag)
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(bramble.BrambleError, match="from_slurm: srun is not installed here"):
        _engines.from_slurm(bramble.Cluster)


# Ray.

RAY = """
import signal
import ray
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)
print(cluster.address, flush=True)
signal.pause()
"""
WITH_RAY = """
import ray

ray.init(address=sys.argv[2], log_to_driver=False, logging_level="error")
refused = [({"num_cpus": 2}, "no node of the Ray cluster has 2 CPUs"),
           ({"address": "no-such-host.invalid:7", "timeout": "5s"}, "0 of 2 workers connected to no-such-host.invalid:7")]
for options, said in refused if sys.argv[1] == "closed" else []:
    try:
        _engines.from_ray(bramble.Cluster, **options)
        raise AssertionError("opened")
    except bramble.BrambleError as error:
        assert str(error).startswith(f"from_ray: {said}"), error
use(_engines.from_ray(bramble.Cluster, timeout="20s"))
"""


@pytest.fixture(scope="module")
def ray(tmp_path_factory):
    """A Ray of two nodes, both on this machine, and its environment."""
    if not importlib.util.find_spec("ray"):
        skip("ray", "ray is not installed")
    folder = tmp_path_factory.mktemp("ray")
    # Names of sockets are short, and a token lies in the home.
    files = tempfile.mkdtemp(prefix="ray-")
    env = {"HOME": str(folder), "RAY_TMPDIR": files, "RAY_USAGE_STATS_ENABLED": "0"}
    try:
        with engine(folder, RAY, env) as run:
            run.env = env
            yield run
    finally:
        shutil.rmtree(files, ignore_errors=True)


@pytest.mark.parametrize("how", ["closed", "forgotten", "killed"])
def test_each_node_of_ray_serves_and_ends_with_the_primary(ray, tmp_path, how):
    result = primary(tmp_path, WITH_RAY, how, ray.address, env=ray.env).finish()
    assert_used(result, how, 2)
    until(lambda: not serving(ray.tag), 3)
    assert ray.process.poll() is None


def test_without_ray_it_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(bramble.BrambleError, match="from_ray: Ray is not installed here .*pip install ray"):
        _engines.from_ray(bramble.Cluster)


# Kubernetes.

KUBECTL = f"""#!{sys.executable}
'''A stand-in: it notes each call, and starts the pods' commands as processes of this machine.'''
import json, os, signal, subprocess, sys
from pathlib import Path
import yaml

folder = Path(os.environ["STAND_IN"])
with open(folder / "calls", "a") as calls:
    print(json.dumps(sys.argv[1:]), file=calls)
if "create" in sys.argv:
    text = sys.stdin.read()
    (folder / "made.yaml").write_text(text)
    if "refused" in os.environ:
        sys.exit("error: forbidden")
    secret, _, pods = yaml.safe_load_all(text)
    container = pods["spec"]["template"]["spec"]["containers"][0]
    (variable,) = container["env"]
    key = secret["stringData"][variable["valueFrom"]["secretKeyRef"]["key"]]
    for _ in range(pods["spec"]["replicas"]):
        subprocess.Popen([sys.executable, *container["command"][1:]], env=dict(os.environ, **{{variable["name"]: key}}),
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
"""
WITH_KUBERNETES = """
options = {"namespace": "team", "address": "127.0.0.1", "worker_threads": 1, "timeout": "20s"}
use(_engines.from_kubernetes(bramble.Cluster, 2, "registry.example/bramble:1", **options))
"""


@pytest.fixture
def schemas():
    """The published schemas, with a reader of YAML."""
    if not importlib.util.find_spec("kubernetes_validate"):
        skip("kubernetes", "its schemas are not installed: see tests/requirements-engines.txt")


@pytest.fixture
def kubectl(schemas, tmp_path):
    """The environment in which the stand-in is found."""
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(KUBECTL)
    program.chmod(0o755)
    return {"STAND_IN": str(tmp_path), "PATH": f"{program.parent}:{os.environ['PATH']}"}


def calls_of(folder):
    path = folder / "calls"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("how", ["closed", "forgotten", "killed"])
def test_the_commands_of_the_pods_serve_and_the_objects_are_deleted_whatever_becomes_of_the_primary(kubectl, tmp_path, how):
    result = primary(tmp_path, WITH_KUBERNETES, how, env=kubectl).finish()
    assert_used(result, how, 2)
    create, delete = until(lambda: (calls := calls_of(tmp_path)) and len(calls) == 2 and calls)
    assert create == ["--namespace", "team", "create", "-f", "-"]
    assert delete[:3] == ["--namespace", "team", "delete"]
    assert [what.split("/")[0] for what in delete[3:6]] == ["statefulset", "service", "secret"]
    (name,) = {what.split("/")[1] for what in delete[3:6]}
    assert f"\n  name: {name}\n" in (tmp_path / "made.yaml").read_text()
    assert_gone(result.tag)


def test_what_kubernetes_refuses_is_said_and_deleted(kubectl, tmp_path):
    result = primary(tmp_path, WITH_KUBERNETES, "closed", env={**kubectl, "refused": "1"}).finish()
    assert "BrambleError: from_kubernetes: kubectl create: error: forbidden" in result.err, result
    assert [call[2] for call in calls_of(tmp_path)] == ["create", "delete"]
    body = '_engines.from_kubernetes(bramble.Cluster, 2, "image", kubectl="/no/kubectl")'
    assert "from_kubernetes: there is no program /no/kubectl; install" in primary(tmp_path, body).finish().err
    # The stand-in knows no address of the API.
    body = '_engines.from_kubernetes(bramble.Cluster, 2, "image")'
    result = primary(tmp_path, body, env=kubectl).finish()
    assert "from_kubernetes: the workers' way to this machine is not known; say address=" in result.err, result


def test_the_manifests_have_the_published_form(schemas):
    import kubernetes_validate
    import yaml

    amounts = {"worker_threads": 2, "worker_memory": "1.5G"}
    text = _engines.manifests("bramble", 3, 'a "quoted" image', "primary:7401", "key: {1}", **amounts)
    documents = list(yaml.safe_load_all(text))
    assert [document["kind"] for document in documents] == ["Secret", "Service", "StatefulSet"]
    for document in documents:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    secret, service, pods = documents
    spec = pods["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    labels = pods["spec"]["template"]["metadata"]["labels"]
    assert secret["stringData"] == {"key": "key: {1}"} and text.count("key: {1}") == 1
    assert service["spec"]["selector"] == labels == pods["spec"]["selector"]["matchLabels"]
    assert pods["spec"]["serviceName"] == service["metadata"]["name"] and pods["spec"]["replicas"] == 3
    assert container["image"] == 'a "quoted" image'
    assert container["command"] == ["python", "-m", "bramble", "worker", "--join", "primary:7401", "--no-pin", "--threads", "2"]
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "1.5Gi"}
    with pytest.raises(ValueError, match="name='Bad_1'"):
        _engines.manifests("Bad_1", 1, "image", "primary:7401", "key")
    with pytest.raises(ValueError, match="worker_memory='much'"):
        _engines.manifests("bramble", 1, "image", "primary:7401", "key", worker_memory="much")


def test_the_file_of_workers_that_stay_is_the_text_of_the_manifests():
    lines = (ROOT / "dist" / "kubernetes" / "workers.yaml").read_text().splitlines(keepends=True)
    text = "".join(lines[next(at for at, line in enumerate(lines) if not line.startswith("#")):])
    image = f"registry.example/bramble:{bramble.__version__}"
    assert text == _engines.manifests("bramble", 3, image, "primary.example:7401", "bramble1-REPLACE-THIS-KEY")
