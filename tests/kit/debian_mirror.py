"""A mirror of Debian in small: packages, an index, and a Release that a key of its own signs.

The packages are what a base cannot do without, each as Debian has it but for its programs, which
are a few bytes. A directory, to be read as file: or served over HTTP.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import lzma
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.kit.web_server import Handler, WebServer

EPOCH = 1_700_000_000


@dataclass
class FakeDeb:
    """A package. `files` by path: a str is a link's target, None a directory; `control` by name."""

    name: str
    version: str = "1"
    fields: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes | str | None] = field(default_factory=dict)
    control: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, int] = field(default_factory=dict)
    data: bytes | None = None
    """The plain data tar, where it shall be another than that of `files`."""

    @property
    def paragraph(self) -> str:
        fields = {"Architecture": "amd64", "Maintainer": "Nobody <n@example.org>", **self.fields}
        lines = {"Package": self.name, "Version": self.version, **fields, "Description": "a test"}
        return "".join(f"{name}: {value}\n" for name, value in lines.items())

    def build(self) -> bytes:
        data = self.data if self.data is not None else data_tar(self.files, self.modes)
        control = data_tar(
            {
                name: text.encode()
                for name, text in {"control": self.paragraph, **self.control}.items()
            },
            {"preinst": 0o755, "postinst": 0o755},
        )
        return ar(
            {
                "debian-binary": b"2.0\n",
                "control.tar.xz": lzma.compress(control, preset=0),
                "data.tar.xz": lzma.compress(data, preset=0),
            }
        )


def data_tar(files: Mapping[str, bytes | str | None], modes: Mapping[str, int]) -> bytes:
    """Write a tar as dpkg-deb does: "./" before each name, directories before what is in them."""
    target = io.BytesIO()
    seen = {"."}
    with tarfile.open(fileobj=target, mode="w", format=tarfile.GNU_FORMAT) as tar:

        def add(name: str, content: bytes | str | None) -> None:
            info = tarfile.TarInfo(name if name == "." else f"./{name}")
            info.mtime = EPOCH - 1000
            info.uname = info.gname = "root"
            info.mode = modes.get(name, 0o755 if content is None else 0o644)
            if content is None:
                info.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
            else:
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)

        add(".", None)
        for path, content in files.items():
            parts = path.split("/")
            for end in range(1, len(parts)):
                parent = "/".join(parts[:end])
                if parent not in seen:
                    seen.add(parent)
                    add(parent, None)
            if path not in seen:
                seen.add(path)
                add(path, content)
    return target.getvalue()


def ar(members: Mapping[str, bytes]) -> bytes:
    parts = [b"!<arch>\n"]
    for name, content in members.items():
        parts += [f"{name:<16}{'0':<12}{'0':<6}{'0':<6}{'100644':<8}{len(content):<10}`\n".encode()]
        parts += [content, b"\n" * (len(content) % 2)]
    return b"".join(parts)


PASSWD = "root:*:0:0:root:/root:/bin/bash\nnobody:*:65534:65534::/nonexistent:/usr/sbin/nologin\n"
SOURCES = "deb http://mirror.example/debian bookworm main\n"


def minimal() -> list[FakeDeb]:
    """The packages of a smallest base with Python 3.11."""
    required = {"Essential": "yes", "Priority": "required"}
    return [
        FakeDeb(
            "base-files",
            fields=required,
            files={
                "bin": None,
                "etc/os-release": "../usr/lib/os-release",
                "usr/lib/os-release": b"ID=debian\n",
                "usr/share/base-files/profile": b"# profile\n",
                "usr/share/doc/base-files/copyright": b"licence\n",
                "usr/share/doc/base-files/changelog.gz": b"who reads this\n",
                "var/run": None,
            },
            control={"postinst": "#!/bin/sh\n"},
        ),
        FakeDeb(
            "base-passwd",
            fields=required,
            files={
                "usr/share/base-passwd/passwd.master": PASSWD.encode(),
                "usr/share/base-passwd/group.master": b"root:*:0:\nshadow:*:42:\n",
            },
            control={"postinst": "#!/bin/sh\n"},
        ),
        FakeDeb(
            "apt",
            fields={"Depends": "libc6 (>= 2.36)"},
            files={
                "usr/bin/apt-get": b"apt",
                "usr/share/doc/apt/examples/sources.list": SOURCES.encode(),
                "var/lib/apt/lists/partial": None,
            },
            control={"postinst": "#!/bin/sh\n", "conffiles": ""},
        ),
        FakeDeb("libc6", "2.36-9", files={"lib/x86_64-linux-gnu/libc.so.6": b"\x7fELF not really"}),
        FakeDeb("mawk", files={"usr/bin/mawk": b"mawk"}, control={"postinst": "#!/bin/sh\n"},
                modes={"usr/bin/mawk": 0o755}),
        FakeDeb("python3", "3.11.2-1", fields={"Depends": "python3.11 (>= 3.11.2), awk | mawk"},
                files={"usr/bin/python3": "python3.11"}, control={"postinst": "#!/bin/sh\n"}),
        FakeDeb(
            "python3.11",
            "3.11.2-6",
            files={"usr/bin/python3.11": b"python", "etc/python3.11/conf": b"x"},
            control={"conffiles": "/etc/python3.11/conf\n"},
            modes={"usr/bin/python3.11": 0o755},
        ),
        FakeDeb("python3-venv", "3.11.2-1", fields={"Depends": "python3 (= 3.11.2-1)"}),
        FakeDeb("ca-certificates", fields={"Architecture": "all"}),
    ]  # fmt: skip


class Key:
    """A key that signs, made for the tests."""

    def __init__(self) -> None:
        from pysequoia import Tsk

        self._secret = Tsk.generate("Test Mirror <mirror@example.org>")

    @property
    def public(self) -> bytes:
        return str(self._secret.extract_certificate()).encode()

    def sign(self, text: str) -> bytes:
        from pysequoia import SignatureMode, sign

        return bytes(sign(self._secret.signer(), text.encode(), mode=SignatureMode.CLEAR))


def write_suite(
    root: Path,
    suite: str,
    packages: list[FakeDeb],
    *,
    key: Key | None,
    arch: str = "amd64",
    changes: Mapping[str, str] | None = None,
    by_hash: bool = True,
) -> None:
    """Write a suite below the mirror `root`. `changes` are to the Release's fields."""
    entries = []
    for package in packages:
        content = package.build()
        path = f"pool/main/{package.name}_{package.version}.deb"
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        entries.append(
            f"{package.paragraph}Filename: {path}\nSize: {len(content)}\nSHA256: {digest}\n"
        )
    directory = root / "dists" / suite / f"main/binary-{arch}"
    directory.mkdir(parents=True, exist_ok=True)
    index = lzma.compress("\n".join(entries).encode(), preset=0)
    digest = hashlib.sha256(index).hexdigest()
    (directory / "Packages.xz").write_bytes(index)
    if by_hash:
        (directory / "by-hash/SHA256").mkdir(parents=True, exist_ok=True)
        (directory / "by-hash/SHA256" / digest).write_bytes(index)
    fields = {
        "Origin": "Debian",
        "Suite": "oldstable",
        "Codename": suite,
        "Date": formatdate(EPOCH, usegmt=True),
        "Valid-Until": formatdate(4e9, usegmt=True),
        "Architectures": f"all {arch}",
        "Acquire-By-Hash": "yes" if by_hash else "no",
        "SHA256": f"\n {digest} {len(index)} main/binary-{arch}/Packages.xz",
        **(changes or {}),
    }
    text = "".join(f"{name}: {value}\n" for name, value in fields.items())
    (root / "dists" / suite / "InRelease").write_bytes(key.sign(text) if key else text.encode())


@contextlib.contextmanager
def serving(root: Path, faults: Mapping[str, list[int]] | None = None) -> Iterator[str]:
    """Serve a directory on loopback, and return its address. `faults` are the statuses that the
    first requests for a path (by its end) are answered with.
    """
    left = {end: list(statuses) for end, statuses in (faults or {}).items()}

    class Directory(Handler, SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(root))

        def answer(self) -> None:
            for end, statuses in left.items():
                if self.path.endswith(end) and statuses:
                    self.send_error(statuses.pop(0))
                    return
            getattr(SimpleHTTPRequestHandler, f"do_{self.command}")(self)

    with WebServer(Directory) as server:
        yield server.url
