"""Rules for base images, their systems, and their start rules."""

from __future__ import annotations

import re
from collections.abc import Iterator

from provision.catalog.catalog import Catalog
from provision.catalog.rows.bases import CudaImage
from tools.checks.problems import Problem, Rule, doubled, is_date, rising, rule_name

_OS = re.compile(
    r"ubuntu\d\d\.\d\d|(?:rockylinux|ubi|centos|oraclelinux|opensuse|amzn|cm|azl)\d+", re.ASCII
)
_CUDNN_MAJOR = re.compile(r"-cudnn(\d+)-")


def _pythons(catalog: Catalog) -> Iterator[Problem]:
    """Pythons are ordered oldest first, each with its date; every image's Python is among them."""
    table = "bases.json pythons"
    yield from rising("pythons-rise", table, [(row.python, row.python) for row in catalog.pythons])
    for position, row in enumerate(catalog.pythons):
        before = catalog.pythons[position - 1].released if position else ""
        if not is_date(row.released) or row.released <= before:
            what = f"{row.released!r} is no day after that of the one before it"
            yield Problem("pythons-rise", f"{table}[{position}]", row.python, what)
    known = {row.python for row in catalog.pythons}
    for position, image in enumerate(catalog.python_images):
        if image.python not in known:
            place = f"bases.json python_images[{position}]"
            yield Problem("pythons-known", place, image.reference, "its Python has no day")


def _image_rows(catalog: Catalog) -> Iterator[Problem]:
    """An image has a known toolkit and system, and names no cuDNN but the one in its tag."""
    full = {row.full for row in catalog.toolkits}
    ubuntus = {f"ubuntu{row.release}" for row in catalog.ubuntu_releases}
    for position, row in enumerate(catalog.images):
        for what in _image_faults(row, full, ubuntus):
            yield Problem("image-row", f"images.json images[{position}]", row.tag, what)


def _image_faults(row: CudaImage, full: set[str], ubuntus: set[str]) -> Iterator[str]:
    if row.full not in full:
        yield f"{row.full} is no toolkit"
    if not _OS.fullmatch(row.os) or (row.os.startswith("ubuntu") and row.os not in ubuntus):
        yield f"{row.os} is no known system"
    if row.cudnn_version and not row.cudnn:
        yield f"cuDNN {row.cudnn_version}, which the tag does not say"
    major = _CUDNN_MAJOR.search(row.tag)
    if major and row.cudnn_version and row.cudnn_version.partition(".")[0] != major[1]:
        yield f"cuDNN {row.cudnn_version} against {major[1]} in the tag"
    if row.status == "inferred" and row.confidence == "confirmed":
        yield "what is inferred is not confirmed"


def _start_rules(catalog: Catalog) -> Iterator[Problem]:
    """A start rule is for a known CUDA, states that CUDA, and names known branches; one per
    system.
    """
    pairs = [f"{row.cuda} {os}" for row in catalog.start_rules for os in row.os]
    yield from doubled("images.json start_rules, by system", pairs)
    full = {row.full for row in catalog.toolkits} | set(catalog.cuda_versions())
    branches = {row.branch for row in catalog.branches}
    for position, row in enumerate(catalog.start_rules):
        place = f"images.json start_rules[{position}]"
        if row.cuda not in full:
            yield Problem("start-rule", place, rule_name(row), f"CUDA {row.cuda} is not known")
        if row.min_cuda != ".".join(row.cuda.split(".")[:2]):
            what = f"asks for CUDA {row.min_cuda}"
            yield Problem("start-rule", place, rule_name(row), what)
        for os in row.os:
            if not _OS.fullmatch(os):
                yield Problem("start-rule", place, rule_name(row), f"{os} is no known system")
        for branch, brands in row.brands.items():
            if branch not in branches:
                what = f"branch {branch} is not in drivers.json"
                yield Problem("start-branch-known", place, rule_name(row), what)
            if not brands and row.note is None:
                what = f"no brand for branch {branch}, and no note why"
                yield Problem("start-rule", place, rule_name(row), what)


RULES: tuple[Rule, ...] = (_pythons, _image_rows, _start_rules)
