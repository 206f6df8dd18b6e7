"""A pixi.toml: its packages of conda with the channels, by themselves and with each feature.

https://pixi.sh/latest/reference/pixi_manifest/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from provision.catalog.catalog import Catalog
from provision.doctor.lint.conda_environment import judge_channels
from provision.doctor.lint.findings import RuleHit, table
from provision.sources.conda import CondaSpec
from provision.sources.files import line_of, read_toml
from provision.sources.files import table as table_of
from provision.sources.packages import Position


def judge_pixi(path: str, text: str, _: Catalog) -> Iterator[RuleHit]:
    """What the rules find; findings in shared tables come twice. BadInputError: invalid TOML."""
    document = read_toml(text, path)
    workspace = {**table_of(document, "project"), **table_of(document, "workspace")}
    features = [one for one in table_of(document, "feature").values() if isinstance(one, dict)]
    for feature in [{}, *features]:
        packages = [
            _package(text, name, said)
            for owner in (document, feature)
            for name, said in table_of(owner, "dependencies").items()
        ]
        yield from judge_channels(packages, _channels(feature) or _channels(workspace))
        yield from _without_cuda(packages, document, feature)


def _channels(owner: Mapping[str, object]) -> list[str]:
    """The channels in their order; an entry may be a table with a priority."""
    listed = owner.get("channels")
    return [
        str(one.get("channel") if isinstance(one, dict) else one)
        for one in (listed if isinstance(listed, list) else [])
    ]


def _package(text: str, name: str, said: object) -> tuple[CondaSpec, Position]:
    row = said if isinstance(said, dict) else {"version": said}
    version, channel = str(row.get("version", "*")), row.get("channel")
    line = line_of(text, rf"[\"']?{re.escape(name)}[\"']?\s*=")
    written = version if version[:1] in "<>=~!*" else f"={version}"
    return CondaSpec(name.lower(), written, str(channel) if channel else None), Position(line or 1)


def _without_cuda(
    packages: Sequence[tuple[CondaSpec, Position]], *owners: Mapping[str, object]
) -> Iterator[RuleHit]:
    """A package with CUDA where the file does not say that the system has CUDA."""
    if any("cuda" in table_of(owner, "system-requirements") for owner in owners):
        return
    for spec, at in packages:
        if spec.name in table("packages.toml")["conda"]["with_cuda"]:
            yield RuleHit(
                rule="pixi-without-cuda",
                at=at,
                message=f"{spec.name} requires a system with CUDA, and the file does not declare "
                "one: pixi finds no solution.",
                fix='Add [system-requirements] with cuda = "12", or the CUDA of your drivers.',
            )
