"""Facts about a base that a build needs, because it runs nothing in the base.

One pass over the base's layers finds its Python, the libraries that its loader knows, and what its
interpreter needs to run elsewhere. The facts are stored as JSON under the base's digest, so that
the same base is not read twice.
"""

from __future__ import annotations

import base64
import binascii
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import IO, Any

from images.layers.base_tree import BaseNode, BaseTree, read_tree, search
from images.layers.own_errors import BaseUnfitError
from images.oci.sources import Image

FORMAT = 1
"""Part of the key of stored facts: raise it when other facts are needed."""

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""A container's PATH if its image does not set one."""

_MOST_CONFIGURATION_BYTES = 64 << 10
_MOST_CACHE_BYTES = 16 << 20
_CACHE, _CONFIGURATION = "etc/ld.so.cache", "etc/ld.so.conf"
_WANTED = re.compile(
    r"""
      (.*/)?(platform-)?python(\d+(\.\d+)?)? | (.*/)?libpython[\w.]*\.so[\w.]*
    | (.*/)?lib(c|m|z|dl|pthread|util|rt|expat|crypt|gcc_s|intl)([-.][\d.]+)?\.so[\d.]*
    | (.*/)?ld-[\w.-]+\.so[\d.]* | (.*/)?python\d+\.\d+/(os\.py|lib-dynload/zlib\..*)
    | etc/ld\.so\.(cache|conf) | etc/ld\.so\.conf\.d/[^/]+ | (.*/)?bin/(bash|sh)
    | usr/local/cuda/.*bin/nvcc
    """,
    re.VERBOSE,
)
_GLIBC = re.compile(rb"GNU C Library [^\n]{0,100} version (\d+\.\d+)")
_LIBC = re.compile(r"libc\.so\.6|libc-[\d.]+\.so")
_NEEDED_TO_RUN = re.compile(
    r"lib(c|m|z|dl|pthread|util|rt|expat|crypt|gcc_s|intl|python[\w.]*)\.so\.[\d.]+"
)
_MACHINES: Mapping[str, tuple[str, str]] = {
    "amd64": ("x86_64-linux-gnu", "lib64/ld-linux-x86-64.so.2"),
    "arm64": ("aarch64-linux-gnu", "lib/ld-linux-aarch64.so.1"),
}
_FIX = "Let an engine put it there (--builder docker), or give a base with Python {python}: "
_FIX += "--base python:{python}-slim-bookworm, or --base bootstrap"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFacts:
    """Facts about a base; paths are absolute in it, with links resolved.

    `python` is the interpreter and `python_full` its full version (None: not found in the program).
    `ld_cache` is the loader's cache, `ld_conf` the files that name the directories that it covers,
    and `library_dirs` those directories, in order. To run the interpreter elsewhere, one has to
    copy `runtime` (its libraries, by the names they are loaded by), the `loader`, and `stdlib`, the
    directory of the standard library; "" if there is none.
    """

    python: str
    python_full: str | None
    glibc: str | None
    bash: bool
    cuda: bool
    ld_cache: bytes | None = field(default=None, repr=False)
    ld_conf: Mapping[str, str] = field(default_factory=dict)
    library_dirs: tuple[str, ...] = ()
    loader: str = ""
    stdlib: str = ""
    runtime: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        cache = None if self.ld_cache is None else base64.b64encode(self.ld_cache).decode()
        return {
            "format": FORMAT,
            **{name: getattr(self, name) for name in _PLAIN},
            "ld_cache": cache,
            "ld_conf": dict(self.ld_conf),
            "library_dirs": list(self.library_dirs),
            "runtime": dict(self.runtime),
        }


_PLAIN = ("python", "python_full", "glibc", "bash", "cuda", "loader", "stdlib")
_KINDS: Mapping[str, tuple[type, ...]] = {
    "python": (str,),
    "python_full": (str, type(None)),
    "glibc": (str, type(None)),
    "bash": (bool,),
    "cuda": (bool,),
    "loader": (str,),
    "stdlib": (str,),
}


def facts_from_json(document: object) -> BaseFacts | None:
    """Read the output of `to_json`; None if it is invalid: the base is then read again."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        return None
    plain: dict[str, Any] = {name: document.get(name) for name in _PLAIN}
    cache, dirs = document.get("ld_cache"), document.get("library_dirs")
    maps = [document.get("ld_conf"), document.get("runtime")]
    if not all(isinstance(plain[name], kinds) for name, kinds in _KINDS.items()):
        return None
    if not isinstance(cache, (str, type(None))) or not _are_texts(dirs):
        return None
    if not all(isinstance(one, dict) and _are_texts([*one, *one.values()]) for one in maps):
        return None
    try:
        content = None if cache is None else base64.b64decode(cache, validate=True)
    except (binascii.Error, ValueError):
        return None
    return BaseFacts(
        **plain,
        ld_cache=content,
        ld_conf=dict(document["ld_conf"]),
        library_dirs=tuple(document["library_dirs"]),
        runtime=dict(document["runtime"]),
    )


def _are_texts(found: object) -> bool:
    return isinstance(found, list) and all(isinstance(one, str) for one in found)


def read_base_facts(image: Image, python: str) -> BaseFacts:
    """Read the facts that an image with Python `python` ("3.11") needs from a base's layers.
    BaseUnfitError: the base has no such Python, or is built on musl.
    """
    version = re.compile(
        rb"\x00(" + re.escape(python.encode()) + rb"\.\d+(?:[abrc]+\d+)?\+?)[\x00 ]"
    )

    def look(path: str, content: IO[bytes]) -> bytes | None:
        name = posixpath.basename(path)
        if path == _CACHE:
            return content.read(_MOST_CACHE_BYTES)
        if path == _CONFIGURATION or path.startswith("etc/ld.so.conf.d/"):
            return content.read(_MOST_CONFIGURATION_BYTES)
        if "python" in name:
            return search(content, version)
        return search(content, _GLIBC) if _LIBC.fullmatch(name) else None

    tree = read_tree(image.layers, _WANTED, look)
    path, full = _interpreter(tree, image, python)
    glibc = _glibc(tree)
    if glibc is None and any(posixpath.basename(one).startswith("ld-musl-") for one in tree.nodes):
        raise BaseUnfitError(
            f"{image.shown} is built on musl; wheels with CUDA need glibc.",
            fix="Give a base of Debian, Ubuntu or the like: --base python:"
            f"{python}-slim-bookworm, or --base bootstrap",
        )
    configuration = {
        f"/{at}": (node.found or b"").decode("utf-8", "replace")
        for at, node in sorted(tree.nodes.items())
        if at == _CONFIGURATION or at.startswith("etc/ld.so.conf.d/")
    }
    cache = tree.file(_CACHE)
    dirs = tuple(directories_of(configuration))
    stdlib = _stdlib(tree, path, python)
    return BaseFacts(
        python=f"/{path}",
        python_full=full,
        glibc=glibc,
        bash=tree.file("bin/bash") is not None,
        cuda="usr/local/cuda" in tree.nodes
        or any(one.startswith("usr/local/cuda/") for one in tree.nodes),
        ld_cache=cache[1].found if cache else None,
        ld_conf=configuration,
        library_dirs=dirs,
        loader=_loader(tree, image.platform.architecture),
        stdlib=stdlib,
        runtime=_runtime(tree, image.platform.architecture, dirs, path, stdlib),
    )


def search_path(config: Mapping[str, Any]) -> str:
    """The PATH in an image's configuration, or the default."""
    inner = config.get("config")
    lines = inner.get("Env") if isinstance(inner, dict) else None
    for line in lines if isinstance(lines, list) else ():
        if isinstance(line, str) and line.startswith("PATH="):
            return line.removeprefix("PATH=")
    return DEFAULT_PATH


def _interpreter(tree: BaseTree, image: Image, python: str) -> tuple[str, str | None]:
    """Find the program and its full version, which is in it or in its libpython."""
    others = []
    directories = [part for part in search_path(image.config).split(":") if part.startswith("/")]
    for name in (f"python{python}", "python3", "python"):
        for directory in directories:
            found = tree.file(f"{directory}/{name}")
            if found is None or not found[1].runs:
                continue
            path, node = found
            full = _version(tree, path, node, python)
            if full is not None or posixpath.basename(path) == f"python{python}":
                return path, full
            others.append(f"/{path}")
    has = f"it has {', '.join(sorted(set(others)))}" if others else "it has no Python"
    raise BaseUnfitError(
        f"{image.shown} has no Python {python} on its PATH: {has}. Without an engine nothing can be"
        " installed into a base.",
        fix=_FIX.format(python=python),
    )


def _version(tree: BaseTree, path: str, node: BaseNode, python: str) -> str | None:
    if node.found:
        return node.found.decode()
    prefix = posixpath.dirname(posixpath.dirname(path))
    for at, library in sorted(tree.nodes.items()):
        name = posixpath.basename(at)
        if library.found and name.startswith(f"libpython{python}") and at.startswith(prefix):
            return library.found.decode()
    return None


def _glibc(tree: BaseTree) -> str | None:
    for at, node in sorted(tree.nodes.items()):
        if node.found and _LIBC.fullmatch(posixpath.basename(at)):
            return node.found.decode()
    return None


def _stdlib(tree: BaseTree, path: str, python: str) -> str:
    prefix = posixpath.dirname(posixpath.dirname(path))
    for lib in ("lib", "lib64"):
        found = tree.file(f"{prefix}/{lib}/python{python}/os.py")
        if found:
            return f"/{posixpath.dirname(found[0])}"
    return ""


def _loader(tree: BaseTree, architecture: str) -> str:
    if architecture not in _MACHINES:
        return ""
    found = tree.file(_MACHINES[architecture][1])
    return f"/{found[0]}" if found else ""


def _runtime(
    tree: BaseTree, architecture: str, dirs: tuple[str, ...], path: str, stdlib: str
) -> dict[str, str]:
    """Find the interpreter's libraries by name, each where the loader would find it."""
    if architecture not in _MACHINES or not stdlib:
        return {}
    triplet = _MACHINES[architecture][0]
    beside = posixpath.join(posixpath.dirname(posixpath.dirname(path)), "lib")
    searched = [beside, *dirs, f"lib/{triplet}", f"usr/lib/{triplet}"]
    searched += ["lib64", "usr/lib64", "lib", "usr/lib"]
    rank: dict[str, int] = {}
    for number, directory in enumerate(searched):
        rank.setdefault(tree.resolve(directory), number)
    best: dict[str, tuple[int, str]] = {}
    for at in sorted(tree.nodes):
        directory, name = posixpath.split(at)
        found = tree.file(at) if _NEEDED_TO_RUN.fullmatch(name) and directory in rank else None
        if found and (name not in best or rank[directory] < best[name][0]):
            best[name] = (rank[directory], f"/{found[0]}")
    libraries = {name: real for name, (_, real) in sorted(best.items())}
    for at in sorted(tree.nodes):  # Debian's interpreter has zlib built in, others as a module
        if at.startswith(f"{stdlib[1:]}/lib-dynload/zlib."):
            libraries[f"lib-dynload/{posixpath.basename(at)}"] = f"/{at}"
    return libraries


def directories_of(configuration: Mapping[str, str]) -> Iterator[str]:
    """Yield the directories in the loader's configuration in `ldconfig`'s order, each once."""
    seen: set[str] = set()
    for directory in _directories_in(f"/{_CONFIGURATION}", configuration, frozenset()):
        if directory not in seen:
            seen.add(directory)
            yield directory


def _directories_in(
    path: str, configuration: Mapping[str, str], above: frozenset[str]
) -> Iterator[str]:
    for line in configuration.get(path, "").splitlines():
        words = line.partition("#")[0].replace(",", " ").replace(":", " ").split()
        if words[:1] == ["include"]:
            for pattern in words[1:]:
                wanted = posixpath.join(posixpath.dirname(path), pattern)
                for other in sorted(configuration):
                    if fnmatchcase(other, wanted) and other not in above | {path}:
                        yield from _directories_in(other, configuration, above | {path})
        elif words[:1] != ["hwcap"]:
            yield from (word.rstrip("/") or "/" for word in words if word.startswith("/"))
