"""The loader's cache of libraries, as ldconfig writes it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

from images.bootstrap.tree import PackageTree, merged_path, plain_path
from images.layers.base_facts import directories_of
from images.system.ldcache import FLAGS, CacheEntry, write_cache

WANTED = r"etc/ld\.so\.conf(\.d/[^/]+)?"
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_MOST_LINKS = 8
_LIBRARY = re.compile(r"lib.*\.so(\..*)?|ld-.*")


def add_cache(tree: PackageTree) -> None:
    """Write /etc/ld.so.cache from the libraries in the directories that the loader searches."""
    configuration = {
        f"/{path}": content.decode("utf-8", "replace")
        for path, content in sorted(tree.texts.items())
        if path.startswith("etc/ld.so.conf")
    }
    shown: dict[str, str] = {}  # if a directory has two names, the first is used
    for name in (*directories_of(configuration), "/lib", "/usr/lib"):
        shown.setdefault(merged_path(plain_path(name)), name)
    flags = FLAGS[_MACHINES[tree.arch]]
    links = tree.all_links()
    entries = [
        CacheEntry(name=name, path=f"{directory}/{name}", flags=flags)
        for real, directory in shown.items()
        for name in _names_in(tree, links, real)
    ]
    tree.add_file("etc/ld.so.cache", write_cache(entries))


def _names_in(tree: PackageTree, links: Mapping[str, str], directory: str) -> list[str]:
    """List the libraries of a directory by soname. The name for linking ("libc.so") is a link with
    another name, and has a separate entry. A link may lead to a library in another directory, as
    those of alternatives do.
    """
    names = set()
    for path, soname in tree.sonames.items():
        if posixpath.dirname(path) == directory:
            names.add(soname or posixpath.basename(path))
    for path, target in links.items():
        name = posixpath.basename(path)
        if posixpath.dirname(path) != directory or not _LIBRARY.fullmatch(name):
            continue
        aim = _aim(links, path, target)
        soname = tree.sonames.get(aim, "")
        if aim in tree.sonames and name.endswith(".so") and (soname or name).startswith(name):
            names.add(name)
        elif aim in tree.sonames and posixpath.dirname(aim) != directory:
            names.add(soname or name)
    return sorted(names)


def _aim(links: Mapping[str, str], path: str, target: str) -> str:
    """Follow a chain of links to the path of a file."""
    for _ in range(_MOST_LINKS):
        aim = posixpath.normpath(posixpath.join("/", posixpath.dirname(path), target))
        path = merged_path(plain_path(aim))
        if path not in links:
            break
        target = links[path]
    return path
