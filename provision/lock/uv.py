"""uv's command line and environment, and the meaning of its errors."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from images.net.address import shown_url
from images.system.ownership import another_owner
from provision.host.indexes import pip_index
from provision.host.uv import uv_program, uv_variables
from provision.lock.lockfile import clip
from provision.lock.wheels import glibc
from provision.model.plan import PACKAGES, Plan

_UV_MANYLINUX: tuple[int, ...] = (
    17,
    28,
    *range(31, 41),
)  # what uv's --python-platform knows of manylinux_2_N
_ANY = f"({'|'.join(PACKAGES.values())})"
Outcome = Literal["locked", "absent", "unreachable", "unsolvable", "broken"]
_NOT_BUILT = re.compile(
    r"^error: Failed to (?:download and )?build `([\w.-]+)==([^`\s]+)`", re.MULTILINE
)
_GIT_NOT_BUILT = re.compile(
    r"^error: Failed to (?:download and )?build `([\w.-]+ @ git\+[^`\s]+)`", re.MULTILINE
)
_INCLUDED = re.compile(r"hint: (`[^\n]+ was included because [^\n]+)")
# A Python that tells uv about itself, and starts nothing else: uv asks it to run the setup.py of a
# source package whose metadata it needs, and code of packages runs in a sandbox only. The line is
# the one that uv asks an interpreter with (uv-python, interpreter.rs).
_GUARD = """#!/bin/sh
case "$#/$1/$2/$3/$4" in
'4/-I/-B/-c/import sys; sys.path = '*'; from python.get_interpreter_info import main; main()') ;;
*) echo 'gpu-provision: code of packages runs in a sandbox only' >&2; exit 1 ;;
esac
exec "{python}" -I -B -c "import sys; sys.executable = sys._base_executable = '$0'; $4"
"""
_NO_SPACE = r"No space left on device|Disk quota exceeded"
# Why uv may fail on this machine, in its words and the kernel's, and what helps.
_TROUBLES = (
    (r"Too many open files", "Allow more open files: ulimit -n 4096"),
    (
        _NO_SPACE,
        "Free some space, or name directories that have it: UV_CACHE_DIR=DIR TMPDIR=DIR",
    ),
    (
        r"(?<!registry: )Permission denied|Read-only file system",
        "Name directories that you may write to: UV_CACHE_DIR=DIR TMPDIR=DIR",
    ),
    (r"Cannot allocate memory|memory allocation of", "Allow more memory: ulimit -v unlimited"),
    (r"No interpreter found|Failed to (inspect|query) Python", "Run with a Python that starts."),
)


# Why no index could be asked, in uv's words; what that means, and what to type. One that refuses a
# login is the first: uv goes on as if it were empty.
_FETCHED = re.compile(r"Failed to fetch:? `?(\w+://[^\s`]+)|for url \((\w+://[^\s)]+)\)")
_ASKED = re.compile(r"(?:unreachable|refused): (\w+://\S+): ")
_DEFAULT_INDEX = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX")
_HOST_OF_PYTORCH = "download.pytorch.org"
_REFUSALS = (
    (
        r"index URL \((\S+?)\) could not be queried due to a lack of valid [^)]*\(401",
        "{host} demands a login, and there is none for it",
        "Put yours into ~/.netrc: machine {host} login USER password TOKEN",
    ),
    (
        r"proxy authorization required",
        "The proxy demands another login than its address has",
        "Put it into the proxy's address: HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT",
    ),
    (
        r"invalid peer certificate: (?:UnknownIssuer|SelfSigned)",
        "The certificate of an index is signed by an authority that is not trusted here",
        "Name the file of the authority's certificate: --ca-bundle FILE",
    ),
)


class WheelTarget(NamedTuple):
    """What wheels must fit: `python` ("3.11"), `arch`, and `glibc`, N of the image's 2.N."""

    python: str
    arch: str
    glibc: int


def target_of(plan: Plan) -> WheelTarget:
    """The target of a plan's image."""
    return WheelTarget(str(plan.python), str(plan.arch), int(glibc(plan).split(".")[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcesForUv:
    """How uv may choose releases that an index has only the source of. `python`: that of
    `guarded_python`; `wheels`: a directory of wheels that were built here; `overrides`: a file of
    requirements in place of those of packages; `wheels_only`: packages of which only releases with
    wheels count.
    """

    python: Path
    wheels: Path
    overrides: Path
    wheels_only: Collection[str] = ()


def guarded_python(directory: Path) -> Path | None:
    """A program in `directory` that uv takes for this Python, and that runs no other code. None:
    this Python's own path is unknown, or cannot be written in a shell's quotes.
    """
    if not sys.executable or re.search(r"[\"$`\\']", f"{sys.executable}{directory}"):
        return None
    made = directory / "python"
    made.write_text(_GUARD.replace("{python}", sys.executable), encoding="utf-8")
    made.chmod(0o700)
    return made if os.access(made, os.X_OK) else None  # a file system may forbid programs


def compile_argv(
    target: WheelTarget,
    out: Path,
    *,
    offline: bool,
    alone: bool = False,
    releases_only: bool = False,
    constraints: Path | None = None,
    sources: SourcesForUv | None = None,
) -> list[str]:
    """uv's command line: for the image's Python, CPU and glibc; `out` is pylock.toml
    or requirements.txt, which names the index of each package. `alone`: without dependencies.
    `releases_only`: no pre-release that was not requested, even if nothing else is there.
    `constraints`: a file of requirements that limit versions. `sources` None: wheels only.
    """
    platform = f"{target.arch}-manylinux_2_{_glibc_of_uv(target.glibc)}"
    argv = [uv_program(), "pip", "compile", "-", "--format", out.name, "--no-header"]
    if out.name == "requirements.txt":
        argv += ["--emit-index-annotation", "--annotation-style", "split"]
    else:
        argv.append("--no-annotate")
    argv += ["--quiet", "--color", "never", "--output-file", str(out)]
    argv += ["--python-version", target.python, "--python-platform", platform]
    if sources is None:
        argv += ["--only-binary", ":all:"]
    else:
        argv.append("--no-build-isolation")  # else build requirements would be downloaded
        argv += [w for name in sorted(sources.wheels_only) for w in ("--only-binary", name)]
        argv += ["--overrides", str(sources.overrides)]
    python = sys.executable if sources is None else str(sources.python)
    if python:  # else uv looks for one on PATH, and there may be none
        argv += ["--python", python]
    if offline:
        argv.append("--offline")
    if alone:
        argv.append("--no-deps")
    if releases_only:
        argv += ["--prerelease", "explicit"]
    if constraints is not None:
        argv += ["--constraints", str(constraints)]
    return argv


def uv_environment(env: Mapping[str, str], ca_bundle: Path | None) -> dict[str, str | None]:
    """Environment variables for uv in a `uv_directory`: the CA bundle, pip's index if that is the
    configured one, and a timeout of seconds for a silent server (unless the environment sets one).
    """
    found: dict[str, str | None] = {
        **uv_variables(env),
        # A lock must not depend on them; and wheel variants have no place in it yet.
        "UV_PREVIEW": None,
        "UV_PREVIEW_FEATURES": None,
        "UV_TORCH_BACKEND": None,  # the plan has decided it
        "UV_NO_WRAP": "1",  # its errors are read: a long address must stay in one line
        "UV_HTTP_TIMEOUT": env.get("UV_HTTP_TIMEOUT") or "15",
        # the plan has other indexes to try: waiting long for one that is down helps nobody
        "UV_HTTP_RETRIES": env.get("UV_HTTP_RETRIES") or "1",
    }
    if ca_bundle is not None:
        found["SSL_CERT_FILE"] = str(ca_bundle)
    if not any(env.get(name) for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL")) and (
        index := pip_index(env)
    ):
        found["UV_DEFAULT_INDEX"] = index
    return found


def uv_cache(env: Mapping[str, str]) -> Path:
    """Where uv caches downloads, unless its own configuration names another place."""
    if named := env.get("UV_CACHE_DIR"):
        return Path(named)
    base = env.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "uv"


def uses_cache(env: Mapping[str, str]) -> bool:
    """Whether uv should use its cache. Not if files cannot be written there: homes are read-only in
    many containers. Nor, unless a variable names it, if it belongs to another user or everybody may
    write to it: uv believes what it has cached of an index, hashes included.
    """
    cache = uv_cache(env)
    place = next((p for p in (cache, *cache.parents) if os.path.lexists(p)), cache)
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return False
    if env.get("UV_CACHE_DIR") or place != cache:
        return True
    status = cache.stat()
    return not another_owner(cache, status) and not status.st_mode & stat.S_IWOTH


def judge_uv(output: str) -> tuple[Outcome, str]:
    """uv's error message -> its meaning, in one line."""
    flat = " ".join(output.split())
    for pattern, _ in _TROUBLES:
        for line in output.splitlines():
            if re.search(pattern, line):
                said = re.sub(r"^\s*(error|cause):\s*", "", line).rstrip(".")
                return "broken", clip(f"{said}.")
    if "network was disabled" in flat:
        return "unreachable", "not on this machine, and --offline forbids to ask"
    if denied := re.search(r"hint: (An index[^)]*\)[^.]*\b40[13]\b[^.]*)", flat):
        # uv continues as if such an index were empty, so this is its only hint
        return "unreachable", clip(f"refused: {denied[1].strip()}")
    if re.search(r"No solution found", flat):
        because = flat.partition("Because")[2].strip()
        absent = re.search(rf"there is no version of {_ANY}|{_ANY} was not found", flat)
        return ("absent" if absent else "unsolvable"), clip(f"no solution: {because or flat}")
    if re.search(
        r"(Failed to fetch|dns error|timed out|Connect|certificate|network)", flat, re.IGNORECASE
    ):
        return "unreachable", clip(f"unreachable: {_last_cause(output)}")
    if re.search(r"\b40[13]\b|[Uu]nauthorized|[Ff]orbidden", flat):
        return "unreachable", clip(f"refused: {_last_cause(output)}")
    if re.search(r"[Cc]ouldn't parse|[Nn]o such option|invalid value", flat):
        return "unsolvable", clip(flat)
    return "broken", clip(flat or "it said nothing.")


def access_refused(reasons: Sequence[str]) -> tuple[str, str, str] | None:
    """Why indexes could not be asked, of the reasons of `judge_uv`: the host that demands a login
    or "", the sentence, and what to type. None: for another reason.
    """
    for pattern, why, fix in _REFUSALS:
        for reason in reasons:
            if found := re.search(pattern, " ".join(reason.split())):
                host = (urlsplit(found[1]).hostname or "") if found.groups() else ""
                return host, why.format(host=host), fix.format(host=host)
    return None


def not_built(output: str) -> tuple[str, str, str] | None:
    """The source package whose metadata uv needed, and what requires it, in uv's words ("" if
    nothing else does): (name, version, chain). None: uv failed for another reason.
    """
    found = _NOT_BUILT.search(output)
    if found is None:
        return None
    chain = _INCLUDED.search(output)
    return found[1], found[2], chain[1].rstrip(".") if chain else ""


def git_not_built(output: str) -> list[str]:
    """The repository that a package requires and that uv needed the metadata of, as a requirement
    with its commit; none if uv failed for another reason.
    """
    return _GIT_NOT_BUILT.findall(output)


def has_only_sources(output: str) -> bool:
    """Whether uv says that no release of a package has a wheel."""
    return "no usable wheels" in " ".join(output.split())


def has_only_variants(output: str) -> bool:
    """Whether uv says that all wheels of a package are variants (the draft of PEP 817), among which
    it chooses only as a preview.
    """
    return "only unsupported wheel variants" in " ".join(output.split())


def is_disk_full(output: str) -> bool:
    """Whether uv found no space on a disk."""
    return re.search(_NO_SPACE, " ".join(output.split())) is not None


def help_with(output: str) -> str:
    """What helps if uv could not work."""
    flat = " ".join(output.split())
    fixes = [fix for pattern, fix in _TROUBLES if re.search(pattern, flat)]
    return (
        fixes[0]
        if fixes
        else "Correct what uv names above. Only if uv does not start at all, install it again."
    )


def _glibc_of_uv(have: int) -> int:
    """The newest glibc 2.N for which uv has a platform and that the image provides."""
    return max([_UV_MANYLINUX[0], *(minor for minor in _UV_MANYLINUX if minor <= have)])


def _last_cause(output: str) -> str:
    """The address that failed, and the innermost cause that uv names."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    causes = [line.removeprefix("cause:").strip() for line in lines if line.startswith("cause:")]
    cause = causes[-1] if causes else (lines[-1] if lines else "no answer")
    asked = _FETCHED.search(output)
    return f"{shown_url(asked[1] or asked[2])}: {cause}" if asked else cause


def address_asked(reason: str) -> str:
    """The address that did not answer, of a reason of `judge_uv`; "" if uv names none."""
    found = _ASKED.match(reason)
    return found[1] if found else ""


def told_of_mirrors(reasons: Sequence[str], index: str | None, env: Mapping[str, str]) -> str:
    """Of why indexes did not answer, what the doctor is to explain: where the user names mirrors,
    nothing of PyTorch's own index, which such a machine may not reach at all.
    """
    mirrored = index or pip_index(env) or any(env.get(name) for name in _DEFAULT_INDEX)
    own = [one for one in reasons if urlsplit(address_asked(one)).hostname != _HOST_OF_PYTORCH]
    return "\n".join((own or ["an index did not answer"]) if mirrored else reasons)
