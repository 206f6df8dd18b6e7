"""Every name of another tool's that an exported file or a template has is one that the tool knows.

The tables were read in the tools' sources, whose file and version each gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from images.engines import run_arguments
from provision.output.export import apptainer, compose, devcontainer, enroot, kubernetes, slurm
from tests import ROOT
from tests.kit.exports import deployment
from tests.unit.provision.output.export.test_formats import read_jsonc

FULL = deployment(nodes=2, gpus=8, gate=True, environment=(("A", "b"),))
GPUS = deployment(
    user=1000, gate=True, nodes=2, gpus=8, products=("NVIDIA A100-SXM4-80GB",), driver="525.60.13"
)

# https://github.com/NVIDIA/pyxis/blob/v0.24.0/args.c
PYXIS = (
    "container-image container-mounts container-workdir container-name container-save "
    "container-mount-home no-container-mount-home container-remap-root no-container-remap-root "
    "container-entrypoint no-container-entrypoint container-entrypoint-log container-writable "
    "container-readonly container-env container-unshare"
)
# https://github.com/NVIDIA/enroot/blob/v4.1.2/doc/cmd/
ENROOT = {
    "import": "arch output",
    "create": "name force",
    "start": "conf env rc root rw mount pid net ipc uts",
    "remove": "force",
    "list": "fancy",
}
# https://github.com/apptainer/apptainer/blob/v1.5.3/cmd/internal/cli/action_flags.go
APPTAINER = "bind cleanenv containall cwd env no-home nv pwd"
# .../pkg/build/types/parser/deffile.go
SECTIONS = "help setup files labels environment pre post runscript test startscript arguments"
# .../internal/pkg/ociimage/transport.go
TRANSPORTS = {"docker", "docker-archive", "docker-daemon", "oci", "oci-archive"}
# https://github.com/NVIDIA/k8s-device-plugin/blob/v0.20.0/docs/gpu-feature-discovery/README.md,
# without those that are deprecated
LABELS = (
    "cuda.driver-version.major cuda.driver-version.minor cuda.driver-version.revision "
    "cuda.driver-version.full cuda.runtime-version.major cuda.runtime-version.minor "
    "cuda.runtime-version.full gfd.timestamp gpu.compute.major gpu.compute.minor gpu.count "
    "gpu.family gpu.machine gpu.memory gpu.product gpu.replicas gpu.mode gpu.clique "
    # of NVIDIA's operator: https://github.com/NVIDIA/gpu-operator, controllers/state_manager.go
    "gpu.present"
)
# https://github.com/kubernetes-sigs/jobset/blob/v0.12.0/api/jobset/v1alpha2/jobset_types.go
JOBSET = {
    "spec": "replicatedJobs network successPolicy failurePolicy startupPolicy suspend coordinator "
    "managedBy ttlSecondsAfterFinished volumeClaimPolicies",
    "failurePolicy": "maxRestarts restartStrategy rules",
    "replicatedJobs": "name groupName template replicas dependsOn",
}
# https://github.com/devcontainers/spec/blob/c95ffee/schemas/devContainer.base.schema.json
DEVCONTAINER = {"name", "image", "hostRequirements", "runArgs", "containerEnv"}


def options(text: str) -> set[str]:
    """The long options in a text."""
    return set(re.findall(r"(?:^|(?<=[\s(]))--([a-z][a-z-]*)", text))


def unknown(found: set[str], known: str) -> set[str]:
    return found - set(known.split())


def test_pyxis_knows_the_options_of_the_batch_script() -> None:
    text = slurm.to_sbatch(FULL, "pyxis", mount=True)
    found = {one for one in options(text) if "container" in one}
    assert unknown(found, PYXIS) == set()
    assert {"container-image", "container-mounts", "container-env"} <= found


def enroot_lines() -> Iterator[tuple[str, str]]:
    """Each command of enroot that we write or run, with its line."""
    for text in (enroot.to_script(FULL), slurm.to_sbatch(FULL, "enroot", mount=True)):
        joined = text.replace("container=(\n", "").replace("\n    --", " --")
        for line in joined.splitlines():
            if found := re.search(r"enroot (import|create|start|list)\b([^|;]*)", line):
                yield found[1], re.sub(r'"\$image".*| torchrun .*', "", found[2])
    ran = run_arguments.enroot_words("root", gpus="runtime", environment={"A": "b"}, command=())
    yield ran[1], " ".join(ran[2:])


def test_enroot_knows_the_options_of_its_commands() -> None:
    found = list(enroot_lines())
    assert {verb for verb, _ in found} == {"import", "create", "start", "list"}
    for verb, line in found:
        assert unknown(options(line), ENROOT[verb]) == set(), line
    assert any("--mount" in line for verb, line in found if verb == "start")


def test_apptainer_knows_the_options_and_the_sections() -> None:
    script = slurm.to_sbatch(deployment(), "apptainer", mount=True)
    (line,) = re.findall(r"apptainer exec .*\n.*", script)
    text = apptainer.to_definition(FULL)
    (comment,) = re.findall(r"# +apptainer run (.*)", text)
    ran = run_arguments.apptainer_words(
        "a", "x", gpus="runtime", environment={"A": "b"}, command=()
    )
    for found in (line, comment, " ".join(ran)):
        assert options(found)
        assert unknown(options(found), APPTAINER) == set()
    sections = set(re.findall(r"(?m)^%([a-z]+)$", text))
    assert sections
    assert unknown(sections, SECTIONS) == set()
    assert set(re.findall(r"(?m)^([A-Z]\w+):", text)) == {"Bootstrap", "From"}
    assert re.findall(r"(?m)^Bootstrap: (.*)$", text)[0] in TRANSPORTS


def keys(found: Any) -> Iterator[str]:
    """Every key and `key` of affinities, at any depth."""
    if isinstance(found, dict):
        for key, value in found.items():
            yield key
            if key == "key" and isinstance(value, str):
                yield value
            yield from keys(value)
    for value in found if isinstance(found, list) else ():
        yield from keys(value)


def test_the_labels_of_nodes_are_those_of_gpu_feature_discovery() -> None:
    texts = [kubernetes.to_manifest(GPUS, "job")]
    texts += [path.read_text() for path in (ROOT / "templates/kubernetes").glob("*.yaml")]
    found = {
        key.removeprefix("nvidia.com/")
        for text in texts
        for document in yaml.safe_load_all(text)
        for key in keys(document)
        if key.startswith("nvidia.com/") and key != "nvidia.com/gpu"  # that is a resource
    }
    assert found == {"gpu.product", "cuda.driver-version.major", "gpu.present"}
    assert unknown(found, LABELS) == set()


def test_jobset_knows_the_fields() -> None:
    found = yaml.safe_load(kubernetes.to_manifest(GPUS, "jobset"))
    assert found["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    spec = found["spec"]
    assert unknown(set(spec), JOBSET["spec"]) == set()
    assert unknown(set(spec["failurePolicy"]), JOBSET["failurePolicy"]) == set()
    for one in spec["replicatedJobs"]:
        assert unknown(set(one), JOBSET["replicatedJobs"]) == set()


@pytest.mark.parametrize("cdi", [False, True], ids=["by number", "CDI"])
def test_compose_and_development_containers_have_known_fields(*, cdi: bool) -> None:
    """Compose's own schema is read in tests/clusters; this is what has no schema there."""
    (service,) = yaml.safe_load(compose.to_compose(FULL, cdi=cdi, mount=True))["services"].values()
    (devices,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert devices["driver"] == ("cdi" if cdi else "nvidia")
    assert set(devices) <= {"capabilities", "count", "device_ids", "driver", "options"}
    assert set(read_jsonc(devcontainer.to_devcontainer(FULL))) <= DEVCONTAINER
