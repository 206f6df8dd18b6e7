"""Which index listed each wheel of a lock, and whether anybody named that index."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import tomli_w

from images.errors import Failure
from images.net.address import shown_url
from provision.errors import Exit
from provision.host.uv import plain_index
from provision.lock.lockfile import lock_table, parse_lock

# uv's own setting torch-backend leads to directories of this one, without naming them
_PYTORCH = "https://download.pytorch.org/whl/"
_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?==([^\s;]+)")
_FROM = re.compile(r"\s+# from (\S.*)")
_MOST_NAMES = 3


class ForeignIndexError(Failure):
    """A wheel is listed by an index that neither the user nor the plan names."""

    code = "foreign-index"
    exit_code = Exit.UNREACHABLE


def with_indexes(text: str, listing: str, named: Collection[str], own: str = "") -> str:
    """uv's lock with the index of each wheel, which uv writes in its other format only (`listing`:
    requirements.txt). `named` are the indexes that may list wheels, as `plain_index` writes them;
    `own` is the directory of the wheels that were built here, which gets no index.
    ForeignIndexError: another one does. ValueError: uv does not say which one does.
    """
    data = lock_table(text)
    indexes = _listed(listing.splitlines())
    for package in data.get("packages", ()):
        if not package.get("wheels"):  # requested by its own address
            continue
        pin = (package["name"], package["version"])
        if pin not in indexes:
            raise ValueError("reports no index for {}=={}".format(*pin))
        index = indexes[pin]
        if own and index.rstrip("/") == own:
            continue
        if plain_index(index) not in named and not index.startswith(_PYTORCH):
            raise ForeignIndexError(
                f"{pin[0]} {pin[1]} is listed by {shown_url(index)}, which you did not name.",
                fix="Find out what makes uv ask it, and remove that. If you trust it, name it: "
                f"--index {shown_url(index)}",
            )
        package["index"] = index
    return tomli_w.dumps(data)


def _listed(lines: Iterable[str]) -> dict[tuple[str, str], str]:
    """(name, version) -> index, of the lines "name==version" and "    # from INDEX"."""
    found: dict[tuple[str, str], str] = {}
    pin: tuple[str, str] | None = None
    for line in lines:
        if match := _PIN.match(line):
            pin = match[1], match[2]
        elif pin is not None and (match := _FROM.fullmatch(line)):
            found[pin] = match[1]
    return found


def account(text: str, *, first: str, names: Mapping[str, str]) -> str:
    """Every index that wheels of a lock come from, that of the package `first` before the others:
    "PyPI", or "PyTorch index (cu117) (torch) and PyPI (26 wheels)". `names` of indexes, by their
    plain address.
    """
    listed: dict[str, list[str]] = {}
    for package in parse_lock(text).packages:
        index = plain_index(package.index) if package.index else ""
        listed.setdefault(index, []).append(package.name)
    order = sorted(
        listed, key=lambda index: (first not in listed[index], -len(listed[index]), index)
    )
    labels = [
        names.get(index) or (shown_url(index) if index else "addresses of their own")
        for index in order
    ]
    if len(order) == 1:
        return labels[0]
    parts = [f"{label} ({_few(listed[index])})" for label, index in zip(labels, order, strict=True)]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= _MOST_NAMES else f"{len(names)} wheels"
