"""Layers with the byte code of wheels: the same bytes on every machine, or an error.

An image without byte code compiles each module on import at every start of a container, because
the files that it writes are lost with the container. With byte code, `import torch` takes a third
of the time. The files are of the kind that Python never compares with the source (PEP 552): in an
image a source does not change, and file times mean nothing.

Sources are read straight from the wheels and compiled by a Python of the target's version (see
`interpreter`), two at a time; no code from a wheel is executed. Files that do not compile
(templates, code for Python 2) are skipped, as in pip; so are unused tests, a third of the whole.

Each layer is for a group of wheels, not for all, so that an added package changes no other's layer.
Groups must be in the order of the wheels' layers: if two wheels install the same file, the byte
code must be that of the visible one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import select
import subprocess
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from images.layers import compiling, gzip, tar
from images.layers.install import InstalledFile, InstallLocation, file_name, plan
from images.layers.interpreter import Compiler, Interpreter
from images.layers.own import PREFIX, key_of
from images.layers.own_errors import BytecodeError
from images.layers.wheel_file import WheelFile
from images.oci.model import LAYER_GZIP
from images.oci.sources import Stream, Unpacked
from images.wheels.directory import Member
from images.wheels.remote_file import Wheel

FORMAT = 1
"""Part of every key: raise it when the bytes for the same wheels and Python change."""

MOST_GROUPS = 16
_LARGE_BYTES = 1 << 20  # a group of this size gets a layer of its own
_TESTS = frozenset({"test", "tests"})
_PROCESSES = 2
_SILENCE_SECONDS = 150
_HEAD = 13
_ABOUT_BYTES = 8 << 20


def bytecode_groups(groups: Sequence[Sequence[Wheel]]) -> tuple[tuple[Wheel, ...], ...]:
    """Merge the groups of the wheels' layers into fewer, in order: one for each large group.

    NVIDIA's wheels contain almost no Python, so they are merged, whatever their size.
    """
    limit = _LARGE_BYTES
    while len(joined := _joined(groups, limit)) > MOST_GROUPS:
        limit *= 2
    return joined


def _joined(groups: Sequence[Sequence[Wheel]], limit: int) -> tuple[tuple[Wheel, ...], ...]:
    found: list[list[Wheel]] = []
    is_open = False
    for group in groups:
        # NVIDIA's wheels have gigabytes of libraries, and hardly a module
        sizes = [wheel.size or 0 for wheel in group if not wheel.name.startswith("nvidia-")]
        is_large = sum(sizes) >= limit
        if is_open and not is_large:
            found[-1] += group
        else:
            found.append([*group])
        is_open = not is_large
    return tuple(tuple(group) for group in found if group)


def bytecode_layer(
    wheels: Sequence[Wheel],
    *,
    compiler: Compiler,
    site: str,
    exclude_unneeded: bool,
    fetch: Callable[[Wheel], Path],
) -> BytecodeLayer:
    """The byte code layer of a group of wheels. `site` as in "opt/venv/lib/python3.11/..."."""
    return BytecodeLayer(
        wheels=tuple(sorted(wheels, key=lambda wheel: (wheel.name, wheel.version, wheel.sha256))),
        compiler=compiler,
        site=site,
        exclude_unneeded=exclude_unneeded,
        fetch=fetch,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BytecodeLayer:
    """The byte code of a group of wheels."""

    media_type: ClassVar[str] = LAYER_GZIP
    wheels: tuple[Wheel, ...]
    compiler: Compiler = field(repr=False)
    site: str
    exclude_unneeded: bool
    fetch: Callable[[Wheel], Path] = field(repr=False)

    @property
    def key(self) -> str:
        return key_of(
            "bytecode",
            FORMAT,
            self.compiler.full,
            self.site,
            self.exclude_unneeded,
            tuple(wheel.sha256 for wheel in self.wheels),
        )

    @property
    def title(self) -> str:
        first = self.wheels[0].name
        more = f" and {len(self.wheels) - 1} more" if len(self.wheels) > 1 else ""
        return f"byte code of {first}{more}"

    @property
    def created_by(self) -> str:
        names = ", ".join(wheel.name for wheel in self.wheels)
        return f"gpu-provision: byte code of {names} for Python {self.compiler.full}"

    @property
    def about_bytes(self) -> int:
        """A wheel's byte code has a few megabytes, whatever else is in the wheel."""
        return sum(min(wheel.size or 0, _ABOUT_BYTES) for wheel in self.wheels)

    def stream(self, known: Unpacked | None) -> Stream:
        """Generate it; with `known`, the compiler's deflated output need not be inflated."""
        with contextlib.ExitStack() as opened:
            place = InstallLocation(
                site=self.site, prefix=PREFIX, interpreter=f"/{PREFIX}/bin/python"
            )
            files: dict[str, InstalledFile] = {}
            for locked in self.wheels:
                wheel = WheelFile(self.fetch(locked), shown=file_name(locked))
                opened.callback(wheel.close)
                files |= plan(locked, wheel, place, exclude_unneeded=self.exclude_unneeded)
            sources = _sources(files, self.site, self.compiler.python)
            writer = _Writer(known)
            if sources:
                made = compile_all(sources, self.compiler.interpreter())
                with contextlib.closing(made):
                    for path, packed in made:
                        yield writer.file(path, packed)
            yield writer.end()
            return writer.unpacked()


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSource:
    """A source in a wheel: its `path` in the image, and `cached`, its byte code's path."""

    path: str
    cached: str
    file: InstalledFile

    def read(self) -> bytes:
        member = self.file.parts[0]
        assert isinstance(member, Member), self.path
        return self.file.wheel.read(member, compiling.MOST_SOURCE_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Deflated byte code, with its checksum and size when inflated."""

    crc: int
    size: int
    content: bytes


def _sources(files: dict[str, InstalledFile], site: str, python: str) -> list[PythonSource]:
    """Choose the sources to compile, in the layer's order."""
    sources = [
        PythonSource(path=path, cached=cached_path(path, python), file=file)
        for path, file in files.items()
        if is_compiled(path, site)
        and len(file.parts) == 1
        and isinstance(file.parts[0], Member)
        and file.size <= compiling.MOST_SOURCE_BYTES
    ]
    return sorted(sources, key=lambda one: tar.sort_key(one.cached))


def is_compiled(path: str, site: str) -> bool:
    """Whether a file of the image gets byte code: modules of packages, except tests."""
    if not path.startswith(f"{site}/") or not path.endswith(".py"):
        return False
    *directories, name = path[len(site) + 1 :].split("/")
    return name != ".py" and _TESTS.isdisjoint(directories)


def cached_path(path: str, python: str) -> str:
    """The path where Python looks for the byte code of a source."""
    directory, name = posixpath.split(path)
    return f"{directory}/__pycache__/{name[:-3]}.cpython-{python.replace('.', '')}.pyc"


def compile_all(
    sources: Sequence[PythonSource], interpreter: Interpreter
) -> Generator[tuple[str, Packed], None, None]:
    """Compile sources, and yield the byte code of those that compile, in order.

    Each process compiles a share of them; full pipes make the faster one wait, so memory stays low.
    """
    processes: list[subprocess.Popen[bytes]] = []
    feeders: list[_Feeder] = []
    try:
        for number in range(min(_PROCESSES, len(sources))):
            process = interpreter.start()
            processes.append(process)
            feeders.append(_Feeder(process, sources[number::_PROCESSES]))
            feeders[-1].start()
        for number, source in enumerate(sources):
            share = number % _PROCESSES
            try:
                packed = _answer(processes[share], source)
            except BytecodeError:
                cause = feeders[share].failure
                if cause is not None:  # the wheel failed, not the compiler
                    raise cause from None
                raise
            if packed is not None:
                yield source.cached, packed
    finally:
        for process in processes:
            process.kill()
        for feeder in feeders:
            feeder.join()
        for process in processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()


class _Feeder(threading.Thread):
    """Writes sources to a process that compiles them."""

    def __init__(self, process: subprocess.Popen[bytes], sources: Sequence[PythonSource]) -> None:
        super().__init__(name="bytecode", daemon=True)
        assert process.stdin is not None
        self._pipe = process.stdin
        self._sources = sources
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            for source in self._sources:
                path = f"/{source.path}".encode("utf-8", "surrogateescape")
                content = source.read()
                sizes = len(path).to_bytes(4, "little") + len(content).to_bytes(4, "little")
                self._write(b"".join((sizes, path, content)))
        except BrokenPipeError:  # it has ended; the reader of its answers reports why
            pass
        except Exception as error:  # noqa: BLE001  raised where the answer is missing
            self.failure = error
        finally:
            with contextlib.suppress(OSError):
                self._pipe.close()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._pipe.write(view) or 0 :]


def _answer(process: subprocess.Popen[bytes], source: PythonSource) -> Packed | None:
    head = _read(process, _HEAD, source)
    crc, size, length = (int.from_bytes(head[at : at + 4], "little") for at in (1, 5, 9))
    content = _read(process, length, source)
    if head[:1] == b"K":
        return Packed(crc=crc, size=size, content=content)
    return None


def _read(process: subprocess.Popen[bytes], size: int, source: PythonSource) -> bytes:
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    parts = []
    left = size
    while left:
        if not select.select([descriptor], [], [], _SILENCE_SECONDS)[0]:
            raise _failure(source, f"the compiler said nothing for {_SILENCE_SECONDS} s")
        part = os.read(descriptor, min(left, 1 << 20))
        if not part:
            raise _failure(source, "the compiler ended without an answer")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _failure(source: PythonSource, why: str) -> BytecodeError:
    return BytecodeError(
        f"No byte code could be made of {source.path.rpartition('/site-packages/')[2]} in "
        f"{source.file.wheel.shown}: {why}.",
        fix="Build without --bytecode",
    )


class _Writer:
    """Writes the layer's gzip members, and computes the plain tar's digest if it is unknown."""

    def __init__(self, known: Unpacked | None) -> None:
        self._known = known
        self._digest = hashlib.sha256()
        self._size = 0
        self._directories: set[str] = set()
        self._padding = b""

    def file(self, path: str, packed: Packed) -> bytes:
        """Write one file, and its directories if they are new."""
        head = [self._padding]
        for parent in tar.parents(path):
            if parent not in self._directories:
                self._directories.add(parent)
                head.append(tar.header(parent, kind="dir", mode=0o755))
        head.append(tar.header(path, kind="file", mode=0o644, size=packed.size))
        self._padding = tar.padding(packed.size)
        before = b"".join(head)
        if self._known is None:
            self._hear(before)
            self._hear(_inflated(path, packed))
        end = gzip.trailer(packed.crc, packed.size)
        return b"".join((gzip.pack(before), gzip.HEAD, packed.content, end))

    def end(self) -> bytes:
        """Write the end of the tar."""
        last = self._padding + tar.END
        if self._known is None:
            self._hear(last)
        return gzip.pack(last)

    def unpacked(self) -> Unpacked:
        return self._known or Unpacked(
            diff_id=f"sha256:{self._digest.hexdigest()}", size=self._size
        )

    def _hear(self, piece: bytes) -> None:
        self._digest.update(piece)
        self._size += len(piece)


def _inflated(path: str, packed: Packed) -> bytes:
    """Inflate the compiler's output, and check its size and checksum."""
    from isal import isal_zlib

    data = isal_zlib.decompress(packed.content, wbits=-15)
    if len(data) != packed.size or isal_zlib.crc32(data) != packed.crc:
        raise BytecodeError(
            f"The compiler's answer for {path} is damaged.",
            fix="Build without --bytecode",
        )
    return bytes(data)
