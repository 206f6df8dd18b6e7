"""Plans a sandbox: its root, its mounts, its command and its variables.

A plan contains only values; `launch` turns it into a command. The root is read-only, so that it can
be reused: directories that programs write to are mounted on top as memory (tmpfs), with the image's
entries in them bound back, read-only, one by one. The same is done if something must be mounted at
a path that the image does not have.

Every path is resolved below the root here, with the root as "/" for the image's links, and a plan
contains only resolved directories: a link in an image cannot lead to the host.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from images.engines.emulation import runs_natively
from images.engines.sandbox.devices import LIBRARIES, PLACE, PROGRAMS, Driver
from images.engines.sandbox.errors import SandboxError
from images.engines.spec import SMALLER_FIX, Foreground, RunJob, too_much_to_pass
from images.engines.squashfs.files import working_directory
from images.oci.model import Platform
from images.system import ldcache
from images.system.errors import NoProgramError

HOST_NAME = "gpu-provision"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_SCRATCH = ("/tmp", "/var/tmp", "/run", "/root")  # noqa: S108  the image's own
_MOST_LINKS = 40
_MOST_ENTRIES = 1000
_CPU_INFO = "/proc/cpuinfo"
_LOADER_CACHE = "/etc/ld.so.cache"
# An arm64 processor in Linux's format (Arm's Neoverse N1), with features that qemu's has, too.
_ARM_PROCESSOR = """\
processor\t: {}
BogoMIPS\t: 100.00
Features\t: fp asimd aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""
_HOSTS = f"127.0.0.1 localhost {HOST_NAME}\n::1 localhost ip6-localhost ip6-loopback\n"

Kind = Literal["bind", "output", "device", "memory", "directory", "link"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One mount at `target`, an absolute path without links.

    bind: `source` from the host, read-only; output: the same, but writable; device: the same, but
    usable as a device; memory: an empty tmpfs; directory: created, in memory; link: created, with
    the target `source`.
    """

    kind: Kind
    target: str
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxPlan:
    """One run of a command. /proc, /dev and /sys are always there, without being listed; `mounts`
    are made in order, `devices` after /proc and /dev. `shm_bytes` is the size of /dev/shm,
    `memory_bytes` that of each mount of kind "memory".
    """

    mounts: tuple[Mount, ...]
    devices: tuple[Mount, ...]
    env: Mapping[str, str]
    argv: tuple[str, ...]
    directory: str
    shm_bytes: int | None
    memory_bytes: int
    network: bool = False


def plan_run(
    tree: Path,
    config: Mapping[str, Any],
    job: RunJob,
    driver: Driver | None,
    files: Path,
    front: Foreground | None = None,
) -> SandboxPlan:
    """Plan a job in an unpacked image. `files` is an empty directory for the files that we add.
    `front`: for a job in the foreground, which has this machine's network.
    """
    settings = config.get("config")
    settings = settings if isinstance(settings, dict) else {}
    directory = _working_directory(settings, front)
    env = _environment(settings, job, driver)
    argv = _command(settings, job)
    words = [*argv, *(f"{name}={value}" for name, value in env.items())]
    if problem := too_much_to_pass(words, directory):
        raise SandboxError(f"The image cannot be run: {problem}", fix=SMALLER_FIX)
    _check_mount_points(tree)
    places = _Places(tree)
    for scratch in (*_SCRATCH, directory):
        if scratch != "/":
            places.make_writable(scratch)
    for path, content in _own_files(job, front).items():
        places.bind(_host_file(files, content), path)
    for one in front.binds if front else ():
        places.bind(one.source, one.target, kind="output" if one.writable else "bind")
    for path, output in job.outputs.items():
        places.bind(output, path, kind="output")
    if driver is not None:
        places.add_driver(driver)
        if cache := _loader_cache(tree, driver):
            places.bind(_host_file(files, cache), _LOADER_CACHE)
    if _is_emulated_arm(config):
        processors = "".join(map(_ARM_PROCESSOR.format, range(os.cpu_count() or 1)))
        source = str(_host_file(files, processors.encode()))
        places.devices.append(Mount(kind="bind", target=_CPU_INFO, source=source))
    mounts = tuple(places.mounts())
    bound = {mount.target for mount in mounts}
    _check_command(tree, argv[0], env["PATH"], directory, bound)
    return SandboxPlan(
        mounts=mounts,
        devices=tuple(places.devices),
        env=env,
        argv=argv,
        directory=places.resolved(directory),
        shm_bytes=job.shm_bytes,
        memory_bytes=_memory_of_each(mounts),
        network=front is not None,
    )


def resolve(tree: Path, path: str) -> tuple[str, str]:
    """Resolve a path in a tree as from inside: (existing part, missing part).

    The first is the longest part that exists, an absolute path without links; the second is the
    rest, "" if everything exists.
    """
    todo = [part for part in reversed(path.split("/")) if part not in {"", "."}]
    here: list[str] = []
    links = 0
    while todo:
        part = todo.pop()
        if part == "..":
            del here[-1:]
            continue
        found = tree.joinpath(*here, part)
        try:
            mode = found.lstat().st_mode
        except OSError:
            return "/" + "/".join(here), posixpath.join(part, *reversed(todo))
        if not stat.S_ISLNK(mode):
            here.append(part)
            continue
        links += 1
        if links > _MOST_LINKS:
            raise SandboxError(
                f"The links of the image lead in a circle at {path}.", fix="Do not use this image."
            )
        target = str(found.readlink())
        if target.startswith("/"):
            here.clear()
        todo += [part for part in reversed(target.split("/")) if part not in {"", "."}]
    return "/" + "/".join(here), ""


def _is_emulated_arm(config: Mapping[str, Any]) -> bool:
    """Whether /proc/cpuinfo would show an Arm program another processor. qemu-user before 8.2 shows
    the host's, on which the library `cpuinfo` in PyTorch crashes:
    https://github.com/pytorch/cpuinfo/pull/398
    """
    arm = Platform(architecture="arm64")
    return config.get("architecture") == arm.architecture and not runs_natively(arm)


class _Places:
    """Collects the mounts on a tree, and makes missing mount points possible."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._writable: set[str] = set()
        self._made: list[Mount] = []
        self.devices: list[Mount] = []

    def resolved(self, path: str) -> str:
        found, missing = resolve(self._tree, path)
        return posixpath.normpath(posixpath.join(found, missing))

    def make_writable(self, path: str) -> None:
        """Make a directory writable; create it if the image does not have it."""
        found, missing = self._room_for(path)
        if missing:
            target = posixpath.join(found, missing)
            self._made.append(Mount(kind="directory", target=target))
        elif self._on_host(found).is_dir():
            self._writable.add(found)

    def bind(self, source: Path | str, path: str, kind: Kind = "bind") -> None:
        """Mount a file of the host at a path."""
        found, missing = self._room_for(path)
        target = posixpath.join(found, missing) if missing else found
        self._made.append(Mount(kind=kind, target=target, source=str(source)))

    def add_driver(self, driver: Driver) -> None:
        self.make_writable(PLACE)
        for source, path in driver.binds:
            self.bind(source, path)
        for target, path in driver.links:
            self.bind(target, path, kind="link")
        for source, path in driver.nodes:
            if path.startswith("/dev/") and ".." not in path:
                self.devices.append(Mount(kind="device", target=path, source=source))

    def mounts(self) -> Iterator[Mount]:
        """All mounts, in their order: deeper ones come later."""
        if "/" not in self._writable:
            yield Mount(kind="bind", target="/", source=str(self._tree))
        for directory in sorted(self._writable, key=lambda path: (path.count("/"), path)):
            yield Mount(kind="memory", target=directory)
            yield from self._put_back(directory)
        yield from dict.fromkeys(self._made)

    def _room_for(self, path: str) -> tuple[str, str]:
        """Resolve a path; if a part is missing, make its parent writable, to create it there."""
        found, missing = resolve(self._tree, path)
        if ".." in missing.split("/"):
            raise SandboxError(
                f"{path} cannot be made in the image: it leads through what is not there.",
                fix="Build the image again.",
            )
        if missing:
            self._writable.add(found)
        return found, missing

    def _put_back(self, directory: str) -> Iterator[Mount]:
        entries = sorted(os.scandir(self._on_host(directory)), key=lambda entry: entry.name)
        for entry in entries[:_MOST_ENTRIES]:
            target = posixpath.join(directory, entry.name)
            if entry.is_symlink():
                yield Mount(kind="link", target=target, source=str(Path(entry).readlink()))
            else:
                yield Mount(kind="bind", target=target, source=entry.path)

    def _on_host(self, path: str) -> Path:
        return self._tree / path.lstrip("/")


def _loader_cache(tree: Path, driver: Driver) -> bytes | None:
    """The image's loader cache with the driver's libraries added, for programs that look them up
    with `ldconfig -p` (Triton 2.1 has no other way). Engines run ldconfig in the container. None if
    the image has no readable cache: the loader then has only LD_LIBRARY_PATH.
    """
    machine = os.uname().machine
    try:
        found, missing = resolve(tree, _LOADER_CACHE)
        file = tree / found.lstrip("/")
        if missing or not file.is_file() or machine not in ldcache.FLAGS:
            return None
        with file.open("rb") as opened:
            cache = opened.read(ldcache.MOST_BYTES + 1)
    except (OSError, SandboxError):
        return None
    if ldcache.read_cache(cache) is None:
        return None
    placed = {path for _, path in (*driver.binds, *driver.links)}
    libraries = [path for path in placed if posixpath.dirname(path) == LIBRARIES and ".so" in path]
    return ldcache.with_libraries(cache, libraries, arch=machine, directories=())


def _own_files(job: RunJob, front: Foreground | None) -> dict[str, bytes]:
    """The files that engines add to every container, and the job's files."""
    hosts, resolver = _HOSTS.encode(), {}
    if front is not None:
        with contextlib.suppress(OSError):
            hosts += Path("/etc/hosts").read_bytes()
        with contextlib.suppress(OSError):
            resolver = {"/etc/resolv.conf": Path("/etc/resolv.conf").read_bytes()}
    return {
        "/etc/hosts": hosts,
        "/etc/hostname": f"{HOST_NAME}\n".encode(),
        **resolver,
        **{posixpath.normpath(path): content for path, content in job.files.items()},
    }


def _host_file(files: Path, content: bytes) -> Path:
    file = files / str(sum(1 for _ in files.iterdir()))
    file.write_bytes(content)
    file.chmod(0o644)
    return file


def _working_directory(settings: Mapping[str, Any], front: Foreground | None) -> str:
    if front is not None and front.directory:
        return posixpath.normpath(front.directory)
    return working_directory(settings)


def _environment(settings: Mapping[str, Any], job: RunJob, driver: Driver | None) -> dict[str, str]:
    """The variables, as an engine sets them: its defaults, the image's, the run's."""
    env = {"PATH": DEFAULT_PATH, "HOME": "/root", "HOSTNAME": HOST_NAME}
    env |= _pairs(settings.get("Env"))
    if driver is not None:
        env |= _pairs(list(driver.env))
    env |= job.environment
    if driver is not None:
        # for the loader, and for a compiler that links with -lcuda, as in Triton 2.0
        for name in ("LD_LIBRARY_PATH", "LIBRARY_PATH"):
            env[name] = _joined(env.get(name, ""), LIBRARIES)
        env["PATH"] = _joined(env["PATH"], PROGRAMS)
    return env


def _joined(path: str, last: str) -> str:
    parts = [part for part in path.split(":") if part]
    return ":".join([*parts, *([last] if last not in parts else [])])


def _pairs(found: object) -> dict[str, str]:
    rows = found if isinstance(found, list) else []
    lines = [row for row in rows if isinstance(row, str)]
    pairs = (line.partition("=") for line in lines if "\0" not in line)
    return {name: value for name, equals, value in pairs if name and equals}


def _command(settings: Mapping[str, Any], job: RunJob) -> tuple[str, ...]:
    """As in engines: the image's entrypoint, then the job's command, or else the image's."""
    argv = (*_words(settings.get("Entrypoint")), *(job.command or _words(settings.get("Cmd"))))
    if not argv or not argv[0]:
        raise SandboxError("There is no command to run.", fix="Name one.")
    if any("\0" in word for word in argv):
        raise SandboxError(
            "The image's command holds a zero byte, and cannot be run.", fix="Build it again."
        )
    return argv


def _words(found: object) -> tuple[str, ...]:
    fits = isinstance(found, list) and all(isinstance(word, str) for word in found)
    return tuple(found) if fits and isinstance(found, list) else ()


def _check_mount_points(tree: Path) -> None:
    """Refuse an image whose /dev, /proc or /sys exists and is not a directory."""
    for name in ("dev", "proc", "sys"):
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR((tree / name).lstat().st_mode):
                raise SandboxError(
                    f"The image's /{name} is not a directory, so nothing can be mounted there.",
                    fix=f"Build the image again, with an empty directory /{name}.",
                )


def _memory_of_each(mounts: Iterable[Mount]) -> int:
    """The size of each memory mount: together half of this machine's memory in bytes, so that an
    image's writes cannot use up the host's.
    """
    count = sum(mount.kind == "memory" for mount in mounts)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return memory // 2 // max(count, 1) >> 20 << 20


def _check_command(
    tree: Path, program: str, path: str, directory: str, bound: Collection[str]
) -> None:
    """Raise a clear error here if the program is neither in the image nor among what is bound into
    it: the driver's nvidia-smi is.
    """
    places: Iterable[str] = path.split(":")
    if "/" in program:
        places = (directory,)
    for place in places:
        candidate = posixpath.join(directory, place, program)
        if posixpath.normpath(candidate) in bound:
            return
        found, missing = resolve(tree, candidate)
        if not missing and tree.joinpath(found.lstrip("/")).is_file():
            return
    raise NoProgramError(program)
