"""The words with which engines run a command in an image: pure rules, one function an engine.

They are the same whether we run the engine here or on a node of a fleet, so this module needs only
the standard library of Python 3.8. GPUs are requested as `RunJob.gpus` says: "none", "runtime" (the
NVIDIA container runtime or hook) or "cdi".

https://docs.docker.com/reference/cli/docker/container/run/
https://docs.podman.io/en/stable/markdown/podman-run.1.html
https://apptainer.org/docs/user/main/gpu.html, .../cli/apptainer_exec.html
https://github.com/NVIDIA/enroot/blob/master/doc/cmd/start.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

CDI_GPUS = "nvidia.com/gpu=all"
ROLE = "org.gpu-provision.role=verify"
RUN_ROLE = "org.gpu-provision.role=run"


def limit_values(stack_bytes: int, *, memlock_unlimited: bool) -> dict[str, str]:
    """The limits of a container, as `--ulimit` takes them: locked memory for RDMA, and a stack."""
    values = {"stack": "{0}:{0}".format(stack_bytes)}  # noqa: UP032
    if memlock_unlimited:
        values["memlock"] = "-1:-1"
    return values


def limit_words(limits: Mapping[str, str]) -> list[str]:
    """These limits as options of docker and podman."""
    return [word for name in limits for word in ("--ulimit", f"{name}={limits[name]}")]


def gpu_words(engine: str, gpus: str) -> list[str]:
    """The options that give a container all GPUs.

    Podman gets them through CDI only: some versions accept `--gpus` but ignore it.
    """
    if gpus == "none" or engine == "enroot":  # enroot's hook reads NVIDIA_VISIBLE_DEVICES
        return []
    if engine == "apptainer":
        return ["--nv"]
    if engine == "podman" or gpus == "cdi":
        return ["--device", CDI_GPUS]
    return ["--gpus", "all"]


def environment_words(environment: Mapping[str, str]) -> list[str]:
    """Variables of the container, as docker, podman, apptainer and enroot take them."""
    return [word for name in environment for word in ("--env", f"{name}={environment[name]}")]


def container_words(
    engine: str,
    *,
    name: str,
    gpus: str,
    limits: Mapping[str, str],
    shm_bytes: int,
    network: str,
    environment: Mapping[str, str],
    role: str = ROLE,
) -> list[str]:
    """The options of `docker run` and `podman run` (or create), without the image. `network`: "" is
    the engine's default.
    """
    return [
        *("--name", name, "--label", role),
        *(("--network", network) if network else ()),
        *("--shm-size", str(shm_bytes)),
        *limit_words(limits),
        *gpu_words(engine, gpus),
        *environment_words(environment),
    ]


def apptainer_words(
    program: str, image: str, *, gpus: str, environment: Mapping[str, str], command: Sequence[str]
) -> list[str]:
    """`apptainer exec`: nothing of the node's home, variables or temporary files in the container.

    There is no network or shared-memory limit to set: a container uses those of the node.
    """
    return [
        *(program, "exec", "--containall", "--no-home", "--cleanenv"),
        *gpu_words("apptainer", gpus),
        *environment_words(environment),
        image,
        *command,
    ]


def enroot_words(
    root: str, *, gpus: str, environment: Mapping[str, str], command: Sequence[str]
) -> list[str]:
    """`enroot start` in an unpacked root: the container uses the node's network and shared memory.
    Its NVIDIA hook reads two variables.
    """
    nvidia = {} if gpus == "none" else {"NVIDIA_VISIBLE_DEVICES": "all"}
    wanted = {**nvidia, "NVIDIA_DRIVER_CAPABILITIES": "all"} if nvidia else {}
    return ["enroot", "start", *environment_words({**wanted, **environment}), root, *command]


def apptainer_source(image: str) -> str:
    """The image, as Apptainer names it: a registry's, a layout's, or a squashfs (a path)."""
    is_place = image.startswith(("oci:", "/")) or "/" not in image
    return image if is_place else f"docker://{image}"


def enroot_name(reference: str) -> str:
    """The image, as enroot and pyxis name it: REGISTRY#PATH:TAG; without a registry Docker Hub is
    meant. A digest takes the tag's place: PATH@DIGEST is known from enroot 4.0 on only.
    https://github.com/NVIDIA/enroot/blob/v4.1.2/src/docker.sh, .../v3.5.0/src/docker.sh
    """
    name, _, digest = reference.partition("@")
    if digest:
        head, colon, tag = name.rpartition(":")
        reference = "{}:{}".format(head if colon and "/" not in tag else name, digest)
    host, slash, path = reference.partition("/")
    if slash and ("." in host or ":" in host or host == "localhost"):
        return f"{host}#{path}"
    return reference


def enroot_source(reference: str) -> str:
    """The image of a registry, as `enroot import` takes it."""
    return f"docker://{enroot_name(reference)}"
