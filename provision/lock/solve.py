"""Plan -> lock: a PEP 751 file that names every wheel by version, address, size and sha256.

Choosing package versions is uv's job (`uv pip compile`, for the target's Python and platform);
which build of the framework it has to be was decided in the plan. The candidates of the plan are
asked in turn, so an index that is out of reach costs a line in the log and never the job.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

from images import process
from images.errors import Failure
from images.scratch import scratch_directory
from provision.errors import IndexUnreachableError, LockFileError
from provision.host.indexes import pip_index
from provision.lock.lockfile import TOOL, Lock, clip, parse_lock, read_lock, url_secrets
from provision.model.plan import PACKAGES, IndexCandidate, Plan, Reason, Request
from provision.model.planfile import (
    plan_to_json,
    without_credentials,
    without_nulls,
)

if TYPE_CHECKING:
    from packaging.pylock import Pylock
    from packaging.tags import Tag
_UV_MANYLINUX: tuple[int, ...] = (
    17,
    28,
    *range(31, 41),
)  # what uv's --python-platform knows of manylinux_2_N
_UV_TIMEOUT_S = 300.0
_HEAD_TIMEOUT_S = 15.0
_ANY = f"({'|'.join(PACKAGES.values())})"
Outcome = Literal["locked", "absent", "unreachable", "unsolvable", "broken"]
# What keeps uv from working on this machine, as it and the kernel word it, and what helps.
_TROUBLES = (
    (r"Too many open files", "Allow more open files: ulimit -n 4096"),
    (
        r"No space left on device|Disk quota exceeded",
        "Free some space, or name directories that have it: UV_CACHE_DIR=DIR TMPDIR=DIR",
    ),
    (
        r"(?<!registry: )Permission denied|Read-only file system",
        "Name directories that you may write to: UV_CACHE_DIR=DIR TMPDIR=DIR",
    ),
    (r"Cannot allocate memory|memory allocation of", "Allow more memory: ulimit -v unlimited"),
    (r"No interpreter found|Failed to (inspect|query) Python", "Run with a Python that starts."),
)


class UvBrokenError(Failure):
    """uv could not work on this machine; no index was at fault."""

    code = "uv-broken"
    exit_code = 5


class NoSolutionError(Failure):
    """The index answered, and the packages asked for exclude each other or do not exist."""

    code = "no-solution"
    exit_code = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What came of asking one index; `text` is the lock, or what uv said instead."""

    candidate: IndexCandidate
    outcome: Outcome
    reason: str
    text: str = ""


def make_lock(
    plan: Plan,
    request: Request,
    *,
    ca_bundle: Path | None,
    offline: bool,
    tell: Callable[[str], None],
) -> Lock:
    """Ask the plan's indexes in turn; the first that answers and has everything serves."""
    attempts: list[Attempt] = []
    for candidate in plan.indexes:
        attempt = ask_index(candidate, plan, ca_bundle=ca_bundle, offline=offline)
        if attempt.outcome == "locked":
            plan = _with_index(plan, candidate, attempts)
            return read_lock(_finished(attempt.text, plan, ca_bundle, offline=offline))
        if attempt.outcome == "broken":
            raise UvBrokenError(
                f"uv, which picks the packages, could not work here: {attempt.reason}",
                fix=_help_with(attempt.text),
                detail=clip(attempt.text, 2000),
            )
        attempts.append(attempt)
        tell(f"{candidate.name} ({candidate.requirement}): {attempt.reason}")
    raise _no_index(attempts, request)


def ask_index(
    candidate: IndexCandidate, plan: Plan, *, ca_bundle: Path | None, offline: bool
) -> Attempt:
    """Let uv pick everything from one index, and see that it picked the build of the plan."""
    with scratch_directory() as made:
        out = made / "pylock.toml"
        environment = uv_environment(os.environ, ca_bundle)
        if candidate.url is not None:
            environment["UV_INDEX"] = candidate.url  # every user may read a command line
        if not _can_be_made(uv_cache(os.environ)):
            environment["UV_CACHE_DIR"] = str(made / "cache")
        merged = {**os.environ, **environment}
        default = merged.get("UV_DEFAULT_INDEX") or merged.get("UV_INDEX_URL") or ""
        try:
            done = process.run(
                compile_argv(plan, out, offline=offline),
                timeout_s=_UV_TIMEOUT_S,
                env=environment,
                input="\n".join([candidate.requirement, *plan.requirements]) + "\n",
                cwd=made,  # ours may be gone
                redact=(*url_secrets(candidate.url or ""), *url_secrets(default)),
            )
        except process.CommandTimedOut:
            reason = f"out of reach: no full answer within {_UV_TIMEOUT_S:g} s"
            return Attempt(candidate=candidate, outcome="unreachable", reason=reason)
        if not done.ok:
            outcome, reason = judge_uv(done.output)
            return Attempt(candidate=candidate, outcome=outcome, reason=reason, text=done.output)
        text = out.read_text(encoding="utf-8")
    if problem := wrong_build(text, plan):
        return Attempt(candidate=candidate, outcome="absent", reason=problem)
    return Attempt(candidate=candidate, outcome="locked", reason="has it", text=text)


def compile_argv(plan: Plan, out: Path, *, offline: bool) -> list[str]:
    """uv's command line: wheels only, for the image's Python, CPU and glibc."""
    platform = f"{plan.arch}-manylinux_2_{_glibc_of_uv(plan)}"
    argv = [
        uv_program(),
        "pip",
        "compile",
        "-",
        "--format",
        "pylock.toml",
        "--no-header",
        "--quiet",
    ]
    argv += [
        "--color",
        "never",
        "--no-annotate",
        "--only-binary",
        ":all:",
        "--output-file",
        str(out),
    ]
    argv += ["--python-version", str(plan.python), "--python-platform", platform]
    if sys.executable:  # else uv looks for one on PATH, and there may be none
        argv += ["--python", sys.executable]
    if offline:
        argv.append("--offline")
    return argv


def uv_program() -> str:
    """uv's own binary, which comes with this package."""
    from uv import find_uv_bin

    try:
        return os.fspath(find_uv_bin())
    except FileNotFoundError as error:
        raise process.ToolMissing(
            "The uv package is here, and its program is not.",
            fix="Install gpu-provision anew: python3 -m pip install --force-reinstall uv",
        ) from error


def uv_environment(env: Mapping[str, str], ca_bundle: Path | None) -> dict[str, str | None]:
    """What uv needs to hear: the CA bundle, pip's index where that is the one configured here, and
    to give up on a silent server in seconds (unless the environment says how many).
    """
    found: dict[str, str | None] = {
        "UV_HTTP_TIMEOUT": env.get("UV_HTTP_TIMEOUT") or "15",
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
    """Where uv keeps what it has fetched, unless its own configuration names another place."""
    if named := env.get("UV_CACHE_DIR"):
        return Path(named)
    base = env.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "uv"


def _can_be_made(directory: Path) -> bool:
    """Whether files can be put there: homes are read-only in many containers."""
    place = next((p for p in (directory, *directory.parents) if os.path.lexists(p)), directory)
    return place.is_dir() and os.access(place, os.W_OK | os.X_OK)


def judge_uv(output: str) -> tuple[Outcome, str]:
    """uv's refusal -> what it means, in one line."""
    flat = " ".join(output.split())
    for pattern, _ in _TROUBLES:
        for line in output.splitlines():
            if re.search(pattern, line):
                said = re.sub(r"^\s*(error|cause):\s*", "", line).rstrip(".")
                return "broken", clip(f"{said}.")
    if "network was disabled" in flat:
        return "unreachable", "not on this machine, and --offline forbids to ask"
    if denied := re.search(r"hint: (An index[^)]*\)[^.]*\b40[13]\b[^.]*)", flat):
        # uv goes on as if such an index had nothing, so that this is only its hint
        return "unreachable", clip(f"refused: {denied[1].strip()}")
    if re.search(r"No solution found", flat):
        because = flat.partition("Because")[2].strip()
        absent = re.search(rf"there is no version of {_ANY}|{_ANY} was not found", flat)
        return ("absent" if absent else "unsolvable"), clip(f"no solution: {because or flat}")
    if re.search(
        r"(Failed to fetch|dns error|timed out|Connect|certificate|network)", flat, re.IGNORECASE
    ):
        return "unreachable", clip(f"out of reach: {_last_cause(output)}")
    if re.search(r"\b40[13]\b|[Uu]nauthorized|[Ff]orbidden", flat):
        return "unreachable", clip(f"refused: {_last_cause(output)}")
    if re.search(r"[Cc]ouldn't parse|[Nn]o such option|invalid value", flat):
        return "unsolvable", clip(flat)
    return "broken", clip(flat or "it said nothing.")


def _help_with(output: str) -> str:
    """What helps where uv could not work."""
    flat = " ".join(output.split())
    fixes = [fix for pattern, fix in _TROUBLES if re.search(pattern, flat)]
    return fixes[0] if fixes else "Read its own words; reinstall it if it does not start at all."


def wrong_build(text: str, plan: Plan) -> str | None:
    """An index may hold another build under the same version; its local tag gives it away."""
    name = PACKAGES[plan.framework]
    for package in parse_lock(text).packages:
        if package.name == name:
            local = package.version.local if package.version else None
            if local is not None and local != plan.wheel_tag:
                return f"has {name} {package.version}, not the {plan.wheel_tag} build"
            return None
    return f"picked no {name} at all"


def _finished(text: str, plan: Plan, ca_bundle: Path | None, *, offline: bool) -> str:
    """uv's lock with sizes, without credentials and sdists, and with our table."""
    import tomli_w

    pylock = parse_lock(text)
    chosen = choose_wheels(pylock, plan)
    data: dict[str, Any] = dict(pylock.to_dict())
    for package in data["packages"]:
        package.pop("sdist", None)
        package["wheels"] = [w for w in package["wheels"] if w["url"] == chosen[package["name"]]]
    wheels = [wheel for package in data["packages"] for wheel in package["wheels"]]
    if not offline:
        _add_sizes(wheels, ca_bundle)
    for package in data["packages"]:
        package.pop("marker", None)  # one platform: what uv kept is what is needed
        if "index" in package:
            package["index"] = without_credentials(package["index"])
    for wheel in wheels:
        wheel["url"] = without_credentials(wheel["url"])
    data["created-by"] = TOOL
    data["requires-python"] = f"=={plan.python}.*"
    machine = f"platform_machine == '{plan.arch}' and sys_platform == 'linux'"
    data["environments"] = [f"python_version == '{plan.python}' and {machine}"]
    data["tool"] = {TOOL: {"schema": 1, "plan": without_nulls(plan_to_json(plan))}}
    return tomli_w.dumps(data)


def choose_wheels(pylock: Pylock, plan: Plan) -> dict[str, str]:
    """One wheel a package, by name: of several that fit, the best tag and the latest build."""
    from packaging.markers import Environment
    from packaging.pylock import PackageWheel, PylockSelectError

    environment: Environment = {
        "python_version": str(plan.python),
        "python_full_version": f"{plan.python}.0",
        "platform_machine": str(plan.arch),
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }  # type: ignore[typeddict-item]  # the kernel's version selects nothing
    try:
        picked = list(pylock.select(environment=environment, tags=image_tags(plan)))
    except PylockSelectError as error:
        raise LockFileError(
            f"A package has no wheel for the image: {clip(str(error))}",
            fix="Choose another --python, or another version of that package.",
        ) from error
    return {
        str(package.name): str(item.url)
        for package, item in picked
        if isinstance(item, PackageWheel)
    }


def image_tags(plan: Plan) -> list[Tag]:
    """The wheel tags that the image's Python takes, best first."""
    from packaging.tags import compatible_tags, cpython_tags

    python = tuple(int(part) for part in str(plan.python).split("."))
    newest = int(_glibc(plan).split(".")[1])
    aliases = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    platforms = []
    for minor in range(newest, 4, -1):
        platforms.append(f"manylinux_2_{minor}_{plan.arch}")
        if minor in aliases:
            platforms.append(f"{aliases[minor]}_{plan.arch}")
    platforms.append(f"linux_{plan.arch}")
    interpreter = f"cp{python[0]}{python[1]}"
    return [
        *cpython_tags(python, platforms=platforms),
        *compatible_tags(python, interpreter, platforms),
    ]


def _glibc(plan: Plan) -> str:
    """The image's glibc; where the base is not known to us, one that every wheel of today needs."""
    return (plan.base.glibc if plan.base else None) or "2.28"


def _glibc_of_uv(plan: Plan) -> int:
    """The newest glibc 2.N that uv has a platform for, and the image has."""
    have = int(_glibc(plan).split(".")[1])
    return max([_UV_MANYLINUX[0], *(minor for minor in _UV_MANYLINUX if minor <= have)])


def _add_sizes(wheels: Sequence[dict[str, Any]], ca_bundle: Path | None) -> None:
    """Ask for the sizes that the index did not tell; a server that will not say is not pressed."""
    import urllib3

    from images.registry import proxy_for

    missing = [wheel for wheel in wheels if "size" not in wheel]
    if not missing:
        return

    @cache
    def pool(proxy: str | None) -> urllib3.PoolManager:
        settings: dict[str, Any] = {
            "ca_certs": str(ca_bundle) if ca_bundle else None,
            "timeout": _HEAD_TIMEOUT_S,
            "retries": urllib3.Retry(total=2, redirect=5),
            "maxsize": 8,
        }
        if proxy is None:
            return urllib3.PoolManager(**settings)
        login = urllib3.util.parse_url(proxy).auth
        headers = urllib3.make_headers(proxy_basic_auth=unquote(login)) if login else None
        return urllib3.ProxyManager(proxy, proxy_headers=headers, **settings)

    def ask(wheel: dict[str, Any]) -> None:
        try:
            answer = pool(proxy_for(wheel["url"])).request("HEAD", wheel["url"])
        except urllib3.exceptions.HTTPError:
            return
        length = answer.headers.get("Content-Length", "")
        if answer.status == 200 and length.isdigit():
            wheel["size"] = int(length)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, missing))


def _with_index(plan: Plan, chosen: IndexCandidate, failed: Sequence[Attempt]) -> Plan:
    skipped = "".join(f"; {a.candidate.name} {a.reason}" for a in failed)
    reason = Reason(
        code="index-chosen",
        message=f"The wheels come from {chosen.name}: {chosen.why}{skipped}.",
        source=without_credentials(chosen.url) if chosen.url else "the installer's default index",
    )
    kept = tuple(r for r in plan.reasons if r.code != "index-order")
    return replace(plan, index=chosen.address, indexes=(chosen,), reasons=(*kept, reason))


def _no_index(attempts: Sequence[Attempt], request: Request) -> Failure:
    told = "\n".join(
        f"{a.candidate.name} ({a.candidate.requirement}): {a.reason}" for a in attempts
    )
    wanted = attempts[0].candidate.requirement if attempts else "the wheels"
    outcomes = {attempt.outcome for attempt in attempts}
    # One index that has the build and no solution is answer enough, whoever else is out of reach.
    if "unsolvable" in outcomes or outcomes == {"absent"}:
        asked = f" with {', '.join(request.companions)}" if request.companions else ""
        return NoSolutionError(
            f"No index that answers has {wanted}{asked} as one consistent set.",
            fix="Loosen or drop what --with asks for, or name another index with --index.",
            detail=told,
        )
    return IndexUnreachableError(
        f"No index that has {wanted} could be reached.",
        fix="Check the network, the proxy and --ca-bundle, or name a mirror with --index.",
        detail=told,
    )


def _last_cause(output: str) -> str:
    """The innermost cause that uv names, after the address that failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    causes = [line.removeprefix("cause:").strip() for line in lines if line.startswith("cause:")]
    return causes[-1] if causes else (lines[-1] if lines else "no answer")
