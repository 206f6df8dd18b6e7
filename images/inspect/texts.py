"""Parses the texts of a wheel that say what it was built for; executes none of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from images.inspect.model import Capability
from images.text.printable import printable

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9.!+_-]{1,100}")
TARGET = re.compile(r"(?P<kind>sm|compute)_(?P<number>\d{2,3})(?P<suffix>[af]?)")
_NUMBER = rb"_\d{2,3}[af]?"
_MORE = rb"(?: (?:sm|compute)" + _NUMBER + rb")*(?=\x00)"
# Two patterns that begin with letters are ten times as fast as one that begins with a choice.
_FLAGS = (re.compile(rb"sm" + _NUMBER + _MORE), re.compile(rb"compute" + _NUMBER + _MORE))
_INSIDE_A_SENTENCE = b" ,.:;/=+'\"(-"
_LONGEST_FLAGS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelMetadata:
    """What METADATA says; `requires` are its Requires-Dist lines."""

    name: str
    version: str
    requires: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorflowBuildInfo:
    """What TensorFlow's build_info.py says; None and () for missing values."""

    cuda_build: bool | None
    cuda: str | None
    cudnn: str | None
    capabilities: tuple[str, ...]


def parse_metadata(data: bytes) -> WheelMetadata | None:
    """Parse METADATA's header; None without a valid name and version."""
    head = re.split(r"\r?\n\r?\n", data.decode("utf-8", "replace"), maxsplit=1)[0]
    fields: dict[str, list[str]] = {}
    for line in re.sub(r"\r?\n[ \t]+", " ", head).splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip().lower(), []).append(printable(value.strip()))
    name, version = fields.get("name", [""])[0], fields.get("version", [""])[0]
    if not _NAME.fullmatch(name) or not _VERSION.fullmatch(version):
        return None
    return WheelMetadata(
        name=name, version=version, requires=tuple(fields.get("requires-dist", ()))
    )


def parse_tags(data: bytes) -> tuple[tuple[str, str], ...]:
    """Read WHEEL's tags as ("cp311-cp311", "manylinux_2_28_x86_64")."""
    text = data.decode("utf-8", "replace")
    tags = re.findall(r"^Tag:\s*(\S+)-(\S+)-(\S+)\s*$", text, re.MULTILINE)
    return tuple((f"{python}-{abi}", platform) for python, abi, platform in tags)


def assigned(data: bytes) -> dict[str, str | None]:
    """Read a version.py: the top-level names that are assigned a string or None."""
    pattern = r"^(\w+)\s*(?::[^=\n]*)?=\s*(?:(None)|'([^'\n]*)'|\"([^\"\n]*)\")\s*(?:#.*)?$"
    found = re.findall(pattern, data.decode("utf-8", "replace"), re.MULTILINE)
    return {name: None if none else single or double for name, none, single, double in found}


def parse_build_info(data: bytes) -> TensorflowBuildInfo:
    """Parse TensorFlow's build_info.py, a list of pairs; capabilities only if all are targets."""
    text = data.decode("utf-8", "replace")

    def value(key: str) -> str | None:
        match = re.search(rf"""["']{key}["']\s*[:,]\s*["']?([^"',)}}\n]*)""", text)
        return match[1].strip() if match else None

    listed = re.search(r"""["']cuda_compute_capabilities["']\s*[:,]\s*\[([^\]]*)\]""", text)
    words = tuple(re.findall(r"""["']([^"']*)["']""", listed[1])) if listed else ()
    return TensorflowBuildInfo(
        cuda_build={"True": True, "False": False}.get(value("is_cuda_build") or ""),
        cuda=two_parts(value("cuda_version")),
        cudnn=_number(value("cudnn_version")),
        capabilities=words if all(TARGET.fullmatch(word) for word in words) else (),
    )


def find_flags(pieces: Iterable[bytes]) -> tuple[str, ...]:
    """Find the architecture flags in a library that comes in pieces, and split them.

    They are a separate string, and the only one of several words; a build for one target has the
    only string of one word. () if that is not unique.
    """
    found: dict[tuple[str, ...], None] = {}
    last = b""
    for piece in pieces:
        window = last + piece
        for match in (match for pattern in _FLAGS for match in pattern.finditer(window)):
            words = tuple(match[0].decode("ascii").split(" "))
            before = window[max(0, match.start() - 1) : match.start()]
            # a match that ended in the previous piece was seen there, and may be cut off here
            if match.end() >= len(last) and _is_whole(words, before):
                found[words] = None
        last = window[-_LONGEST_FLAGS:]
    lists = [words for words in found if len(words) > 1] or list(found)
    return lists[0] if len(lists) == 1 else ()


def _is_whole(words: tuple[str, ...], before: bytes) -> bool:
    """Whether the byte before a list shows that it is a separate string; a single word needs a 0.

    The compiler may put constants that end in letters right before the first of a library's
    strings (torch 2.8, 2.9), so a list need not come after a zero.
    """
    return before not in _INSIDE_A_SENTENCE if len(words) > 1 else before == b"\0"


def capability(word: str) -> Capability | None:
    """Read a target's number: "sm_86" is (8, 6), "compute_120" is (12, 0)."""
    match = TARGET.fullmatch(word)
    return divmod(int(match["number"]), 10) if match else None


def two_parts(version: str | None) -> str | None:
    """Shorten a CUDA version to X.Y; None if it is not one."""
    match = re.match(r"\d{1,3}\.\d{1,3}(?!\d)", version or "")
    return match[0] if match else None


def _number(text: str | None) -> str | None:
    return text if re.fullmatch(r"\d[\d.]{0,20}", text or "") else None


def pinned_cudnn(requires: Iterable[str]) -> str | None:
    """The one cuDNN version that the wheel pins, if any."""
    pattern = re.compile(r"nvidia-cudnn-cu\d+\s*\(?==\s*([\d.]+)\)?\s*(?:;.*)?")
    found = {match[1] for line in requires if (match := pattern.fullmatch(line.strip()))}
    return found.pop() if len(found) == 1 else None


def versions_of(data: Mapping[str, str | None], version: str) -> str:
    """The version with its build ("2.0.1+cu117"), if version.py has the same version."""
    own = data.get("__version__") or ""
    same = own.partition("+")[0] == version.partition("+")[0]
    return own if same and _VERSION.fullmatch(own) else version
