"""User input -> `Request`. Refuses invalid input.

Every message quotes at most the first characters of the input: input may be 10 kB long or
hold control characters, and it is echoed to a terminal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from images.text.printable import printable
from provision.errors import BadInputError
from provision.model import grammar
from provision.model.environment import is_git_url, is_wheel_url, public_requirement, requirement_of
from provision.model.plan import ComputeCapability, Flavour, Framework, Request

_MOST_ADDRESS = 4000  # a signature with a session token has 2,000
_MOST_QUOTED = 10_000  # read of what is shortened for display: a token has thousands
_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})", re.ASCII)
_FREE_THREADED = re.compile(r"(3\.\d{1,3})t", re.ASCII)
_WHEEL_TAG = re.compile(r"cu(\d{2,3})", re.ASCII)
_DRIVER = re.compile(r"\d{3,4}(?:\.\d{1,4}){0,3}", re.ASCII)
_BUILD = re.compile(r"(?:==)?(\d[\w.]{0,40})\+(cu\d{2,3})", re.ASCII)
_REFERENCE = re.compile(r"[a-z0-9][\w.\-/:@]{0,300}", re.ASCII)

FRAMEWORKS: dict[str, Framework] = {
    "pytorch": "pytorch",
    "torch": "pytorch",
    "tensorflow": "tensorflow",
    "tf": "tensorflow",
    "tensorflow-gpu": "tensorflow",
    "jax": "jax",
}
"""What people call the frameworks, in lower case."""
RENAMED = frozenset({"tensorflow-gpu"})
"""Names that packages once had; accepted, with a message about what became of them."""


def quoted(text: str, limit: int = 40) -> str:
    """The text for display: one line, printable, shortened, without the secrets of an address."""
    if "://" in text:
        from images.net.address import shown_text  # 2 ms that most commands do not need

        text = shown_text(text[:_MOST_QUOTED])
    clean = printable(text[: limit + 1])
    return repr(clean[:limit] + ("..." if len(text) > limit else ""))


def parse_cuda(text: str) -> str:
    """ "11.7" or "cu117" -> "11.7". BadInputError: neither form."""
    if match := _VERSION.fullmatch(text):
        return f"{int(match[1])}.{int(match[2])}"
    if match := _WHEEL_TAG.fullmatch(text):
        return f"{int(match[1][:-1])}.{match[1][-1]}"
    raise BadInputError(
        f"--cuda {quoted(text)} is not a CUDA version (MAJOR.MINOR).",
        fix="For example: --cuda 11.7. Without --cuda the plan takes the newest that fits.",
    )


def parse_python(text: str) -> str:
    """ "3.11" -> "3.11"; a patch release or another major is refused."""
    match = _VERSION.fullmatch(text)
    if (threaded := _FREE_THREADED.fullmatch(text)) is not None:
        raise BadInputError(
            f"--python {quoted(text)} is free-threaded Python, for which no plan is made.",
            fix=f"Use --python {threaded[1]}",
        )
    if match is None or match[1] != "3":
        raise BadInputError(
            f"--python {quoted(text)} is not a Python version (3.MINOR).",
            fix="For example: --python 3.11",
        )
    return f"3.{int(match[2])}"


def parse_driver(text: str, option: str = "--driver") -> str:
    """An NVIDIA driver version, in the driver's own spelling ("515.65.01"). BadInputError: it is
    not valid.
    """
    if _DRIVER.fullmatch(text):
        return text
    cuda = " It looks like a CUDA version." if re.fullmatch(r"1\d\.\d", text) else ""
    raise BadInputError(
        f"{option} {quoted(text)} is not an NVIDIA driver version.{cuda}",
        fix=f"Use what nvidia-smi --query-gpu=driver_version --format=csv prints: {option} VERSION",
    )


def parse_compute_capability(text: str) -> ComputeCapability | None:
    """ "8.6" -> (8, 6); None if the text has another form (a GPU's name, for example)."""
    match = _VERSION.fullmatch(text)
    return (int(match[1]), int(match[2])) if match else None


def parse_framework(text: str) -> Framework:
    """A framework by any of its names, in upper or lower case: "JAX", "torch", "tf"."""
    found = FRAMEWORKS.get(text.casefold())
    if found is not None:
        return found
    from difflib import get_close_matches

    near = get_close_matches(text.casefold()[:40], FRAMEWORKS, n=1)
    maybe = f" Did you mean {FRAMEWORKS[near[0]]}?" if near else ""
    raise BadInputError(
        f"--framework {quoted(text)} is not known.{maybe}",
        fix="Use one of: pytorch, tensorflow, jax",
    )


def parse_specifier(text: str) -> str:
    """A PEP 440 specifier set; a bare version means that version exactly."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        if len(text) > 200:
            raise InvalidSpecifier(text)  # noqa: TRY301  one message for every bad specifier
        if text[:1].isdigit():
            return f"=={Version(text)}"
        if not text.strip():
            raise InvalidSpecifier(text)  # noqa: TRY301
        return str(SpecifierSet(text))
    except (InvalidSpecifier, InvalidVersion):
        raise BadInputError(
            f"--framework-version {quoted(text)} is not a version specifier.",
            fix="Use a PEP 440 specifier, for example --framework-version 2.0.1 or '>=2,<2.1'",
        ) from None


def parse_requirement(text: str) -> tuple[str, str]:
    """A PEP 508 requirement: by name, or by the address of a wheel; and its whole address, if that
    may be secret. BadInputError: other URLs and local paths, which cannot be locked.
    """
    from packaging.requirements import InvalidRequirement

    try:
        requirement = requirement_of(text, _MOST_ADDRESS if "@" in text else 200)
    except InvalidRequirement:
        raise BadInputError(
            f"--with {quoted(text)} is not a valid requirement.",
            fix="Give a package name or a requirement, for example --with torchvision "
            "or --with 'transformers>=4.40'",
        ) from None
    url = requirement.url
    if url and not (is_wheel_url(url) or is_git_url(url)):
        raise BadInputError(
            f"--with {quoted(text)} names a URL that is not a wheel's, nor a git repository's.",
            fix="Give the address of a wheel: --with 'flash-attn @ https://HOST/NAME.whl'; or a "
            "commit: --with 'NAME @ git+https://HOST/OWNER/NAME@COMMIT'; or publish the package "
            "to an index and name it there (see --index)",
        )
    return public_requirement(requirement)


def parse_index(text: str) -> str:
    """An http(s) or file URL of a package index. It keeps its credentials, which are hidden on
    display.
    """
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(text)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname)
        shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        usable = usable and grammar.ADDRESS.fits(shown)
        _ = parts.port
    except ValueError:
        usable = False
    if not usable or len(text) > 2000 or any(c.isspace() or not c.isprintable() for c in text):
        raise BadInputError(
            "--index is not an http or https URL.",
            fix="Give the address of a simple index, for example "
            "--index https://mirror.example/pytorch/whl/cu117",
        )
    return text


def _names_an_image(text: str) -> bool:
    from images.oci.errors import BadReference
    from images.oci.reference import parse_reference

    try:
        parse_reference(text)
    except BadReference:
        return False
    return True


_LOCAL = ("oci:", "oci-archive:", "docker-archive:")


def is_local(reference: str) -> bool:
    """Whether a base is on this machine, in skopeo's notation."""
    return reference.startswith(_LOCAL)


def parse_base(text: str) -> str:
    """ "bootstrap", an image reference, or a place on this machine, whose path is made absolute."""
    if is_local(text) and len(text) <= 4096 and text.isprintable():
        kind, _, path = text.partition(":")
        if path:
            return f"{kind}:{os.path.abspath(path)}"  # noqa: PTH100  links are not resolved
    elif text == "bootstrap" or (_REFERENCE.fullmatch(text) and _names_an_image(text)):
        return text
    raise BadInputError(
        f"--base {quoted(text)} is not a valid image reference.",
        fix="Give an image such as python:3.11-slim-bookworm, oci:DIR, or --base bootstrap",
    )


def parse_snapshot(text: str, now: float) -> str:
    """The date of a base's Debian packages: a date, a snapshot's own name, or "today".
    BadInputError: anything else.
    """
    from images.bootstrap.mirrors import stamp_before

    if text == "today":
        return stamp_before(now)
    if match := re.fullmatch(r"(\d{4})-?(\d\d)-?(\d\d)(T\d{6}Z)?", text):
        return f"{match[1]}{match[2]}{match[3]}{match[4] or 'T000000Z'}"
    raise BadInputError(
        f"--snapshot {quoted(text)} is not a date.",
        fix="For example: --snapshot 2026-03-01, or --snapshot today",
    )


def parse_apt(names: Sequence[str], place: str = "--apt") -> tuple[str, ...]:
    """Names of Debian packages, each once, sorted. BadInputError: `place` has another text."""
    for name in names:
        if not grammar.DEBIAN_NAME.fits(name):
            raise BadInputError(
                f"{place} {quoted(name)} is not the name of a Debian package.",
                fix="Give a name, without a version: --apt ffmpeg --apt libgl1; to decide the "
                "versions, add a date: --snapshot 2026-03-01",
            )
    return tuple(sorted(set(names)))


def with_apt(request: Request, names: Sequence[str], place: str = "--apt") -> Request:
    """The request with these Debian packages of `place`, too. BadInputError: its base is on this
    machine, where nothing installs them.
    """
    if names and request.base is not None and is_local(request.base):
        raise BadInputError(
            f"{place} installs packages in a base that is built from Debian packages, or by an "
            f"engine in an image of a registry, and not in --base {quoted(request.base)}.",
            fix=f"Use --base bootstrap, or an image that has them and no {place}",
        )
    return request._replace(apt=tuple(sorted({*request.apt, *names})))


def parse_request(
    *,
    cuda: str | None = None,
    framework: str = "pytorch",
    framework_version: str | None = None,
    python: str | None = None,
    companions: Sequence[str] = (),
    flavour: Flavour | None = None,
    base: str | None = None,
    index: str | None = None,
    apt: Sequence[str] = (),
) -> Request:
    """Checks each word, in the order in which they are usually typed. BadInputError: the first that
    is wrong.
    """
    name = framework.casefold()
    wanted = None if cuda is None else parse_cuda(cuda)
    if framework_version is not None and (build := _BUILD.fullmatch(framework_version)):
        framework_version, theirs = build[1], parse_cuda(build[2])
        if wanted not in {None, theirs}:
            raise BadInputError(
                f"--framework-version {quoted(build[0])} is a build for CUDA {theirs}, not for "
                f"--cuda {wanted}.",
                fix=f"Use --cuda {theirs}, or remove --cuda.",
            )
        wanted = theirs
    named = [parse_requirement(word) for word in companions]
    request = Request(
        cuda=wanted,
        framework=parse_framework(framework),
        asked_as=name if name in RENAMED else None,
        framework_version=None if framework_version is None else parse_specifier(framework_version),
        python=None if python is None else parse_python(python),
        companions=tuple(text for text, _ in named),
        addresses=tuple(address for _, address in named if address),
        flavour=flavour,
        base=None if base is None else parse_base(base),
        index_url=None if index is None else parse_index(index),
    )
    return with_apt(request, parse_apt(apt))
