"""Each format: its words arrive as they were given, and its choices are those of the deployment."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings

from images.engines.run_arguments import enroot_name
from provision.errors import BadInputError, ImageNotPullableError
from provision.output.export import (
    apptainer,
    compose,
    devcontainer,
    enroot,
    kubernetes,
    ray,
    slurm,
)
from provision.output.export.deployment import Deployment, ImageSource
from provision.output.export.names import apptainer_uri, squashfs_name
from tests import ROOT
from tests.kit.cases import cases
from tests.kit.exports import (
    COMMANDS,
    HOSTILE,
    NAMES,
    WORDS,
    deployment,
    run_script,
    shellcheck,
    stand_ins,
    words_of,
)

JOB = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[0-1]", "SLURM_JOB_GPUS": "2,3"}
SCONTROL = """#!/bin/sh
case $2 in
hostnames) printf 'n0\\nn1\\n' ;;
*) echo "NodeName=$3 Arch=x86_64"; echo "   NodeAddr=192.0.2.7 NodeHostName=$3 Version=23.11" ;;
esac
"""
EVERY_WORD = ("python3", *HOSTILE)


def ran_on_slurm(text: str) -> list[str]:
    """The words that srun got."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        stand_ins(place, "srun")
        (place / "scontrol").write_text(SCONTROL)
        (place / "enroot").write_text('#!/bin/sh\n: >"$3"\n')
        for program in ("scontrol", "enroot"):
            (place / program).chmod(0o755)
        done = run_script(text, place, env={**JOB, "SLURM_SUBMIT_DIR": name})
        assert (done.returncode, done.stderr) == (0, "")
        return words_of(place, "srun")


@pytest.mark.parametrize("tool", slurm.TOOLS)
@settings(max_examples=25, deadline=None)
@given(command=COMMANDS, value=WORDS, name=NAMES)
def test_slurm_passes_the_command_on_as_it_is(
    tool: slurm.ContainerTool, command: tuple[str, ...], value: str, name: str
) -> None:
    one = deployment(command=command, environment=(("A", value),), name=name)
    words = ran_on_slurm(slurm.to_sbatch(one, tool, mount=True))
    assert words[-len(command) :] == list(command)


@pytest.mark.parametrize("tool", slurm.TOOLS)
def test_slurm_s_script_is_clean_to_shellcheck(tool: slurm.ContainerTool) -> None:
    for changes in ({}, {"nodes": 2, "gpus": 8, "gate": True, "environment": (("A", "b c"),)}):
        text = slurm.to_sbatch(deployment(**changes), tool, mount=True)
        assert shellcheck(text, "bash") == ""


def test_several_nodes_meet_at_the_first() -> None:
    one = deployment(nodes=2, gpus=8, gate=True)
    words = ran_on_slurm(slurm.to_sbatch(one, "pyxis", mount=False))
    gate = ["verify", "--level", "quick", "--require", "gpu"]
    container = ["--container-image=registry.example#team/torch:cu128", "--no-container-mount-home"]
    assert words[:9] == ["--ntasks=2", "--ntasks-per-node=1", *container, *gate]
    assert words[9:] == [
        *container,
        *("sh", "-c", """exec torchrun --node-rank="$SLURM_NODEID" "$@\"""", "torchrun"),
        *("--nnodes=2", "--nproc-per-node=8"),
        *("--master-addr=192.0.2.7", "--master-port=20012", "train.py"),
    ]


def test_docker_gets_the_gpus_that_slurm_gave_the_job_on_the_node(tmp_path: Path) -> None:
    stand_ins(tmp_path, "docker")
    for name, text in (("srun", 'exec "$@"'), ("scontrol", "echo NodeAddr=n0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    one = deployment(environment=(("A", "b c"),), shm_bytes=3 << 29)
    env = {**JOB, "SLURM_SUBMIT_DIR": "/a b"}
    done = run_script(slurm.to_sbatch(one, "docker", mount=True), tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    words = words_of(tmp_path, "docker")
    assert words[:3] == ["run", "--gpus", '"device=2,3"']  # the quotes are for its list of options
    assert {"--shm-size=1536m", "/a b:/workspace", "A", "MASTER_ADDR"} <= set(words)
    assert words[-3:] == [one.image.name, "python3", "train.py"]


def header(text: str) -> dict[str, str]:
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", text, re.MULTILINE))


@cases(
    "changes tasks",
    ("torchrun starts the others", {"gpus": 8}, "1"),
    ("torchrun, on each node", {"gpus": 8, "nodes": 2}, "1"),
    ("JAX has one process on one node", {"gpus": 8, "framework": "jax"}, "1"),
    ("JAX on several", {"gpus": 8, "nodes": 2, "framework": "jax"}, "8"),
    ("TensorFlow", {"gpus": 8, "nodes": 2, "framework": "tensorflow"}, "1"),
)
def test_the_tasks_of_a_node(changes: dict[str, Any], tasks: str) -> None:
    said = header(slurm.to_sbatch(deployment(**changes), "pyxis", mount=True))
    assert said["ntasks-per-node"] == tasks
    assert (said["nodes"], said["gpus-per-node"]) == (str(changes.get("nodes", 1)), "8")


@cases(
    "command after",
    ("a script", ("python3", "a.py", "-x"), ["a.py", "-x"]),
    ("a module", ("python", "-m", "pkg.train"), ["-m", "pkg.train"]),
    ("an option of Python, which torchrun does not have", ("python3", "-u", "a.py"),
     ["--no-python", "python3", "-u", "a.py"]),
    ("another program", ("train", "-x"), ["--no-python", "train", "-x"]),
    ("no script", ("python3",), ["--no-python", "python3"]),
)  # fmt: skip
def test_torchrun_runs_what_python_would(command: tuple[str, ...], after: list[str]) -> None:
    from provision.output.export.launch import on_one_node

    words = on_one_node(deployment(command=command, gpus=2))
    assert words == ["torchrun", "--nnodes=1", "--nproc-per-node=2", "--standalone", *after]
    own = ("torchrun", "--nproc-per-node=2", "a.py")
    assert on_one_node(deployment(command=own, gpus=2)) == list(own)


def expanded(text: str, known: dict[str, str]) -> str:
    """Kubernetes' expansion of a command's words and a variable's value."""

    def one(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        return known.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", one, text)


@pytest.mark.parametrize("kind", ["job", "indexed", "jobset"])
@given(command=COMMANDS, value=WORDS)
def test_kubernetes_passes_the_command_on_as_it_is(
    kind: kubernetes.JobKind, command: tuple[str, ...], value: str
) -> None:
    one = deployment(command=command, environment=(("A", value),), framework="jax")
    for name in ("HOME", "a"):
        pod = pod_of(kubernetes.to_manifest(one, kind))
        (job,) = pod["containers"]
        known = {name: "expanded"}
        assert tuple(expanded(word, known) for word in job["command"]) == command
        assert [expanded(row["value"], known) for row in job["env"]] == [value]


def pod_of(text: str) -> dict[str, Any]:
    spec = list(yaml.safe_load_all(text))[-1]["spec"]
    if "replicatedJobs" in spec:
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    pod: dict[str, Any] = spec["template"]["spec"]
    return pod


@pytest.mark.parametrize(
    ("kind", "first"), [("indexed", "train-0.train"), ("jobset", "train-workers-0-0.train")]
)
def test_pods_meet_at_the_first(kind: kubernetes.JobKind, first: str) -> None:
    hostile = "--node-rank=$(JOB_COMPLETION_INDEX)"
    one = deployment(nodes=4, gpus=8, command=("python3", "a.py", hostile))
    pod = pod_of(kubernetes.to_manifest(one, kind))
    (job,) = pod["containers"]
    assert [expanded(word, {"JOB_COMPLETION_INDEX": "3"}) for word in job["command"]] == [
        *("torchrun", "--nnodes=4", "--nproc-per-node=8", "--node-rank=3"),
        *(f"--master-addr={first}", "--master-port=29500", "a.py", hostile),
    ]
    assert pod.get("subdomain") == ("train" if kind == "indexed" else None)
    assert job["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
    assert pod["volumes"][0]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}


def test_a_job_goes_to_nodes_with_its_gpu_and_driver() -> None:
    gpu = "NVIDIA A100-SXM4-80GB"
    pod = pod_of(kubernetes.to_manifest(deployment(products=(gpu,), driver="525.60.13"), "job"))
    required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    product, driver = term["matchExpressions"]
    assert product["key"] == "nvidia.com/gpu.product"
    assert driver["key"] == "nvidia.com/cuda.driver-version.major"
    assert product["values"] == ["NVIDIA-A100-SXM4-80GB"]
    assert (driver["operator"], driver["values"]) == ("Gt", ["524"])
    assert pod["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    assert "affinity" not in pod_of(kubernetes.to_manifest(deployment(driver="525.60.13"), "job"))


def test_an_ordinary_user_unless_root_is_asked_for() -> None:
    pod = pod_of(kubernetes.to_manifest(deployment(user=1000, gate=True), "job"))
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert {"name": "HOME", "value": "/tmp"} in container["env"]
    root = pod_of(kubernetes.to_manifest(deployment(gate=True), "job"))
    assert "securityContext" not in root
    assert all("securityContext" not in one for one in root["containers"])


@pytest.mark.parametrize("name", ["Train", "1e3", "a_b", "-a", "a-", "a" * 46, "a b"])
def test_kubernetes_has_names_of_its_own(name: str) -> None:
    with pytest.raises(BadInputError):
        kubernetes.to_manifest(deployment(name=name), "job")


TEMPLATES = {
    "job.yaml": deployment(user=1000, gate=True),
    "two-nodes.yaml": deployment(user=1000, gate=True, gpus=8, nodes=2),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_templates_are_what_is_exported(name: str) -> None:
    kind: kubernetes.JobKind = "job" if name == "job.yaml" else "indexed"
    text = (ROOT / "templates" / "kubernetes" / name).read_text(encoding="utf-8")
    assert text == kubernetes.to_manifest(TEMPLATES[name], kind, name)


@given(command=COMMANDS, value=WORDS)
def test_compose_passes_the_command_on_as_it_is(command: tuple[str, ...], value: str) -> None:
    one = deployment(command=command, environment=(("A", value),))
    (service,) = yaml.safe_load(compose.to_compose(one, cdi=False, mount=True))["services"].values()
    words = [*service["command"], service["environment"]["A"]]
    assert [re.sub(r"\$(.)", r"\1", word, flags=re.DOTALL) for word in words] == [*command, value]
    assert all("$" not in word.replace("$$", "") for word in words)


def test_the_compose_file_of_this_project_gives_what_is_exported() -> None:
    (own,) = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"].values()
    text = compose.to_compose(deployment(gpus=None), cdi=False, mount=True)
    (made,) = yaml.safe_load(text)["services"].values()
    for key in ("shm_size", "ulimits", "deploy"):
        assert own[key] == made[key]


def test_compose_requests_gpus_by_number_or_as_cdi_devices() -> None:
    def devices(*, cdi: bool, gpus: int | None) -> Any:
        text = compose.to_compose(deployment(gpus=gpus), cdi=cdi, mount=False)
        (service,) = yaml.safe_load(text)["services"].values()
        return service["deploy"]["resources"]["reservations"]["devices"][0]

    assert devices(cdi=False, gpus=2)["count"] == 2
    assert devices(cdi=True, gpus=None)["device_ids"] == ["nvidia.com/gpu=all"]
    assert devices(cdi=True, gpus=2)["device_ids"] == ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]


@given(value=WORDS, name=NAMES, command=COMMANDS)
def test_ray_s_file_is_the_image_and_its_variables(
    value: str, name: str, command: tuple[str, ...]
) -> None:
    one = deployment(environment=(("A", value),), name=name, command=command)
    assert yaml.safe_load(ray.to_runtime_env(one)) == {
        "image_uri": one.image.name,
        "env_vars": {"A": value},
    }


def read_jsonc(text: str) -> dict[str, Any]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("//")]
    found: dict[str, Any] = json.loads("\n".join(lines))
    return found


@given(value=WORDS, name=NAMES)
def test_a_development_container_has_these_values(value: str, name: str) -> None:
    one = deployment(name=name, environment=(("A", value),))
    if "${" in value:
        with pytest.raises(BadInputError):
            devcontainer.to_devcontainer(one)
        return
    found = read_jsonc(devcontainer.to_devcontainer(one))
    assert (found["name"], found["containerEnv"]) == (name, {"A": value})
    assert found["hostRequirements"] == {"gpu": True}


def section(text: str, name: str) -> str:
    return text.partition(f"\n%{name}\n")[2].partition("\n\n%")[0]


@settings(max_examples=40, deadline=None)
@given(command=COMMANDS, value=WORDS)
def test_apptainer_s_sections_are_shell(command: tuple[str, ...], value: str) -> None:
    one = deployment(command=("program", *command[1:]), environment=(("A", value),))
    if any("\n" in word or "{{" in word for word in (*one.command, value)):
        with pytest.raises(BadInputError):
            apptainer.to_definition(one)
        return
    text = apptainer.to_definition(one)
    assert [line for line in text.splitlines() if line.startswith("%")] == [
        *("%labels", "%environment", "%runscript", "%test"),
    ]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        stand_ins(place, "program")
        script = section(text, "environment") + '\nprintf %s "$A" >value\n'
        done = run_script(script + section(text, "runscript"), place, shell="sh")
        assert (done.returncode, done.stderr) == (0, "")
        assert words_of(place, "program") == list(one.command[1:])
        assert (place / "value").read_text(encoding="utf-8") == value


@pytest.mark.parametrize("first", [True, False], ids=["the first run", "a later run"])
def test_enroot_imports_and_creates_once(first: bool, tmp_path: Path) -> None:  # noqa: FBT001
    one = deployment(name='a "b" $(c)', command=EVERY_WORD, environment=(("A", "b 'c' $d"),))
    text = enroot.to_script(one)
    stand_ins(tmp_path, "enroot")
    image, name = "registry.example+team+torch+cu128.sqsh", "a--b----c-"
    program = tmp_path / "enroot"
    program.write_text(
        program.read_text()
        + 'case $1 in import) echo x >"$3" ;; list) '
        + ("" if first else f"echo '{name}'")
        + " ;; esac\n"
    )
    if not first:
        (tmp_path / image).touch()
    done = run_script(text, tmp_path, shell="sh")
    assert (done.returncode, done.stderr) == (0, "")
    words = words_of(tmp_path, "enroot")
    start = words[words.index("start") :]
    place = ["--mount", f"{tmp_path}:/workspace", "--env", "A=b 'c' $d"]
    assert start == ["start", *place, name, *EVERY_WORD]
    assert ("import" in words, "create" in words) == (first, first)
    assert (tmp_path / image).exists()
    assert shellcheck(enroot.to_script(deployment(gpus=4)), "sh") == ""


def every_format(one: Deployment) -> dict[str, Callable[[], str]]:
    return {
        **{tool: lambda t=tool: slurm.to_sbatch(one, t, mount=True) for tool in slurm.TOOLS},  # type: ignore[misc]
        "kubernetes": lambda: kubernetes.to_manifest(one, "job"),
        "ray": lambda: ray.to_runtime_env(one),
        "compose": lambda: compose.to_compose(one, cdi=False, mount=True),
        "devcontainer": lambda: devcontainer.to_devcontainer(one),
        "apptainer-file": lambda: apptainer.to_definition(one),
        "enroot-file": lambda: enroot.to_script(one),
    }


@pytest.mark.parametrize(
    ("image", "takes_it"),
    [
        pytest.param(
            ImageSource(kind="engine", name="team/torch:1"),
            {"docker", "compose", "devcontainer", "apptainer", "apptainer-file", "enroot"}
            | {"enroot-file"},
            id="an image of the engine",
        ),
        pytest.param(
            ImageSource(kind="oci", name="/shared/images:torch"),
            {"apptainer", "apptainer-file"},
            id="a layout",
        ),
    ],
)
def test_who_can_use_an_image_that_no_registry_has(image: ImageSource, takes_it: set[str]) -> None:

    def refused(write: Callable[[], str]) -> bool:
        try:
            write()
        except ImageNotPullableError:
            return True
        return False

    formats = every_format(deployment(image=image))
    found = {name for name, write in formats.items() if not refused(write)}
    assert found == takes_it


def test_names_of_other_tools() -> None:
    assert enroot_name("localhost:5000/a/b:1") == "localhost:5000#a/b:1"
    assert enroot_name("team/torch:1") == "team/torch:1"
    digest = f"sha256:{'a' * 64}"
    for name in ("r.io:5000/t/x", "t/x", "x"):  # enroot 3 takes a digest in the tag's place only
        expected = f"{name.replace('r.io:5000/', 'r.io:5000#')}:{digest}"
        assert enroot_name(f"{name}@{digest}") == enroot_name(f"{name}:1@{digest}") == expected
    assert squashfs_name("a.b/c@sha256:12") == "a.b+c+sha256+12.sqsh"
    assert apptainer_uri(ImageSource(kind="engine", name="a/b")) == "docker-daemon:a/b:latest"
    assert apptainer_uri(ImageSource(kind="oci", name="/x:n")) == "oci:/x:n"
    assert kubernetes.product_label("NVIDIA GeForce RTX 3090 (x)") == "NVIDIA-GeForce-RTX-3090-x"
