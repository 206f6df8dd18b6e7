"""Decides what to read from a wheel, in what order: small texts first, libraries if needed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from images.inspect.archive import WheelArchive
from images.inspect.library import read_library
from images.inspect.model import How, LibraryCode, WheelCode
from images.inspect.remote import is_url, open_url
from images.inspect.source import ByteSource, Progress, open_file
from images.inspect.texts import (
    WheelMetadata,
    assigned,
    find_flags,
    parse_build_info,
    parse_metadata,
    parse_tags,
    pinned_cudnn,
    two_parts,
    versions_of,
)
from images.inspect.verdict import (
    Verdict,
    judge_libraries,
    judge_words,
    notes_on_flags,
    notes_on_libraries,
)
from images.text.printable import printable
from images.wheels.directory import Member
from images.wheels.errors import ANEW_FIX, WheelUnreadableError

_TEXT_BYTES = 4 << 20
_LIBRARY_BYTES = 16 << 30
_ALL_LIBRARIES_BYTES = 64 << 30
_TORCH_VERSION = "torch/version.py"
_TORCH_FLAGS = "torch/lib/libtorch_python.so"
_TENSORFLOW = "tensorflow/python/platform/build_info.py"
_LIBRARY = re.compile(r"\.so(\.\d+)*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class _WheelTexts:
    """What the texts of a wheel say. `verdict` is None if only its libraries can decide."""

    version: str
    cuda: str | None = None
    cudnn: str | None = None
    flags: tuple[str, ...] = ()
    verdict: Verdict | None = None
    how: How = "fatbins"


def measure(
    source: str,
    *,
    ca_bundle: Path | None = None,
    deep: bool = False,
    on_progress: Progress | None = None,
) -> WheelCode:
    """Find out from the wheel itself which GPUs it was compiled for.

    `source` is a path, or an http(s) URL, of which only the needed parts are fetched. `deep` reads
    the libraries even if the build recorded its targets. `on_progress` gets a member's name (the
    file's, if a server sends it only as a whole), how many bytes of it were read, and the total (0
    if unknown).
    """
    hears = on_progress or (lambda *_: None)
    opened = (
        open_url(source, ca_bundle=ca_bundle, on_progress=hears)
        if is_url(source)
        else open_file(source)
    )
    try:
        return measure_source(opened, deep=deep, on_progress=hears)
    finally:
        opened.close()


def measure_source(source: ByteSource, *, deep: bool, on_progress: Progress) -> WheelCode:
    """Measure an opened wheel."""
    archive = WheelArchive(source)
    metadata = metadata_in(archive, source)
    python_tag, platforms = _tags(archive, source)
    texts = _read_texts(archive, metadata, on_progress)
    libraries: list[LibraryCode] = []
    machines: set[Literal["x86_64", "aarch64"]] = set()
    if deep or texts.verdict is None:
        for member in _library_members(archive, source):
            library, machine = read_library(
                member.name, member.size, _pieces(archive, member, on_progress)
            )
            libraries.append(library)
            machines.add(machine)
    verdict = texts.verdict or judge_libraries(libraries)
    notes = [*source.notes, *verdict.notes, *notes_on_libraries(libraries)]
    if texts.verdict is not None:
        notes += notes_on_flags(verdict.sm, libraries)
    arch = _arch(platforms)
    if arch is not None and machines - {arch}:
        notes.append(f"Its tags say {arch}, and it holds a library for another machine.")
    return WheelCode(
        source=source.shown,
        name=metadata.name,
        version=texts.version,
        python_tag=python_tag,
        platform_tags=platforms,
        arch=arch or (machines.pop() if len(machines) == 1 else None),
        cuda=texts.cuda,
        cudnn=texts.cudnn,
        flags=texts.flags,
        libraries=tuple(library for library in libraries if library.fatbins),
        sm=verdict.sm,
        ptx=verdict.ptx,
        how=texts.how,
        requires=metadata.requires,
        bytes_read=source.bytes_read,
        bytes_total=source.size,
        notes=tuple(notes),
    )


def metadata_in(archive: WheelArchive, source: ByteSource) -> WheelMetadata:
    """Read METADATA of a wheel from `source`. WheelUnreadableError: there is none, or several."""
    names = [name for name in archive.members if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]
    found = parse_metadata(archive.read(names[0], _TEXT_BYTES)) if len(names) == 1 else None
    if found is None:
        raise WheelUnreadableError(
            f"{source.shown} is a zip file and no wheel: it has no .dist-info/METADATA with a name "
            "and a version.",
            fix="Give the path or the address of a .whl file.",
        )
    return found


def _tags(archive: WheelArchive, source: ByteSource) -> tuple[str, tuple[str, ...]]:
    """Read the tags from the file's name, which may be narrower than WHEEL's; else from WHEEL."""
    parts = source.file_name.removesuffix(".whl").split("-")
    if source.file_name.endswith(".whl") and len(parts) in (5, 6):
        python, abi, platforms = map(printable, parts[-3:])
        return f"{python}-{abi}", tuple(platforms.split("."))
    names = [name for name in archive.members if re.fullmatch(r"[^/]+\.dist-info/WHEEL", name)]
    tags = parse_tags(archive.read(names[0], _TEXT_BYTES)) if names else ()
    return (tags[0][0] if tags else ""), tuple(dict.fromkeys(platform for _, platform in tags))


def _arch(platforms: tuple[str, ...]) -> Literal["x86_64", "aarch64"] | None:
    for platform in platforms:
        if platform.endswith("_x86_64"):
            return "x86_64"
        if platform.endswith("_aarch64"):
            return "aarch64"
    return None


def _read_texts(
    archive: WheelArchive, metadata: WheelMetadata, on_progress: Progress
) -> _WheelTexts:
    texts = _WheelTexts(version=metadata.version, cudnn=pinned_cudnn(metadata.requires))
    top = re.sub(r"[-.]+", "_", metadata.name).lower()
    own = f"{top}/version.py"
    if own in archive.members:
        values = assigned(archive.read(own, _TEXT_BYTES))
        texts = replace(texts, version=versions_of(values, metadata.version))
    if _TORCH_VERSION in archive.members:
        return _texts_of_torch(archive, texts, on_progress)
    if _TENSORFLOW in archive.members:
        return _texts_of_tensorflow(archive, texts)
    return texts


def _texts_of_torch(
    archive: WheelArchive, texts: _WheelTexts, on_progress: Progress
) -> _WheelTexts:
    values = assigned(archive.read(_TORCH_VERSION, _TEXT_BYTES))
    cuda = two_parts(values.get("cuda"))
    if cuda is None:
        return _without_cuda(texts, _TORCH_VERSION)
    texts = replace(texts, cuda=cuda)
    member = archive.members.get(_TORCH_FLAGS)
    flags = find_flags(_pieces(archive, member, on_progress)) if member else ()
    if not flags:
        return texts
    return replace(texts, flags=flags, verdict=judge_words(flags), how="flags")


def _texts_of_tensorflow(archive: WheelArchive, texts: _WheelTexts) -> _WheelTexts:
    info = parse_build_info(archive.read(_TENSORFLOW, _TEXT_BYTES))
    if info.cuda_build is False:
        return _without_cuda(texts, _TENSORFLOW)
    texts = replace(texts, cuda=info.cuda, cudnn=info.cudnn or texts.cudnn)
    if not info.capabilities:
        return texts
    return replace(
        texts,
        flags=info.capabilities,
        verdict=judge_words(info.capabilities),
        how="build-info",
    )


def _without_cuda(texts: _WheelTexts, name: str) -> _WheelTexts:
    """A build without CUDA; a cuDNN pin is then for another machine's wheel with this metadata."""
    verdict = Verdict(sm=(), ptx=None, notes=(f"{name} says that it was built without CUDA.",))
    return replace(texts, cudnn=None, verdict=verdict, how="build-info")


def _library_members(archive: WheelArchive, source: ByteSource) -> list[Member]:
    """List the shared libraries, in their order in the file."""
    found = [
        member
        for member in archive.members.values()
        if _LIBRARY.search(member.name) and member.size
    ]
    foreign = [
        name for name in archive.members if name.lower().endswith((".dll", ".pyd", ".dylib"))
    ]
    if foreign and not found:
        raise WheelUnreadableError(
            f"{source.shown} is for another system: it holds {foreign[0]} and no .so file.",
            fix="Give a Linux wheel for x86_64 or aarch64.",
        )
    largest = max((member.size for member in found), default=0)
    total = sum(member.size for member in found)
    if largest > _LIBRARY_BYTES or total > _ALL_LIBRARIES_BYTES:
        raise WheelUnreadableError(
            f"{source.shown} says that its libraries have {total} bytes, the largest {largest}; "
            f"{_ALL_LIBRARIES_BYTES} and {_LIBRARY_BYTES} are allowed.",
            fix=ANEW_FIX,
        )
    return found


def _pieces(archive: WheelArchive, member: Member, on_progress: Progress) -> Iterator[bytes]:
    return archive.stream(member, lambda done: on_progress(member.name, done, member.compressed))
