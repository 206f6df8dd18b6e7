"""`provision export`, from the command line to the file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from images.assembly.build import Recipe, build
from images.oci.assemble import ContainerSettings
from images.oci.layout import LayoutTarget
from images.oci.model import MANIFEST
from provision.cli.main import main
from provision.cli.registry import of_group
from provision.lock.labels import labels_for
from provision.lock.lockfile import read_lock
from provision.lock.wheels import finished
from provision.model.plan import GpuVerdict
from tests.kit.cases import cases
from tests.kit.exports import IMAGE
from tests.kit.memory_target import Bar, DictMemory, TextLayer, base_image
from tests.unit.provision.lock.test_lock import PLAN as SMALL
from tests.unit.provision.lock.test_lock import uv_lock

GPU = "NVIDIA A100-SXM4-80GB"
PLAN = SMALL._replace(
    gpus=(GpuVerdict(name=GPU, compute_capability="8.0", runs="sm_80", ok=True),), requirements=()
)
UV_LOCK = uv_lock()
EXPORTS = [one.name for one in of_group("export")]


@pytest.fixture(scope="module")
def lock(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("lock") / "pylock.toml"
    path.write_text(finished(UV_LOCK, PLAN, None, offline=True))
    return str(path)


@pytest.fixture
def exported(lock: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def call(consumer: str, *words: str, image: str = IMAGE) -> str:
        code = main(["export", consumer, image, "--lock", lock, *words])
        out, err = capsys.readouterr()
        has_remarks = consumer in {"kubernetes", "k8s"} or "--nodes" in words
        assert (code, bool(err)) == (0, has_remarks)
        return out

    return call


@pytest.mark.parametrize("consumer", EXPORTS)
def test_each_format_names_the_image_and_the_framework(
    consumer: str, exported: Callable[..., str]
) -> None:
    text = exported(consumer)
    assert "PyTorch 2.0.1, CUDA 11.7" in text
    assert "team/torch:cu128" in text
    assert exported(consumer, "--json").startswith("{")


def test_kubernetes_has_its_short_name(exported: Callable[..., str]) -> None:
    assert exported("k8s") == exported("kubernetes")


def test_a_job_of_several_nodes_says_what_rdma_needs(
    lock: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for consumer, needs in (("kubernetes", "IPC_LOCK"), ("slurm", "MEMLOCK")):
        assert main(["export", consumer, IMAGE, "--lock", lock, "--nodes", "2"]) == 0
        out, err = capsys.readouterr()
        assert needs in out
        assert "RDMA" in err


def test_a_manifest_says_what_the_cluster_may_need(
    lock: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "kubernetes", IMAGE, "--lock", lock]) == 0
    out, err = capsys.readouterr()
    for name in ("tolerations", "imagePullSecrets"):
        assert re.search(rf"^#   {name}: \[{{.*}}\]$", out, re.MULTILINE)
        assert name in err


def test_a_lock_says_for_which_gpus_and_an_option_says_otherwise(
    exported: Callable[..., str],
) -> None:
    assert "NVIDIA-A100-SXM4-80GB" in exported("kubernetes")
    other = exported("kubernetes", "--gpu", "NVIDIA A30")
    assert "NVIDIA-A30" in other
    assert "A100" not in other
    family = exported("kubernetes", "--gpu", "A100")
    names = set(re.findall(r"NVIDIA-[-\w]+", family))
    assert {"NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-PCIE-40GB"} <= names
    by_capability = exported("kubernetes", "--gpu", "8.6")
    assert re.search(r"gpu.compute.minor\n.*In\n.*\n.*\"6\"", by_capability)
    # what CUDA 11.x needs, by the catalog: driver 450.80.02
    assert re.search(r"driver-version.major\n.*Gt\n.*\n.*\"449\"", other)


def test_the_labels_of_an_image_are_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = labels_for(read_lock(finished(UV_LOCK, PLAN, None, offline=True)), "0.1")
    settings = ContainerSettings(env={}, working_dir="/", command=("sh",), labels=labels)
    recipe = Recipe(base=base_image(), sources=(TextLayer("a", b"x"),), settings=settings)
    with closing(LayoutTarget.open(tmp_path / "images")) as target:
        built = build(recipe, target, DictMemory(), Bar(), workers=1)
        target.publish(built.content, MANIFEST, name="torch:1")
    place = f"oci:{tmp_path}/images:torch:1"
    assert main(["export", "apptainer", place]) == 0
    out = capsys.readouterr().out
    assert f"Bootstrap: oci\nFrom: {tmp_path}/images:torch:1\n" in out
    assert "org.gpu-provision.cuda 11.7" in out
    assert main(["export", "ray", place, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "image-not-pullable"


def test_all_options_of_a_job(exported: Callable[..., str]) -> None:
    text = exported(
        *("kubernetes", "--nodes", "2", "--gpus", "8", "--shm", "12GiB", "--gate"),
        *("--command", "python3 'my train.py' --lr 1e3", "--env", "A=b=c", "--name", "no"),
        *("--user", "0"),
    )
    service, job = yaml.safe_load_all(text)
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert service["metadata"]["name"] == job["metadata"]["name"] == "no"
    assert container["command"][-3:] == ["my train.py", "--lr", "1e3"]
    assert container["env"] == [{"name": "A", "value": "b=c"}]
    assert pod["volumes"][0]["emptyDir"]["sizeLimit"] == "12Gi"
    assert "securityContext" not in pod
    assert yaml.safe_load(exported("kubernetes", "--jobset"))["kind"] == "JobSet"
    assert len(list(yaml.safe_load_all(exported("kubernetes", "--indexed")))) == 2


def test_a_file_is_written_whole_and_a_script_may_be_run(
    exported: Callable[..., str], tmp_path: Path
) -> None:
    for consumer, mode in (("slurm", 0o755), ("enroot", 0o755), ("compose", 0o644)):
        file = tmp_path / f"{consumer}.out"
        assert exported(consumer, "--output", str(file)) == f"{file}\n"
        assert file.read_text() == exported(consumer)
        assert file.stat().st_mode & 0o777 == mode


def test_an_image_without_a_registry_is_pointed_out(
    lock: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "slurm", "team/torch:1", "--lock", lock]) == 0
    assert "Docker Hub" in capsys.readouterr().err


@cases(
    "words says",
    ("no GPU", ["slurm", "--gpus", "0"], "--gpus '0'"),
    ("digits of another script", ["slurm", "--gpus", "\u0663"], "--gpus"),
    ("not a number", ["slurm", "--nodes", "1e3"], "--nodes '1e3'"),
    ("an open quote", ["slurm", "--command", "a 'b"], "closing quotation"),
    ("no command", ["slurm", "--command", " "], "--command is empty"),
    ("an escape sequence", ["slurm", "--command", "a\x1bb"], "unprintable"),
    ("a byte that is no text", ["slurm", "--command", "a\udc80"], "unprintable"),
    ("a carriage return", ["slurm", "--command", "a\rb"], "unprintable"),
    ("a name of two lines", ["slurm", "--name", "a\nb"], "unprintable"),
    ("a name that is a path", ["slurm", "--name", "a/b"], "name of a job"),
    ("no name", ["slurm", "--name", ""], "name of a job"),
    ("a variable without a value", ["slurm", "--env", "A"], "does not set"),
    ("not a variable's name", ["slurm", "--env", "A B=c"], "does not set"),
    ("no shared memory", ["slurm", "--shm", "0"], "--shm"),
    ("another container tool", ["slurm", "--with", "lxc"], "Unknown --with"),
    ("no such user", ["kubernetes", "--user", "-1"], "--user"),
    ("no code for the GPU", ["kubernetes", "--gpu", "H100"], "does not run"),
    ("another processor", ["kubernetes", "--gpu", "GB200"], "does not run"),
    ("a Job for two nodes", ["kubernetes", "--job", "--nodes", "2"], "one node"),
    ("a name in capitals", ["kubernetes", "--name", "A"], "Kubernetes takes"),
    ("a service with a space", ["compose", "--name", "a b"], "service"),
    ("what cannot be quoted", ["devcontainer", "--env", "A=${b}"], "expands"),
    ("a section", ["apptainer", "--command", "a '\n%post'"], "line end"),
    ("no such directory", ["ray", "--output", "/nowhere/x"], "no directory"),
)
def test_what_cannot_be_written_is_refused(
    words: list[str], says: str, lock: str, capsys: pytest.CaptureFixture[str]
) -> None:
    consumer, *options = words
    assert main(["export", consumer, IMAGE, "--lock", lock, *options, "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert says in error["message"]
    assert error["fix"]


def test_an_image_with_cuda_compat_needs_no_newer_driver(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pylock.toml"
    plan = PLAN._replace(compat_package="cuda-compat-11-7")
    path.write_text(finished(UV_LOCK, plan, None, offline=True))
    assert main(["export", "kubernetes", IMAGE, "--lock", str(path)]) == 0
    out = capsys.readouterr().out
    assert "gpu.product" in out
    assert "driver.major" not in out
