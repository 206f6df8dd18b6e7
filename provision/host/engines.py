"""Queries Docker and podman through their own command lines, each with a time limit.

A machine can have several docker CLIs, and they differ in what matters: one of 23 or newer builds
only with the buildx plugin beside it, one of 18.09 to 22 has BuildKit inside. So every `docker` on
PATH is queried, and the first that can build is reported; its path is the fact's source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from provision.host.cdi import read_cdi
from provision.host.machine import ProbedMachine
from provision.host.runner import ProgramResult
from provision.host.source_facts import one_line
from provision.model.plan import Absent, Engine

if TYPE_CHECKING:
    from typing import TypeAlias

TIMEOUT_S = 5.0

_JSON = ["--format", "{{json .}}"]
_CLI_LIMIT = 8
NVIDIA_HOOKS = (
    "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json",
    "/etc/containers/oci/hooks.d/oci-nvidia-hook.json",
)
Object: TypeAlias = "dict[str, Any]"


class DetectedEngines(NamedTuple):
    """The engines, the program that answered for each, and those that did not answer."""

    engines: tuple[Engine, ...] = ()
    sources: tuple[tuple[str, str], ...] = ()
    absent: tuple[Absent, ...] = ()


class _Cli(NamedTuple):
    """One docker program's answers about itself and its server."""

    path: str
    client: str | None
    server: str | None
    buildkit: str | None
    problem: str | None
    docker: bool  # False: podman's imitation, or no docker at all


def parse_object(text: str) -> Object | None:
    """A JSON object from an engine, or None for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def parse_buildx(text: str) -> str | None:
    """ "github.com/docker/buildx v0.13.1 788433953af1" -> "0.13.1"."""
    found = re.search(r"buildx v?([0-9]+\.[0-9][\w.+~-]*)", text)
    return one_line(found.group(1)) if found else None


def has_integrated_buildkit(client: str | None) -> bool:
    """Whether DOCKER_BUILDKIT=1 works without a plugin: CLI 18.09 up to 22."""
    found = re.match(r"([0-9]+)\.([0-9]+)", client or "")
    return found is not None and (18, 9) <= (int(found[1]), int(found[2])) < (23, 0)


def explain(text: str, env: Mapping[str, str]) -> str:
    """An engine's error message, in words that say what to do."""
    line, low = one_line(text), text.lower()
    where = re.search(r"(?:unix|tcp|ssh|npipe)://[^\s;,\"']+", text)
    at = (
        one_line(where.group(0).rstrip(".:)"))
        if where
        else env.get("DOCKER_HOST") or "its default socket"
    )
    if "permission denied" in low:
        return f"permission denied on {at}: add this user to the docker group, or use sudo"
    if any(
        word in low for word in ("is the docker daemon running", "failed to connect to the docker")
    ):
        return f"no daemon answers at {at}: start it, or set DOCKER_HOST"
    return line or "it said nothing"


def find_engines(machine: ProbedMachine, *, timeout_s: float = TIMEOUT_S) -> DetectedEngines:
    """Docker and podman in parallel, so that one that hangs costs its limit only once."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        docker = pool.submit(_find_docker, machine, timeout_s)
        podman = pool.submit(_find_podman, machine, timeout_s)
        found = (docker.result(), podman.result())
    return DetectedEngines(
        engines=tuple(e for part in found for e in part.engines),
        sources=tuple(s for part in found for s in part.sources),
        absent=tuple(a for part in found for a in part.absent),
    )


def _find_docker(machine: ProbedMachine, timeout_s: float) -> DetectedEngines:
    paths = machine.on_path("docker")[:_CLI_LIMIT]
    if not paths:
        return _absent("docker", "PATH", "no docker on PATH")
    with ThreadPoolExecutor(max_workers=len(paths)) as pool:
        clis = list(pool.map(lambda path: _ask_docker(machine, path, timeout_s), paths))
    absent = tuple(
        Absent(fact="engines.docker", source=cli.path, reason=cli.problem or "no docker")
        for cli in clis
        if not cli.docker
    )
    real = [cli for cli in clis if cli.docker]
    if not real:
        return DetectedEngines(absent=absent)
    best = next((cli for cli in real if cli.buildkit), real[0])
    info: Object = {}
    if best.server:
        info = parse_object(_run(machine, best.path, "info", *_JSON, timeout_s=timeout_s).out) or {}
    engine = Engine(
        name="docker",
        client=best.client,
        server=best.server,
        buildkit=best.buildkit,
        gpu_runtime=parse_runtimes(info),
        cdi_devices=read_docker_cdi(machine, info),
        problem=best.problem,
    )
    return DetectedEngines(
        engines=(engine,), sources=(("engines.docker", best.path),), absent=absent
    )


def parse_runtimes(info: Object) -> bool | None:
    """Whether docker info lists a runtime of NVIDIA's."""
    runtimes = info.get("Runtimes")
    if not isinstance(runtimes, dict):
        return None
    return any(str(name).startswith("nvidia") for name in runtimes)


def read_docker_cdi(machine: ProbedMachine, info: Object) -> tuple[str, ...] | None:
    """Docker 28.2 and newer list the devices; 25 to 28.1 name the directories; older have none."""
    if not info.get("ServerVersion"):
        return None
    devices = info.get("DiscoveredDevices")
    if isinstance(devices, list) and devices:
        ids = [d.get("ID") for d in devices if isinstance(d, dict) and d.get("Source") == "cdi"]
        return tuple(one_line(i) for i in ids if isinstance(i, str))
    dirs = info.get("CDISpecDirs")
    if not isinstance(dirs, list) or not dirs:
        return ()
    if not _is_local(machine.env):
        return None
    return read_cdi(machine, [folder for folder in dirs if isinstance(folder, str)])


def _ask_docker(machine: ProbedMachine, path: str, timeout_s: float) -> _Cli:
    done = _run(machine, path, "version", *_JSON, timeout_s=timeout_s)
    answer = parse_object(done.out) or {}
    client = answer.get("Client")
    client = client if isinstance(client, dict) else {}
    if "emulate docker cli using podman" in done.err.lower() or "OsArch" in client:
        return _no_docker(path, "it is podman's imitation of docker")
    if not client:
        return _no_docker(path, done.message if not done.ok else "it does not answer like docker")
    version = _version(client)
    server = answer.get("Server")
    server = _version(server) if isinstance(server, dict) else None
    buildx = _run(machine, path, "buildx", "version", timeout_s=timeout_s)
    plugin = parse_buildx(buildx.out) if buildx.ok else None
    if plugin:
        buildkit: str | None = f"buildx {plugin}"
    else:
        buildkit = "integrated" if has_integrated_buildkit(version) else None
    return _Cli(
        path=path,
        client=version,
        server=server,
        buildkit=buildkit,
        problem=None if server else _problem(done, machine.env),
        docker=True,
    )


def _find_podman(machine: ProbedMachine, timeout_s: float) -> DetectedEngines:
    paths = machine.on_path("podman")
    if not paths:
        return _absent("podman", "PATH", "no podman on PATH")
    path = paths[0]
    done = _run(machine, path, "version", "--format", "json", timeout_s=timeout_s)
    answer = parse_object(done.out) or {}
    client = answer.get("Client")
    if not isinstance(client, dict):
        why = done.message if not done.ok else "it does not answer like podman"
        return _absent("podman", path, why)
    info = _run(machine, path, "info", "--format", "json", timeout_s=timeout_s)
    version = (parse_object(info.out) or {}).get("version")
    server = _version(version) if isinstance(version, dict) and info.ok else None
    engine = Engine(
        name="podman",
        client=_version(client),
        server=server,
        gpu_runtime=any(map(machine.exists, NVIDIA_HOOKS)) if server else None,
        cdi_devices=read_cdi(machine) if server else None,
        problem=None if server else _problem(info, machine.env),
    )
    return DetectedEngines(engines=(engine,), sources=(("engines.podman", path),))


def _run(machine: ProbedMachine, *argv: str, timeout_s: float) -> ProgramResult:
    return machine.command(argv, timeout_s) or ProgramResult(problem=f"{argv[0]} was not found")


def _problem(done: ProgramResult, env: Mapping[str, str]) -> str:
    return done.problem or explain(done.err.strip() or done.message, env)


def _version(answer: Object) -> str | None:
    value = answer.get("Version")
    return one_line(value, limit=64) or None if isinstance(value, str) else None


def _is_local(env: Mapping[str, str]) -> bool:
    host = env.get("DOCKER_HOST", "")
    return not host or host.startswith("unix://")


def _no_docker(path: str, why: str) -> _Cli:
    return _Cli(path=path, client=None, server=None, buildkit=None, problem=why, docker=False)


def _absent(engine: str, source: str, why: str) -> DetectedEngines:
    return DetectedEngines(absent=(Absent(fact=f"engines.{engine}", source=source, reason=why),))
