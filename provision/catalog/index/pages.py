"""Index pages -> files. Pure; handles any input: text that is not a page raises PageError.

Reads both forms of the simple API: JSON (PEP 691, 700) and HTML (PEP 503, 592, 658, 714). The HTML
is parsed with patterns of bounded length, so that the time is linear in its length.

Sources: https://packaging.python.org/en/latest/specifications/simple-repository-api/
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

JSON_TYPE = "application/vnd.pypi.simple.v1+json"
HTML_TYPE = "application/vnd.pypi.simple.v1+html"
ACCEPT = f"{JSON_TYPE}, {HTML_TYPE};q=0.2, text/html;q=0.1"
"""The Accept header: JSON first, which has sizes and times."""

_JSON_TYPES = frozenset({JSON_TYPE, "application/json"})
_HTML_TYPES = frozenset({HTML_TYPE, "text/html", "application/xhtml+xml"})
_TAG = re.compile(
    r"""<(a|base|meta)\s((?:[^<>"']|"[^"]{0,4096}"|'[^']{0,4096}'){0,4096})>""", re.IGNORECASE
)
_ATTRIBUTE = re.compile(r"""([^\s=>"'/]+)(?:\s{0,9}=\s{0,9}(?:"([^"]*)"|'([^']*)'|([^\s"'>]+)))?""")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z|\+00:00)?")


class PageError(Exception):
    """Not a page of a simple index; the end of the sentence says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFile:
    """One file of a page. None: the page does not say.

    `uploaded` is UTC, as "2026-10-28T15:17:10". `metadata`: its METADATA is a separate file.
    """

    name: str
    url: str
    sha256: str | None = None
    size: int | None = None
    requires_python: str | None = None
    yanked: bool = False
    uploaded: str | None = None
    metadata: bool = False
    metadata_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """One page: its files in its order, each name once, and every URL that it links to."""

    files: tuple[PageFile, ...]
    links: tuple[str, ...] = ()


def parse_page(body: bytes, content_type: str, url: str) -> Page:
    """A page of the index as the server sent it; `url` is its URL after redirects."""
    kind = content_type.partition(";")[0].strip().lower()
    if not kind:
        kind = JSON_TYPE if body.lstrip()[:1] == b"{" else HTML_TYPE
    if kind in _JSON_TYPES:
        return _once(parse_json(body, url), ())
    if kind in _HTML_TYPES:
        return parse_html(body.decode("utf-8", "replace"), url)
    raise PageError(f"it is {kind[:60]!r}, no page of an index")


def parse_json(body: bytes, url: str) -> Iterator[PageFile]:
    """PEP 691. Skips a malformed file entry; a malformed page raises PageError."""
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError):
        raise PageError("it is not complete JSON") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("files"), list):
        raise PageError("it is JSON without a list of files")
    meta = raw.get("meta")
    _refuse_later(meta.get("api-version") if isinstance(meta, dict) else None)
    return (file for entry in raw["files"] if (file := _json_file(entry, url)) is not None)


def parse_html(text: str, url: str) -> Page:
    """PEP 503: every link is a file, wherever it is in the page; names come from the URLs."""
    text = _without_comments(text)
    lowered = text.lower()
    if "<html" in lowered and "</html" not in lowered:
        raise PageError("it is cut off: the end of the HTML is missing")
    base, links, files = url, [], []
    for found in _TAG.finditer(text):
        attributes = _attributes(found[2])
        element, address = found[1].lower(), _joined(base, attributes.get("href", ""))
        if element == "base":
            base = _joined(url, attributes.get("href", "")) or url
        elif element == "meta":
            if attributes.get("name", "").lower() == "pypi:repository-version":
                _refuse_later(attributes.get("content"))
        elif address is not None:
            links.append(urldefrag(address).url)
            if (file := _html_file(address, attributes)) is not None:
                files.append(file)
    return _once(iter(files), tuple(dict.fromkeys(links)))


def _json_file(entry: object, url: str) -> PageFile | None:
    if not isinstance(entry, dict):
        return None
    name, address = entry.get("filename"), entry.get("url")
    if not isinstance(name, str) or not isinstance(address, str) or not name:
        return None
    joined = _joined(url, address)
    if joined is None:
        return None
    hashes = entry.get("hashes")
    size = entry.get("size")
    # PEP 714 renamed the key; servers give one or both
    core = entry.get("core-metadata", entry.get("dist-info-metadata"))
    return PageFile(
        name=name,
        url=urldefrag(joined).url,
        sha256=_sha256(hashes.get("sha256")) if isinstance(hashes, dict) else None,
        size=size if type(size) is int and size >= 0 else None,
        requires_python=_text(entry.get("requires-python")),
        yanked=bool(entry.get("yanked", False)),
        uploaded=_time(entry.get("upload-time")),
        metadata=core is True or isinstance(core, dict),
        metadata_sha256=_sha256(core.get("sha256")) if isinstance(core, dict) else None,
    )


def _html_file(address: str, attributes: Mapping[str, str]) -> PageFile | None:
    where, fragment = urldefrag(address)
    name = unquote(urlsplit(where).path.rpartition("/")[2])
    if not name.endswith((".whl", ".tar.gz", ".zip")):
        return None
    core = attributes.get("data-core-metadata", attributes.get("data-dist-info-metadata"))
    return PageFile(
        name=name,
        url=where,
        sha256=_sha256(fragment.partition("sha256=")[2]),
        requires_python=_text(attributes.get("data-requires-python")),
        yanked="data-yanked" in attributes,
        uploaded=_time(attributes.get("data-upload-time")),
        metadata=core is not None and core != "false",
        metadata_sha256=_sha256((core or "").partition("sha256=")[2]),
    )


def _once(files: Iterator[PageFile], links: tuple[str, ...]) -> Page:
    """Servers that merge several indexes may list a file twice; the first one counts, as
    for pip.
    """
    by_name: dict[str, PageFile] = {}
    for file in files:
        by_name.setdefault(file.name, file)
    return Page(tuple(by_name.values()), links)


def _without_comments(text: str) -> str:
    parts, position = [], 0
    while (start := text.find("<!--", position)) >= 0:
        parts.append(text[position:start])
        end = text.find("-->", start + 4)
        if end < 0:
            return "".join(parts)
        position = end + 3
    return "".join(parts) + text[position:]


def _attributes(text: str) -> dict[str, str]:
    return {
        found[1].lower(): html.unescape(found[2] or found[3] or found[4] or "")
        for found in _ATTRIBUTE.finditer(text)
    }


def _joined(base: str, address: str) -> str | None:
    try:
        joined = urljoin(base, address.strip())
        return joined if urlsplit(joined).scheme in {"http", "https"} else None
    except ValueError:
        return None


def _refuse_later(version: object) -> None:
    """A later major of the interface may change the meaning of the same words (PEP 629)."""
    if isinstance(version, str) and version and version.partition(".")[0] != "1":
        raise PageError(f"it is of version {version[:20]!r} of the interface; 1 is understood")


def _sha256(value: object) -> str | None:
    text = value.lower() if isinstance(value, str) else ""
    return text if _SHA256.fullmatch(text) else None


def _time(value: object) -> str | None:
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    return found[1] if found else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
