"""apt's sources in the image: Debian's mirror, from the example in the package apt."""

from __future__ import annotations

from images.bootstrap.mirrors import canonical_sources
from images.bootstrap.tree import PackageTree

_EXAMPLES = (
    "usr/share/doc/apt/examples/debian.sources",
    "usr/share/doc/apt/examples/sources.list",
)
WANTED = "|".join(_EXAMPLES)


def add_apt(tree: PackageTree) -> None:
    """Write /etc/apt/sources.list."""
    if not tree.has("usr/bin/apt-get"):
        return
    found = (tree.read(example) for example in _EXAMPLES)
    example = next((content for content in found if content is not None), b"")
    sources = canonical_sources(example.decode("utf-8", "replace"), tree.suite)
    tree.add_file("etc/apt/sources.list", sources)
