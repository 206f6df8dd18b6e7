"""A conda environment.yml: what conda installs, and what pip installs over it.

https://docs.conda.io/projects/conda/en/latest/user-guide/tasks/manage-environments.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from provision.catalog.catalog import Catalog
from provision.doctor.lint.findings import RuleHit, table
from provision.doctor.lint.installs import Install
from provision.doctor.lint.package_rules import judge_install
from provision.doctor.lint.requirements import read_requirements
from provision.doctor.lint.setting import Setting, known_pythons, setting_by_name
from provision.sources.conda import CondaSpec, conda_specifier, read_spec
from provision.sources.declaration import allowed_by
from provision.sources.packages import Position
from provision.sources.yaml import YamlNode, read_yaml


@dataclass(frozen=True, slots=True)
class CondaEnvironment:
    """An environment.yml: conda's packages with their places, and the nodes of pip's parts."""

    packages: Sequence[tuple[CondaSpec, Position]]
    channels: Sequence[str | None]
    parts: Sequence[YamlNode]
    setting: Setting

    def installs(self) -> Iterator[Install]:
        """What pip installs, by part of the file."""
        for part in self.parts:
            lines = [(item.text or "", item.at) for item in part.items()]
            read = read_requirements("\n".join(" ".join(line.splitlines()) for line, _ in lines))
            yield replace(
                read,
                packages=tuple(replace(one, at=lines[one.at.line - 1][1]) for one in read.packages),
                sources=tuple(replace(one, at=lines[one.at.line - 1][1]) for one in read.sources),
            )


def read_environment(path: str, text: str, catalog: Catalog) -> CondaEnvironment:
    """The file as the rules need it. BadInputError: it is invalid."""
    root = read_yaml(path, text, kind="environment file")
    listed = list(_items(root, "dependencies"))
    packages = [(spec, node.at) for node in listed if (spec := read_spec(node.text or ""))]
    python = next((spec.version for spec, _ in packages if spec.name == "python"), "")
    allowed = conda_specifier(python)
    names = ("cpu" for spec, _ in packages if spec.name == "cpuonly")
    setting = replace(
        setting_by_name(path, *names),
        pythons=allowed_by(allowed, known_pythons(catalog)) if allowed else (),
        is_pip=True,
        cudas=None,
    )
    return CondaEnvironment(
        packages,
        [node.text for node in _items(root, "channels")],
        [part for node in listed if (part := node.get("pip")) is not None],
        setting,
    )


def judge_environment(path: str, text: str, catalog: Catalog) -> Iterator[RuleHit]:
    """What the rules find in pip's part, in conda's, and in both together."""
    environment = read_environment(path, text, catalog)
    names = {spec.name for spec, _ in environment.packages}
    for install in environment.installs():
        yield from judge_install(install, environment.setting, catalog)
        torch = install.named("torch")
        if torch is not None and names & {"pytorch", "pytorch-cuda", "pytorch-gpu"}:
            yield RuleHit(
                rule="torch-conda-and-pip",
                at=torch.at,
                message="conda installs pytorch here; pip lays a second one over it.",
                fix="Install it with one of them.",
            )
    yield from judge_channels(environment.packages, environment.channels)


def judge_channels(
    packages: Sequence[tuple[CondaSpec, Position]], channels: Sequence[str | None]
) -> Iterator[RuleHit]:
    """What the rules find in packages of conda and the channels that they are looked for in."""
    yield from _ended_channel(packages, channels)
    yield from _mixed_channels(packages, channels)


def _mixed_channels(
    packages: Sequence[tuple[CondaSpec, Position]], channels: Sequence[str | None]
) -> Iterator[RuleHit]:
    """pytorch-cuda, which is of the channel pytorch, with conda-forge in front of that channel."""
    named = {spec.name: (spec, at) for spec, at in packages}
    torch, cuda = named.get("pytorch"), named.get("pytorch-cuda")
    if torch is None or cuda is None or torch[0].channel is not None:
        return
    if "conda-forge" not in channels or "pytorch" not in channels:
        return
    if channels.index("conda-forge") < channels.index("pytorch"):
        yield RuleHit(
            rule="conda-forge-first",
            at=torch[1],
            message="conda-forge comes before the channel pytorch: pytorch is taken from there, "
            "where pytorch-cuda does not select a build; it can be one for the CPU.",
            fix="Put the channels pytorch and nvidia in front, or use conda-forge alone, with "
            "pytorch-gpu and without pytorch-cuda.",
        )


def _ended_channel(
    packages: Sequence[tuple[CondaSpec, Position]], channels: Sequence[str | None]
) -> Iterator[RuleHit]:
    """A release of PyTorch that was never published on its own channel."""
    known = table("known.toml")["conda"]
    last = known["pytorch_channel_until"]
    for spec, at in packages:
        asked = re.match(r"[=>~]=?\s*(\d+)\.(\d+)", spec.version)
        its_own = spec.channel == "pytorch" or (
            spec.channel is None and "pytorch" in channels and "conda-forge" not in channels
        )
        if spec.name != "pytorch" or not asked or not its_own:
            continue
        if (int(asked[1]), int(asked[2])) > tuple(last):
            yield RuleHit(
                rule="conda-channel-ended",
                at=at,
                message="The channel pytorch ends with PyTorch "
                f"{'.'.join(map(str, last))}: it has no {asked[1]}.{asked[2]}.",
                fix="Take pytorch-gpu from conda-forge, or torch by pip.",
            )


def _items(root: YamlNode | None, key: str) -> Iterator[YamlNode]:
    node = root.get(key) if root is not None else None
    if node is not None:
        yield from node.items()
