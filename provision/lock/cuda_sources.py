"""Whether a wheel compiles CUDA code when it runs: it brings sources and nothing compiled, and its
modules name PyTorch's compiler (torch.utils.cpp_extension).

Only the directory of the wheel is read, and of one with such sources the modules near them.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import commonpath, dirname

from images.inspect.archive import WheelArchive
from images.inspect.remote import is_url, open_url
from images.wheels.directory import Member
from provision.lock.runtimes import WAIT_S

_COMPILED = re.compile(r"\.(so(\.\d+)*|a|cubin|fatbin)$")
_COMPILER = b"cpp_extension"
_MOST_MODULES = 64
_MOST_BYTES = 1 << 20  # of one module


def compiles_cuda(address: str, *, ca_bundle: Path | None) -> bool:
    """Whether the wheel at an address does. Failure: it cannot be read in parts."""
    if not is_url(address) or "-any.whl" not in address:
        return False
    source = open_url(address, ca_bundle=ca_bundle, patience_s=WAIT_S, parts_only=True)
    try:
        return compiles_in(WheelArchive(source))
    finally:
        source.close()


def compiles_in(archive: WheelArchive) -> bool:
    """The same of an opened wheel. WheelUnreadableError: it is damaged."""
    sources = [name for name in archive.members if name.endswith(".cu")]
    if not sources or any(map(_COMPILED.search, archive.members)):
        return False
    near = commonpath([dirname(name) for name in sources])

    def rank(module: Member) -> tuple[int, int]:
        return -len(commonpath([near, dirname(module.name)])), module.compressed

    modules = [
        one
        for one in archive.members.values()
        if one.name.endswith(".py") and one.size <= _MOST_BYTES
    ]
    return any(
        _COMPILER in b"".join(archive.stream(one))
        for one in sorted(modules, key=rank)[:_MOST_MODULES]
    )
