"""Finds what will fail in a Dockerfile, a compose file or a list of packages, before the build.

`lint_file` reads a file, `lint` checks its text; only the former reads the disk, the latter is
pure. Every rule has a row in `data/rules.toml`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from images.text.suggestions import no_such, or_nearby
from provision.catalog.catalog import Catalog
from provision.doctor.lint.findings import LintFinding, RuleHit, finding
from provision.doctor.lint.sarif import to_sarif
from provision.doctor.lint.show import describe_findings, findings_json
from provision.doctor.lint.silence import without_silenced
from provision.errors import BadInputError

if TYPE_CHECKING:
    from provision.doctor.lint.installed import InstalledFramework

    HostRule: TypeAlias = Callable[[InstalledFramework], Iterable[RuleHit]]

__all__ = [
    "LintFinding",
    "describe_findings",
    "findings_json",
    "is_of_a_kind",
    "kind_of",
    "kind_of_text",
    "lint",
    "lint_file",
    "to_sarif",
]

Kind: TypeAlias = Literal[
    "dockerfile", "compose", "requirements", "pyproject", "environment", "pixi"
]
LIMIT_BYTES = 1 << 18
"""Larger than any hand-written file of these kinds; YAML takes seconds to parse so much."""

_NAMES: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("dockerfile", re.compile(r"(dockerfile|containerfile)([.-_].+)?|.+\.(docker|container)file")),
    ("compose", re.compile(r"((docker|podman)-)?compose([.-_].+)?\.ya?ml")),
    ("requirements", re.compile(r"((.+[-_.])?requirements|constraints)([-_.].+)?\.(txt|in)")),
    ("pyproject", re.compile(r"pyproject\.toml")),
    ("pixi", re.compile(r"pixi\.toml")),
    ("environment", re.compile(r"(conda[-_.])?(env|environment)([-_.].+)?\.ya?ml")),
)
_FOR_CPUS = frozenset(["torch-cpu-wheel", "jax-cpu"])
_TRACEBACK = re.compile(
    r"^(?![ \t]*#).*Traceback \(most recent call last\)|^(?:\w+\.)*[A-Z]\w*(?:Error|Exception): ",
    re.MULTILINE | re.ASCII,
)
_KEY = re.compile(r"""(?:[\w.$-]+|"[^"]*"|'[^']*')\s*:(?:\s|$)|#|---|\.\.\.|-(?:\s|$)|[]}]""")
_LEVEL = re.compile(r"(?:error|fatal|panic|critical|warn(?:ing)?|info|debug)\s*:", re.IGNORECASE)
# "Killed" is all that some shells say, and a sentence may hold an @ and an address.
_ONE_PACKAGE = re.compile(
    r"-\S.*|[a-z][a-z\d._-]*(?:\s+#.*)?|[A-Za-z][\w.-]*\s*[=<>~!@;\[].*", re.ASCII
)
_NOT_THESE = (".dockerignore", ".md", ".j2", ".jinja", ".tmpl", ".template")
_FIX = (
    "Name a Dockerfile, a compose file, a requirements file, a pyproject.toml, an "
    "environment.yml of conda or a pixi.toml."
)


def kind_of(path: Path) -> Kind | None:
    """The kind of a file from its name alone: Dockerfile.gpu, compose.yaml,
    requirements-gpu.txt.
    """
    name = path.name.lower()
    if name.endswith(_NOT_THESE):
        return None
    return next((kind for kind, pattern in _NAMES if pattern.fullmatch(name)), None)


def is_of_a_kind(path: Path) -> bool:
    """Whether a file is of a supported kind, from its name or, if it is small, its content. One
    that holds a traceback is a log, whatever its name.
    """
    by_name = kind_of(path) is not None
    try:
        if path.stat().st_size > LIMIT_BYTES:
            return by_name
        text = path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return by_name
    return not _has_traceback(text) if by_name else kind_of_text(text) is not None


def lint_file(path: Path, catalog: Catalog, runs: HostRule | None = None) -> list[LintFinding]:
    """The findings of a file. BadInputError: it cannot be read, or is of an unsupported kind."""
    found = lint(str(path), _read(path), catalog, runs)
    if any(_is_a_note_on_pixi(one) for one in found) and not _may_use_gpus(path.parent):
        return [one for one in found if not _is_a_note_on_pixi(one)]
    return found


def _is_a_note_on_pixi(one: LintFinding) -> bool:
    return (one.rule, one.level) == ("conda-without-gpu", "note")


def _may_use_gpus(folder: Path) -> bool:
    """Whether pixi's manifest beside a Dockerfile names anything for GPUs, or is not there."""
    texts = []
    for name in ("pixi.toml", "pyproject.toml"):
        with suppress(BadInputError):
            texts.append(_read(folder / name))
    used = re.compile(r"cuda|gpu|torch|tensorflow|jax|nvidia", re.IGNORECASE)
    return not texts or any(used.search(text) for text in texts)


def lint(path: str, text: str, catalog: Catalog, runs: HostRule | None = None) -> list[LintFinding]:
    """The findings of a text, by line. `path` is its name; if that shows no kind, the text decides.
    `runs` judges each framework that the file installs.

    BadInputError: an unsupported kind, or invalid YAML.
    """
    kind = kind_of(Path(path)) or kind_of_text(text)
    if kind is None:
        raise BadInputError(
            f"{path} is not a supported file: neither its name nor its content is that of a "
            "Dockerfile, a compose file, requirements or a project file.",
            fix=_FIX,
        )
    lines = tuple(text.splitlines())
    hits = list(_judge(kind, path, text, catalog))
    if runs is not None:
        from provision.doctor.lint.installed import installed_frameworks

        of_host = [
            hit for one in installed_frameworks(kind, path, text, catalog) for hit in runs(one)
        ]
        known = {hit.rule for hit in of_host} & _FOR_CPUS  # with the build for that host
        hits = [hit for hit in hits if hit.rule not in known] + of_host
    found = without_silenced(hits, lines)
    findings = {finding(one, path, lines) for one in found}
    return sorted(findings, key=lambda one: (one.line, one.column, one.rule, one.message))


def kind_of_text(text: str) -> Kind | None:
    """The kind of a file from its content; None: unknown. A text that could be a log, too, is one:
    a log that shows a file is answered by what failed in it.
    """
    from provision.doctor.lint.compose_rules import looks_like_compose
    from provision.doctor.lint.dockerfile import looks_like_dockerfile
    from provision.doctor.lint.requirements import looks_like_requirements
    from provision.sources.conda import looks_like_environment

    if _has_traceback(text):
        return None
    if looks_like_dockerfile(text):
        return "dockerfile"
    if looks_like_compose(text) and _has_keys_alone(text):
        return "compose"
    if looks_like_environment(text) and _has_keys_alone(text):
        return "environment"
    line = text.strip()
    is_said = "\n" not in line and not _ONE_PACKAGE.fullmatch(line)
    if is_said or any(_LEVEL.match(each.lstrip()) for each in text.splitlines()):
        return None
    return "requirements" if looks_like_requirements(text) else None


def _has_traceback(text: str) -> bool:
    return _TRACEBACK.search(text) is not None


def _has_keys_alone(text: str) -> bool:
    """Whether nothing but keys, items and comments of YAML stands at the left margin."""
    margin = [line for line in text.splitlines() if line[:1].strip()]
    return all(_KEY.match(line) and not _LEVEL.match(line) for line in margin)


def _judge(kind: Kind, path: str, text: str, catalog: Catalog) -> Iterator[RuleHit]:
    if kind == "dockerfile":
        from provision.doctor.lint.base_rules import base_rules
        from provision.doctor.lint.dockerfile import read_dockerfile
        from provision.doctor.lint.env_rules import env_rules
        from provision.doctor.lint.run_rules import run_rules

        file = read_dockerfile(path, text)
        for rules in (base_rules, run_rules, env_rules):
            for hit in rules(file, catalog):
                yield replace(hit, start=file.start_of(hit.at.line))
    elif kind == "compose":
        from provision.doctor.lint.compose_rules import judge_compose

        yield from judge_compose(path, text, catalog)
    elif kind == "pyproject":
        from provision.doctor.lint.pyproject import judge_pyproject

        yield from judge_pyproject(path, text, catalog)
    elif kind == "environment":
        from provision.doctor.lint.conda_environment import judge_environment

        yield from judge_environment(path, text, catalog)
    elif kind == "pixi":
        from provision.doctor.lint.pixi import judge_pixi

        yield from judge_pixi(path, text, catalog)
    else:
        from provision.doctor.lint.requirements import judge_requirements

        yield from judge_requirements(path, text, catalog)


def _read(path: Path) -> str:
    """The text of a file of a sensible size, else a sentence that says what is wrong with it."""
    try:
        if not path.is_file():  # a device or a pipe could be endless
            if not path.exists():
                raise BadInputError(no_such("file", path), fix=or_nearby(path, _FIX))
            what = "it is a directory" if path.is_dir() else "it is not a regular file"
            raise BadInputError(f"{path} cannot be read: {what}.", fix=_FIX)
        with path.open("rb") as stream:
            content = stream.read(LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInputError(f"{path} cannot be read: {why}.", fix=_FIX) from error
    if len(content) > LIMIT_BYTES:
        raise BadInputError(f"{path} is larger than 256 KiB.", fix=_FIX)
    if b"\0" in content:
        raise BadInputError(f"{path} is not text.", fix=_FIX)
    return content.decode("utf-8-sig", errors="replace")
