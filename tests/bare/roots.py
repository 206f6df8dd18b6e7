"""A machine as a newcomer has it: a Debian with git and Python, in namespaces of its own.

Its files are a base of ours, unpacked: that such a base is what Debian's tools make is proven in
tests/engines/test_bootstrap_real.py. Of this machine it gets the devices, the network and whom to
trust (the names of hosts, the certificates, where the package index is), which are not what a
newcomer would have to install. A plain chroot would be no substitute: no sandbox starts in one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from images.bootstrap.make import bootstrap
from tests import need

PYTHONS = {"bookworm": "3.11", "trixie": "3.13"}
USER = 1000
_SHARED = ("etc/hosts", "etc/resolv.conf")
_BUNDLE = "etc/ssl/certs/ca-certificates.crt"
# Where a root is entered: its own mounts, processes and place for temporary files, and no way back.
_ENTER = """
set -eu
mount --make-rprivate /
mount --rbind "$1" "$1"
cd "$1"
mkdir -p old
mount --rbind /dev dev
mount --rbind /sys sys
pivot_root . old
mount -t proc proc /proc
umount -l /old
rmdir /old
shift
exec "$@"
"""


@dataclass(frozen=True)
class Kind:
    """What there is on such a machine, and who works on it."""

    suite: str
    user: int = 0
    has_dpkg: bool = True

    @property
    def home(self) -> str:
        return "root" if self.user == 0 else "home/user"


@dataclass(frozen=True)
class Typed:
    """A command, how it ended, and how long it took."""

    command: str
    code: int
    seconds: float
    said: str

    def __str__(self) -> str:
        return f"$ {self.command}\n{self.said}[exit {self.code}, {self.seconds:.1f} s]\n"


@dataclass(frozen=True)
class Root:
    """A root directory, and who works in it."""

    place: Path
    kind: Kind

    def type(self, command: str, folder: str = "", *, limit_s: float) -> Typed:
        """Run a command as a shell there does, in a folder of its home."""
        user = str(self.kind.user)
        home = f"/{self.kind.home}"
        env = ["env", "-i", f"HOME={home}", "PATH=/usr/local/bin:/usr/bin:/bin", "TERM=dumb"]
        who = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups"] if user != "0" else []
        words = [*who, *env, *index(os.environ), "sh", "-c", f'cd "$HOME/{folder}" && {command}']
        script = ["bash", "-c", _ENTER, "enter", str(self.place), *words]
        started = time.monotonic()
        process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", *script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            said, _ = process.communicate(timeout=limit_s)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        return Typed(command, process.returncode, time.monotonic() - started, said)


def index(env: Mapping[str, str]) -> list[str]:
    """Where this machine gets Python packages from, by pip's own variables."""
    said = {
        name: value
        for name, value in env.items()
        if name in {"PIP_INDEX_URL", "PIP_TRUSTED_HOST"} or name.lower().endswith("_proxy")
    }
    if "PIP_INDEX_URL" not in said:
        pip = shutil.which("pip") or shutil.which("pip3")
        asked = [str(pip), "config", "get", "global.index-url"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False) if pip else None
        if done is not None and done.returncode == 0:
            said["PIP_INDEX_URL"] = done.stdout.strip()
    return [f"{name}={value}" for name, value in said.items()]


def make_root(place: Path, kind: Kind, store: Path) -> Root:
    """Unpack one. Only root may."""
    need.root()
    bundle = Path(os.environ.get("SSL_CERT_FILE") or f"/{_BUNDLE}")
    base = bootstrap(
        kind.suite,
        python=PYTHONS[kind.suite],
        arch=os.uname().machine,
        store=store,
        packages=("ca-certificates", "git", "python3"),
        epoch=0,
        ca_bundle=bundle.read_text(encoding="utf-8"),
    )
    with tarfile.open(base.archive) as archive:
        manifest = archive.extractfile("manifest.json")
        assert manifest is not None
        (layer,) = json.load(manifest)[0]["Layers"]
        with tarfile.open(fileobj=archive.extractfile(layer)) as files:
            files.extractall(place, numeric_owner=True, filter="fully_trusted")
    for name in ("dev", "proc", "sys", "tmp", kind.home):
        (place / name).mkdir(parents=True, exist_ok=True)
    (place / "tmp").chmod(0o1777)
    if kind.user:
        with (place / "etc" / "passwd").open("a") as file:
            file.write(f"user:x:{kind.user}:{kind.user}::/{kind.home}:/bin/sh\n")
        with (place / "etc" / "group").open("a") as file:
            file.write(f"user:x:{kind.user}:\n")
    for name in _SHARED:
        if Path("/", name).exists():
            shutil.copyfile(Path("/", name), place / name)
    shutil.copyfile(bundle, place / _BUNDLE)
    if not kind.has_dpkg:
        _without_dpkg(place)
    os.chown(place / kind.home, kind.user, kind.user)
    return Root(place, kind)


def _without_dpkg(place: Path) -> None:
    for program in ("apt*", "dpkg*"):
        for path in (place / "usr" / "bin").glob(program):
            path.unlink()
    for name in ("etc/apt", "etc/dpkg", "usr/share/keyrings", "var/lib/apt", "var/lib/dpkg"):
        shutil.rmtree(place / name, ignore_errors=True)


def clone_into(root: Root, checkout: Path, folder: str) -> None:
    """A clone of the checkout, with what is not committed yet; it is owned by who works there."""
    place = root.place / root.kind.home / folder
    git = ["git", "-c", "safe.directory=*", "-C", str(checkout)]
    subprocess.run([*git, "clone", "-q", str(checkout), str(place)], check=True, timeout=120)
    listed = [*git, "ls-files", "-z", "--modified", "--deleted", "--others", "--exclude-standard"]
    changed = subprocess.run(listed, check=True, capture_output=True, text=True, timeout=60).stdout
    for name in filter(None, changed.split("\0")):
        there, here = place / name, checkout / name
        there.unlink(missing_ok=True)
        if here.is_file():
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(here, there, follow_symlinks=False)
    for path in (place, *place.rglob("*")):
        os.chown(path, root.kind.user, root.kind.user, follow_symlinks=False)
