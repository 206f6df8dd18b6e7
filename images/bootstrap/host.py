"""This machine's settings for Debian mirrors, and its disk space for a base.

If apt is configured here, a base comes from the same mirrors, through the same proxies and with the
same logins. A machine without apt uses Debian's mirror.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from images.bootstrap.errors import BootstrapUnfitError, MirrorError
from images.bootstrap.mirrors import (
    MirrorSuite,
    debian_sources,
    parse_deb822,
    parse_one_line,
    snapshot_address,
    standard_sources,
)
from images.errors import DiskFullError, Failure
from images.system import process

NEEDED_BYTES = 700_000_000
"""The most disk space that building a base needs: its packages, its layer, and the archive.
Measured with compilers on Debian 13: 535 MB."""

_TIMES_PACKAGES = 4
"""The packages, what is kept of them unpacked, the layer, and the archive."""

MIRROR_VARIABLE = "PROVISION_DEBIAN_MIRROR"
SNAPSHOT_VARIABLE = "PROVISION_SNAPSHOT_MIRROR"
_SNAPSHOT_FIX = (
    f"Name it: {SNAPSHOT_VARIABLE}=http://HOST/archive, which has debian/ and debian-security/,"
    " each with folders such as 20260301T000000Z"
)
_MIRROR_LIST = ("mirror+file:", "mirror+http:", "mirror:")

_DEBIAN_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AptSettings:
    """apt's configuration. `proxies` by scheme ("http") or scheme and host ("http::HOST");
    `ca_bundle` and `netrc` are texts: certificates in PEM form, logins as in a netrc file.
    """

    proxies: Mapping[str, str] = field(default_factory=dict)
    ca_bundle: str = ""
    netrc: str = field(default="", repr=False)
    check_valid_until: bool = True

    def proxy(self, url: str, otherwise: Callable[[str], str | None]) -> str | None:
        """Return the proxy for an address; `otherwise` is called if apt has no setting."""
        parts = urllib.parse.urlsplit(url)
        schemes = (parts.scheme, "http")  # https uses http's settings if it has none
        for name in (*(f"{s}::{parts.hostname}" for s in schemes), *schemes):
            if name in self.proxies:
                proxy = self.proxies[name]
                return None if proxy in {"DIRECT", "false"} else proxy
        return otherwise(url)


def debian_arch(machine: str) -> str:
    """Return Debian's name of an architecture, which images use, too."""
    return _DEBIAN_ARCH.get(machine, machine)


def sources_for(suite: str, root: Path = Path("/")) -> tuple[MirrorSuite, ...]:
    """Choose the mirrors for a suite: the user's setting, else apt's, else Debian's."""
    named = os.environ.get(MIRROR_VARIABLE, "").strip()
    if named:
        return standard_sources(_address(named, MIRROR_VARIABLE, _MIRROR_FIX), suite)
    return debian_sources(read_sources(root), suite) or standard_sources(debians_own(), suite)


def debians_own() -> str:
    """Return the address of Debian's mirror, to which Debian's package URLs resolve.

    No address is in this source: the package-url library has it (https://github.com/package-url).
    """
    from packageurl.contrib.purl2url import get_download_url

    address: str = get_download_url("pkg:deb/debian/apt@1?arch=all") or ""  # type: ignore[no-untyped-call]
    mirror, pool, _ = address.partition("/pool/")
    if not pool:
        raise MirrorError(
            "This machine's apt names no mirror of Debian, and no other is known.",
            fix=_MIRROR_FIX,
        )
    return mirror


def read_sources(root: Path = Path("/")) -> tuple[MirrorSuite, ...]:
    """Read the host's apt sources."""
    found: list[MirrorSuite] = []
    for file in _source_files(root):
        parse = {".list": parse_one_line, ".sources": parse_deb822}.get(file.suffix)
        if parse is not None:
            with contextlib.suppress(OSError):
                found += parse(file.read_text(encoding="utf-8", errors="replace"))
    return tuple(one for source in found for one in _expanded(source, root))


def _source_files(root: Path) -> tuple[Path, ...]:
    apt = root / "etc/apt"
    return (apt / "sources.list", *sorted(apt.glob("sources.list.d/*")))


def _expanded(source: MirrorSuite, root: Path) -> Iterable[MirrorSuite]:
    """Replace a mirror list (in cloud images) by the mirrors in its local file."""
    if not source.uri.startswith(_MIRROR_LIST):
        return (source,)
    path = urllib.parse.urlsplit(source.uri.partition("+")[2]).path
    try:
        lines = (root / path.lstrip("/")).read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return ()
    uris = [words[0] for line in lines if (words := line.partition("#")[0].split())]
    return tuple(replace(source, uri=uri) for uri in uris)


def snapshot_service(root: Path = Path("/")) -> str:
    """Return the snapshot service's address: the user's setting, else from apt's sources."""
    named = os.environ.get(SNAPSHOT_VARIABLE, "").strip()
    if named:
        return _address(named, SNAPSHOT_VARIABLE, _SNAPSHOT_FIX)
    for file in _source_files(root):
        with contextlib.suppress(OSError):
            found = snapshot_address(file.read_text(encoding="utf-8", errors="replace"))
            if found is not None:
                return found
    raise MirrorError(
        "A base as of a date needs a service that keeps Debian's past, and this host's apt sources"
        " name none.",
        fix=_SNAPSHOT_FIX,
    )


def _address(text: str, variable: str, fix: str) -> str:
    if not re.fullmatch(r"(https?|file)://[^\s\[\]]+", text):
        raise BootstrapUnfitError(f"{variable} is {text!r}, which is not an address.", fix=fix)
    return text.rstrip("/")


_MIRROR_FIX = (
    f"Name a mirror, such as one of https://www.debian.org/mirror/list: {MIRROR_VARIABLE}="
    "http://HOST/debian (security updates come from debian-security beside it)"
)


def read_apt_settings(on_line: Callable[[str], None], root: Path = Path("/")) -> AptSettings:
    """Read apt's proxies, certificates and logins; a host without apt has none."""
    netrc = _logins(root)
    try:
        dump = process.run(
            ["apt-config", "dump", "--format", '%F "%v";%n', "Acquire"], timeout_s=30, apart=True
        )
    except Failure as failure:  # not a Debian host
        on_line(f"apt's settings were not read: {failure.message}")
        return AptSettings(netrc=netrc)
    values = dict(re.findall(r'^Acquire::(\S+) "(.+)";$', dump.stdout, re.MULTILINE))
    found = {re.sub(r"::proxy\b", "", key.lower()): value for key, value in values.items()
             if re.fullmatch(r"(?i)https?::proxy(::\S+)?", key)}  # fmt: skip
    bundles = [values[key] for key in values if re.fullmatch(r"(?i)https::cainfo", key)]
    checked = {key.lower(): value for key, value in values.items()}.get("check-valid-until", "true")
    return AptSettings(
        proxies=found,
        ca_bundle="".join(_text(Path(bundle)) for bundle in bundles),
        netrc=netrc,
        check_valid_until=checked.lower() not in {"false", "no", "0", "off"},
    )


def _logins(root: Path) -> str:
    """Read auth.conf: a netrc file whose machines may have a scheme and a path."""
    apt = root / "etc/apt"
    files = (apt / "auth.conf", *sorted(apt.glob("auth.conf.d/*.conf")))
    text = "\n".join(_text(file) for file in files)
    return re.sub(r"(?m)(\bmachine\s+)(?:\w+://)?([^\s/]+)\S*", r"\1\2", text)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def check_space(bases: Path, packages_bytes: int = 0) -> None:
    """Refuse to go on if the disk would fill up during the build of these packages."""
    needed = max(NEEDED_BYTES, _TIMES_PACKAGES * packages_bytes)
    if shutil.disk_usage(bases).free < needed:
        raise no_space(bases, needed)


def no_space(directory: Path, needed: int = NEEDED_BYTES) -> DiskFullError:
    """The error for a full disk, with its free space."""
    free = shutil.disk_usage(directory).free
    return DiskFullError(
        f"{directory} has {free / 1e9:.1f} GB free; making a base needs {needed / 1e9:.1f} GB.",
        fix=f"Free space (df -h {directory}), or keep the store on another disk: XDG_CACHE_HOME.",
    )
