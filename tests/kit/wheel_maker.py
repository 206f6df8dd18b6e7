"""Makes small wheels, libraries and fatbins with the shape of real ones."""

from __future__ import annotations

import io
import random
import struct
import zipfile
from collections.abc import Generator, Mapping

import pytest

from tests import ROOT

DATA = ROOT / "tests" / "data" / "inspect"
TORCH_FLAGS = b"sm_70 sm_80 compute_80"
X86_64, AARCH64 = 62, 183


class InMemory:
    """Bytes as a source of a wheel."""

    shown = file_name = "it.whl"
    notes: tuple[str, ...] = ()

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)
        self.bytes_read = 0

    def stream(self, offset: int, length: int) -> Generator[bytes, None, None]:
        for at in range(offset, offset + length, 5000):
            piece = self.data[at : min(at + 5000, offset + length)]
            self.bytes_read += len(piece)
            yield piece

    def close(self) -> None:
        pass


def recorded(name: str) -> bytes:
    return (DATA / name).read_bytes()


def entry(
    kind: int, architecture: int, *, payload: bytes = b"\0" * 8, flags: int = 0, version: int = 257
) -> bytes:
    """One image of a fatbin: kind 1 is PTX, 2 is binary code."""
    head = struct.pack(
        "<HHIQIIHHIIIQQQ", kind, version, 64, len(payload), 0, 0, 0, 0, architecture, 0, 0, flags,
        0, 0,
    )  # fmt: skip
    return head + payload


def fatbin(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def targets(*words: str) -> bytes:
    """A fatbin for "sm_80", "compute_90a" and so on."""
    bits = {"a": 1 << 20, "f": 1 << 21}
    return fatbin(
        *(
            entry(
                1 if word.startswith("compute") else 2,
                int(word.rpartition("_")[2].rstrip("af")),
                flags=bits.get(word[-1], 0),
            )
            for word in words
        )
    )


def library(
    sections: Mapping[str, bytes],
    *,
    machine: int = X86_64,
    bits: int = 2,
    order: int = 1,
    table: bool = True,
    kind: int = 1,
) -> bytes:
    """An ELF file of these sections, all of a kind, with their table at the end."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in sections) + b".shstrtab\0"
    body = b""
    rows = [b"\0" * 64]
    for name, content in {**sections, ".shstrtab": names}.items():
        body += b"\0" * (-len(body) % 16)
        at = 64 + len(body)
        body += content
        number = names.index(b"\0" + name.encode() + b"\0") + 1
        rows.append(struct.pack("<IIQQQQIIQQ", number, kind, 0, 0, at, len(content), 0, 0, 8, 0))
    body += b"\0" * (-len(body) % 8)
    magic = b"\x7fELF" + bytes((bits, order, 1)) + b"\0" * 9
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", magic, 3, machine, 1, 0, 0, 64 + len(body) if table else 0, 0, 64, 0,
        0, 64, len(rows) if table else 0, len(rows) - 1 if table else 0,
    )  # fmt: skip
    return head + body + b"".join(rows)


def wheel(
    files: Mapping[str, bytes],
    *,
    name: str = "example",
    version: str = "1.0",
    requires: tuple[str, ...] = (),
    comment: bytes = b"",
    compression: int = zipfile.ZIP_DEFLATED,
    wide: bool = False,
) -> bytes:
    """A wheel of these files, with METADATA and WHEEL behind them as `wheel` puts them.

    `wide` writes the directory as zip64, as that of more than four gigabytes would be.
    """
    info = f"{name}-{version}.dist-info"
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {r}" for r in requires)]
    metadata = "\n".join(["Metadata-Version: 2.1", *lines, "", "Version: no header any more"])
    tag = "Wheel-Version: 1.0\nTag: cp311-cp311-linux_x86_64\n"
    buffer = io.BytesIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        zipfile.ZipFile(buffer, "w", compression) as archive,
    ):
        for path, content in files.items():
            archive.writestr(path, content)
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", tag)
        archive.comment = comment
        if wide:
            patch.setattr(zipfile, "ZIP64_LIMIT", 1)
            patch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
    return buffer.getvalue()


def torch_wheel(
    *, flags: bytes = TORCH_FLAGS, cuda: str = "'11.7'", code: bytes = b"", size: int = 0
) -> bytes:
    """A wheel laid out like torch's; `size` bytes of noise stand for its large libraries.

    They lie behind the library that is read, which so is not a part of the file's end.
    """
    noise = random.Random(0).randbytes(size)
    files = {
        "torch/lib/libtorch_cuda.so": code or library({".nv_fatbin": targets("sm_80")}),
        "torch/lib/libtorch_python.so": library(
            {".rodata": b"x\0" + flags + b"\0" if flags else b"x"}
        ),
        "torch/lib/libtorch_cpu.so": library({".text": noise}),
        "torch/version.py": (
            "from typing import Optional\n"
            "__version__ = '2.0.1+cu117'\n"
            "debug = False\n"
            f"cuda: Optional[str] = {cuda}\n"
            "hip = None\n"
        ).encode(),
    }
    return wheel(
        files,
        name="torch",
        version="2.0.1",
        requires=("filelock", 'nvidia-cudnn-cu11 (==8.5.0.96) ; platform_system == "Linux"'),
    )
