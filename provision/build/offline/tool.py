"""This program itself, for a bundle: its files, and the wheels that `./run` installs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from images.wheels.remote_file import Wheel
from provision.build.base import BuildSettings
from provision.build.offline.errors import NotPackableError
from provision.lock.lockfile import parse_lock
from provision.lock.solve import run_uv, uv_broken
from provision.lock.uv import WheelTarget
from provision.lock.wheels import choose_wheels
from provision.model.plan import Plan
from provision.output.console import Console

# What `./run` needs of a checkout.
_FILES = ("run", "pyproject.toml", "requirements.txt", "LICENSE", "README.md", "Dockerfile.cuda")
_PACKAGES = ("provision", "images", "verify", "setup_venv")
_GLIBC = 28  # what ./run needs


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTool:
    """The wheels of this program, and the Pythons ("3.11") and the architecture they are for."""

    wheels: tuple[Wheel, ...]
    pythons: tuple[str, ...]
    arch: str


def tool_wheels(plan: Plan, settings: BuildSettings, console: Console) -> PackedTool:
    """The wheels that the requirements pin, for each Python that `./run` knows, on the lock's
    architecture. NotPackableError: this installation is not a checkout, or an index has others.
    """
    root = _checkout()
    pins = dict(_pins((root / "requirements.txt").read_text(encoding="utf-8")))
    known = re.search(r"^pythons='([\d. ]+)'$", (root / "run").read_text(), re.MULTILINE)
    arch = plan.arch or os.uname().machine
    found: dict[str, Wheel] = {}
    pythons = []
    for python in sorted(known[1].split() if known else [], key=lambda text: int(text[2:])):
        console.progress(f"the wheels of this program for Python {python}")
        outcome, reason, text = run_uv(
            list(pins),
            WheelTarget(python, arch, _GLIBC),
            index=None,
            ca_bundle=settings.ca,
            offline=settings.offline,
            alone=True,
        )
        if outcome == "broken":
            raise uv_broken(reason, text)
        if outcome != "locked":
            console.note(f"no wheels of this program for Python {python}: {reason}")
            continue
        wheels = _chosen(text, plan._replace(python=python, base=None))
        hashes = frozenset[str]().union(*pins.values())
        if wrong := [wheel for wheel in wheels if wheel.sha256 not in hashes]:
            raise NotPackableError(
                f"The index has another {wrong[0].name} {wrong[0].version} than the one that "
                "requirements.txt pins.",
                fix="Use another index: UV_DEFAULT_INDEX=https://HOST/simple provision bundle ...",
            )
        pythons.append(python)
        found |= {wheel.sha256: wheel for wheel in wheels}
    if not pythons:
        raise NotPackableError(
            f"No index has the packages of this program for {arch}.",
            fix="Omit --with-tool, or name an index: UV_DEFAULT_INDEX=https://HOST/simple ...",
        )
    unique = tuple(sorted(found.values(), key=lambda wheel: wheel.sha256))
    return PackedTool(wheels=unique, pythons=tuple(pythons), arch=arch)


def tool_files() -> dict[str, bytes]:
    """The files of this program, by their paths in a checkout. NotPackableError: it is not one."""
    root = _checkout()
    paths = [root / name for name in _FILES]
    for package in _PACKAGES:
        paths += sorted((root / package).rglob("*"))
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in paths
        if path.is_file() and path.suffix != ".pyc"
        if not any(part.startswith(".") for part in path.relative_to(root).parts)
    }


def _checkout() -> Path:
    root = Path(__file__).resolve().parents[3]
    if missing := [name for name in (*_FILES, *_PACKAGES) if not (root / name).exists()]:
        raise NotPackableError(
            f"--with-tool packs a checkout of gpu-provision, and {root} is not one: it has no "
            f"{missing[0]}.",
            fix="Run it in a checkout: ./run provision bundle ... --with-tool",
        )
    return root


def _pins(requirements: str) -> Iterator[tuple[str, frozenset[str]]]:
    """Each pinned requirement with its marker, and the digests of its files."""
    for line in requirements.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            words = line.partition("--hash=")[0].strip()
            yield words, frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})\b", line))


def _chosen(text: str, plan: Plan) -> list[Wheel]:
    pylock = parse_lock(text)
    urls = set(choose_wheels(pylock, plan).values())
    return [
        Wheel(
            name=str(package.name),
            version=str(package.version),
            url=wheel.url or "",
            size=wheel.size,
            sha256=str(wheel.hashes.get("sha256")),
        )
        for package in pylock.packages
        for wheel in package.wheels or ()
        if wheel.url in urls
    ]
