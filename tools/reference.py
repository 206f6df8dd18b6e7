"""The lists of codes and checks in the documents, made from the code.

`./run transcripts` writes each between `<!-- list: NAME -->` and `<!-- end -->`. The meaning of an
error's code is the first sentence of its class's docstring; that of a check is its title. Other
codes are listed by where they occur: the message that comes with each says what was found.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import images
import provision
from images.errors import Failure
from provision.model.plan import Verdict
from verify.checks import CHECKS
from verify.model.check import LEVELS
from verify.model.frameworks import FRAMEWORKS

ROOT = Path(__file__).parents[1]
_ROOMS = ("provision", "images", "verify")
PAGES = (ROOT / "docs" / "codes.md", ROOT / "docs" / "checks.md")

_CALLS = {
    "Blocker": "refusals",
    "PlanError": "refusals",
    "Reason": "reasons",
    "Warned": "warnings",
    "Note": "notes",
}
_PLACES = {
    "provision/attestation/": "judged",
    "provision/verification/gate.py": "judged",
    "provision/fleet/": "nodes",
    "verify/commands/fleet.py": "nodes",
}
_ENDS = {
    "driver-": tuple(word for word in get_args(Verdict) if word != "none"),
    "build-": ("likely", "doubtful"),
}
_ACROSS = re.compile(r'"((?:across|nccl|gloo|store|gpu)-[a-z-]+)"')
_LIST = re.compile(r"(?<=<!-- list: )(\w+) -->\n.*?(?=<!-- end -->)", re.DOTALL)


def pages() -> dict[Path, str]:
    """The pages with lists, and their texts as the code is now."""
    lists = {"errors": _errors(), "checks": _checks(), **_codes()}
    before = {page: page.read_text(encoding="utf-8") for page in PAGES}
    named = [name for text in before.values() for name in _LIST.findall(text)]
    if sorted(named) != sorted(lists):
        raise ValueError(f"the pages have lists of {sorted(named)}, the code of {sorted(lists)}")
    return {
        page: _LIST.sub(lambda found: f"{found[1]} -->\n{lists[found[1]]}", text)
        for page, text in before.items()
    }


def _codes() -> dict[str, str]:
    """The codes that are not of errors: name of the list -> its text."""
    listed: dict[str, set[str]] = defaultdict(set)
    for path, call, code in _named():
        kind = _CALLS.get(call) or next((_PLACES[at] for at in _PLACES if path.startswith(at)), "")
        if not kind:
            raise ValueError(f"{path}: no list in the documents has `{code}` of {call}")
        listed[kind].add(code)
    for file in sorted((ROOT / "verify" / "across").glob("*.py")):
        listed["across"].update(_ACROSS.findall(file.read_text(encoding="utf-8")))
    return {
        kind: ", ".join(f"`{code}`" for code in sorted(found)) + "\n"
        for kind, found in listed.items()
    }


def failures(base: type[Failure] = Failure) -> Iterator[type[Failure]]:
    """Every class of failure of `provision` and `images`, some more than once."""
    if base is Failure:
        for room in (provision, images):
            for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
                if not module.name.endswith("__main__"):
                    importlib.import_module(module.name)
    for found in base.__subclasses__():
        if found.__module__.startswith(("provision.", "images.")):
            yield found
        yield from failures(found)


def _errors() -> str:
    classes: dict[str, list[type[Failure]]] = defaultdict(list)
    for found in failures():
        if found.code != Failure.code:
            classes[found.code].append(found)
    lines: dict[int, list[str]] = defaultdict(list)
    for code, those in sorted(classes.items()):
        first = min(those, key=_how_special)
        for exit_code in sorted({int(one.exit_code) for one in those}):
            lines[exit_code].append(f"- `{code}`: {_meaning(first)}\n")
    return "\n".join(f"### Exit code {exit_}\n\n{''.join(lines[exit_])}" for exit_ in sorted(lines))


def _how_special(found: type[Failure]) -> tuple[int, int, str]:
    """Of several classes with one code, the most general one says what it means."""
    return (-len(found.__subclasses__()), found.__module__.count("."), found.__module__)


def _meaning(found: type[Failure]) -> str:
    """The first sentence of a class's docstring."""
    return re.split(r"\.(?: |$)", " ".join((found.__doc__ or "").split()))[0]


def _named() -> Iterator[tuple[str, str, str]]:
    """The codes that calls name: the file, the name of what is called, and the code."""
    for file in (path for room in _ROOMS for path in (ROOT / room).rglob("*.py")):
        path = file.relative_to(ROOT)
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call):
                name = str(getattr(call.func, "attr", getattr(call.func, "id", "")))
                for word in call.keywords:
                    if word.arg == "code":
                        yield from ((str(path), name, code) for code in _codes_of(word.value, path))


def _codes_of(value: ast.expr, path: Path) -> tuple[str, ...]:
    match value:
        case ast.Constant(value=str(code)):
            return (code,)
        case ast.IfExp(body=one, orelse=other):
            return _codes_of(one, path) + _codes_of(other, path)
        case ast.JoinedStr(values=[ast.Constant(value=str(start)), _]):
            return tuple(start + end for end in _ENDS[start])
        case ast.Name(id=name) if name.isupper():
            module = importlib.import_module(".".join(path.with_suffix("").parts))
            return (str(getattr(module, name)),)
    return ()


def _checks() -> str:
    titles: dict[str, tuple[str, str, list[str]]] = {}
    for framework, those in CHECKS.items():
        for check in those:
            found = titles.setdefault(check.id, (check.level, check.title, []))
            found[2].append(FRAMEWORKS[framework].title)
    text = ""
    for level in LEVELS:
        text += f"### From level {level}\n\n"
        for name, (first, title, frameworks) in titles.items():
            if first == level:
                only = "" if len(frameworks) == len(CHECKS) else f" ({', '.join(frameworks)})"
                text += f"- `{name}`: {title}{only}\n"
        text += "\n"
    return text.removesuffix("\n")
