"""Makes a small Debian base with Python, for hosts that reach a Debian mirror but no registry.

`mmdebstrap` (or else `debootstrap`) makes the tree; what turns it into an image is our own code, so
that the same packages give the same image id on every host: nothing of the host or of the day
stays in the tree (names, logs, caches, byte code), files are sorted, owners are numbers, and no
time is later than `epoch`. The result is a docker-archive in the store, which an engine loads and
the daemonless builder reads, and it is made again after some days, so that security updates arrive.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

from images import process
from images.errors import Failure

DEFAULT_PACKAGES = ("ca-certificates", "python3", "python3-venv")

SUITE_PYTHON = {"bullseye": "3.9", "bookworm": "3.11", "trixie": "3.13"}
"""The Python of each Debian release that can be bootstrapped."""

FORMAT = 1
"""Part of the cache's key: raise it when the same packages shall give another image."""

TIMEOUT_S = 20 * 60.0
NEEDED_BYTES = 1_500_000_000
"""Free space that the making takes at its peak: a tree, its tar, and the archive."""

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_MERGED_USR = Path("/usr/share/mmdebstrap/hooks/maybe-merged-usr")
_INSTALL = "sudo apt-get update && sudo apt-get install -y --no-install-recommends"
_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}
_BLOCK = 1 << 20
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class BootstrapError(Failure):
    """The base could not be made."""

    code = "bootstrap-failed"
    exit_code = 6


class BootstrapUnfitError(Failure):
    """What is asked for does not exist: a suite, or its Python."""

    code = "bootstrap-unfit"
    exit_code = 3


class BootstrapToolError(Failure):
    """Something that the making needs is missing on this host."""

    code = "bootstrap-tool-missing"
    exit_code = 5


class MirrorError(Failure):
    """The Debian mirror is out of reach, or cannot be trusted."""

    code = "mirror-unreachable"
    exit_code = 5


class NoSpaceError(Failure):
    """A disk is too full."""

    code = "no-space"
    exit_code = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapBase:
    """A base made here."""

    reference: str
    """The name that the archive gives it: "gpu-provision/base:bookworm-py3.11-<12 hex>"."""
    image_id: str
    """The digest of its configuration, "sha256:..."."""
    diff_id: str
    """The digest of its one layer, as a plain tar."""
    archive: Path
    """What `docker load` reads."""
    packages: tuple[str, ...]
    """Each as "name=version"."""
    seconds: float
    """How long the making took; 0 where it was there already."""


# --- the host's mirrors -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Source:
    """One line of apt's configuration."""

    uri: str
    suite: str
    components: tuple[str, ...]
    options: Mapping[str, str]
    """Names in lower case, as one-line sources spell them."""


_ONE_LINE = re.compile(r"deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<rest>.+)")


def parse_one_line(text: str) -> tuple[Source, ...]:
    """Read a sources.list; lines that are not understood are left out."""
    found = []
    for raw in text.splitlines():
        match = _ONE_LINE.fullmatch(raw.partition("#")[0].strip())
        if match:
            suite, *components = match["rest"].split()
            pairs = (option.partition("=") for option in (match["options"] or "").split())
            options = {name.lower(): value for name, _, value in pairs}
            found.append(Source(match["uri"], suite, tuple(components), options))
    return tuple(found)


def parse_deb822(text: str) -> tuple[Source, ...]:
    """Read a .sources file; disabled and source-only paragraphs are left out."""
    found = []
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for paragraph in re.split(r"\n\s*\n", lines):
        fields: dict[str, str] = {}
        name = ""
        for line in paragraph.splitlines():
            if line[:1] in {" ", "\t"}:
                fields[name] = f"{fields.get(name, '')}\n{line.strip()}".strip()
            else:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        disabled = fields.get("enabled", "yes").lower() in {"no", "false", "off", "0"}
        if disabled or "deb" not in fields.get("types", "").split():
            continue
        known = {"types", "uris", "suites", "components", "enabled", ""}
        options = {key: value for key, value in fields.items() if key not in known}
        components = tuple(fields.get("components", "").split())
        found += [
            Source(uri, suite, components, options)
            for uri in fields.get("uris", "").split()
            for suite in fields.get("suites", "").split()
        ]
    return tuple(found)


def _is_debian(source: Source) -> bool:
    """Whether a source is a mirror of Debian itself, and not somebody's packages for Debian."""
    if "main" not in source.components:
        return False
    if "debian-archive" in source.options.get("signed-by", ""):
        return True
    path = urllib.parse.urlsplit(source.uri).path
    return any(re.fullmatch(r"debian(-security)?", part) for part in path.split("/"))


def debian_lines(sources: Iterable[Source], suite: str) -> tuple[str, ...]:
    """Write the host's Debian mirrors as sources for a suite; none where it has no mirror.

    A mirror keeps all suites, so the host's own suite does not matter; what matters is which kinds
    (the release, its updates, its security updates) come from where.
    """
    found = []
    for source in filter(_is_debian, sources):
        _, dash, kind = source.suite.partition("-")
        if kind not in {"", "updates", "security"}:
            continue
        kept = {
            name: value
            for name, value in source.options.items()
            # Debian's own keyring is given to the tool; its path differs between releases
            if (name == "signed-by" and "debian-archive" not in value and "\n" not in value)
            or name in {"trusted", "check-valid-until"}
        }
        options = " ".join(f"{name}={value}" for name, value in sorted(kept.items()))
        bracket = f"[{options}] " if options else ""
        found.append(f"deb {bracket}{source.uri} {suite}{dash}{kind} main")
    lines = tuple(dict.fromkeys(found))
    # without the release itself the others are of no use
    return lines if any(line.split()[-2] == suite for line in lines) else ()


def read_sources(root: Path = Path("/")) -> tuple[Source, ...]:
    """Read the host's apt sources."""
    apt = root / "etc/apt"
    found: list[Source] = []
    parts = sorted(apt.glob("sources.list.d/*"))
    for file in (apt / "sources.list", *parts):
        parse = {".list": parse_one_line, ".sources": parse_deb822}.get(file.suffix)
        if parse is not None:
            with contextlib.suppress(OSError):
                found += parse(file.read_text(encoding="utf-8", errors="replace"))
    return tuple(found)


def _apt_options(on_line: Callable[[str], None]) -> tuple[str, ...]:
    """The host's proxies and certificates for apt: mmdebstrap's apt does not read its settings."""
    try:
        dump = process.run(
            ["apt-config", "dump", "--format", '%F "%v";%n', "Acquire::http", "Acquire::https"],
            timeout_s=30,
            apart=True,
        )
    except Failure as failure:  # not a Debian host, then: there is nothing to read
        on_line(f"apt's settings were not read: {failure.message}")
        return ()
    return tuple(
        line
        for line in dump.stdout.splitlines()
        if re.match(r"Acquire::https?::\S+ \".+\";$", line) and "User-Agent" not in line
    )


def _passwords(texts: Iterable[str]) -> tuple[str, ...]:
    """The secrets in addresses such as http://user:password@mirror/."""
    found = (re.findall(r"://[^/@\s:]*:([^/@\s]+)@", text) for text in texts)
    return tuple(secret for secrets in found for secret in secrets)


# --- the tree ---------------------------------------------------------------------------------

_DROPPED = re.compile(
    r"""
      (dev|proc|sys|run|tmp|var/tmp|var/log|var/lib/apt/lists)/.*
    | var/cache/(?!debconf/[^/]*\.dat$).*
    | etc/(hostname|resolv\.conf|machine-id|\.pwd\.lock|mtab)
    | etc/(passwd|group|shadow|gshadow|subuid|subgid)-
    | etc/apt/(auth\.conf(\.d/.*)?|apt\.conf\.d/\d\dmmdebstrap)
    | etc/dpkg/dpkg\.cfg\.d/99mmdebstrap
    | var/lib/dbus/machine-id
    | var/lib/dpkg/(.*-old|lock.*|triggers/Lock|cmethopt)
    | var/lib/apt/(extended_states|periodic/.*|daily_lock)
    | var/lib/systemd/(random-seed|catalog/database)
    | debootstrap(/.*)?
    | (.*/)?__pycache__(/.*)?
    | .*\.pyc
    | usr/share/doc/(?!.*/copyright$)[^/]+/.*
    | usr/share/(man|info|lintian|linda|groff)/.*
    | usr/share/locale/(?!locale\.alias$).*
    """,
    re.VERBOSE,
)
_EXTENDED_ATTRIBUTE = "SCHILY.xattr."


def is_kept(name: str, *, directory: bool) -> bool:
    """Whether a path of the tree belongs in the image.

    What goes: what the engine gives each container, what is made anew, what tells of this host or
    this day, byte code (its recorded times would no longer fit), and what only a person reads;
    licences stay. The directories of logs and caches stay, because programs expect them.
    """
    if directory and re.match(r"var/(log|cache)/|run/lock$", name):
        return not name.startswith("var/cache/apt/archives/")
    return not _DROPPED.fullmatch(name)


def clean_content(name: str, data: bytes, epoch: int) -> bytes:
    """Take the day out of the password file, and a mirror's password out of apt's sources."""
    if name == "etc/shadow":
        day = str(epoch // 86400).encode()
        lines = (line.split(b":") for line in data.splitlines())
        return b"".join(b":".join([*line[:2], day, *line[3:]]) + b"\n" for line in lines)
    if name == "etc/apt/sources.list" or name.startswith("etc/apt/sources.list.d/"):
        return re.sub(rb"://[^/@\s]+@", b"://", data)
    return data


_REWRITTEN = re.compile(r"etc/shadow|etc/apt/sources\.list(\.d/.*)?")


def _plain(name: str) -> str:
    return name.removeprefix("./").strip("/")


def plan_layer(
    members: Iterable[tarfile.TarInfo], epoch: int
) -> tuple[tuple[tarfile.TarInfo, tarfile.TarInfo], ...]:
    """Say which members a layer has, in order, and of which members of the tree each has its data.

    The first name of a file with several hard links carries the data, whichever it was before.
    """
    by_name = {_plain(member.name): member for member in members}
    holders: dict[str, str] = {}
    planned = []
    for name in sorted(by_name):
        member = by_name[name]
        if not name or name == "." or not is_kept(name, directory=member.isdir()):
            continue
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            continue
        source = by_name[_plain(member.linkname)] if member.islnk() else member
        entry = tarfile.TarInfo(name)
        entry.mode, entry.uid, entry.gid = source.mode, source.uid, source.gid
        entry.mtime = min(int(source.mtime), epoch)
        entry.type, entry.linkname, entry.size = source.type, source.linkname, source.size
        entry.pax_headers = {
            key: value
            for key, value in sorted(source.pax_headers.items())
            if key.startswith(_EXTENDED_ATTRIBUTE)
        }
        if source.isreg():
            holder = holders.setdefault(_plain(source.name), name)
            if holder != name:
                entry.type, entry.linkname, entry.size = tarfile.LNKTYPE, holder, 0
        planned.append((entry, source))
    return tuple(planned)


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return f"sha256:{found.hexdigest()}"


def write_layer(tree: Path, layer: Path, epoch: int) -> tuple[str, dict[str, bytes]]:
    """Write the layer of a tree (a tar), and give its digest and the files looked into."""
    looked_into: dict[str, bytes] = {}
    with (
        tarfile.open(tree, "r:") as source,
        tarfile.open(layer, "w", format=tarfile.PAX_FORMAT) as target,
    ):
        for entry, member in plan_layer(source, epoch):
            data: IO[bytes] | None = source.extractfile(member) if entry.isreg() else None
            if data is not None and _REWRITTEN.fullmatch(entry.name):
                content = clean_content(entry.name, data.read(), epoch)
                entry.size = len(content)
                data = io.BytesIO(content)
            elif data is not None and entry.name == "var/lib/dpkg/status":
                looked_into[entry.name] = data.read()
                data.seek(0)
            elif entry.name.startswith("usr/bin/python"):
                looked_into[entry.name] = b""
            target.addfile(entry, data)
    return _digest(layer), looked_into


def parse_status(text: str) -> tuple[str, ...]:
    """Read dpkg's list of packages as "name=version", sorted."""
    found = []
    for paragraph in text.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.splitlines() if re.match(r"[\w-]+: ", line)
        )
        if fields.get("Status", "").endswith(" installed"):
            found.append(f"{fields['Package']}={fields['Version']}")
    return tuple(sorted(found))


# --- the image --------------------------------------------------------------------------------


def _json(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def image_config(*, suite: str, python: str, arch: str, diff_id: str, epoch: int) -> bytes:
    """Write the configuration of the image; its digest is the image id."""
    created = datetime.fromtimestamp(epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return _json(
        {
            "architecture": arch,
            "os": "linux",
            "created": created,
            "config": {
                "Cmd": ["bash"],
                "Env": [f"PATH={_PATH}", "LANG=C.UTF-8"],
                "Labels": {"gpu-provision.base": f"{suite}-py{python}"},
            },
            "history": [
                {"created": created, "created_by": f"gpu-provision bootstrap {suite} {arch}"}
            ],
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        }
    )


def write_archive(target: Path, *, config: bytes, layer: Path, diff_id: str, reference: str) -> str:
    """Write what `docker save` would give for this image, and return the image id."""
    image_id = hashlib.sha256(config).hexdigest()
    layer_name = f"{diff_id.partition(':')[2]}.tar"
    manifest = _json(
        [{"Config": f"{image_id}.json", "Layers": [layer_name], "RepoTags": [reference]}]
    )

    def member(name: str, size: int) -> tarfile.TarInfo:
        info = tarfile.TarInfo(name)
        info.size, info.mode = size, 0o644
        return info

    with (
        target.open("wb") as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in (("manifest.json", manifest), (f"{image_id}.json", config)):
            archive.addfile(member(name, len(content)), io.BytesIO(content))
        with layer.open("rb") as data:
            archive.addfile(member(layer_name, layer.stat().st_size), data)
    return f"sha256:{image_id}"


# --- the store --------------------------------------------------------------------------------


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _install(made: Path, target: Path) -> None:
    """Give a finished file its name: it is there whole, or not at all."""
    _sync(made)
    made.replace(target)
    _sync(target.parent)


@contextlib.contextmanager
def _locked(bases: Path, on_line: Callable[[str], None]) -> Iterator[None]:
    """Keep others out: two at once would make the same base twice."""
    with (bases / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_line("another process is making a base here: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as exc:  # some network file systems have no locks
            on_line(f"the store cannot be locked ({exc.strerror}): going on without")
        yield


def _read_index(bases: Path) -> dict[str, dict[str, Any]]:
    try:
        document = json.loads((bases / "index.json").read_bytes())
    except (OSError, ValueError):  # lost or damaged: the bases are made again
        return {}
    entries = document if isinstance(document, dict) else {}
    return {key: entry for key, entry in entries.items() if isinstance(entry, dict)}


def _from_entry(bases: Path, entry: Mapping[str, Any]) -> BootstrapBase | None:
    """The base that an entry of the index speaks of, if it is still there whole."""
    try:
        image_id = str(entry["image_id"])
        archive = bases / f"{image_id.partition(':')[2]}.tar"
        if archive.stat().st_size != entry["bytes"]:
            return None
        return BootstrapBase(
            reference=str(entry["reference"]),
            image_id=image_id,
            diff_id=str(entry["diff_id"]),
            archive=archive,
            packages=tuple(map(str, entry["packages"])),
            seconds=0.0,
        )
    except (OSError, KeyError, TypeError):
        return None


def find(store: Path, image_id: str) -> BootstrapBase | None:
    """Find a base made earlier by its image id or its diff id, however old it is."""
    bases = store / "bases"
    for entry in _read_index(bases).values():
        if image_id in {entry.get("image_id"), entry.get("diff_id")}:
            return _from_entry(bases, entry)
    return None


def _current(bases: Path, request: str, *, now: float, max_age_days: float) -> BootstrapBase | None:
    entries = [entry for entry in _read_index(bases).values() if entry.get("request") == request]
    young = [
        entry
        for entry in entries
        if isinstance(entry.get("made"), (int, float))
        and 0 <= now - entry["made"] < max_age_days * 86400
    ]
    for entry in sorted(young, key=lambda entry: float(entry["made"]), reverse=True):
        base = _from_entry(bases, entry)
        if base is not None:
            return base
    return None


# --- the tools --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Job:
    """One making."""

    suite: str
    arch: str
    packages: tuple[str, ...]
    epoch: int
    work: Path
    on_line: Callable[[str], None]
    deadline: float

    @property
    def tree(self) -> Path:
        return self.work / "tree.tar"

    def run(self, argv: list[str], redact: tuple[str, ...] = ()) -> process.Completed:
        environment = {
            "SOURCE_DATE_EPOCH": str(self.epoch),
            "LC_ALL": "C.UTF-8",
            "DEBIAN_FRONTEND": "noninteractive",
            # root's leftovers go with the work directory; others may have a home that is closed
            # to the user ids of an unshared namespace
            "TMPDIR": str(self.work) if os.geteuid() == 0 else None,
        }
        return process.run(
            argv,
            timeout_s=max(1.0, self.deadline - time.monotonic()),
            env=environment,
            cwd=Path("/"),
            on_line=self.on_line,
            redact=redact,
            grace_s=30.0,
        )


def mmdebstrap_argv(
    *, suite: str, packages: Iterable[str], target: Path, apt: Iterable[str], lines: Iterable[str]
) -> list[str]:
    """Write the command that makes the tree, as a tar. Without lines it has its own mirror."""
    return [
        "mmdebstrap",
        "--variant=minbase",
        "--mode=auto",
        "--format=tar",
        f"--keyring={_KEYRING}",
        # else the merge is done by a package that brings 50 MB of Perl
        *(f"--hook-dir={hook}" for hook in [_MERGED_USR] if hook.is_dir()),
        f"--include={','.join(packages)}",
        '--aptopt=Acquire::Retries "3"',
        *(f"--aptopt={option}" for option in apt),
        suite,
        str(target),
        *lines,
    ]


def debootstrap_argv(
    *, suite: str, packages: Iterable[str], target: Path, lines: Iterable[str]
) -> list[str]:
    """Write the command that makes the tree, as a directory. It knows one mirror and no updates."""
    mirrors = [line.split()[-3] for line in lines if line.split()[-2] == suite]
    return [
        "debootstrap",
        "--variant=minbase",
        f"--keyring={_KEYRING}",
        f"--include={','.join(packages)}",
        suite,
        str(target),
        *mirrors[:1],
    ]


def _tar_tree(tree: Path, target: Path) -> None:
    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        name = _plain(member.name)
        return member if is_kept(name, directory=member.isdir()) else None

    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(tree, arcname=".", filter=kept)


def _remove_work(work: Path) -> None:
    """Remove a work directory, but never walk into something that is still mounted in it."""
    with contextlib.suppress(OSError):
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
        if any(line.split()[1].startswith(f"{work}/") for line in mounts.splitlines()):
            return
    shutil.rmtree(work, ignore_errors=True)


def _make_tree(job: _Job) -> process.Completed:
    lines = debian_lines(read_sources(), job.suite)
    if shutil.which("mmdebstrap"):
        apt = _apt_options(job.on_line)
        argv = mmdebstrap_argv(
            suite=job.suite, packages=job.packages, target=job.tree, apt=apt, lines=lines
        )
        return job.run(argv, redact=_passwords((*apt, *lines)))
    job.on_line("mmdebstrap is not installed: debootstrap makes the base, without the updates")
    tree = job.work / "tree"
    argv = debootstrap_argv(suite=job.suite, packages=job.packages, target=tree, lines=lines)
    # in a namespace of its own its mounts end with it, even when it is killed
    apart = ["unshare", "--mount"]
    if not shutil.which("unshare") or not job.run([*apart, "true"]).ok:
        apart = []
    completed = job.run([*apart, *argv], redact=_passwords(lines))
    if completed.ok:
        _tar_tree(tree, job.tree)
    return completed


# --- failures ---------------------------------------------------------------------------------


def _no_space(directory: Path) -> NoSpaceError:
    free = shutil.disk_usage(directory).free
    return NoSpaceError(
        f"{directory} has {free / 1e9:.1f} GB free; making a base needs {NEEDED_BYTES / 1e9:.1f}"
        " GB.",
        fix=f"Make room (df -h {directory}), or use another disk: XDG_CACHE_HOME, TMPDIR.",
    )


def explain(output: str, suite: str) -> Failure | None:
    """Find the telling line in what a tool wrote."""
    detail = "\n".join(output.splitlines()[-20:])
    if re.search(r"NO_PUBKEY|not signed|Release signed by unknown key|keyring .* not available|"
                 r"signatures couldn't be verified|Sub-process .* sqv", output):  # fmt: skip
        return MirrorError(
            f"The mirror's signature for {suite} does not fit this host's Debian keys "
            f"({_KEYRING}).",
            fix=f"{_INSTALL} debian-archive-keyring",
            detail=detail,
        )
    if re.search(r"(?i)certificate verif|certificate is not trusted|issuer certificate", output):
        return MirrorError(
            "The mirror shows a certificate that this host does not trust.",
            fix="Add your organisation's certificates to the host: copy them to "
            "/usr/local/share/ca-certificates/ and run sudo update-ca-certificates",
            detail=detail,
        )
    missing = re.search(r"Unable to locate package (\S+)|Couldn't find these debs: (.+)", output)
    if missing:
        names = missing[1] or missing[2]
        return BootstrapUnfitError(
            f"Debian {suite} has no package {names}.",
            fix="Leave it out, or name a suite that has it.",
            detail=detail,
        )
    if re.search(
        r"does not have a Release file|No such script|unknown suite|404 +Not Found", output
    ):
        return BootstrapUnfitError(
            f"The Debian mirror does not have the suite {suite}, or not all of it.",
            fix=f"Use a suite that it has, such as {', '.join(SUITE_PYTHON)}; "
            "after a change on the mirror, try again.",
            detail=detail,
        )
    if re.search(
        r"Could not resolve|Temporary failure resolving|Could not connect|Connection (refused|"
        r"timed out)|Unable to connect|Failed getting release file|Failed to fetch|"
        r"Network is unreachable|Proxy Authentication Required|Couldn't download",
        output,
    ):
        return MirrorError(
            f"The Debian mirror could not be read for {suite}.",
            fix="See that `apt-get update` works on this host (mirror, http_proxy), "
            "or give a base that is reachable: --base IMAGE",
            detail=detail,
        )
    if re.search(
        r"newuidmap|subuid|unable to pick chroot mode|cannot use unshare|unshare(\(| ).*failed|"
        r"Operation not permitted|needs to be run as root",
        output,
    ):
        return BootstrapToolError(
            "This user may not make a Debian tree here: user namespaces are closed or have no "
            "range of user ids, and the user is not root.",
            fix=f"{_INSTALL} uidmap && sudo usermod --add-subuids 100000-165535 "
            '--add-subgids 100000-165535 "$USER"; or run the same command with sudo.',
            detail=detail,
        )
    return None


def _check_request(suite: str, python: str, arch: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9.-]*", suite):
        raise BootstrapUnfitError(
            f"{suite!r} does not name a Debian suite.",
            fix=f"Use one of: {', '.join(SUITE_PYTHON)}.",
        )
    have = SUITE_PYTHON.get(suite)
    if have is not None and have != python:
        fitting = [name for name, version in SUITE_PYTHON.items() if version == python]
        raise BootstrapUnfitError(
            f"Debian {suite} has Python {have}; {python} was asked for.",
            fix=f"Use the suite {fitting[0]}."
            if fitting
            else f"Ask for one of {', '.join(SUITE_PYTHON.values())}, or give another base: "
            "--base IMAGE",
        )
    here = _ARCH.get(os.uname().machine, os.uname().machine)
    if arch != here:
        raise BootstrapUnfitError(
            f"A base for {arch} is asked for and this machine is {here}.",
            fix=f"Make it on an {arch} machine, or give a base from a registry: --base IMAGE",
        )


def _check_host(bases: Path) -> None:
    root = os.geteuid() == 0
    if not shutil.which("mmdebstrap") and not (root and shutil.which("debootstrap")):
        raise BootstrapToolError(
            "A base is made by mmdebstrap (or, as root, debootstrap); this host has neither.",
            fix=f"{_INSTALL} mmdebstrap debian-archive-keyring",
        )
    if not _KEYRING.is_file():
        raise BootstrapToolError(
            f"Debian's keys are needed to trust its packages; {_KEYRING} is not there.",
            fix=f"{_INSTALL} debian-archive-keyring",
        )
    scratch = bases if root else Path(tempfile.gettempdir())
    for directory in dict.fromkeys((bases, scratch)):
        if shutil.disk_usage(directory).free < NEEDED_BYTES:
            raise _no_space(directory)


# --- all of it --------------------------------------------------------------------------------


def _quiet(line: str) -> None:
    del line


def _make(job: _Job, *, python: str, request: str, bases: Path, now: float) -> BootstrapBase:
    started = time.monotonic()
    completed = _make_tree(job)
    if not completed.ok:
        if "No space left on device" in completed.output:
            raise _no_space(job.work)
        known = explain(completed.output, job.suite)
        raise known or BootstrapError(
            f"{completed.argv[0]} {process.describe_exit(completed.code)} "
            f"while making Debian {job.suite}.",
            fix="Its last lines say why. Another way: --base IMAGE",
            detail=completed.last_lines(),
        )
    job.on_line("writing the image")
    layer = job.work / "layer.tar"
    diff_id, looked_into = write_layer(job.tree, layer, job.epoch)
    job.tree.unlink()
    if f"usr/bin/python{python}" not in looked_into:
        has = sorted(name for name in looked_into if re.fullmatch(r"usr/bin/python\d\.\d+", name))
        raise BootstrapUnfitError(
            f"Debian {job.suite} gave {', '.join(has) or 'no Python'}; "
            f"Python {python} was asked for.",
            fix="Ask for the Python of the suite, or give another base: --base IMAGE",
        )
    config = image_config(
        suite=job.suite, python=python, arch=job.arch, diff_id=diff_id, epoch=job.epoch
    )
    digest = hashlib.sha256(config).hexdigest()
    reference = f"gpu-provision/base:{job.suite}-py{python}-{digest[:12]}"
    made = job.work / "archive.tar"
    image_id = write_archive(made, config=config, layer=layer, diff_id=diff_id, reference=reference)
    archive = bases / f"{digest}.tar"
    size = made.stat().st_size
    _install(made, archive)
    base = BootstrapBase(
        reference=reference,
        image_id=image_id,
        diff_id=diff_id,
        archive=archive,
        packages=parse_status(
            looked_into.get("var/lib/dpkg/status", b"").decode("utf-8", "replace")
        ),
        seconds=time.monotonic() - started,
    )
    facts = {**asdict(base), "archive": archive.name, "bytes": size, "made": now}
    index = {**_read_index(bases), image_id: {**facts, "request": request}}
    written = job.work / "index.json"
    written.write_bytes(json.dumps(index, indent=1, sort_keys=True).encode() + b"\n")
    _install(written, bases / "index.json")
    return base


def bootstrap(
    suite: str,
    *,
    python: str,
    arch: str,
    store: Path,
    packages: tuple[str, ...] = DEFAULT_PACKAGES,
    epoch: int,
    on_line: Callable[[str], None] | None = None,
    max_age_days: float = 7,
    clock: Callable[[], float] = time.time,
) -> BootstrapBase:
    """Make a Debian base, or find the one made in the last days for the same request.

    The same packages, `arch` and `epoch` (seconds since 1970) give the same image id. What is half
    made when this ends early is removed, then or by the next call.
    """
    arch = _ARCH.get(arch, arch)
    _check_request(suite, python, arch)
    say = on_line or _quiet
    bases = store.absolute() / "bases"
    named = sorted({*packages})
    request = _json([FORMAT, suite, python, arch, epoch, named]).decode()
    try:
        bases.mkdir(parents=True, exist_ok=True)
        with _locked(bases, say):
            # with the lock in hand, other work directories belong to nobody
            for left in bases.glob(".work-*"):
                _remove_work(left)
            base = _current(bases, request, now=clock(), max_age_days=max_age_days)
            if base is not None:
                return base
            _check_host(bases)
            work = Path(tempfile.mkdtemp(prefix=".work-", dir=bases))
            job = _Job(
                suite=suite,
                arch=arch,
                packages=tuple(named),
                epoch=epoch,
                work=work,
                on_line=say,
                deadline=time.monotonic() + TIMEOUT_S,
            )
            try:
                return _make(job, python=python, request=request, bases=bases, now=clock())
            finally:
                _remove_work(work)
    except OSError as exc:
        if exc.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise _no_space(bases if bases.is_dir() else store.absolute().parent) from exc
        raise BootstrapError(
            f"The store {bases} cannot be used: {exc.strerror or exc}.",
            fix=f"See that you own it and may write there: ls -ld {bases}",
        ) from exc
