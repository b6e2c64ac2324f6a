"""`bench hpl --official`: the official program beside ours, on this machine and on the machines of the workers."""

import json
import os
import re
import shutil

from helpers import BRAMBLE, assert_refused, bramble, succeed, workers
from lacking import skip, unless
from test_lab import lab, why_not

LINE = re.compile(r"^official  ([\d.]+) Gflop/s by (\w+), at best: NB (\d+), (\d) x (\d) processes of (\d) threads?; "
                  r"Bramble has ([\d.]+) times that$", re.MULTILINE)
# Prints a result for each NB of its input, as fast as there are processes and threads, and says how it was started.
FAKE = """
set -- $(sed -n '6p;8p;11p;12p' HPL.dat | tr -dc '0-9 \\n')
n=$1; shift; q=$(eval echo \\${$#}); p=$(eval echo \\${$(($# - 1))})
echo "$n $p x $q of $OMP_NUM_THREADS $OPENBLAS_NUM_THREADS ${OMPI_MCA_rmaps_base_mapping_policy:-any}" >> "$SAID"
while [ $# -gt 2 ]; do
    echo "WR11C2R4 $n $1 $p $q 0.01 $((p * q * OMP_NUM_THREADS + q)).0"; echo "1.0 ... PASSED"; shift
done > HPL.out
"""


def fake_xhpl(folder, script):
    """A PATH on which mpirun runs the given script as xhpl, and writes its own words."""
    mpirun = 'echo "$PWD: $*" >> "$WORDS"; while [ "$1" != -n ]; do shift; done; shift 2; exec "$@"'
    for name, body in {"mpirun": mpirun, "xhpl": script}.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    for name in ("said", "words"):
        (folder / name).write_text("")
    return {"PATH": f"{folder}:{os.environ['PATH']}", "SAID": str(folder / "said"), "WORDS": str(folder / "words")}


def needs_hpcc():
    if not shutil.which("hpcc"):
        skip("hpcc", "it is not on the path")


def test_the_official_program_runs_beside_ours():
    needs_hpcc()
    text = succeed("bench", "hpl", "--size", 300, "--nb", "32,64", "--threads", 2, "--official", deadline_s=180).out
    found = LINE.findall(text)
    assert len(found) == 2 and {program for _, program, *_ in found} == {"hpcc"}, text
    assert all(float(rate) > 0 and float(times) > 0 and nb in ("32", "64") for rate, _, nb, *_, times in found), text


def test_every_layout_of_this_machine_is_tried_and_the_fastest_counts(tmp_path):
    env = fake_xhpl(tmp_path, FAKE)
    result = succeed("bench", "hpl", "--size", 100, "--threads", 4, "--official", "--nb", "16,32", "--json", env=env)
    runs = (tmp_path / "said").read_text().splitlines()
    assert runs == ["100 1 x 4 of 1 1 any", "100 2 x 2 of 1 1 any", "100 4 x 1 of 1 1 any", "100 1 x 1 of 4 4 any"]
    reports = [json.loads(line) for line in result.out.splitlines()]
    best = {"program": "xhpl", "nb": 16, "p": 1, "q": 4, "threads": 1, "seconds": 0.01, "gflops": 8}
    assert [report["official"] for report in reports] == [best, best]
    # Workers that this process starts share its machine: their threads count together, and no launcher is needed.
    result = succeed("bench", "hpl", "--size", 100, "--local", 2, "--nodes", 2, "--official", "--nb", 16, "--json", env=env)
    official, threads = (result.report[name] for name in ("official", "threads"))
    assert official["p"] * official["q"] * official["threads"] == threads


def test_a_program_that_fails_is_named_and_our_results_stay(tmp_path):
    for script, culprit in [("echo no BLAS >&2; exit 3", "xhpl: no BLAS"), ("true", "HPL.out"),
                            ("echo '>>> cannot open file HPL.dat <<<' >&2; echo -- >&2; exit 1", "cannot open file HPL.dat"),
                            ("printf 'WR11C2R4 100 32 1 1 0.01 6.7e-02\\n9e9 ... FAILED\\n' > HPL.out", "0 valid results instead of 1")]:
        env = fake_xhpl(tmp_path, script)
        for where in (["--threads", 1], ["--local", 1]):
            plot = tmp_path / f"{where[0]}.svg"
            plot.unlink(missing_ok=True)
            result = bramble("bench", "hpl", "--size", 100, "--official", "--nb", 32, "--json", *where, "--plot", plot, env=env)
            assert result.code == 1 and culprit in result.err.splitlines()[-1], result
            report, error = (json.loads(line) for line in result.out.splitlines())
            assert report["passed"] and report["official"] is None and error["error"]["what"] == "--official"
            assert plot.is_file()
    words = "bench", "hpl", "--size", 100, "--threads", 1, "--official"
    nothing = bramble(*words, env={"PATH": str(tmp_path / "none")})
    assert_refused(nothing, 1, ["--official", "neither xhpl nor hpcc", "apt install hpcc"])
    env = fake_xhpl(tmp_path, "true")
    assert_refused(bramble(*words, "--launcher", "mpiexec.none -f hosts", env=env), 1, ["--launcher", "'mpiexec.none'", "path"])
    assert_refused(bramble(*words, "--launcher", " ", env=env), 2, ["--launcher", "names no command"])
    assert_refused(bramble(*words[:-1], "--launcher", "mpirun", env=env), 2, ["--official"])


def test_the_launcher_starts_processes_on_the_machines_of_the_workers(tmp_path):
    env = fake_xhpl(tmp_path, FAKE)
    with workers(1, "--threads", 2, "--memory", "80M") as (small, _), workers(1, "--threads", 3) as (large, _):
        hosts = "-w", ",".join([*small, *large])
        words = "bench", "hpl", "--nodes", 2, "--nb", 32, *hosts, "--json"
        assert_refused(bramble(*words, "--size", 100, "--official", env=env), 2, ["--launcher", "mpirun --hostfile hosts"])
        launcher = "mpirun --hostfile hosts"
        result = bramble(*words, "--size", 320, "--official", "--launcher", launcher, cwd=tmp_path, env=env)
        assert result.code == 0, result
        assert result.report["official"] == {"program": "xhpl", "nb": 32, "p": 1, "q": 5, "threads": 1, "seconds": 0.01, "gflops": 10}
        runs = (tmp_path / "said").read_text().splitlines()
        assert runs == ["320 1 x 5 of 1 1 any", "320 1 x 2 of 2 2 node"]
        # The launcher runs where the user is, so that its host file is found.
        started = (tmp_path / "words").read_text().splitlines()
        assert all(line.startswith(f"{tmp_path}: --hostfile hosts -n ") and line.endswith(" xhpl") for line in started), started
        # HPL's parts are equal, so the small machine would hold two fifths or half of 128 MB.
        result = bramble(*words, "--size", 4000, "--official", "--launcher", launcher, cwd=tmp_path, env=env)
        report, _ = (json.loads(line) for line in result.out.splitlines())
        assert result.code == 1 and report["passed"] and report["official"] is None, result
        for grid, part in [("1 x 5", "51.20 MB"), ("1 x 2", "64.00 MB")]:
            assert f"xhpl does not run on {grid} processes: {small[0]} would hold {part}, since" in result.err, result
        assert re.search(f"--official: xhpl has no result for N = 4000; {small[0]} would hold .* use a smaller --size", result.err), result
        assert len((tmp_path / "said").read_text().splitlines()) == 2


@unless(why_not(), "lab")
def test_mpi_starts_the_official_program_on_the_machines_of_a_lab(tmp_path):
    needs_hpcc()
    with lab(tmp_path, 'key = false\n[[machines]]\nname = "a,b"\nthreads = 1\nmemory = "512M"\n') as (name, made):
        agent = tmp_path / "agent"
        agent.write_text(f'#!/bin/sh\nhost=$1; shift; echo "$host" >> {tmp_path}/hosts; '
                         f'exec {BRAMBLE} lab exec --name {name} --at "$host" -- sh -c "$*"\n')
        agent.chmod(0o755)
        addresses = [machine["address"] for machine in made["machines"]]
        launcher = ("mpirun --mca plm_rsh_agent ./agent --mca oob_tcp_if_include eth0 --mca btl_tcp_if_include eth0 "
                    f"--mca btl tcp,self --mca orte_keep_fqdn_hostnames 1 --host {','.join(f'{address}:1' for address in addresses)}")
        words = "bench", "hpl", "--size", 300, "--nodes", 2, "--nb", 32, "--official", "--launcher", launcher
        text = succeed("lab", "run", "--name", name, "--", *words, cwd=tmp_path, deadline_s=180).out
        [(rate, program, nb, *grid, _, times)] = LINE.findall(text)
        assert float(rate) > 0 and float(times) > 0 and (program, nb, grid) == ("hpcc", "32", ["1", "2"])
        assert sorted((tmp_path / "hosts").read_text().split()) == sorted(addresses)
