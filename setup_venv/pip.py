"""The pip that the requirements pin: its wheel, running it, and why a run failed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from setup_venv.client import Client, file_name, shown
from setup_venv.errors import FetchError, PipFailedError, SetupError
from setup_venv.settings import pages_of

NETWORK_FIX = (
    "Check the network, the proxy (https_proxy) and the package index (PIP_INDEX_URL, pip.conf), "
    "then run this again."
)
OTHER_BYTES_FIX = (
    "A proxy or mirror changes packages: use another index, PIP_INDEX_URL=https://HOST/simple "
    "./run ..."
)


def pinned_pip(requirements: str) -> tuple[str, frozenset[str]]:
    """File name of pip's wheel, and the sha256 digests that a requirements file pins for pip."""
    found = re.search(r"^pip==(\S+)((?:[^\n]*\\\n)+[^\n]*)$", requirements, re.MULTILINE)
    if found is None:
        raise SetupError("The requirements do not pin pip by hash.", "Restore them: git checkout .")
    digests = re.findall(r"--hash=sha256:([0-9a-f]{64})\b", found[2])
    return f"pip-{found[1]}-py3-none-any.whl", frozenset(digests)


def fetch(client: Client, pages: Iterable[str], name: str, digests: frozenset[str]) -> bytes:
    """The file, from the first page that has it with one of these digests. Raises SetupError."""
    reasons: list[str] = []
    fixes: list[str] = []
    for page in pages:
        asked = page
        try:
            link = next((url for url in client.links(page) if file_name(url) == name), None)
            if link is None:
                reasons.append(f"{shown(page)} does not list it")
                continue
            asked = link
            data = client.get(link).body
        except FetchError as error:
            reasons.append(f"{shown(asked)}: {error}")
            fixes.append(error.fix)
            continue
        digest = hashlib.sha256(data).hexdigest()
        if digest in digests:
            return data
        reasons.append(f"{shown(asked)}: its sha256 is {digest}, which is not the pinned one")
        fixes.append(OTHER_BYTES_FIX)
    raise SetupError(
        f"Cannot fetch {name}: {'; '.join(reasons) or 'no-index is set, and no find-links'}",
        next(filter(None, fixes), NETWORK_FIX),
    )


def install(
    pip: Sequence[str], words: Sequence[str], variables: Mapping[str, str], lock: int
) -> None:
    """Run PIP install WORDS. Raises PipFailedError. A terminal shows the package being fetched.

    pip inherits the lock, and so holds it for as long as it writes, even if we are killed.
    """
    process = subprocess.Popen(
        [*pip, "install", "--no-compile", "--progress-bar=off", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=dict(variables),
        pass_fds=(lock,),
    )
    lines: list[str] = []
    live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    with process:
        for line in process.stdout or ():
            lines.append(line.rstrip())
            if live and (found := re.match(r"(Collecting [\w.-]+|Installing)", line)):
                sys.stderr.write(f"\r\x1b[Ksetup    {found[1].lower()} ")
                sys.stderr.flush()
    if live:
        sys.stderr.write("\r\x1b[K")
    if process.returncode:
        raise PipFailedError(lines)


def explain(
    failed: PipFailedError, requirements: Path, client: Client, settings: Mapping[str, str]
) -> SetupError:
    """Why pip failed, from its output and the index; if unclear, print its output to stderr."""
    text = "\n".join(failed.lines)
    if re.search(r"No space left on device|Disk quota exceeded", text):
        return disk_is_full(requirements.parent)
    missing = re.search(r"No matching distribution found for ([\w.-]+)==([^\s;]+)", text)
    if missing and (found := _no_wheel(missing[1], missing[2], client, settings)):
        return found
    for line in _telling(failed.lines):
        sys.stderr.write(f"pip      {line}\n")
    what = requirements.name
    if "DO NOT MATCH THE HASHES" in text:
        message = f"A package is not the one that {what} pins; pip names it above."
        return SetupError(message, OTHER_BYTES_FIX)
    message = f"pip could not install the packages in {what}; it says why above."
    return SetupError(message, NETWORK_FIX)


def _telling(lines: Sequence[str]) -> list[str]:
    """The warnings and errors that pip printed; its last lines if there are none."""
    routine = re.compile(r"\s*(Collecting|Downloading|Using cached|Looking in|Requirement already)")
    marks = ("ERROR:", "WARNING:", "error:")
    first = next((at for at, line in enumerate(lines) if line.startswith(marks)), 0)
    return [line for line in lines[first:] if line and not routine.match(line)][-15:]


def _no_wheel(
    project: str, version: str, client: Client, settings: Mapping[str, str]
) -> SetupError | None:
    """The error for a package with wheels in the index, but none for this machine."""
    name = _normalized(project)
    wheels: set[str] = set()
    for page in pages_of(name, settings):
        with contextlib.suppress(FetchError):
            wheels.update(
                file
                for file in map(file_name, client.links(page))
                if file.endswith(".whl") and file.count("-") >= 4
                if (_normalized(file.split("-")[0]), file.split("-")[1]) == (name, version)
            )
    if not wheels:
        return None
    machine = platform.machine()
    tags = {"-".join(file.removesuffix(".whl").split("-")[-3:]) for file in wheels}
    near = sorted(tag for tag in tags if machine in tag and "linux" in tag)
    libc = " ".join(platform.libc_ver()).strip() or "a C library other than glibc"
    return SetupError(
        f"{project} {version} has no wheel for this machine ({platform.python_implementation()} "
        f"{platform.python_version()}, {machine}, {libc}); its wheels for {machine}: "
        f"{', '.join(near) or 'none'}",
        "Name a Python that has one: PYTHON=/path/to/python3 ./run ...; or run this in a container "
        'that has: docker run --rm -it -v "$PWD":/src -w /src python:3 ./run ...',
        code=4,
    )


def _normalized(project: str) -> str:
    return re.sub(r"[-_.]+", "-", project).lower()


def disk_is_full(place: Path) -> SetupError:
    """The error for a full disk: the checkout's, or the one of temporary files."""
    temporary = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108  pip's default
    free = []
    for path in dict.fromkeys([str(place), temporary]):
        with contextlib.suppress(OSError):
            free.append(f"{shutil.disk_usage(path).free >> 20} MB free in {path}")
    return SetupError(
        f"No space left on the disk ({', '.join(free)}).",
        "Free some space, or name another directory for temporary files: TMPDIR=/path ./run ...",
    )
