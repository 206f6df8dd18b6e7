"""Puts the page together: the answers, the scripts and the style in one HTML file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

from provision.catalog.catalog import Catalog
from provision.catalog.rows.gpus import GpuModel
from provision.catalog.tables import FILES
from provision.doctor.knowledge import load as knowledge
from provision.model.plan import TITLES
from provision.page.answers import Answers, Question
from provision.page.changes import EarlierPage, changes
from provision.page.facts import facts
from provision.page.nodes import Node, Nodes
from provision.page.questions import Choices, choices, driver_ranges, offered_driver
from provision.page.symptoms import known, table
from provision.resolve.fleet import show_capability
from provision.version import VERSION

_SCRIPTS = (
    *("lookup.js", "paste.js", "elements.js", "answer.js", "matrix.js", "facts.js"),
    *("symptoms.js", "pasted.js", "page.js"),
)
_POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; style-src {style}; "
    "script-src {scripts}"
)


def page(catalog: Catalog, say: Callable[[str], None], earlier: EarlierPage | None = None) -> bytes:
    """The page for a catalog, and what changed in it since an earlier page: the same catalog and
    earlier page, the same bytes. `say` is given the progress.
    """
    scripts = [_file(name) for name in _SCRIPTS]
    style = _file("page.css")
    policy = _POLICY.format(style=_hash(style), scripts=" ".join(map(_hash, scripts)))
    parts = {
        "POLICY": policy,
        "STYLE": style,
        "DATA": _json(data(catalog, say, earlier)),
        "SYMPTOMS": _json(table(known(knowledge()))),
        "SCRIPTS": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    template = _file("page.html")
    return re.sub("@([A-Z]+)@", lambda found: parts[found[1]], template).encode()


def data(
    catalog: Catalog, say: Callable[[str], None], earlier: EarlierPage | None = None
) -> dict[str, Any]:
    """Everything that the scripts read to answer a question."""
    nodes = Nodes()
    asked = choices(catalog)
    blocks = _blocks(catalog, asked, nodes, say)
    answers = Answers(catalog, nodes)
    gpus = [_gpu(row, nodes.of(0, blocks[row.name])) for row in catalog.gpus]
    tables = facts(catalog, nodes)
    return {
        "tool": VERSION,
        "dates": {name.removesuffix(".json"): catalog.files[name].text("date") for name in FILES},
        "choices": [
            {
                **one._asdict(),
                "title": TITLES[one.framework],
                "builds": answers.builds(_any_gpu(catalog, one.arch), one),
            }
            for one in asked
        ],
        "ranges": [list(one) for one in driver_ranges(catalog)],
        "drivers": [
            [driver, f"CUDA {row.max_cuda}" + (f", {row.type}" if row.type else "")]
            for row in reversed(catalog.branches)
            if (driver := offered_driver(row)) is not None
        ],
        "gpus": gpus,
        "facts": tables,
        "changes": earlier and changes(earlier, tables, nodes.nodes),
        "words": json.loads(_file("words.json")),
        "shapes": nodes.shapes,
        "nodes": nodes.nodes,
    }


def _gpu(row: GpuModel, answers: Node) -> dict[str, Any]:
    return {
        "name": row.name,
        "id": re.sub("[^a-z0-9]+", "-", row.name.lower()),
        "aliases": row.aliases,
        "capability": show_capability(row.compute_capability),
        "arch": row.host_arch,
        "since": row.driver_from,
        "answers": answers,
    }


def _blocks(
    catalog: Catalog, asked: Sequence[Choices], nodes: Nodes, say: Callable[[str], None]
) -> dict[str, list[Node]]:
    """For each GPU a node for each range of drivers: a list of the answers for each framework and
    CPU.
    """
    answers = Answers(catalog, nodes)
    ranges = driver_ranges(catalog)
    say(f"{len(catalog.gpus)} GPUs, {len(ranges)} ranges of drivers")
    alike = {
        question: answers.alike(question)
        for row in catalog.gpus
        for drivers in ranges
        for one in asked
        if row.host_arch in {None, one.arch}
        for question in [Question(row.name, drivers, one)]
    }
    different = {text: question for question, text in reversed(alike.items())}
    node_of: dict[str | None, Node] = {None: nodes.add(None)}
    for done, (text, question) in enumerate(different.items()):
        if done % 100 == 0:
            say(f"{done} of {len(different)} different machines")
        node_of[text] = answers.block(question)
    return {
        row.name: [
            nodes.of(0, [node_of[alike.get(Question(row.name, drivers, one))] for one in asked])
            for drivers in ranges
        ]
        for row in catalog.gpus
    }


def _any_gpu(catalog: Catalog, arch: str) -> GpuModel:
    return next(row for row in catalog.gpus if row.host_arch in {None, arch})


def _file(name: str) -> str:
    return (resources.files("provision.page") / "data" / name).read_text(encoding="utf-8")


def _json(value: object) -> str:
    """JSON in an element: no "<" in a text can end it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
