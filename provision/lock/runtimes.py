"""For which CUDA a wheel is: what its libraries need, read from the names that they have in them.

A package of PyPI is compiled for one CUDA, whatever the framework beside it has: vLLM 0.33 needs
libcudart.so.13, and PyTorch for CUDA 12.6 brings libcudart.so.12. No metadata says so.

    libraries that it needs   in the library's table of texts, which linkers put near its beginning:
                              a megabyte of each library is read, some ten of a wheel of 600 MB
    one library a CUDA        in the names of the wheel's files: libbitsandbytes_cuda126.so
    libraries opened by name  among the constants of the library, which come before its device code
                              (CTranslate2: libcublas.so.12); read only if the METADATA names CUDA
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from images.inspect.archive import WheelArchive
from images.inspect.dynamic import DynamicReader, ElfFile
from images.inspect.fatbin import MAGIC
from images.inspect.remote import is_url, open_url
from images.inspect.segments import DamagedElf
from images.wheels.directory import Member
from provision.catalog.pairs import exact_cudas, numbers_of
from provision.lock.lockfile import parse_lock

_NAMED = re.compile(
    rb"\0(lib(?:cudart|cublas|cublasLt|nvrtc|nvJitLink)\.so\.(\d+)(?:\.\d+)*)(?=\0)"
)
_RUNTIME = re.compile(rb"\0libcudart\.so\.(\d+)(?:\.\d+)?(?=\0)")
_BRINGS = re.compile(r"nvidia-(?:cuda-runtime|cublas)(?:-cu(\d+))?")
_LIBRARY = re.compile(r"\.so(\.\d+)*$")
_BROUGHT = re.compile(r"^nvidia/|\.libs/|/?[^/]*-[0-9a-f]{8}[^/]*\.so")  # libraries of others
_OWN_NAME = re.compile(r"lib([a-z0-9_+]{4,})-[0-9a-f]{8}[^/]*\.so", re.IGNORECASE)
_FOR_ONE = re.compile(r"[_-]cu(?:da)?(1\d)(\d?)(?=[_.-])")
_INFO = re.compile(r"([^/]+)-([^/-]+)\.dist-info/METADATA")
_OF_EXTRAS = (b"requires-dist:", b"provides-extra:")
READ_BYTES = 1 << 20
"""How much of a library is read to find the names of those that it needs."""
MOST_LIBRARIES, FEW_LIBRARIES = 16, 3
WAIT_S = 15.0
_MOST_METADATA = 4 << 20
_MOST_OPENED_BYTES = 32 << 20
"""How much of a wheel is downloaded to find the names of libraries that it opens."""
_LONGEST_NAME = 64


class NeededCuda(NamedTuple):
    """A wheel works with these CUDAs alone: "12" is any 12.x; (): it has libraries for several, of
    which it may take the right one. `shown_by`: "vllm/_C.abi3.so needs libcudart.so.13".
    """

    cudas: tuple[str, ...]
    shown_by: str

    def fits(self, cuda: str) -> bool:
        """Whether it works with a CUDA ("12.6"), or with any of a major version ("12")."""
        return not self.cudas or not {cuda, major_of(cuda)}.isdisjoint(self.cudas)


def major_of(cuda: str) -> str:
    """The major version of a CUDA, or of the name of its runtime: "12" of 12.6, "11" of 11.0."""
    return cuda.partition(".")[0]


def runtimes_in(text: str) -> frozenset[str]:
    """The CUDAs whose libraries NVIDIA's packages in a lock by uv bring, by their major: {"12"}."""
    found = set()
    for package in parse_lock(text).packages:
        if match := _BRINGS.fullmatch(str(package.name)):
            found.add(match[1] or major_of(str(package.version)))
    return frozenset(found)


def needed_cuda(
    address: str, *, ca_bundle: Path | None, most: int = MOST_LIBRARIES
) -> NeededCuda | None:
    """The CUDA that a wheel needs; None: none. `most`: how many libraries are read for what they
    need, the smallest first. Failure: it cannot be read in parts.
    """
    if not is_url(address):
        return None
    source = open_url(address, ca_bundle=ca_bundle, patience_s=WAIT_S, parts_only=True)
    try:
        return needed_in(WheelArchive(source), most, lambda: source.bytes_read)
    finally:
        source.close()


def own_libraries(archive: WheelArchive) -> list[Member]:
    """The libraries that were compiled with the package, the smallest first. Those that auditwheel
    moved into a folder NAME.libs are others', but for one with the package's own name.
    """
    info = next(filter(None, map(_INFO.fullmatch, archive.members)), None)
    package = _plain(info[1]) if info else ""

    def is_own(name: str) -> bool:
        if _LIBRARY.search(name) is None:
            return False
        hashed = _OWN_NAME.match(name.rpartition("/")[2])
        named = hashed is not None and package.startswith(_plain(hashed[1]))
        return named or _BROUGHT.search(name) is None

    found = [member for name, member in archive.members.items() if is_own(name)]
    return sorted(found, key=lambda member: member.compressed)


def versions_in(start: bytes) -> set[str]:
    """The major versions of the CUDA runtimes that a library needs, from its first MiB: {"12"}."""
    return {found.decode() for found in _RUNTIME.findall(start)}


def needed_in(archive: WheelArchive, most: int, bytes_read: Callable[[], int]) -> NeededCuda | None:
    """The same of an opened wheel. `bytes_read`: how much of it was downloaded until now.
    WheelUnreadableError: it is damaged.
    """
    if (selected := _one_a_cuda(archive)) is not None:
        return selected
    libraries = own_libraries(archive)
    found: dict[str, str] = {}
    for member in libraries[:most]:
        for name, major in _names_in(_start(archive, member)):
            found.setdefault(major, f"{member.name} needs {name}")
        if len(found) > 1:
            break
    if not found and _names_cuda(archive):
        limit = bytes_read() + _MOST_OPENED_BYTES
        for member in reversed(libraries):
            if found or bytes_read() >= limit:
                break
            found = _opened(archive, member, lambda: bytes_read() < limit)
    shown_by = " and ".join(found.values())
    return NeededCuda(tuple(found) if len(found) == 1 else (), shown_by) if found else None


def _one_a_cuda(archive: WheelArchive) -> NeededCuda | None:
    """What the names of libraries say that are the same but for a CUDA (libbitsandbytes_cuda118.so,
    libbitsandbytes_cuda126.so); None: there are none.
    """
    families: dict[str, dict[str, str]] = {}
    for name in archive.members:
        found = _FOR_ONE.search(name) if _LIBRARY.search(name) else None
        if found is not None:
            cuda = f"{found[1]}.{found[2]}" if found[2] else found[1]
            families.setdefault(_FOR_ONE.sub("", name), {})[cuda] = name
    library = max(families.values(), key=len, default={})
    if len(library) < 2:
        return None
    info = next(filter(None, map(_INFO.fullmatch, archive.members)), None)
    exact = info is not None and exact_cudas(_plain(info[1]), info[2]) is not None
    newest = max(library, key=numbers_of)
    cudas = set(library) if exact else {*map(major_of, library)}
    return NeededCuda(
        tuple(sorted(cudas, key=numbers_of)), f"its newest library is {library[newest]}"
    )


def _opened(archive: WheelArchive, member: Member, goes_on: Callable[[], bool]) -> dict[str, str]:
    """The libraries that one names before its device code, by their CUDA; {}: none, or it cannot
    open any, or `goes_on` ended it.
    """
    reader = DynamicReader(member.size)
    found: dict[str, str] = {}
    end, passed = b"", 0
    with contextlib.closing(archive.stream(member)) as pieces:  # type: ignore[type-var]
        for piece in pieces:
            try:
                reader.feed(piece)
            except DamagedElf:
                return {}
            if not goes_on() or not _may_open(reader.found):
                return {}
            part, code, _ = (end + piece).partition(MAGIC)
            how = "needs {}" if passed < READ_BYTES else "opens {} by name"
            for name, major in _names_in(part):
                found.setdefault(major, f"{member.name} {how.format(name)}")
            if code:
                break
            end, passed = part[-_LONGEST_NAME:], passed + len(piece)
    return found


def _may_open(file: ElfFile | None) -> bool:
    """Whether a library calls dlopen, without which it opens none by name. True as long as its
    tables have not been read.
    """
    symbols = file.symbols if file is not None else None
    return symbols is None or any(want.name == b"dlopen" for want in symbols.wanted)


def _names_in(part: bytes) -> Iterator[tuple[str, str]]:
    """The CUDA libraries that a part of a library names, each with its CUDA's major version."""
    for name, major in _NAMED.findall(part):
        yield name.decode(), major.decode()


def _names_cuda(archive: WheelArchive) -> bool:
    """Whether the METADATA of a package names CUDA: in its classifiers, keywords or summary, not in
    an extra or the description.
    """
    name = next(filter(_INFO.fullmatch, archive.members), None)
    text = archive.read(name, _MOST_METADATA).lower() if name else b""
    header = re.split(rb"\r?\n\r?\n", text, maxsplit=1)[0]
    lines = header.splitlines()
    return any(b"cuda" in line and not line.startswith(_OF_EXTRAS) for line in lines)


def _start(archive: WheelArchive, member: Member) -> bytes:
    """The first MiB of a library; b"" for another file."""
    start = b""
    with contextlib.closing(archive.stream(member)) as pieces:  # type: ignore[type-var]
        for piece in pieces:
            start += piece
            if len(start) >= READ_BYTES or not start.startswith(b"\x7fELF"):
                break
    return start if start.startswith(b"\x7fELF") else b""


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
