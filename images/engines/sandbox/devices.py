"""The parts of the host's driver that a sandbox needs for GPUs: device nodes, libraries, programs.

They come from a CDI specification, if the host has one; else we search for the driver, as NVIDIA's
container toolkit does. In both cases the libraries are bound into a separate directory, each under
its versioned name, together with the links that the loader looks for. The directory is appended to
LD_LIBRARY_PATH, so that what the image puts first (a cuda-compat, for example) stays first, as with
an engine. NVIDIA's images look in `/usr/local/nvidia`, too.

Everything is read below `root`, so that tests can use a made-up tree as host.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

from images.inspect.dynamic import read_soname
from images.system.cdi import Edits, first_of_each, read_edits
from images.system.ldcache import read_cache

PLACE = "/usr/local/nvidia"
LIBRARIES = f"{PLACE}/lib64"
PROGRAMS = f"{PLACE}/bin"

_DRIVER = re.compile(r"(libcuda|libcudadebugger|libnvcuvid|libnvidia-[\w-]+)\.so(\.[\d.]+)?")
_DRAWS = re.compile(
    r"libnvidia-(e?gl|glx?|glcore|eglcore|glsi|glvk|rtcore|tls|fbc|gtk|vulkan|wayland|vksc)"
)
_LIBRARY_DIRECTORIES = (
    "usr/lib/{machine}-linux-gnu",
    "usr/lib/{machine}-linux-gnu/nvidia/current",
    "usr/lib64",
    "usr/lib",
    "run/opengl-driver/lib",
    "usr/local/nvidia/lib64",
    "usr/lib/wsl/lib",
)
_PROGRAM_DIRECTORIES = ("usr/bin", "usr/local/bin", "usr/local/nvidia/bin", "usr/lib/wsl/lib")
_NODES = (
    "nvidiactl",
    "nvidia[0-9]*",
    "nvidia-uvm",
    "nvidia-uvm-tools",
    "nvidia-modeset",
    "nvidia-caps/*",
    "nvidia-caps-imex-channels/*",
    "dxg",
)
_SOCKETS = ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket")
_WSL = "usr/lib/wsl"
_NODES_FIX = "let root make it: sudo nvidia-modprobe -u -c=0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """`nodes` and `binds`: pairs of the host's path and the sandbox's; `links`: pairs of the target
    and the link's path. `notes` say what will not work.
    """

    nodes: tuple[tuple[str, str], ...] = ()
    binds: tuple[tuple[str, str], ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    env: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def find_driver(root: Path = Path("/")) -> Driver:
    """Find what a sandbox on this host needs to use every GPU."""
    found = read_edits(root)
    driver = discover(root) if found.edits is None else from_edits(found.edits, root)
    notes = (*found.notes, *driver.notes, *_trouble(driver))
    return Driver(
        nodes=driver.nodes, binds=driver.binds, links=driver.links, env=driver.env, notes=notes
    )


def from_edits(edits: Edits, root: Path) -> Driver:
    """The driver from a CDI specification. Libraries and programs go into our directories; files
    only for graphics (Vulkan's and EGL's) and firmware are omitted.
    """
    edits = _with_dxcore(edits, root)
    files = [_below(root, host) for host, path in edits.mounts if not _is_of_wsl(path)]
    libraries = [(f.name, f) for f in files if f.is_file() and _DRIVER.match(f.name)]
    binds, links = _in_our_place(libraries)
    links += _links_to_wsl(edits, root)
    binds += [(str(file), f"{PROGRAMS}/{file.name}") for file in files if _is_program(file)]
    binds += [
        (str(_below(root, host)), path)
        for host, path in edits.mounts
        if _below(root, host).is_socket() or _is_of_wsl(path)
    ]
    names = {Path(path).name for _, path in binds} | {Path(path).name for _, path in links}
    links += [
        (Path(target).name, f"{LIBRARIES}/{Path(path).name}")
        for target, path in edits.links
        if Path(target).name in names and _DRIVER.match(Path(path).name)
    ]
    return Driver(
        nodes=tuple(
            (str(_below(root, host)), path)
            for host, path in edits.nodes
            if _below(root, host).exists() and not path.startswith("/dev/dri/")
        ),
        binds=tuple(dict.fromkeys(binds)),
        links=first_of_each(links),
        env=tuple(line for line in edits.env if line != "NVIDIA_VISIBLE_DEVICES=void"),
        notes=tuple(
            f"{file}: named by the CDI specification, and not there"
            for file in (_below(root, host) for host, _ in edits.mounts)
            if _DRIVER.match(file.name) and not file.exists()
        ),
    )


def _is_of_wsl(path: str) -> bool:
    return path.startswith(f"/{_WSL}/")


def _with_dxcore(edits: Edits, root: Path) -> Edits:
    """On WSL, add libdxcore.so, without which libcuda finds no GPU: generators omit it if the
    loader's cache lacks it (github.com/NVIDIA/nvidia-container-toolkit issue 1739).
    """
    if not any(_is_of_wsl(path) for _, path in edits.mounts):
        return edits
    library = f"/{_WSL}/lib/libdxcore.so"
    named = any(Path(path).name == "libdxcore.so" for _, path in edits.mounts)
    if named or not _below(root, library).is_file():
        return edits
    return edits._replace(mounts=(*edits.mounts, (library, library)))


def _links_to_wsl(edits: Edits, root: Path) -> list[tuple[str, str]]:
    """The links in our directory to WSL's libraries, which stay in place: they look for files next
    to them. A specification lists them in the Windows driver's folder, and has ldconfig run there.
    """
    links: list[tuple[str, str]] = []
    for host, path in edits.mounts:
        file = _below(root, host)
        if not _is_of_wsl(path) or ".so" not in file.name or not file.is_file():
            continue
        names = (soname(file) or file.name, file.name)
        links += [(path, f"{LIBRARIES}/{name}") for name in dict.fromkeys(names)]
    if any(path == f"{LIBRARIES}/libcuda.so.1" for _, path in links):
        links.append(("libcuda.so.1", f"{LIBRARIES}/libcuda.so"))
    return links


def discover(root: Path) -> Driver:
    """Search for the driver where distributions install it."""
    wsl = root / _WSL / "lib"
    if wsl.is_dir():  # its libraries look for others next to them
        binds = [(str(root / _WSL), f"/{_WSL}")]
        links = [(f"/{_WSL}/lib/{f.name}", f"{LIBRARIES}/{f.name}") for f in sorted(wsl.glob("*"))]
    else:
        binds, links = _in_our_place(_driver_libraries(root))
    for directory in _PROGRAM_DIRECTORIES:
        program = root / directory / "nvidia-smi"
        if _is_program(program) and _is_of(program, os.uname().machine):  # a script runs another
            binds.append((str(program), f"{PROGRAMS}/{program.name}"))
            break
    binds += [(str(root / socket), f"/{socket}") for socket in _SOCKETS if (root / socket).exists()]
    return Driver(
        nodes=tuple(
            (str(node), f"/dev/{node.relative_to(root / 'dev')}")
            for pattern in _NODES
            for node in sorted((root / "dev").glob(pattern))
            if not node.is_dir()
        ),
        binds=tuple(binds),
        links=first_of_each(links),
    )


def soname(file: Path) -> str | None:
    """A library's soname; None if it has none, or is not a library."""
    try:
        with file.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as content:
            return read_soname(content) or None
    except (OSError, ValueError):  # not readable, or empty
        return None


def _driver_libraries(root: Path) -> list[tuple[str, Path]]:
    """The libraries of one driver, by their names here: those with the version of libcuda (or of
    NVML), if it has one.

    Leftovers of another driver are excluded: loading both together fails.
    """
    seen: dict[str, Path] = {}
    for name, file in _candidates(root):
        if _DRIVER.fullmatch(name) and not _DRAWS.match(name) and file.is_file():
            seen.setdefault(name, file.resolve())
    first = next((seen[n] for n in ("libcuda.so.1", "libnvidia-ml.so.1") if n in seen), None)
    version = _version(first)
    fits = {"", version}
    return [(name, f) for name, f in seen.items() if not version or _version(f) in fits]


def _version(file: Path | None) -> str:
    """ "535.104.05" for libcuda.so.535.104.05; "" for libcuda.so.1."""
    match = re.search(r"\.so\.(\d+\.[\d.]+)$", file.name) if file else None
    return match[1] if match else ""


def _candidates(root: Path) -> Iterator[tuple[str, Path]]:
    machine = os.uname().machine
    with contextlib.suppress(OSError):
        cache = (root / "etc/ld.so.cache").read_bytes()
        for name, path in cached_libraries(cache):
            if _DRIVER.fullmatch(name) and _is_of(_below(root, path), machine):
                yield name, _below(root, path)
    for directory in _LIBRARY_DIRECTORIES:
        for file in sorted((root / directory.format(machine=machine)).glob("lib*.so*")):
            if _DRIVER.fullmatch(file.name) and _is_of(file, machine):
                yield file.name, file


def cached_libraries(content: bytes) -> Iterator[tuple[str, str]]:
    """Yield (name, path) of each library in the loader's cache, in order; nothing if it is
    damaged.
    """
    for entry in read_cache(content) or ():
        if entry.name and entry.path.startswith("/"):
            yield entry.name, entry.path


def _is_of(file: Path, machine: str) -> bool:
    """Whether it is an ELF file for this machine: 32-bit ones may have the same names."""
    with contextlib.suppress(OSError), file.open("rb") as opened:
        start = opened.read(20)
        code = {"x86_64": 62, "aarch64": 183}.get(machine)
        return start[:5] == b"\x7fELF\x02" and int.from_bytes(start[18:20], "little") == code
    return False


def _in_our_place(
    libraries: Iterable[tuple[str, Path]],
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The binds of libraries into our directory, and the links for the loader."""
    files: dict[str, Path] = {}
    links: list[tuple[str, str]] = []
    for name, file in libraries:
        real = file.resolve()
        if real.name not in files:
            files[real.name] = real
            links.append((real.name, f"{LIBRARIES}/{soname(real) or real.name}"))
        links.append((real.name, f"{LIBRARIES}/{name}"))
    binds = [(str(real), f"{LIBRARIES}/{name}") for name, real in files.items()]
    if any(path == f"{LIBRARIES}/libcuda.so.1" for _, path in (*binds, *links)):
        links.append(("libcuda.so.1", f"{LIBRARIES}/libcuda.so"))  # some programs open this name
    taken = {path for _, path in binds}
    return binds, [(target, path) for target, path in links if path not in taken]


def _is_program(file: Path) -> bool:
    return file.name.startswith("nvidia-") and file.is_file() and os.access(file, os.X_OK)


def _below(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _trouble(driver: Driver) -> Iterator[str]:
    """What will fail in the sandbox, with a fix."""
    nodes = {path for _, path in driver.nodes}
    if "/dev/nvidiactl" in nodes and "/dev/nvidia-uvm" not in nodes:
        yield f"/dev/nvidia-uvm is not there, and CUDA needs it; {_NODES_FIX}"
    for host, path in driver.nodes:
        if not os.access(host, os.R_OK | os.W_OK) and "nvidia-cap" not in path:
            yield f"{path}: you may not open it; ls -l {host} shows which group may"
    files = (*driver.binds, *driver.links)
    if nodes and not any(Path(path).name.startswith("libcuda.so") for _, path in files):
        yield "libcuda.so.1 was not found on this host: install the driver's compute libraries"
