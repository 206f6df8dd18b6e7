"""Turns uv's lock into ours: one wheel per package, with its size, and no credentials."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import tomli_w
from packaging.markers import Environment
from packaging.pylock import PackageWheel, Pylock, PylockSelectError
from packaging.tags import Tag, compatible_tags, cpython_tags

from images.net.address import shown_url
from images.net.errors import BrokenOff
from images.net.http import HttpClient
from images.net.logins import authorization
from images.net.retries import Retries, Tries
from provision.errors import LockFileError
from provision.host.uv import index_logins, plain_index
from provision.lock.lockfile import clip, parse_lock
from provision.model.environment import environment_of
from provision.model.plan import Plan
from provision.model.planfile import TOOL, plan_to_json, without_nulls

_HEAD_TIMEOUT_S = 15.0


def finished(
    text: str,
    plan: Plan,
    ca_bundle: Path | None,
    *,
    offline: bool,
    names: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """uv's lock with sizes, without credentials and sdists, and with our table. `names` of
    indexes -> their addresses.
    """
    pylock = parse_lock(text)
    chosen = choose_wheels(pylock, plan)
    data: dict[str, Any] = dict(pylock.to_dict())
    for package in data["packages"]:
        if not built_here(package):
            package.pop("sdist", None)
        package["wheels"] = [w for w in package["wheels"] if w["url"] == chosen[package["name"]]]
    wheels = [wheel for package in data["packages"] for wheel in package["wheels"]]
    if not offline:
        _add_sizes(wheels, ca_bundle, index_logins(os.environ, names))
    for package in data["packages"]:
        package.pop("marker", None)  # one platform: what uv kept is what is needed
        if "index" in package:
            package["index"] = shown_url(package["index"])
        if ours := built_here(package):  # another machine builds it again, from its source
            del package["wheels"]
            if "vcs" in ours:
                package.pop("sdist", None)
                package["vcs"] = ours.pop("vcs")
    for wheel in wheels:
        wheel["url"] = shown_url(wheel["url"])
    data["created-by"] = TOOL
    data["requires-python"] = f"=={plan.python}.*"
    machine = f"platform_machine == '{plan.arch}' and sys_platform == 'linux'"
    data["environments"] = [f"python_version == '{plan.python}' and {machine}"]
    mine: dict[str, Any] = {"schema": 1, "plan": without_nulls(plan_to_json(plan))}
    used = {plain_index(package["index"]) for package in data["packages"] if "index" in package}
    if known := {name: url for name, url in names.items() if plain_index(url) in used}:
        mine["index-names"] = known
    data["tool"] = {TOOL: mine}
    return tomli_w.dumps(data)


def choose_wheels(pylock: Pylock, plan: Plan) -> dict[str, str]:
    """One wheel per package, by name: if several fit, the best tag and the latest build.
    LockFileError: a package has none that fits.
    """
    environment = cast("Environment", environment_of(str(plan.python), str(plan.arch)))
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


def built_here(package: Mapping[str, Any]) -> dict[str, Any] | None:
    """Our table of a package of a lock, if its wheel was built here from its source."""
    ours = (package.get("tool") or {}).get(TOOL)
    return ours if isinstance(ours, dict) else None


def image_tags(plan: Plan) -> list[Tag]:
    """The wheel tags that the image's Python accepts, best first."""
    return wheel_tags(str(plan.python), str(plan.arch), int(glibc(plan).split(".")[1]))


def wheel_tags(python_text: str, arch: str, newest: int) -> list[Tag]:
    """The wheel tags that a Python ("3.11") accepts beside glibc 2.`newest`, best first."""
    python = tuple(int(part) for part in python_text.split("."))
    aliases = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    platforms = []
    for minor in range(newest, 4, -1):
        platforms.append(f"manylinux_2_{minor}_{arch}")
        if minor in aliases:
            platforms.append(f"{aliases[minor]}_{arch}")
    platforms.append(f"linux_{arch}")
    interpreter = f"cp{python[0]}{python[1]}"
    return [
        *cpython_tags(python, platforms=platforms),
        *compatible_tags(python, interpreter, platforms),
    ]


def glibc(plan: Plan) -> str:
    """The image's glibc; if the base is unknown, the one that every current wheel needs."""
    return (plan.base.glibc if plan.base else None) or "2.28"


def _add_sizes(
    wheels: Sequence[dict[str, Any]],
    ca_bundle: Path | None,
    logins: Mapping[str, tuple[str, str]],
) -> None:
    """Query the sizes that the index did not give; a server that does not answer is not retried."""
    missing = [wheel for wheel in wheels if "size" not in wheel]
    if not missing:
        return
    retries = Retries(connect_s=_HEAD_TIMEOUT_S, answer_s=_HEAD_TIMEOUT_S, tries=2)
    client = HttpClient(ca_bundle=ca_bundle, retries=retries)

    def ask(wheel: dict[str, Any]) -> None:
        try:
            answer = Tries(retries).run(
                lambda: client.send(
                    "HEAD", wheel["url"], login=lambda url: authorization(url, logins)
                )
            )
        except BrokenOff:
            return
        if answer.status == 200 and answer.length is not None:
            wheel["size"] = answer.length

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, missing))
    client.close()
